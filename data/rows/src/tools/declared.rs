//! The arguments of a call against what is declared for it, in an API's document or in the tools of
//! a row.
//!
//! Names have the same rules in both. Values do not: the types of documents are loose words, which
//! are read here, while the parameters of tools are a JSON Schema.

use serde_json::{Map, Value};

use super::document::ApiParameter;
use super::error::{ToolsError, did_you_mean};

/// Who says which calls there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeclaredBy {
    /// A file of API documents.
    Documents,
    /// The `tools` of a row.
    RowTools,
}

impl DeclaredBy {
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::Documents => "API",
            Self::RowTools => "tool",
        }
    }

    pub(super) fn fix_name(self) -> &'static str {
        match self {
            Self::Documents => "the API must be in the documents",
            Self::RowTools => {
                "add the tool to the row's tools or correct the name, or set data.check_calls = \
                 false to take calls as they are"
            }
        }
    }

    pub(crate) fn fix_argument(self) -> &'static str {
        match self {
            Self::Documents => "fix the call or the API's document",
            Self::RowTools => {
                "fix the call or the tool, or set data.check_calls = false to take calls as they \
                 are"
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
                 = false to take calls as they are"
            }
        }
    }
}

/// The names that a call may and must give.
#[derive(Debug)]
pub(crate) struct DeclaredNames<'a> {
    /// The name of what is called.
    pub(crate) called: &'a str,
    /// All arguments, where there are no others.
    pub(crate) only: Option<Vec<&'a str>>,
    /// Those that every call gives.
    pub(crate) required: Vec<&'a str>,
    /// Who says so.
    pub(crate) by: DeclaredBy,
}

impl DeclaredNames<'_> {
    /// Checks the names of the arguments that stand at `field`.
    ///
    /// # Errors
    ///
    /// - an argument is not declared
    /// - a required one is missing
    pub(crate) fn check(
        &self,
        arguments: &Map<String, Value>,
        field: &str,
    ) -> Result<(), ToolsError> {
        let only = self.only.as_deref().unwrap_or_default();
        let mut given = arguments.keys().map(String::as_str);
        let unknown = given.find(|name| self.only.is_some() && !only.contains(name));
        if let Some(name) = unknown {
            return Err(ToolsError::UnknownArgument {
                field: format!("{field}.{name}"),
                api: self.called.to_owned(),
                hint: did_you_mean(name, only.iter().copied()),
                known: listed(only.iter().copied()),
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

pub(super) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        return "none".to_owned();
    }
    names.join(", ")
}

/// The type of JSON Schema that a word of StableToolBench, OpenAPI or Python means; `None` for other
/// words, such as `DATE (YYYY-MM-DD)` and `any`.
pub(crate) fn json_type(word: &str) -> Option<&'static str> {
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
    /// Whether a value may be meant by the parameter's type, where that is a word we know.
    ///
    /// A scalar and its text count as the same, and any text as a list or an object: three fifths
    /// of API-Bank's gold numbers and nearly all of its lists are texts, and RapidAPI's documents
    /// call numbers `STRING` that calls take as numbers from earlier results. A text that is no
    /// number, and a list, an object or null in the place of a scalar, are in no data set that was
    /// looked at.
    ///
    /// So a number passes for a `STRING`. What answers calls takes it: a request holds its text, a
    /// recording knows 7 and "7" as one value, and a fixed response looks at no value. The invented
    /// APIs alone refuse it, as they refuse the text of a number for a number; documents do not say
    /// which of them answers, and the trajectories of the invented APIs are made of calls that were
    /// answered.
    pub(super) fn may_be(&self, value: &Value) -> bool {
        let Some(name) = json_type(&self.kind) else {
            return true;
        };
        let is_whole = |number: f64| number.is_finite() && number.fract() == 0.0;
        match (name, value) {
            ("string", _) => !matches!(value, Value::Null | Value::Array(_) | Value::Object(_)),
            ("boolean", Value::String(text)) => ["true", "false", "0", "1"]
                .iter()
                .any(|word| text.trim().eq_ignore_ascii_case(word)),
            ("boolean", _) => value.is_boolean(),
            ("array", _) => value.is_array() || value.is_string(),
            ("object", _) => value.is_object() || value.is_string(),
            ("integer", _) => number(value).is_some_and(is_whole),
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
    fn values_of_a_declared_type_pass_and_those_that_cannot_be_meant_do_not() {
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
                    assert_eq!(parameter.may_be(value), is_good, "{kind}: {value}");
                }
            }
        }
    }
}
