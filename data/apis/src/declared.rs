//! Checks the arguments of a call against the declaration in an API document or in the tools of a
//! row.
//!
//! The rules for names are the same for both. The rules for values differ: API documents use loose
//! type names, which are interpreted here, while tool parameters are a JSON Schema.

use serde_json::{Map, Value};

use super::document::ApiParameter;
use super::error::{ToolsError, did_you_mean};

/// Source of the declared APIs or tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeclaredBy {
    /// A file of API documents.
    Documents,
    /// The `tools` of a row.
    RowTools,
}

impl DeclaredBy {
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Documents => "API",
            Self::RowTools => "tool",
        }
    }

    pub(super) fn fix_name(self) -> &'static str {
        match self {
            Self::Documents => "add it to the API documents or correct the name",
            Self::RowTools => {
                "add the tool to the row's tools or correct the name, or set data.check_calls = \
                 false to skip this check"
            }
        }
    }

    /// How to fix an undeclared argument.
    pub fn fix_argument(self) -> &'static str {
        match self {
            Self::Documents => "fix the call or the API's document",
            Self::RowTools => {
                "fix the call or the tool, or set data.check_calls = false to skip this \
                 check"
            }
        }
    }

    pub(super) fn fix_missing(self) -> &'static str {
        match self {
            Self::Documents => {
                "which has no default; add the argument, or make the parameter optional in the \
                 API's document"
            }
            Self::RowTools => {
                "which the call does not give; fix the call or the tool, or set data.check_calls \
                 = false to skip this check"
            }
        }
    }
}

/// Argument names that a call may and must give.
#[derive(Debug)]
pub struct DeclaredNames<'a> {
    /// Name of the API or tool.
    pub called: &'a str,
    /// All argument names, if the API or tool accepts no others.
    pub only: Option<Vec<&'a str>>,
    /// Names of the required arguments.
    pub required: Vec<&'a str>,
    /// Source of the declaration.
    pub by: DeclaredBy,
}

impl DeclaredNames<'_> {
    /// Checks the names of the arguments at `field`.
    ///
    /// # Errors
    ///
    /// - an argument is not declared
    /// - a required argument is missing
    pub fn check(&self, arguments: &Map<String, Value>, field: &str) -> Result<(), ToolsError> {
        let only = self.only.as_deref().unwrap_or_default();
        let mut names = arguments.keys().map(String::as_str);
        let unknown = names.find(|name| self.only.is_some() && !only.contains(name));
        if let Some(name) = unknown {
            return Err(ToolsError::UnknownArgument {
                field: format!("{field}.{name}"),
                api: self.called.to_owned(),
                hint: did_you_mean(name, only.iter().copied()),
                known: list_names(only.iter().copied()),
                by: self.by,
            });
        }
        let missing = self
            .required
            .iter()
            .find(|name| !arguments.contains_key(**name));
        match missing {
            None => Ok(()),
            Some(name) => Err(ToolsError::MissingArgument {
                field: field.to_owned(),
                api: self.called.to_owned(),
                name: (*name).to_owned(),
                by: self.by,
            }),
        }
    }
}

pub(super) fn list_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        return "none".to_owned();
    }
    names.join(", ")
}

/// The JSON Schema type for a type name of StableToolBench, OpenAPI or Python; `None` for other
/// names, such as `DATE (YYYY-MM-DD)` and `any`.
pub fn json_type(word: &str) -> Option<&'static str> {
    Some(match word.to_ascii_lowercase().as_str() {
        "string" | "str" | "text" => "string",
        "integer" | "int" => "integer",
        "number" | "float" | "double" => "number",
        "boolean" | "bool" => "boolean",
        "array" | "list" => "array",
        "object" | "dict" => "object",
        _ => return None,
    })
}

impl ApiParameter {
    /// Whether the parameter accepts a value according to its type name. Unknown type names accept
    /// any value.
    ///
    /// A scalar and its string form are equivalent, and any string passes for a list or an object:
    /// three fifths of API-Bank's reference numbers and nearly all of its lists are strings, and
    /// RapidAPI's documents declare `STRING` for numbers that calls take from earlier results. A
    /// non-numeric string for a number, and a list, object or null for a scalar, are refused; none
    /// of the data sets examined contains them.
    ///
    /// A number therefore passes for a `STRING`: HTTP requests send it as text, recordings treat 7
    /// and "7" as equal, and fixed responses ignore values. Only the synthetic APIs refuse it, as
    /// they refuse a string for a number. This check cannot be as strict, because a document does
    /// not specify what executes its calls. The trajectories of the synthetic APIs contain only
    /// calls that succeeded.
    pub(super) fn accepts(&self, value: &Value) -> bool {
        let Some(name) = json_type(&self.kind) else {
            return true;
        };
        let is_integer = |number: f64| number.is_finite() && number.fract() == 0.0;
        match (name, value) {
            ("string", _) => !matches!(value, Value::Null | Value::Array(_) | Value::Object(_)),
            ("boolean", Value::String(text)) => ["true", "false", "0", "1"]
                .iter()
                .any(|word| text.trim().eq_ignore_ascii_case(word)),
            ("boolean", _) => value.is_boolean(),
            ("array", _) => value.is_array() || value.is_string(),
            ("object", _) => value.is_object() || value.is_string(),
            ("integer", _) => number(value).is_some_and(is_integer),
            _ => number(value).is_some_and(f64::is_finite),
        }
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::String(text) => text.trim().parse().ok(),
        other => other.as_f64(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_that_contradict_the_declared_type_are_refused() {
        for (kind, good, bad) in [
            ("STRING", json!(["", "7", 7.5, true]), json!([null, [], {}])),
            (
                "NUMBER",
                json!([7, 7.5, "7", " -7.5 ", "1e3"]),
                json!(["seven", "", "nan", "inf", true, null, [7], {}]),
            ),
            ("int", json!([7, 7.0, "7", "-7"]), json!([7.5, "7.5", "x"])),
            (
                "BOOLEAN",
                json!([true, "True", "false", "0"]),
                json!(["maybe", 1, null, []]),
            ),
            ("list", json!([[], [1], "a, b"]), json!([1, true, {}, null])),
            ("OBJECT", json!([{}, "{}"]), json!([1, [], null])),
            ("", json!([1, "x", null, [], {}]), json!([])),
            ("DATE (YYYY-MM-DD)", json!([1, "x", {}]), json!([])),
            ("list(str)", json!([1, "x", []]), json!([])),
        ] {
            let parameter = json!({"name": "p", "type": kind});
            let parameter = ApiParameter::try_from(parameter).expect("a parameter");
            for (values, is_good) in [(good, true), (bad, false)] {
                for value in values.as_array().expect("a list") {
                    assert_eq!(parameter.accepts(value), is_good, "{kind}: {value}");
                }
            }
        }
    }
}
