//! What an evaluation found to the files that keep it: `metrics.json` and `predictions.jsonl`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::Error;

/// The file of the numbers.
pub const METRICS_FILE: &str = "metrics.json";

/// The file with a line for each sample.
pub const PREDICTIONS_FILE: &str = "predictions.jsonl";

/// The file with a line for each judgement of a language model.
pub const JUDGE_FILE: &str = "judge.jsonl";

/// The file of the schemas that stay nested.
pub const NESTED_FILE: &str = "nested_schemas.jsonl";

/// The file of the schemas under which texts are written freely.
pub const UNSUPPORTED_FILE: &str = "unsupported_schemas.jsonl";

/// The file with the loss of each row.
pub const LOSSES_FILE: &str = "losses.jsonl";

/// Every file that an evaluation writes.
pub const EVALUATION_FILES: [&str; 6] = [
    METRICS_FILE,
    PREDICTIONS_FILE,
    LOSSES_FILE,
    JUDGE_FILE,
    NESTED_FILE,
    UNSUPPORTED_FILE,
];

/// `metrics.json` of a report, and `predictions.jsonl` with a line for each prediction.
///
/// Where texts were written, the report also has `finish_reasons`: how many of them ended in which
/// way, such as `{"stop": 20, "length": 4}`.
///
/// # Errors
///
/// Never for what suites make; serialisation has no other failure.
pub fn report_files<R: Serialize, P: Serialize>(
    report: &R,
    predictions: impl IntoIterator<Item = P>,
) -> Result<BTreeMap<String, Vec<u8>>, Error> {
    let lines = json_lines(predictions)?;
    let mut reasons = BTreeMap::new();
    for line in lines
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        let line = serde_json::from_slice(line).map_err(unwritable)?;
        count_finish_reasons(&line, &mut reasons);
    }
    // By way of its text, so that numbers of 32 bits stay as short as they are.
    let report = serde_json::to_vec(report).map_err(unwritable)?;
    let mut ends = Map::new();
    if !reasons.is_empty() {
        ends.insert("finish_reasons".to_owned(), json_value(&reasons)?);
    }
    let metrics = with_fields(&report, ends)?;
    Ok(BTreeMap::from([
        (METRICS_FILE.to_string(), metrics),
        (PREDICTIONS_FILE.to_string(), lines),
    ]))
}

/// Counts the ends of all texts of a line, which has one or several; an end that a server does not
/// name counts as `unknown`.
fn count_finish_reasons(line: &Value, reasons: &mut BTreeMap<String, usize>) {
    match line {
        Value::Object(fields) => {
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("finish_reason", Value::String(reason)) => {
                        let reason = if reason.is_empty() { "unknown" } else { reason };
                        *reasons.entry(reason.to_owned()).or_default() += 1;
                    }
                    // Rows may have a field of that name.
                    ("gold" | "score" | "prompt" | "input_text" | "tool_calls", _) => {}
                    (_, value) => count_finish_reasons(value, reasons),
                }
            }
        }
        Value::Array(items) => items
            .iter()
            .for_each(|item| count_finish_reasons(item, reasons)),
        _ => {}
    }
}

/// `metrics.json` with further fields.
///
/// # Errors
///
/// Never for what suites make.
pub fn with_fields(metrics: &[u8], fields: Map<String, Value>) -> Result<Vec<u8>, Error> {
    let mut report: Value = serde_json::from_slice(metrics).map_err(unwritable)?;
    if let Some(known) = report.as_object_mut() {
        known.extend(fields);
    }
    let mut metrics = serde_json::to_vec_pretty(&report).map_err(unwritable)?;
    metrics.push(b'\n');
    Ok(metrics)
}

/// The metrics of a `metrics.json` in which the gold of its rows is not the best, with the value of
/// the gold.
pub fn ceilings_in(metrics: &Value) -> impl Iterator<Item = (&str, f64)> {
    let ceilings = metrics["ceilings"].as_array().into_iter().flatten();
    ceilings.filter_map(|one| Some((one["metric"].as_str()?, one["value"].as_f64()?)))
}

/// A value as JSON.
///
/// # Errors
///
/// Never for the reports of suites.
pub fn json_value<T: Serialize>(value: &T) -> Result<Value, Error> {
    serde_json::to_value(value).map_err(unwritable)
}

/// A JSON text a line.
///
/// # Errors
///
/// Never for what suites make.
pub fn json_lines<T: Serialize>(items: impl IntoIterator<Item = T>) -> Result<Vec<u8>, Error> {
    let mut lines = Vec::new();
    for item in items {
        serde_json::to_writer(&mut lines, &item).map_err(unwritable)?;
        lines.push(b'\n');
    }
    Ok(lines)
}

fn unwritable(error: serde_json::Error) -> Error {
    Error::Usage(format!("what an evaluation found is no JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_says_how_the_texts_of_its_lines_ended() {
        let lines = [
            json!({"id": "a:1", "finish_reason": "stop", "gold": {"finish_reason": "x"}}),
            json!({"id": "a:2", "texts": [{"finish_reason": "length"}, {"finish_reason": "stop"}]}),
            json!({"id": "a:3", "finish_reason": ""}),
        ];
        let files = report_files(&json!({"n": 3, "share": 0.1_f64}), lines).expect("files");
        let metrics: Value = serde_json::from_slice(&files[METRICS_FILE]).expect("JSON");
        let expected = json!({"n": 3, "share": 0.1,
            "finish_reasons": {"length": 1, "stop": 2, "unknown": 1}});
        assert_eq!(metrics, expected);
        let files = report_files(&json!({"n": 0}), Vec::<Value>::new()).expect("files");
        assert_eq!(files[METRICS_FILE], b"{\n  \"n\": 0\n}\n");
    }
}
