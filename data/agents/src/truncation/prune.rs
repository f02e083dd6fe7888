//! Slices long lists and summarises deep objects.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tooltune_json as json;
use tooltune_json::Style;

/// Default number of list items kept.
pub const MAX_ITEMS: usize = 10;

/// Default number of levels kept.
pub const MAX_DEPTH: usize = 4;

/// How much of a value is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PruneOptions {
    /// Number of list items kept; a marker replaces the rest.
    pub max_items: usize,
    /// Depth from which objects contain only summaries of their parts. The root has depth 0, and a
    /// list counts as a level.
    pub max_depth: usize,
    /// Treatment of scalars at that depth.
    pub scalars: Scalars,
}

impl Default for PruneOptions {
    fn default() -> Self {
        Self {
            max_items: MAX_ITEMS,
            max_depth: MAX_DEPTH,
            scalars: Scalars::default(),
        }
    }
}

/// Treatment of scalars in a summarised object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scalars {
    /// They are unchanged.
    #[default]
    Keep,
    /// They become strings, as in mcp-openapi: `30` is written `"30"`.
    Stringify,
}

/// Shortens a value while keeping its shape.
///
/// - A list keeps its first items, followed by an object `{"_meta": "showing n of N items. ..."}`.
/// - An object at the depth limit keeps its keys; a list in it becomes `"[array(n)]"`, an object
///   `"[object(n keys)]"`.
/// - A list at the limit is sliced like any other, and its items are one level deeper.
///
/// The recursion is as deep as the value, which is safe for values up to the JSON depth
/// [`json::MAX_LEVELS`].
pub fn prune(value: &Value, options: &PruneOptions) -> Value {
    prune_value(value, 0, options)
}

fn prune_value(value: &Value, depth: usize, options: &PruneOptions) -> Value {
    match value {
        Value::Array(items) => prune_items(items, depth, options),
        Value::Object(fields) => {
            let part = |(key, field): (&String, &Value)| {
                let field = if depth >= options.max_depth {
                    summary(field, options.scalars)
                } else {
                    prune_value(field, depth + 1, options)
                };
                (key.clone(), field)
            };
            Value::Object(fields.iter().map(part).collect::<Map<_, _>>())
        }
        scalar => scalar.clone(),
    }
}

fn prune_items(items: &[Value], depth: usize, options: &PruneOptions) -> Value {
    let kept_items = items.iter().take(options.max_items);
    let mut slice: Vec<Value> = kept_items
        .map(|item| prune_value(item, depth + 1, options))
        .collect();
    if slice.len() < items.len() {
        slice.push(json!({"_meta": format!(
            "showing {} of {} items. Use offset/limit to paginate.",
            slice.len(),
            items.len()
        )}));
    }
    Value::Array(slice)
}

fn summary(value: &Value, scalars: Scalars) -> Value {
    match value {
        Value::Array(items) => format!("[array({})]", items.len()).into(),
        Value::Object(fields) => format!("[object({} keys)]", fields.len()).into(),
        Value::Null | Value::Bool(_) | Value::Number(_) if scalars == Scalars::Stringify => {
            json::dumps(value, Style::Python).into()
        }
        scalar => scalar.clone(),
    }
}
