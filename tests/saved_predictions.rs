//! Saved predictions: joined with their rows by id, from files in any format.

use serde_json::{Value, json};

use crate::tool_suites::{TOOLQA, metrics, nestful_samples, write_toolqa_files};
use crate::workplace::{Workplace, json_lines};

#[test]
fn sequences_are_joined_by_id_from_files_in_any_format() {
    let workplace = Workplace::new();
    let rows = nestful_samples();
    let golds = rows
        .each_ref()
        .map(|row| json!({"id": row["sample_id"], "prediction": row["output"].to_string()}));
    let eval = "eval config.toml --suite nestful --data nestful.jsonl --predictions golds.jsonl";
    let scored = |output: &str| {
        workplace
            .run(format!("{eval} --output {output}").split(' '))
            .success();
        (
            metrics(&workplace, output)["win_strict"].clone(),
            workplace.read(&format!("{output}/predictions.jsonl")),
        )
    };
    workplace.write("nestful.jsonl", json_lines(&rows));
    workplace.write("golds.jsonl", json_lines(&golds));
    let expected = scored("lines");
    assert_eq!(expected.0["value"], 1.0);
    let swapped = [golds[1].clone(), golds[0].clone()];
    workplace.write("golds.jsonl", json_lines(&swapped));
    assert_eq!(scored("swapped"), expected);
    workplace.write("nestful.jsonl", json!(rows).to_string());
    workplace.write("golds.jsonl", json!(golds).to_string());
    assert_eq!(scored("arrays"), expected);
}

#[test]
fn questions_and_responses_are_read_from_files_in_any_format() {
    let workplace = Workplace::new();
    write_toolqa_files(&workplace);
    let golds = [
        json!({"id": "b", "prediction": "It is 120."}),
        json!({"id": "a", "prediction": "old mill."}),
    ];
    workplace.write("golds.jsonl", json_lines(&golds));
    let scored = |output: &str| {
        workplace
            .run(format!("{TOOLQA} --predictions golds.jsonl --output {output}").split(' '))
            .success();
        workplace.read(&format!("{output}/predictions.jsonl"))
    };
    let expected = scored("lines");
    let first: Value = serde_json::from_str(expected.lines().next().unwrap()).unwrap();
    assert_eq!(
        [&first["suite"], &first["type"], &first["id"]],
        ["toolqa", "answer", "a"]
    );
    let convert = |from: &str, to: &str| {
        workplace
            .run(["data", "convert", from, "--output", to])
            .success();
        workplace.write(from, std::fs::read(workplace.path(to)).unwrap());
    };
    convert("questions.jsonl", "questions.parquet");
    convert("responses.jsonl", "responses.json.zst");
    assert_eq!(scored("forms"), expected);
    // The output of an evaluation is scored unchanged.
    workplace.write("golds.jsonl", &expected);
    assert_eq!(scored("again"), expected);
}
