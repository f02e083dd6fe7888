//! A value as text of bounded length, and the three steps in a row.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_json as json;
use tooltune_json::Style;

use super::error::FilterError;
use super::shape::{ShapeOptions, shorten};

/// Characters of an output that stay unless told otherwise.
pub const MAX_CHARS: usize = 50_000;

/// How an output is shortened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TruncationOptions {
    /// What of it is kept.
    pub shape: ShapeOptions,
    /// Characters (code points) of the text before it is cut.
    pub max_chars: usize,
}

impl Default for TruncationOptions {
    fn default() -> Self {
        Self {
            shape: ShapeOptions::default(),
            max_chars: MAX_CHARS,
        }
    }
}

/// Filters, prunes, writes as text and cuts, in this order.
///
/// What is a text by then, such as the answer of a tool that speaks no JSON, is cut as it stands,
/// without quotes.
///
/// # Errors
///
/// - those of [`shorten`]
pub fn truncate_output(value: &Value, options: &TruncationOptions) -> Result<String, FilterError> {
    let short = shorten(value, &options.shape)?;
    Ok(match short {
        Value::String(text) => cut_text(text, options.max_chars),
        short => truncate_text(&short, options.max_chars),
    })
}

/// Writes a value as JSON with two blanks a level, and cuts that text after `max_chars` code points.
///
/// What was cut is said at the end, in addition to those characters. The quotes of a string are
/// characters like the others.
pub fn truncate_text(value: &Value, max_chars: usize) -> String {
    cut_text(json::dumps(value, Style::Indented(2)), max_chars)
}

/// Cuts a text after `max_chars` code points and says how many are gone.
pub fn cut_text(text: String, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        None => text,
        Some((end, _)) => {
            let (prefix, omitted) = text.split_at(end);
            let n_omitted = omitted.chars().count();
            format!("{prefix}\n\n... [truncated, {n_omitted} characters omitted]")
        }
    }
}
