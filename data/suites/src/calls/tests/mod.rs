//! Tests of the suite with calls of a fictional harbour: tides, berths and notices.

mod bfcl;
mod constrained;
mod items;
mod leaf_errors;
mod reading;
mod scoring;
mod summing;
mod templates;

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

pub(super) fn tools() -> Vec<Value> {
    let tide_tool = json!({"type": "function", "function": {"name": "tide", "parameters": {
        "type": "object",
        "properties": {
            "port": {"type": "string"},
            "days": {"type": "integer", "default": 1},
            "unit": {"type": "string", "enum": ["m", "ft"]},
        },
        "required": ["port"],
        "additionalProperties": false,
    }}});
    let berth = json!({"type": "function", "function": {"name": "berth", "parameters": {
        "type": "object",
        "properties": {
            "ship": {"type": "object", "properties": {
                "name": {"type": "string"}, "draught": {"type": "number"}}},
            "nights": {"type": "integer"},
            "powered": {"type": ["boolean", "null"]},
        },
        "required": ["ship", "nights"],
    }}});
    vec![tide_tool, berth]
}

pub(super) fn call(name: &str, arguments: Value) -> WrittenCall {
    WrittenCall {
        name: name.to_owned(),
        arguments: arguments.as_object().expect("an object").clone(),
    }
}

pub(super) fn tide_call(port: &str) -> WrittenCall {
    call("tide", json!({"port": port}))
}

pub(super) fn item(gold: Vec<WrittenCall>) -> CallsItem {
    CallsItem {
        id: "dev.jsonl:1#1".to_owned(),
        message: 1,
        gold,
        tools: Arc::new(ToolSet::new(&tools())),
    }
}

/// The score of an answer with these calls.
pub(super) fn score_calls(gold: Vec<WrittenCall>, predicted: Vec<WrittenCall>) -> TurnScore {
    score_turn(&item(gold), &CallsAnswer::from_calls(predicted))
}

/// The score of an answer as text.
pub(super) fn score_text(gold: Vec<WrittenCall>, text: &str) -> TurnScore {
    let item = item(gold);
    score_turn(&item, &read_calls(text, &item.tools))
}

pub(super) fn messages(score: &TurnScore) -> Vec<&str> {
    let faults = score.faults.iter();
    faults
        .map(|scored_fault| scored_fault.message.as_str())
        .collect()
}
