//! The files of an evaluation, such as `metrics.json` and `predictions.jsonl`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use tooltune_suites::{SUITE_FIELD, SuiteInfo};

use crate::error::Error;

/// File of the metrics.
pub const METRICS_FILE: &str = "metrics.json";

/// File with one line per sample.
pub const PREDICTIONS_FILE: &str = "predictions.jsonl";

/// File with one line per verdict of a language-model judge.
pub const JUDGE_FILE: &str = "judge.jsonl";

/// File of schemas that were not flattened.
pub const NESTED_FILE: &str = "nested_schemas.jsonl";

/// File of schemas that could not be enforced.
pub const UNSUPPORTED_FILE: &str = "unsupported_schemas.jsonl";

/// File with the loss of each row.
pub const LOSSES_FILE: &str = "losses.jsonl";

/// All files that an evaluation writes.
pub const EVALUATION_FILES: [&str; 6] = [
    METRICS_FILE,
    PREDICTIONS_FILE,
    LOSSES_FILE,
    JUDGE_FILE,
    NESTED_FILE,
    UNSUPPORTED_FILE,
];

/// The suite and the type of the lines in a `predictions.jsonl`.
#[derive(Debug, Clone, Copy)]
pub struct PredictionLines {
    /// The suite.
    pub suite: &'static SuiteInfo,
    /// The type, which the suite's [`SampleScores`](tooltune_suites::SampleScores) must know.
    pub kind: &'static str,
}

/// A line that starts with its suite and type.
#[derive(Serialize)]
struct Record<P> {
    suite: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    line: P,
}

/// Builds `metrics.json` from a report, and `predictions.jsonl` with one line per prediction. Both
/// contain the suite.
///
/// If completions were generated, the report also has `finish_reasons`: counts such as `{"stop":
/// 20, "length": 4}`.
///
/// # Errors
///
/// The report cannot be serialized, which never happens for reports of suites.
pub fn report_files<R: Serialize, P: Serialize>(
    lines: PredictionLines,
    report: &R,
    predictions: impl IntoIterator<Item = P>,
) -> Result<BTreeMap<String, Vec<u8>>, Error> {
    let PredictionLines { suite, kind } = lines;
    let records = predictions.into_iter().map(|line| Record {
        suite: suite.name,
        kind,
        line,
    });
    let lines = json_lines(records)?;
    let mut reasons = BTreeMap::<String, usize>::new();
    let fields = suite.form(kind).map(|form| form.fields);
    for line in lines
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        let line: Value = serde_json::from_slice(line).map_err(serialization_error)?;
        for reason in fields.map_or_else(Vec::new, |fields| fields.finish_reasons(&line)) {
            let reason = if reason.is_empty() { "unknown" } else { reason };
            *reasons.entry(reason.to_owned()).or_default() += 1;
        }
    }
    // Serialize and parse again, so that 32-bit floats are written with few digits.
    let report = serde_json::to_vec(report).map_err(serialization_error)?;
    let mut ends = Map::from_iter([(SUITE_FIELD.to_owned(), Value::from(suite.name))]);
    if !reasons.is_empty() {
        ends.insert("finish_reasons".to_owned(), json_value(&reasons)?);
    }
    let metrics = with_fields(&report, ends)?;
    Ok(BTreeMap::from([
        (METRICS_FILE.to_string(), metrics),
        (PREDICTIONS_FILE.to_string(), lines),
    ]))
}

/// Adds fields to `metrics.json`.
///
/// # Errors
///
/// The metrics cannot be parsed or serialized, which never happens for reports of suites.
pub fn with_fields(metrics: &[u8], fields: Map<String, Value>) -> Result<Vec<u8>, Error> {
    let mut report: Value = serde_json::from_slice(metrics).map_err(serialization_error)?;
    if let Some(known) = report.as_object_mut() {
        known.extend(fields);
    }
    let mut metrics = serde_json::to_vec_pretty(&report).map_err(serialization_error)?;
    metrics.push(b'\n');
    Ok(metrics)
}

/// The metrics in which the reference answers do not get the best score, with their scores.
pub fn ceilings_in(metrics: &Value) -> impl Iterator<Item = (&str, f64)> {
    let ceilings = metrics["ceilings"].as_array().into_iter().flatten();
    ceilings.filter_map(|one| Some((one["metric"].as_str()?, one["value"].as_f64()?)))
}

/// Converts a value to JSON.
///
/// # Errors
///
/// The value cannot be serialized, which never happens for reports of suites.
pub fn json_value<T: Serialize>(value: &T) -> Result<Value, Error> {
    serde_json::to_value(value).map_err(serialization_error)
}

/// Serializes values as one JSON line each.
///
/// # Errors
///
/// A value cannot be serialized, which never happens for reports of suites.
pub fn json_lines<T: Serialize>(items: impl IntoIterator<Item = T>) -> Result<Vec<u8>, Error> {
    let mut lines = Vec::new();
    for item in items {
        serde_json::to_writer(&mut lines, &item).map_err(serialization_error)?;
        lines.push(b'\n');
    }
    Ok(lines)
}

fn serialization_error(error: serde_json::Error) -> Error {
    Error::Usage(format!(
        "an evaluation result cannot be written as JSON: {error}"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_counts_finish_reasons() {
        let lines = [
            json!({"id": "a:1", "finish_reason": "stop", "gold": {"finish_reason": "x"}}),
            json!({"id": "a:2", "finish_reason": "length", "score": {"finish_reason": "x"}}),
            json!({"id": "a:3", "finish_reason": ""}),
        ];
        let prediction_lines = PredictionLines {
            suite: SuiteInfo::from_name("slot").expect("a suite"),
            kind: "completion",
        };
        let files = report_files(prediction_lines, &json!({"n": 3, "share": 0.1_f64}), lines)
            .expect("files");
        let predictions = String::from_utf8_lossy(&files[PREDICTIONS_FILE]);
        let first = r#"{"suite":"slot","type":"completion","id":"a:1","#;
        assert!(predictions.starts_with(first), "{predictions}");
        let metrics: Value = serde_json::from_slice(&files[METRICS_FILE]).expect("JSON");
        let expected = json!({"suite": "slot", "n": 3, "share": 0.1,
            "finish_reasons": {"length": 1, "stop": 1, "unknown": 1}});
        assert_eq!(metrics, expected);
        let files =
            report_files(prediction_lines, &json!({"n": 0}), Vec::<Value>::new()).expect("files");
        let metrics: Value = serde_json::from_slice(&files[METRICS_FILE]).expect("JSON");
        assert_eq!(metrics, json!({"suite": "slot", "n": 0}));
    }
}
