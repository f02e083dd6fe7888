//! Writes a value as text of bounded length; applies all three steps.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_json as json;
use tooltune_json::Style;

use super::error::FilterError;
use super::shape::{ShapeOptions, shorten};

/// Default maximum number of characters of an output.
pub const MAX_CHARS: usize = 50_000;

/// How an output is shortened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TruncationOptions {
    /// Which part of the output is kept.
    pub shape: ShapeOptions,
    /// Number of characters (code points) after which the text is cut.
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
/// A string, such as the answer of a tool that does not return JSON, is cut without quotes.
///
/// # Errors
///
/// As for [`shorten`].
pub fn truncate_output(value: &Value, options: &TruncationOptions) -> Result<String, FilterError> {
    let short = shorten(value, &options.shape)?;
    Ok(match short {
        Value::String(text) => cut_text(text, options.max_chars),
        short => truncate_text(&short, options.max_chars),
    })
}

/// Writes a value as indented JSON, and cuts the text after `max_chars` code points.
///
/// A note at the end states how much was cut; it is not included in `max_chars`. The quotes of a
/// string count as characters.
pub fn truncate_text(value: &Value, max_chars: usize) -> String {
    cut_text(json::dumps(value, Style::Indented(2)), max_chars)
}

/// Cuts `text` after `max_chars` code points, and appends how many were omitted.
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
