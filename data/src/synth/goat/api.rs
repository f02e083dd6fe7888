//! The words in which the API tables are written: kinds of value, parameters, operations, wordings.
//!
//! An API is data: an operation on the invented tables, the kinds of value it takes and gives, and
//! the phrases that speak of them. Two APIs are linked where one gives the kind of value that the
//! other needs; the kind is known here and never shown in a document.
//! The constructors are `const`, so that a misspelt kind or operation does not compile.

use super::functions::Function;

/// What a value means, whatever its parameter is called: the hidden semantic type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    /// Such as `ship.id`; two kinds are the same if their names are.
    pub(super) name: &'static str,
    pub(super) json_type: JsonType,
    /// How a query names a value that comes from no other call; `{}` is the value.
    pub(super) phrases: &'static [&'static str],
    pub(super) values: Values,
}

/// The type of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JsonType {
    Text,
    Integer,
    Number,
}

/// Where the values of a kind come from when no call gives them.
#[derive(Debug, Clone, Copy)]
pub(super) enum Values {
    /// A column of a table.
    Column(&'static str, &'static str),
    /// All integers from the first to the second.
    Integers(i64, i64),
    /// One of these texts.
    Choice(&'static [&'static str]),
}

/// One parameter of an API.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) description: &'static str,
    pub(super) need: Need,
}

/// Whether every call gives the parameter, and what it does if a call may leave it out.
#[derive(Debug, Clone, Copy)]
pub(super) enum Need {
    Required,
    /// A limit of the list; the phrases follow a request.
    Optional(Restriction, &'static [&'static str]),
}

/// What an optional argument does to a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Restriction {
    /// At most so many items.
    Count,
    /// Only rows whose column is at most the value.
    AtMost(&'static str),
    /// Only rows whose column is at least the value.
    AtLeast(&'static str),
}

/// What an API does with its first parameter, the argument.
#[derive(Debug, Clone, Copy)]
pub(super) enum Operation {
    /// Lists the rows whose column holds every word of the argument.
    Search {
        table: &'static str,
        column: &'static str,
    },
    /// Shows the one row whose column equals the argument.
    Get {
        table: &'static str,
        column: &'static str,
    },
    /// Lists the rows whose column equals the argument.
    List {
        table: &'static str,
        column: &'static str,
        order: Order,
    },
    /// Lists the other rows that agree in `by` with the row whose `key` is the argument.
    Similar {
        table: &'static str,
        key: &'static str,
        by: &'static str,
    },
    /// Computes from its parameters alone.
    Compute(Function),
}

/// The order of a list.
#[derive(Debug, Clone, Copy)]
pub(super) enum Order {
    /// Lowest value of the column first.
    Rising(&'static str),
    /// Highest value of the column first.
    Falling(&'static str),
}

/// A way to choose one row of a list, and the adjectives that say so.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pick {
    pub(super) by: By,
    pub(super) words: &'static [&'static str],
}

/// How one row of a list is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    First,
    Last,
    Max(&'static str),
    Min(&'static str),
}

/// An output that can become the argument of another call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    pub(super) column: &'static str,
    pub(super) kind: Kind,
    /// Names the value by the API's parameters in braces; in a list, `{pick}` is the choice.
    pub(super) phrases: &'static [&'static str],
}

/// Something that a user may want of an API, and how it is answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Aspect {
    /// Noun phrases with parameters in braces.
    pub(super) nouns: &'static [&'static str],
    /// Whole questions with parameters in braces; may be empty.
    pub(super) questions: &'static [&'static str],
    /// A sentence with columns in braces; what stands in brackets is said for each row of a list.
    pub(super) answer: &'static str,
}

/// One API.
#[derive(Debug, Clone, Copy)]
pub(super) struct Api {
    pub(super) name: &'static str,
    /// What it does, one sentence.
    pub(super) does: &'static str,
    /// What it returns, one sentence.
    pub(super) returns: &'static str,
    /// The required parameters first.
    pub(super) parameters: &'static [Parameter],
    pub(super) operation: Operation,
    /// Name of the list in the output; empty where the output is one object.
    pub(super) list: &'static str,
    /// The columns of the output.
    pub(super) shown: &'static [&'static str],
    pub(super) picks: &'static [Pick],
    pub(super) fields: &'static [Field],
    pub(super) sub_queries: &'static [&'static str],
    pub(super) aspects: &'static [Aspect],
}

/// APIs of one provider.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tool {
    pub(super) name: &'static str,
    pub(super) category: &'static str,
    pub(super) role: Role,
    pub(super) apis: &'static [Api],
}

/// Which rows a tool may stand in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// All splits.
    Seen,
    /// The split of unseen tools alone.
    HeldOut,
}

impl Kind {
    /// A kind whose values stand in a column of a table.
    pub(super) const fn of(name: &'static str, table: &'static str, column: &'static str) -> Self {
        Self {
            name,
            json_type: JsonType::Text,
            phrases: &["{}"],
            values: Values::Column(table, column),
        }
    }

    /// The same kind, its values being integers.
    pub(super) const fn integer(self) -> Self {
        Self {
            json_type: JsonType::Integer,
            ..self
        }
    }

    /// The same kind with phrases of its own.
    pub(super) const fn say(self, phrases: &'static [&'static str]) -> Self {
        Self { phrases, ..self }
    }

    /// A kind whose values are the numbers from `low` to `high`.
    pub(super) const fn range(name: &'static str, low: i64, high: i64) -> Self {
        Self {
            name,
            json_type: JsonType::Integer,
            phrases: &["{}"],
            values: Values::Integers(low, high),
        }
    }
}

impl Parameter {
    pub(super) fn is_required(&self) -> bool {
        matches!(self.need, Need::Required)
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
    pub(super) fn spelled(self) -> String {
        match self {
            Self::First => "first".to_owned(),
            Self::Last => "last".to_owned(),
            Self::Max(column) => format!("max:{column}"),
            Self::Min(column) => format!("min:{column}"),
        }
    }
}

/// A parameter that every call gives.
pub(super) const fn needs(name: &'static str, kind: Kind, description: &'static str) -> Parameter {
    Parameter {
        name,
        kind,
        description,
        need: Need::Required,
    }
}

/// The optional number of items; the phrases follow a request for them.
pub(super) const fn at_most(phrases: &'static [&'static str]) -> Parameter {
    Parameter {
        name: "limit",
        kind: super::kinds::LIMIT,
        description: "Most items to list.",
        need: Need::Optional(Restriction::Count, phrases),
    }
}

/// An optional bound on a column.
pub(super) const fn may(
    name: &'static str,
    kind: Kind,
    restriction: Restriction,
    phrases: &'static [&'static str],
) -> Parameter {
    Parameter {
        name,
        kind,
        description: match restriction {
            Restriction::Count => "Most items to list.",
            Restriction::AtMost(_) => "Upper bound.",
            Restriction::AtLeast(_) => "Lower bound.",
        },
        need: Need::Optional(restriction, phrases),
    }
}

pub(super) const fn pick(by: By, words: &'static [&'static str]) -> Pick {
    Pick { by, words }
}

pub(super) const fn field(
    column: &'static str,
    kind: Kind,
    phrases: &'static [&'static str],
) -> Field {
    Field {
        column,
        kind,
        phrases,
    }
}

pub(super) const fn aspect(
    nouns: &'static [&'static str],
    questions: &'static [&'static str],
    answer: &'static str,
) -> Aspect {
    Aspect {
        nouns,
        questions,
        answer,
    }
}
