//! Reduces an output to the part shown in a prompt, as valid JSON.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::FilterError;
use super::filter::{filter, shorten_expression};
use super::prune::{PruneOptions, prune};

/// Which part of an output is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShapeOptions {
    /// JMESPath expression that selects the kept part; by default everything is kept.
    pub filter: Option<String>,
    /// Limits of lists and depth.
    pub prune: PruneOptions,
}

/// Filters the value, then prunes it.
///
/// If the expression selects nothing, the result is an object `{"_meta": "..."}` with a note,
/// because a `null` would look like the tool's own output.
///
/// # Errors
///
/// As for [`filter`].
pub fn shorten(value: &Value, options: &ShapeOptions) -> Result<Value, FilterError> {
    let Some(expression) = &options.filter else {
        return Ok(prune(value, &options.prune));
    };
    let filtered = filter(expression, value)?;
    if filtered.is_null() && !value.is_null() {
        let expression = shorten_expression(expression);
        let meta = format!("the filter {expression} finds nothing in this output.");
        return Ok(json!({ "_meta": meta }));
    }
    Ok(prune(&filtered, &options.prune))
}

/// Like [`shorten`], for loops that must continue: if the expression fails on a value, such as
/// `length(a)` without an `a`, the result is an object `{"_meta": "..."}` with the reason.
pub fn shorten_or_explain(value: &Value, options: &ShapeOptions) -> Value {
    shorten(value, options)
        .unwrap_or_else(|error| json!({"_meta": format!("this output is not shown: {error}")}))
}
