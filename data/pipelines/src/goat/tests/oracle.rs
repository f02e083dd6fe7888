//! A rule-based model that knows the synthetic world and answers every prompt of the pipeline.
//!
//! It judges edges correctly, except for some wrong ones that stage `execute` should reject, and it
//! knows valid arguments. Its answers depend only on the prompt and the seed.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use tooltune_agents::executors::global_functions;
use tooltune_apis::ApiDocument;
use tooltune_synth::goat::{self, GoatSplit, GoatSynthOptions};

/// The global functions, the API that provides their first number, and the description of this
/// number.
const GLOBAL: [&str; 2] = ["global/compare", "global/difference"];
const DEGREES_OF: &str = "TownDesk/Town Weather";
const DEGREES: &str = "the temperature in degrees in the town";

/// One in `WRONG_EDGES_PER_CONFIRMATION` wrong edges is confirmed.
const WRONG_EDGES_PER_CONFIRMATION: u64 = 12;

#[derive(Debug)]
pub(super) struct Oracle {
    documents: BTreeMap<String, ApiDocument>,
    /// Path of the value in the output, by source, target and parameter.
    edges: BTreeMap<(String, String, String), String>,
    /// Arguments of successful calls, by API.
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
        let container = self
            .edges
            .keys()
            .filter(|(source, target, _)| names.contains(source) && names.contains(target));
        container
            .map(|(source, target, parameter)| format!("{source} > {target} > {parameter}"))
            .collect()
    }

    fn sample(&self, name: &str, seed: u64) -> Map<String, Value> {
        let samples = &self.samples[name];
        samples[seed as usize % samples.len()].clone()
    }

    /// The reply to a prompt.
    pub(super) fn reply_for(&self, text: &str, seed: u64) -> Value {
        let starts_with = |with: &str| text.starts_with(with);
        if starts_with("Say in plain words") {
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
        if starts_with("Decide whether what one API returns") {
            let edge = (
                name(text, "first_api"),
                name(text, "second_api"),
                tag_text(text, "parameter"),
            );
            let path = self.edges.get(&edge);
            let is_confirmed =
                number(&format!("{edge:?}")).is_multiple_of(WRONG_EDGES_PER_CONFIRMATION);
            return json!({
                "reason": path.map_or("somewhere", String::as_str),
                "connectable": path.is_some() || is_confirmed,
            });
        }
        if starts_with("Write the arguments of a call of this API") {
            return Value::Object(self.sample(&name(text, "api"), seed));
        }
        if starts_with("Write the arguments of a call that continues") {
            let mut arguments = self.sample(&name(text, "api"), number(text));
            let result = value(text, "result");
            arguments.insert(
                tag_text(text, "parameter"),
                value_at(&result, &tag_text(text, "reason")),
            );
            return Value::Object(arguments);
        }
        if starts_with("Two APIs were called") {
            let earlier_value = &value(text, "arguments")[tag_text(text, "parameter").as_str()];
            let is_used = occurs_in(&value(text, "result"), earlier_value);
            return json!({"reason": "compared", "connectable": is_used});
        }
        if starts_with("Take arguments") {
            let results = value(text, "results");
            let wanted_arguments = value(text, "wanted");
            let filled =
                wanted_arguments
                    .as_array()
                    .expect("a list")
                    .iter()
                    .map(|wanted_arguments| {
                        let number = wanted_arguments["result"].as_u64();
                        let mut results = results.as_array().expect("a list").iter();
                        let result = results.find(|result| result["number"].as_u64() == number);
                        let path = wanted_arguments["reason"].as_str().expect("a reason");
                        let value = value_at(&result.expect("the result")["result"], path);
                        (
                            wanted_arguments["parameter"]
                                .as_str()
                                .expect("a name")
                                .to_owned(),
                            value,
                        )
                    });
            return Value::Object(filled.collect());
        }
        if starts_with("Complete the arguments") {
            let mut arguments = self.sample(&name(text, "api"), seed);
            if let Value::Object(labelled) = value(text, "arguments") {
                arguments.extend(labelled);
            }
            return Value::Object(arguments);
        }
        if starts_with("Write the request that this call") {
            let results = value(text, "earlier_results");
            let arguments = value(text, "arguments");
            let stated: Vec<String> = arguments
                .as_object()
                .expect("arguments")
                .values()
                .filter(|value| !occurs_in(&results, value))
                .map(Value::to_string)
                .collect();
            let api = name(text, "api");
            return json!({"thought": "", "instruction": format!("{api} of {}.", stated.join(", "))});
        }
        if starts_with("Steps of a task") {
            let steps = value(text, "steps");
            let steps: Vec<&str> = steps
                .as_array()
                .expect("a list")
                .iter()
                .filter_map(Value::as_str)
                .collect();
            return json!({"thought": "", "query": steps.join(" Then ")});
        }
        assert!(starts_with("Answer a person's request"), "{text}");
        let steps = value(text, "steps");
        let last = steps
            .as_array()
            .and_then(|steps| steps.last())
            .expect("a step");
        json!({"thought": "", "final_answer": format!("It is {}.", last["result"])})
    }
}

/// A number derived from a text.
pub(super) fn number(text: &str) -> u64 {
    text.bytes()
        .fold(7, |n, byte| (n * 31 + u64::from(byte)) % 1_000_003)
}

/// The content of a tag.
fn tag_text(text: &str, tag: &str) -> String {
    let (open_tag, close) = (format!("<{tag}>\n"), format!("\n</{tag}>"));
    let (_, rest) = text
        .split_once(&open_tag)
        .unwrap_or_else(|| panic!("{tag}: {text}"));
    rest.split_once(&close).expect("a closing tag").0.to_owned()
}

fn value(text: &str, tag: &str) -> Value {
    let part = tag_text(text, tag);
    serde_json::from_str(&part).unwrap_or_else(|error| panic!("{error}: {part}"))
}

fn name(text: &str, tag: &str) -> String {
    value(text, tag)["name"]
        .as_str()
        .expect("a name")
        .to_owned()
}

/// The first value at a path such as `inns[].inn_id`; the first scalar if the path does not exist.
fn value_at(result: &Value, path: &str) -> Value {
    let mut current = result;
    for key in path.split('.') {
        let list = key.strip_suffix("[]");
        current = &current[list.unwrap_or(key)];
        if list.is_some() {
            current = &current[0];
        }
    }
    if current.is_null() {
        first_scalar(result)
    } else {
        current.clone()
    }
}

fn first_scalar(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields.values().next().map_or(Value::Null, first_scalar),
        Value::Array(items) => items.first().map_or(Value::Null, first_scalar),
        scalar => scalar.clone(),
    }
}

fn occurs_in(container: &Value, value: &Value) -> bool {
    match container {
        Value::Object(fields) => fields.values().any(|inner| occurs_in(inner, value)),
        Value::Array(items) => items.iter().any(|inner| occurs_in(inner, value)),
        scalar => scalar == value,
    }
}
