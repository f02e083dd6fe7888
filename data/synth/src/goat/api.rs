//! Types of the API tables: kinds of values, parameters, operations and phrases.
//!
//! An API is data: an operation on the synthetic tables, the kinds of its parameters and outputs,
//! and phrases for them. An edge connects two APIs if one returns the kind of value that the other
//! needs. The kind is known only in this crate and is never shown in a document. The module `apis`
//! documents the file format.

use serde::Deserialize;

use super::functions::Function;
use super::kinds;

/// The hidden semantic type of a value, independent of its parameter name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kind {
    /// Unique name, such as `ship.id`.
    pub(super) name: String,
    #[serde(rename = "type", default)]
    pub(super) json_type: JsonType,
    /// Phrases by which a query states a value that no call returns; `{}` is the value.
    #[serde(default = "kinds::default_phrases")]
    pub(super) phrases: Vec<String>,
    pub(super) values: Values,
}

/// The type of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum JsonType {
    #[default]
    Text,
    Integer,
    Number,
}

/// Where the values of a kind come from if no call returns them.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Values {
    /// A column of a table.
    Column(String, String),
    /// All integers in this inclusive range.
    Integers(i64, i64),
    /// One of these strings.
    Choice(Vec<String>),
}

/// A parameter of an API.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameter {
    pub(super) name: String,
    #[serde(deserialize_with = "kinds::deserialize_by_name")]
    pub(super) kind: &'static Kind,
    pub(super) description: String,
    /// Present for optional parameters.
    pub(super) optional: Option<Limit>,
}

/// The effect of an optional argument, and its phrases.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limit {
    pub(super) restriction: Restriction,
    /// Phrases appended to a request; `{}` is the value.
    pub(super) phrases: Vec<String>,
}

/// How an optional argument restricts a list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Restriction {
    /// Limits the number of rows.
    Count,
    /// Keeps rows whose column is at most the value.
    AtMost(String),
    /// Keeps rows whose column is at least the value.
    AtLeast(String),
}

/// The operation of an API. Its argument is the first parameter.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Operation {
    /// Lists the rows whose column contains every word of the argument.
    Search { table: String, column: String },
    /// Returns the row whose column equals the argument.
    Get { table: String, column: String },
    /// Lists the rows whose column equals the argument.
    List {
        table: String,
        column: String,
        order: Order,
    },
    /// Lists the other rows with the same `by` as the row whose `key` is the argument.
    Similar {
        table: String,
        key: String,
        by: String,
    },
    /// Computes a result from the parameters alone, without tables.
    Compute(Function),
}

/// The order of a list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Order {
    /// Ascending by the column.
    Ascending(String),
    /// Descending by the column.
    Descending(String),
}

/// A way to select one row of a list, with adjectives for it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pick {
    pub(super) by: By,
    pub(super) words: Vec<String>,
}

/// How one row of a list is selected.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum By {
    First,
    Last,
    Max(String),
    Min(String),
}

/// An output that can become the argument of another call.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Field {
    pub(super) column: String,
    #[serde(deserialize_with = "kinds::deserialize_by_name")]
    pub(super) kind: &'static Kind,
    /// Phrases for the value, with the API's parameters in braces. For a list, `{pick}` is an
    /// adjective of the selected row.
    pub(super) phrases: Vec<String>,
}

/// Something that a user may ask about an API's result, with the answer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Aspect {
    /// Noun phrases with parameters in braces.
    pub(super) nouns: Vec<String>,
    /// Complete questions with parameters in braces; may be empty.
    #[serde(default)]
    pub(super) questions: Vec<String>,
    /// A sentence with columns in braces; text in brackets is repeated for each row of a list.
    pub(super) answer: String,
}

/// An API.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Api {
    pub(super) name: String,
    /// A sentence that describes the API.
    pub(super) does: String,
    /// A sentence that describes the API's output.
    pub(super) returns: String,
    /// The parameters; required ones come first.
    pub(super) parameters: Vec<Parameter>,
    pub(super) operation: Operation,
    /// Name of the list in the output; empty if the output is a single object.
    #[serde(default)]
    pub(super) list: String,
    /// The columns of the output.
    #[serde(default)]
    pub(super) shown: Vec<String>,
    #[serde(default)]
    pub(super) picks: Vec<Pick>,
    #[serde(default)]
    pub(super) fields: Vec<Field>,
    pub(super) sub_queries: Vec<String>,
    #[serde(rename = "aspect")]
    pub(super) aspects: Vec<Aspect>,
}

/// The APIs of one provider.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) category: String,
    pub(super) role: Role,
    #[serde(rename = "api")]
    pub(super) apis: Vec<Api>,
}

/// The splits in which a tool may occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Role {
    /// All splits.
    Seen,
    /// Only the split of unseen tools.
    HeldOut,
}

impl Parameter {
    pub(super) fn is_required(&self) -> bool {
        self.optional.is_none()
    }
}

impl JsonType {
    /// The type name in documents.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Text => "STRING",
            Self::Integer => "INTEGER",
            Self::Number => "NUMBER",
        }
    }
}

impl By {
    /// The value of `Derived::pick`.
    pub(super) fn text(&self) -> String {
        match self {
            Self::First => "first".to_owned(),
            Self::Last => "last".to_owned(),
            Self::Max(column) => format!("max:{column}"),
            Self::Min(column) => format!("min:{column}"),
        }
    }
}
