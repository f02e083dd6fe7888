//! What an evaluation found to the files that keep it: `metrics.json` and `predictions.jsonl`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::error::Error;

/// The file of the numbers.
pub const METRICS_FILE: &str = "metrics.json";

/// The file with a line for each sample.
pub const PREDICTIONS_FILE: &str = "predictions.jsonl";

/// `metrics.json` of a report, and `predictions.jsonl` with a line for each prediction.
///
/// # Errors
///
/// Never for what suites make; serialisation has no other failure.
pub fn report_files<R: Serialize, P: Serialize>(
    report: &R,
    predictions: impl IntoIterator<Item = P>,
) -> Result<BTreeMap<String, Vec<u8>>, Error> {
    let mut metrics = serde_json::to_vec_pretty(report).map_err(unwritable)?;
    metrics.push(b'\n');
    let lines = json_lines(predictions)?;
    Ok(BTreeMap::from([
        (METRICS_FILE.to_string(), metrics),
        (PREDICTIONS_FILE.to_string(), lines),
    ]))
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
