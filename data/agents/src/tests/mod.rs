//! Tests of prompts, examples and loops over a catalogue of seven APIs.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tooltune_apis::{ApiCatalogue, ApiDocument, Derived, Trajectory, TrajectoryCall};
use tooltune_rows::text::DataError;
use tooltune_template::{Conversation, Message};

use super::*;
use crate::executors::CallResult;

mod examples;
mod loops;
mod replay;
mod schemas;
mod weighted_rows;

const METHODS: [Method; 4] = [
    Method::Global,
    Method::React,
    Method::GlobalId,
    Method::ReactId,
];

fn document(tool: &str, api: &str, parameter: &str) -> ApiDocument {
    ApiDocument::try_from(json!({
        "category_name": "Test", "tool_name": tool, "api_name": api,
        "api_description": format!("{api} of {tool}."),
        "required_parameters": [
            {"name": parameter, "type": "STRING", "description": "What.", "default": ""},
        ],
        "optional_parameters": [], "method": "GET",
    }))
    .unwrap()
}

/// Converts one or several currencies, which are optional, to another.
fn convert() -> ApiDocument {
    let mut convert = document("Stocks", "Convert", "amount");
    for (name, kind) in [("from", "ARRAY"), ("to", "STRING")] {
        let mut parameter = convert.required_parameters[0].clone();
        parameter.name = name.to_owned();
        parameter.kind = kind.to_owned();
        convert.optional_parameters.push(parameter);
    }
    convert
}

fn catalogue() -> ApiCatalogue {
    ApiCatalogue::new(vec![
        document("Stocks", "Quote", "symbol"),
        convert(),
        document("Films", "Search", "query"),
        document("Films", "Cast", "movie_id"),
        document("Maps", "Find City", "name"),
        document("Maps", "Route", "from"),
        document("Sky", "Forecast", "city"),
    ])
    .unwrap()
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// Two calls; the second derives its amount and one of its currencies from the first.
fn trajectory() -> Trajectory {
    let origin = |path: &str| Derived {
        call: 0,
        path: path.to_owned(),
        pick: "first".to_owned(),
    };
    Trajectory {
        id: "t1".to_owned(),
        query: "What is a share of BOLX in DSD?".to_owned(),
        calls: vec![
            TrajectoryCall {
                sub_query: "Get the quote\nof BOLX.".to_owned(),
                name: "Stocks/Quote".to_owned(),
                arguments: object(json!({"symbol": "BOLX"})),
                output: json!({"price": 385.62, "currency": "BVK"}),
                derived: BTreeMap::new(),
            },
            TrajectoryCall {
                sub_query: "Convert the price to DSD.".to_owned(),
                name: "Stocks/Convert".to_owned(),
                arguments: object(json!({"amount": 385.62, "from": ["BVK", "é"], "to": "DSD"})),
                output: json!({"converted": 12.91}),
                derived: BTreeMap::from([
                    ("amount".to_owned(), origin("price")),
                    ("from".to_owned(), origin("currency")),
                ]),
            },
        ],
        response: "It is 12.91 DSD.".to_owned(),
        subgraph: Vec::new(),
        facts: Vec::new(),
    }
}

fn options(method: Method) -> GoatOptions {
    GoatOptions::new(method, "documents.jsonl")
}

fn expand(trajectory: &Trajectory, options: &GoatOptions) -> Vec<GoatExample> {
    let catalogue = catalogue();
    let expansion = Expansion {
        catalogue: &catalogue,
        options,
        seed: 17,
    };
    expansion.expand(trajectory, &mut Ranking::Random).unwrap()
}

fn text(message: &Message) -> &str {
    message.content.as_deref().unwrap()
}

fn prompt(conversation: &Conversation) -> &str {
    text(&conversation.messages[0])
}

fn completion(example: &GoatExample) -> &str {
    text(example.conversation.messages.last().unwrap())
}

/// Names of the documents in a prompt.
fn shown_apis(prompt: &str) -> Vec<String> {
    prompt
        .lines()
        .filter(|line| line.starts_with("{\"name\":"))
        .map(|line| {
            tooltune_json::parse(line).unwrap()["name"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect()
}

/// The prompt, with its documents replaced by their number.
fn without_documents(prompt: &str) -> String {
    let n_documents = shown_apis(prompt).len();
    let other_lines: Vec<&str> = prompt
        .lines()
        .filter(|line| !line.starts_with("{\"name\":"))
        .collect();
    other_lines
        .join("\n")
        .replace("APIs:", &format!("APIs: {n_documents}"))
}
