//! A value as text of bounded length, and the three steps in a row.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::FilterError;
use super::filter::filter;
use super::prune::{PruneOptions, prune};
use crate::json::{self, Style};

/// How an output is shortened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TruncationOptions {
    /// JMESPath expression that says what is kept; all, if there is none.
    pub filter: Option<String>,
    /// How lists and depth are bounded.
    pub prune: PruneOptions,
    /// Characters (code points) of the text before it is cut.
    pub max_chars: usize,
}

impl Default for TruncationOptions {
    fn default() -> Self {
        Self {
            filter: None,
            prune: PruneOptions::default(),
            max_chars: 50_000,
        }
    }
}

/// Filters, prunes, writes as text and cuts, in this order.
///
/// # Errors
///
/// - those of [`filter`]
pub fn truncate_output(value: &Value, options: &TruncationOptions) -> Result<String, FilterError> {
    let filtered = match &options.filter {
        Some(expression) => filter(expression, value)?,
        None => value.clone(),
    };
    let pruned = prune(&filtered, &options.prune);
    Ok(truncate_text(&pruned, options.max_chars))
}

/// Writes a value with two blanks a level, and cuts the text after `max_chars` code points.
///
/// What was cut is said at the end, in addition to those characters. A value that is a text
/// itself, such as the answer of a tool that speaks no JSON, is written without quotes.
pub fn truncate_text(value: &Value, max_chars: usize) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        value => json::dumps(value, Style::Indented(2)),
    };
    match text.char_indices().nth(max_chars) {
        None => text,
        Some((end, _)) => {
            let (kept, omitted) = text.split_at(end);
            let n_omitted = omitted.chars().count();
            format!("{kept}\n\n... [truncated, {n_omitted} characters omitted]")
        }
    }
}
