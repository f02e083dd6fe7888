//! What the API tables are made of: kinds of value, parameters, operations, wordings.
//!
//! An API is data: an operation on the invented tables, the kinds of value it takes and gives, and
//! the phrases that speak of them. Two APIs are linked where one gives the kind of value that the
//! other needs; the kind is known here and never shown in a document.
//! `apis` says how a file writes them.

use serde::Deserialize;

use super::functions::Function;
use super::kinds;

/// What a value means, whatever its parameter is called: the hidden semantic type.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kind {
    /// Such as `ship.id`; two kinds are the same if their names are.
    pub(super) name: String,
    #[serde(rename = "type", default)]
    pub(super) json_type: JsonType,
    /// How a query names a value that comes from no other call; `{}` is the value.
    #[serde(default = "kinds::the_value_alone")]
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

/// Where the values of a kind come from when no call gives them.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Values {
    /// A table and its column.
    Column(String, String),
    /// All integers from the first to the second.
    Integers(i64, i64),
    /// One of these texts.
    Choice(Vec<String>),
}

/// One parameter of an API.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameter {
    pub(super) name: String,
    #[serde(deserialize_with = "kinds::by_name")]
    pub(super) kind: &'static Kind,
    pub(super) description: String,
    /// Of a parameter that a call may leave out.
    pub(super) optional: Option<Limit>,
}

/// What an optional argument does, and how a request says so.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limit {
    pub(super) restriction: Restriction,
    /// They follow a request; `{}` is the value.
    pub(super) phrases: Vec<String>,
}

/// What an optional argument does to a list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Restriction {
    /// At most so many items.
    Count,
    /// Only rows whose column is at most the value.
    AtMost(String),
    /// Only rows whose column is at least the value.
    AtLeast(String),
}

/// What an API does with its first parameter, the argument.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Operation {
    /// Lists the rows whose column holds every word of the argument.
    Search { table: String, column: String },
    /// Shows the one row whose column equals the argument.
    Get { table: String, column: String },
    /// Lists the rows whose column equals the argument.
    List {
        table: String,
        column: String,
        order: Order,
    },
    /// Lists the other rows that agree in `by` with the row whose `key` is the argument.
    Similar {
        table: String,
        key: String,
        by: String,
    },
    /// Computes from its parameters alone.
    Compute(Function),
}

/// The order of a list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Order {
    /// Lowest value of the column first.
    Rising(String),
    /// Highest value of the column first.
    Falling(String),
}

/// A way to choose one row of a list, and the adjectives that say so.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pick {
    pub(super) by: By,
    pub(super) words: Vec<String>,
}

/// How one row of a list is chosen.
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
    #[serde(deserialize_with = "kinds::by_name")]
    pub(super) kind: &'static Kind,
    /// Names the value by the API's parameters in braces; in a list, `{pick}` is the choice.
    pub(super) phrases: Vec<String>,
}

/// Something that a user may want of an API, and how it is answered.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Aspect {
    /// Noun phrases with parameters in braces.
    pub(super) nouns: Vec<String>,
    /// Whole questions with parameters in braces; may be empty.
    #[serde(default)]
    pub(super) questions: Vec<String>,
    /// A sentence with columns in braces; what stands in brackets is said for each row of a list.
    pub(super) answer: String,
}

/// One API.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Api {
    pub(super) name: String,
    /// What it does, one sentence.
    pub(super) does: String,
    /// What it returns, one sentence.
    pub(super) returns: String,
    /// The required parameters first.
    pub(super) parameters: Vec<Parameter>,
    pub(super) operation: Operation,
    /// Name of the list in the output; empty where the output is one object.
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

/// APIs of one provider.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) category: String,
    pub(super) role: Role,
    #[serde(rename = "api")]
    pub(super) apis: Vec<Api>,
}

/// Which rows a tool may stand in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Role {
    /// All splits.
    Seen,
    /// The split of unseen tools alone.
    HeldOut,
}

impl Parameter {
    pub(super) fn is_required(&self) -> bool {
        self.optional.is_none()
    }
}

impl JsonType {
    /// As documents spell it.
    pub(super) fn spelled(self) -> &'static str {
        match self {
            Self::Text => "STRING",
            Self::Integer => "INTEGER",
            Self::Number => "NUMBER",
        }
    }
}

impl By {
    /// As `Derived::pick` spells it.
    pub(super) fn spelled(&self) -> String {
        match self {
            Self::First => "first".to_owned(),
            Self::Last => "last".to_owned(),
            Self::Max(column) => format!("max:{column}"),
            Self::Min(column) => format!("min:{column}"),
        }
    }
}
