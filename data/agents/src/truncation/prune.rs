//! Long lists sliced, deep objects summarised.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tooltune_rows::json::{self, Style};

/// Items of a list that stay unless told otherwise.
pub const MAX_ITEMS: usize = 10;

/// Levels that stay unless told otherwise.
pub const MAX_DEPTH: usize = 4;

/// How much of a value is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PruneOptions {
    /// Items of a list that are kept; a marker takes the place of the rest.
    pub max_items: usize,
    /// Depth from which objects show their parts as summaries. The whole is at depth 0, and a
    /// list counts as a level.
    pub max_depth: usize,
    /// What becomes of scalars at that depth.
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

/// What becomes of scalars in an object whose parts are summarised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scalars {
    /// They stay.
    #[default]
    Keep,
    /// They become texts, as in mcp-openapi: `30` is written `"30"`.
    Stringify,
}

/// Shortens a value while it keeps its shape.
///
/// - A list keeps its first items, and an object `{"_meta": "showing n of N items. ..."}` follows.
/// - An object at the depth limit keeps its keys; a list in it becomes `"[array(n)]"`, an object
///   `"[object(n keys)]"`.
/// - A list at the limit is sliced like any other, and its items are one level deeper.
///
/// A value of JSON depth, at most [`json::MAX_LEVELS`], is safe; the walk is as deep as the value.
pub fn prune(value: &Value, options: &PruneOptions) -> Value {
    pruned(value, 0, options)
}

fn pruned(value: &Value, depth: usize, options: &PruneOptions) -> Value {
    match value {
        Value::Array(items) => sliced(items, depth, options),
        Value::Object(fields) => {
            let part = |(key, field): (&String, &Value)| {
                let field = if depth >= options.max_depth {
                    summary(field, options.scalars)
                } else {
                    pruned(field, depth + 1, options)
                };
                (key.clone(), field)
            };
            Value::Object(fields.iter().map(part).collect::<Map<_, _>>())
        }
        scalar => scalar.clone(),
    }
}

fn sliced(items: &[Value], depth: usize, options: &PruneOptions) -> Value {
    let kept = items.iter().take(options.max_items);
    let mut slice: Vec<Value> = kept.map(|item| pruned(item, depth + 1, options)).collect();
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
