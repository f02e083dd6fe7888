//! Reads predictions from a file of model outputs.

use std::collections::HashMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_rows::tools::{Fields, JsonLines, ToolsError};

use super::error::ToolQaError;
use super::rows::{nothing, only_once};

/// What a model made of one row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolQaPrediction {
    /// The row.
    pub uid: String,
    /// The output as it was generated; null if there is none.
    pub model_output: Option<String>,
    /// Whether there is none because the prompt was longer than the context: the answer is wrong.
    #[serde(default)]
    pub context_exceeded: bool,
    /// Why the output ended, `stop` or `length`, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// Tokens of the output, where they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_tokens: Option<usize>,
    /// What the answer of a server has instead of a text, such as `reasoning`, where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_text: Option<String>,
}

/// Reads `{"uid", "model_output", "context_exceeded"?}` lines, gzip-compressed or not.
///
/// # Errors
///
/// - the file cannot be read, or holds no line
/// - a line is not JSON or no object, lacks a field, or misspells one
/// - two lines have one `uid`
pub fn read_predictions(path: &Path) -> Result<Vec<ToolQaPrediction>, ToolQaError> {
    let mut places = HashMap::new();
    let mut predictions = Vec::new();
    for line in JsonLines::open(path)? {
        let (place, value) = line?;
        let prediction = prediction(&value).map_err(|error| error.at(&place))?;
        only_once(&mut places, "uid", &prediction.uid, place)?;
        predictions.push(prediction);
    }
    if predictions.is_empty() {
        Err(nothing(path, "predictions"))
    } else {
        Ok(predictions)
    }
}

fn prediction(value: &Value) -> Result<ToolQaPrediction, ToolsError> {
    let fields = Fields::new(
        value,
        "",
        "a line has uid and model_output, which may be null",
    )?;
    fields.no_misspelling_of(&[
        "uid",
        "model_output",
        "context_exceeded",
        "finish_reason",
        "n_tokens",
        "without_text",
    ])?;
    if fields.raw("model_output").is_none() {
        return Err(fields.missing("model_output"));
    }
    Ok(ToolQaPrediction {
        uid: fields.text("uid")?.to_owned(),
        model_output: fields.optional_text("model_output")?.map(str::to_owned),
        context_exceeded: fields.flag("context_exceeded")?,
        finish_reason: fields.optional_text("finish_reason")?.map(str::to_owned),
        n_tokens: fields
            .raw("n_tokens")
            .and_then(Value::as_u64)
            .and_then(|n| usize::try_from(n).ok()),
        without_text: fields.optional_text("without_text")?.map(str::to_owned),
    })
}
