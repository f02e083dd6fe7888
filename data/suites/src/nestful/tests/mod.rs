//! Tests with synthetic rows: arithmetic of a harbour, and two functions that need Python.

mod call_grammars;
mod execution;
mod matching;
mod parsing;
mod prompting;
mod rows;
mod tools;

use tooltune_json::python::{PyValue, loads};

use super::*;

/// Specifications of the functions that the rows use.
pub(super) const TOOLS: &str = r#"[
    {"name": "add", "description": "sum", "parameters": {"arg_0": {"type": "int or float"},
     "arg_1": {"type": "int or float"}}, "output_parameters": {"result": {"type": "float"}}},
    {"name": "subtract", "parameters": {"arg_0": {}, "arg_1": {}}, "output_parameters": {"result": {}}},
    {"name": "multiply", "parameters": {"arg_0": {}, "arg_1": {}}, "output_parameter": {"result": {}}},
    {"name": "divide", "parameters": {"arg_0": {}, "arg_1": {}}, "output_parameters": {"result": {}}},
    {"name": "power", "parameters": {"arg_0": {}, "arg_1": {}}, "output_parameters": {"result": {}}},
    {"name": "max_number", "parameters": {"arg_0": {}}, "output_parameters": {"result": {}}},
    {"name": "sqrt", "parameters": {"arg_0": {}}, "output_parameters": {"a": {}, "b": {}}}]"#;

/// Two berths of 12 metres and a gap of 3 metres, which is 27 metres in total.
pub(super) const BERTHS: &str = r#"[
    {"name": "multiply", "label": "$var_1", "arguments": {"arg_0": 2, "arg_1": 12}},
    {"name": "add", "label": "$var_2", "arguments": {"arg_0": "$var_1.result$", "arg_1": 3}}]"#;

pub(super) fn value(text: &str) -> PyValue {
    loads(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub(super) fn calls(text: &str) -> Vec<PyValue> {
    value(text).as_list().expect("a list").to_vec()
}

pub(super) fn row(output: &str, gold_answer: &str) -> NestfulRow {
    let line = format!(
        r#"{{"sample_id": "s", "input": "How long is the quay?", "output": {output},
            "tools": {TOOLS}, "gold_answer": {gold_answer}}}"#
    );
    NestfulRow::new(&value(&line)).expect("a row")
}

pub(super) fn berths_row() -> NestfulRow {
    row(BERTHS, "27")
}

/// Official and strict win of a completion.
pub(super) fn score_wins(row: &NestfulRow, completion: &str) -> (Option<bool>, bool) {
    let score = score_sample(row, completion, Parser::JsonList, &MathRunner).expect("a score");
    match score.win {
        Win::Scored { official, strict } => (official, strict),
        other => panic!("{other:?}"),
    }
}
