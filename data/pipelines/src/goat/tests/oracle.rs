//! A rule that knows the invented world: it answers every prompt of the pipeline by rule.
//!
//! It is right about edges but for some that it only hopes for, which their execution is to find, and
//! it knows arguments that exist. What it says is a function of the prompt and its seed.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use tooltune_agents::executors::global_functions;
use tooltune_rows::tools::ApiDocument;
use tooltune_synth::goat::{self, GoatSplit, GoatSynthOptions};

/// The global functions, what gives their first number, and how it is described.
const GLOBAL: [&str; 2] = ["global/compare", "global/difference"];
const DEGREES_OF: &str = "TownDesk/Town Weather";
const DEGREES: &str = "the temperature in degrees in the town";

/// One wrong edge of so many is hoped for.
const HOPES: u64 = 12;

#[derive(Debug)]
pub(super) struct Oracle {
    documents: BTreeMap<String, ApiDocument>,
    /// Where the value stands in the output, by source, target and parameter.
    edges: BTreeMap<(String, String, String), String>,
    /// Arguments of calls that work, by the API's name.
    samples: BTreeMap<String, Vec<Map<String, Value>>>,
}

impl Oracle {
    pub(super) fn new() -> Self {
        let documents = goat::documents().into_iter().chain(global_functions());
        let documents = documents.map(|document| (document.call_name(), document));
        let edges = goat::semantic_edges();
        let edges = edges
            .into_iter()
            .map(|edge| ((edge.source, edge.target, edge.parameter), edge.path));
        let mut samples: BTreeMap<String, Vec<Map<String, Value>>> = BTreeMap::new();
        for split in [GoatSplit::Train, GoatSplit::TestUnseen] {
            let rows = goat::generate(&GoatSynthOptions {
                rows: 600,
                ..GoatSynthOptions::new(split, 1)
            });
            for call in rows.expect("rows").into_iter().flat_map(|row| row.calls) {
                samples.entry(call.name).or_default().push(call.arguments);
            }
        }
        let mut edges: BTreeMap<_, _> = edges.collect();
        for name in GLOBAL {
            let number = json!({"first": 3, "second": 8});
            let number = number.as_object().expect("an object").clone();
            samples.insert(name.to_owned(), vec![number]);
            let edge = (DEGREES_OF.to_owned(), name.to_owned(), "first".to_owned());
            edges.insert(edge, "degrees".to_owned());
        }
        Self {
            documents: documents.collect(),
            edges,
            samples,
        }
    }

    /// The true edges between some APIs.
    pub(super) fn true_edges(&self, names: &BTreeSet<String>) -> BTreeSet<String> {
        let within = self
            .edges
            .keys()
            .filter(|(source, target, _)| names.contains(source) && names.contains(target));
        within
            .map(|(source, target, parameter)| format!("{source} > {target} > {parameter}"))
            .collect()
    }

    fn sample(&self, name: &str, seed: u64) -> Map<String, Value> {
        let samples = &self.samples[name];
        samples[seed as usize % samples.len()].clone()
    }

    /// What it says to a prompt.
    pub(super) fn says(&self, text: &str, seed: u64) -> Value {
        let begins = |with: &str| text.starts_with(with);
        if begins("Say in plain words") {
            let document = &self.documents[&name(text, "api")];
            if GLOBAL.contains(&document.call_name().as_str()) {
                let words = json!({"first": DEGREES, "second": "a number"});
                return json!({"input_params": words, "output": document.output_description});
            }
            let texts: Map<String, Value> = document
                .parameters()
                .map(|parameter| (parameter.name.clone(), json!(parameter.description)))
                .collect();
            return json!({"input_params": texts, "output": document.output_description});
        }
        if begins("Decide whether what one API returns") {
            let edge = (
                name(text, "first_api"),
                name(text, "second_api"),
                part(text, "parameter"),
            );
            let path = self.edges.get(&edge);
            let hope = number(&format!("{edge:?}")).is_multiple_of(HOPES);
            return json!({
                "reason": path.map_or("somewhere", String::as_str),
                "connectable": path.is_some() || hope,
            });
        }
        if begins("Write the arguments of a call of this API") {
            return Value::Object(self.sample(&name(text, "api"), seed));
        }
        if begins("Write the arguments of a call that continues") {
            let mut arguments = self.sample(&name(text, "api"), number(text));
            let result = value(text, "result");
            arguments.insert(part(text, "parameter"), at(&result, &part(text, "reason")));
            return Value::Object(arguments);
        }
        if begins("Two APIs were called") {
            let taken = &value(text, "arguments")[part(text, "parameter").as_str()];
            let is_used = stands(&value(text, "result"), taken);
            return json!({"reason": "compared", "connectable": is_used});
        }
        if begins("Take arguments") {
            let results = value(text, "results");
            let wanted = value(text, "wanted");
            let filled = wanted.as_array().expect("a list").iter().map(|wanted| {
                let number = wanted["result"].as_u64();
                let mut results = results.as_array().expect("a list").iter();
                let result = results.find(|result| result["number"].as_u64() == number);
                let path = wanted["reason"].as_str().expect("a reason");
                let value = at(&result.expect("the result")["result"], path);
                (
                    wanted["parameter"].as_str().expect("a name").to_owned(),
                    value,
                )
            });
            return Value::Object(filled.collect());
        }
        if begins("Complete the arguments") {
            let mut arguments = self.sample(&name(text, "api"), seed);
            if let Value::Object(settled) = value(text, "arguments") {
                arguments.extend(settled);
            }
            return Value::Object(arguments);
        }
        if begins("Write the request that this call") {
            let results = value(text, "earlier_results");
            let arguments = value(text, "arguments");
            let stated: Vec<String> = arguments
                .as_object()
                .expect("arguments")
                .values()
                .filter(|value| !stands(&results, value))
                .map(Value::to_string)
                .collect();
            let api = name(text, "api");
            return json!({"thought": "", "instruction": format!("{api} of {}.", stated.join(", "))});
        }
        if begins("Steps of a task") {
            let steps = value(text, "steps");
            let steps: Vec<&str> = steps
                .as_array()
                .expect("a list")
                .iter()
                .filter_map(Value::as_str)
                .collect();
            return json!({"thought": "", "query": steps.join(" Then ")});
        }
        assert!(begins("Answer a person's request"), "{text}");
        let steps = value(text, "steps");
        let last = steps
            .as_array()
            .and_then(|steps| steps.last())
            .expect("a step");
        json!({"thought": "", "final_answer": format!("It is {}.", last["result"])})
    }
}

/// A number that follows from a text.
pub(super) fn number(text: &str) -> u64 {
    text.bytes()
        .fold(7, |n, byte| (n * 31 + u64::from(byte)) % 1_000_003)
}

/// What stands between two tags.
fn part(text: &str, tag: &str) -> String {
    let (open, close) = (format!("<{tag}>\n"), format!("\n</{tag}>"));
    let (_, rest) = text
        .split_once(&open)
        .unwrap_or_else(|| panic!("{tag}: {text}"));
    rest.split_once(&close).expect("a closing tag").0.to_owned()
}

fn value(text: &str, tag: &str) -> Value {
    let part = part(text, tag);
    serde_json::from_str(&part).unwrap_or_else(|error| panic!("{error}: {part}"))
}

fn name(text: &str, tag: &str) -> String {
    value(text, tag)["name"]
        .as_str()
        .expect("a name")
        .to_owned()
}

/// The first value at a path such as `inns[].inn_id`; the first scalar where it leads nowhere.
fn at(result: &Value, path: &str) -> Value {
    let mut found = result;
    for key in path.split('.') {
        let list = key.strip_suffix("[]");
        found = &found[list.unwrap_or(key)];
        if list.is_some() {
            found = &found[0];
        }
    }
    if found.is_null() {
        first_scalar(result)
    } else {
        found.clone()
    }
}

fn first_scalar(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields.values().next().map_or(Value::Null, first_scalar),
        Value::Array(items) => items.first().map_or(Value::Null, first_scalar),
        scalar => scalar.clone(),
    }
}

fn stands(within: &Value, value: &Value) -> bool {
    match within {
        Value::Object(fields) => fields.values().any(|inner| stands(inner, value)),
        Value::Array(items) => items.iter().any(|inner| stands(inner, value)),
        scalar => scalar == value,
    }
}
