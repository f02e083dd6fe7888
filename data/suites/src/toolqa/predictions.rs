//! Parses a prediction in our format or the published one.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_apis::{Fields, ToolsError};
use tooltune_json::ReadError;

use super::setting::Setting;

/// A model's output for a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolQaPrediction {
    /// Id of the row.
    pub uid: String,
    /// The output as generated; null if there is none.
    pub model_output: Option<String>,
    /// Whether there is no output because the prompt exceeded the context: the answer is wrong.
    #[serde(default)]
    pub context_exceeded: bool,
    /// The finish reason, `stop` or `length`, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// Number of output tokens, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_tokens: Option<usize>,
    /// The setting of its prompt, if it was chosen by the type of the question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setting: Option<Setting>,
    /// The classifier's output, from which the setting was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classifier_output: Option<String>,
    /// The content that a server returned instead of text, such as `reasoning`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_text: Option<String>,
}

impl ToolQaPrediction {
    /// Parses `{"id", "prediction"}`, or the published `{"uid", "model_output"}`, both with an
    /// optional `context_exceeded`. The output may be null.
    ///
    /// # Errors
    ///
    /// The line is not an object, or a field is missing or misspelled.
    pub fn from_line(line: &Value) -> Result<Self, ToolsError> {
        let fields = Fields::new(
            line,
            "",
            "a line needs id and prediction, which may be null",
        )?;
        fields.refuse_misspelled(&[
            "id",
            "uid",
            "prediction",
            "model_output",
            "context_exceeded",
            "finish_reason",
            "n_tokens",
            "without_text",
            "setting",
            "classifier_output",
        ])?;
        let setting = fields.optional_text("setting")?.map(|name| {
            let unknown =
                || ReadError::wrong_type("setting", &name.into(), "a setting of the prompt");
            Setting::from_name(name).ok_or_else(unknown)
        });
        let name = |our_name: &'static str, published: &'static str| {
            let is_published = fields.raw(our_name).is_none() && fields.raw(published).is_some();
            if is_published { published } else { our_name }
        };
        let output = name("prediction", "model_output");
        if fields.raw(output).is_none() {
            return Err(fields.missing(output));
        }
        Ok(Self {
            uid: fields.text(name("id", "uid"))?.to_owned(),
            model_output: fields.optional_text(output)?.map(str::to_owned),
            context_exceeded: fields.flag("context_exceeded")?,
            finish_reason: fields.optional_text("finish_reason")?.map(str::to_owned),
            n_tokens: fields
                .raw("n_tokens")
                .and_then(Value::as_u64)
                .and_then(|n| usize::try_from(n).ok()),
            setting: setting.transpose()?,
            classifier_output: fields
                .optional_text("classifier_output")?
                .map(str::to_owned),
            without_text: fields.optional_text("without_text")?.map(str::to_owned),
        })
    }
}
