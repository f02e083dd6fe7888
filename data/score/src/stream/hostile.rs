//! Inputs with a hundred thousand parts: each operation returns a value or a limit error.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::*;

/// Much longer than any operation needs on a slow machine, and much shorter than a quadratic one
/// would take.
const PATIENCE: Duration = Duration::from_secs(60);

fn outcome(op: &str, input: Value) -> Result<Value, LineError> {
    let outside = Outside::default();
    let line = json!({"op": op, "input": input, "options": {"encoder": "hash"}}).to_string();
    let start = Instant::now();
    let outcome = score_line(&line, 1, &outside).outcome;
    assert!(
        start.elapsed() < PATIENCE,
        "{op} took {:?}",
        start.elapsed()
    );
    outcome
}

fn value(op: &str, input: Value) -> Value {
    outcome(op, input).unwrap_or_else(|error| panic!("{op}: {error}"))
}

fn refusal(op: &str, input: Value) -> &'static str {
    match outcome(op, input) {
        Ok(value) => panic!("{op}: {value}"),
        Err(error) => error.kind(),
    }
}

#[test]
fn graphs_of_a_hundred_thousand_nodes_are_processed() {
    let nodes: Vec<String> = (0..100_000).map(|i| i.to_string()).collect();
    let edges: Vec<[String; 2]> = (0..99_999)
        .map(|i: usize| [i.to_string(), (i + 1).to_string()])
        .collect();
    let graph = json!({"nodes": nodes, "edges": edges});
    assert_eq!(value("goat.topo", graph.clone()), json!(nodes));
    let mut sizes = graph;
    sizes["lo"] = json!(1);
    sizes["L"] = json!(2);
    let n_subgraphs = value("goat.subgraphs", sizes);
    assert_eq!(n_subgraphs.as_array().map(Vec::len), Some(199_999));
    let path = json!({"nodes": nodes[..2_000], "edges": edges[..1_999], "lo": 2, "L": 2_000});
    assert_eq!(refusal("goat.subgraphs", path), "too_large");
}

#[test]
fn ten_thousand_calls_are_compared_or_refused() {
    let calls = |sign: i64| -> Vec<Value> {
        let call =
            |i: i64| json!({"name": "f", "args": {"a": i}, "output": sign * i, "exception": null});
        (1..20_000).map(call).collect()
    };
    let instances = json!({"instances": [{"pred": calls(1), "gold": calls(-1)}]});
    assert_eq!(
        refusal("goat.apibank_correctness", instances.clone()),
        "too_large"
    );
    assert_eq!(
        refusal("goat.apibank_sample_accuracy", instances),
        "too_large"
    );
    let turn = |n: usize| {
        let gold = vec![json!({"name": "f", "arguments": {}}); n];
        let rows = json!({"tools": [{"name": "f"}], "gold": gold, "raw": ""});
        json!({"rows": [rows]})
    };
    assert_eq!(value("calls.dataset", turn(256))["n_calls"], json!(256));
    assert_eq!(refusal("calls.dataset", turn(257)), "too_large");
    let call = |i: usize| {
        let reference = format!("$var_{}.output_0$", i.saturating_sub(1));
        json!({"name": "add", "label": format!("$var_{i}"), "arguments": {"arg_0": reference, "arg_1": i}})
    };
    let chain: Vec<Value> = (0..20_000).map(call).collect();
    let sample = json!({"gold": chain, "gold_answer": 3, "tools": [], "parser": "json_list",
                        "prediction": json!(chain).to_string()});
    assert_eq!(value("nestful.sample", sample)["n_pred"], 20_000);
    let fields = (0..100_000).map(|i| (format!("k{i}"), json!(i)));
    let call = json!({"name": "f", "arguments": Value::Object(fields.collect())});
    let masked = value("goat.mask", json!({"call": call}));
    assert_eq!(masked["char_spans"].as_array().map(Vec::len), Some(100_000));
    let tokens: Vec<[usize; 2]> = (0..100_000).map(|start| [start, start + 1]).collect();
    value(
        "data.call_spans",
        json!({"calls": chain, "tokens": tokens, "kinds": ["value"]}),
    );
}

#[test]
fn a_long_key_of_many_values_is_not_copied_for_each() {
    let key = "k".repeat(400_000);
    let call = json!({"name": "f", "arguments": {&key: vec![0; 200_000]}});
    let masked = value("goat.mask", json!({"call": call}));
    assert_eq!(masked["char_spans"].as_array().map(Vec::len), Some(200_000));
    let input = json!({"calls": [call], "tokens": [], "kinds": ["value"]});
    let Err(error) = outcome("data.call_spans", input) else {
        panic!("80 GB of keys")
    };
    assert_eq!(error.kind(), "too_large");
    assert!(error.to_string().contains("CALL_PLACE_BYTES"), "{error}");
}

#[test]
fn texts_of_sixty_thousand_words_are_compared() {
    let words: Vec<String> = (0..60_000).map(|i| format!("w{i}")).collect();
    let facts = json!({"answer": words.join(" "), "facts": words[..20_000]});
    assert_eq!(value("goat.facts", facts), true);
    let (left, right) = ("a b ".repeat(30_000), "b a ".repeat(30_000));
    for op in ["goat.rouge_l_plain", "goat.rouge_l_apibank"] {
        let score = value(op, json!({"hyp": left, "ref": right}));
        assert!(score.as_f64() > Some(0.999), "{op}: {score}");
    }
}

#[test]
fn values_of_a_hundred_thousand_leaves_are_compared() {
    let gold: Vec<usize> = (0..100_000).collect();
    let no_gold = value("slot.content", json!({"raw": "1", "gold": gold}));
    assert_eq!(no_gold.to_string(), "[0.0,0.0,0.0]");
    let key = "k".repeat(100_000);
    let raw = json!({&key: gold}).to_string();
    let score = value("slot.content", json!({"raw": raw, "gold": {&key: gold}}));
    assert_eq!(score, json!([1.0, 1.0, 1.0]));
}

#[test]
fn a_duplicate_key_is_malformed_in_a_line_and_the_last_wins_in_a_completion() {
    let line = r#"{"id": 1, "id": 2, "op": "slot.parse", "input": {"raw": "1"}}"#;
    let line_score = score_line(line, 1, &Outside::default());
    let error = line_score.outcome.expect_err("twice");
    assert_eq!(error.kind(), "malformed_line");
    assert!(
        error.to_string().contains(r#""id" occurs twice"#),
        "{error}"
    );
    let score = value(
        "slot.content",
        json!({"raw": r#"{"a": 1, "a": 2}"#, "gold": {"a": 2}}),
    );
    assert_eq!(score, json!([1.0, 1.0, 1.0]));
}
