//! Cuts an output to the part of it that a prompt shows, still as JSON.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::FilterError;
use super::filter::{filter, shown};
use super::prune::{PruneOptions, prune};

/// What of an output is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShapeOptions {
    /// JMESPath expression that says what is kept; all, if there is none.
    pub filter: Option<String>,
    /// How lists and depth are bounded.
    pub prune: PruneOptions,
}

/// Filters and prunes, in this order.
///
/// Where the expression finds nothing, the result is an object `{"_meta": "..."}` that says so: an
/// output of `null` would look like the tool's own.
///
/// # Errors
///
/// - those of [`filter`]
pub fn shorten(value: &Value, options: &ShapeOptions) -> Result<Value, FilterError> {
    let Some(expression) = &options.filter else {
        return Ok(prune(value, &options.prune));
    };
    let filtered = filter(expression, value)?;
    if filtered.is_null() && !value.is_null() {
        let expression = shown(expression);
        let meta = format!("the filter {expression} finds nothing in this output.");
        return Ok(json!({ "_meta": meta }));
    }
    Ok(prune(&filtered, &options.prune))
}

/// The same for loops that must go on: where the expression fails on a value, such as `length(a)`
/// without an `a`, the result is an object `{"_meta": "..."}` with the reason.
pub fn shorten_or_explain(value: &Value, options: &ShapeOptions) -> Value {
    shorten(value, options)
        .unwrap_or_else(|error| json!({"_meta": format!("this output is not shown: {error}")}))
}
