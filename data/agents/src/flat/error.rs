//! Why a schema has no flat form, or arguments no counterpart in the other form.

use std::fmt::Write;

use tooltune_rows::json::PathStep;

/// What is wrong with a schema or with arguments. [`FlatError::kind`] is its stable name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlatError {
    /// Two parts have one flat name, and renaming was not wanted.
    #[error(
        "{first} and {second} are both called {name:?}; rename one, take another separator, or let \
         collisions be numbered"
    )]
    Collision {
        /// The flat name.
        name: String,
        /// The part that comes first, as a path.
        first: String,
        /// The other one.
        second: String,
    },
    /// A schema contains itself.
    #[error("{pointer}: $ref {reference:?} leads back to itself; a recursive schema stays nested")]
    Recursive {
        /// JSON pointer of the object that holds the reference.
        pointer: String,
        /// The reference as written.
        reference: String,
    },
    /// A reference leads nowhere.
    #[error("{pointer}: $ref {reference:?} leads nowhere; define it in the same schema")]
    MissingRef {
        /// JSON pointer of the object that holds the reference.
        pointer: String,
        /// The reference as written.
        reference: String,
    },
    /// A reference leads out of the schema.
    #[error(
        "{pointer}: $ref {reference:?} leads out of the schema; nothing is fetched, so copy its \
         target into $defs"
    )]
    RemoteRef {
        /// JSON pointer of the object that holds the reference.
        pointer: String,
        /// The reference as written.
        reference: String,
    },
    /// A part of the schema is none.
    #[error("{pointer}: {reason}")]
    BadSchema {
        /// JSON pointer of the part; empty for the whole.
        pointer: String,
        /// What is wrong with it and how to fix it.
        reason: &'static str,
    },
    /// Two parts of the schema cannot both hold.
    #[error("{pointer}: {reason}; nothing could satisfy both, so remove one")]
    Contradiction {
        /// JSON pointer of the part; empty for the whole.
        pointer: String,
        /// What stands against what.
        reason: String,
    },
    /// The schema nests too deeply.
    #[error("{pointer}: the schema nests deeper than {max} levels, references followed")]
    TooDeep {
        /// JSON pointer of the part.
        pointer: String,
        /// The deepest nesting that is read.
        max: usize,
    },
    /// The flat form would be huge.
    #[error("the schema has more than {max} {what}; give fewer slots, or leave it nested")]
    TooLarge {
        /// What there are too many of.
        what: &'static str,
        /// The most that are made.
        max: usize,
    },
    /// A flat argument that the mapping does not have.
    #[error("no argument is called {name:?}{hint}; the flat schema lists all")]
    UnknownKey {
        /// The name as given.
        name: String,
        /// `, did you mean "..."?`, or empty.
        hint: String,
    },
    /// A part of nested arguments that the schema does not have.
    #[error("{path}: {reason}")]
    UnknownPath {
        /// Where it is, such as `customer.nick`.
        path: String,
        /// What the schema has there.
        reason: String,
    },
    /// A list is longer than its slots.
    #[error("{path} has {n_items} items but only {n_slots} slots; flatten with more slots")]
    TooManyItems {
        /// Where the list is.
        path: String,
        /// Its length.
        n_items: usize,
        /// The slots of the flat schema.
        n_slots: usize,
    },
    /// Arguments that are no object.
    #[error("the arguments are {found}, but must be an object")]
    NotAnObject {
        /// What they are.
        found: &'static str,
    },
}

impl FlatError {
    /// Stable name of what is wrong.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Collision { .. } => "collision",
            Self::Recursive { .. } => "recursive",
            Self::MissingRef { .. } => "missing_ref",
            Self::RemoteRef { .. } => "remote_ref",
            Self::BadSchema { .. } => "bad_schema",
            Self::Contradiction { .. } => "contradiction",
            Self::TooDeep { .. } => "too_deep",
            Self::TooLarge { .. } => "too_large",
            Self::UnknownKey { .. } => "unknown_key",
            // An item without a slot is a path that the mapping does not have.
            Self::UnknownPath { .. } | Self::TooManyItems { .. } => "unknown_path",
            Self::NotAnObject { .. } => "not_an_object",
        }
    }
}

/// A path as messages show it, such as `items[0].sku`.
pub(super) fn shown_path(path: &[PathStep]) -> String {
    let mut shown = String::new();
    for step in path {
        // Writing to a String does not fail.
        let _ = match step {
            PathStep::Index(index) => write!(shown, "[{index}]"),
            PathStep::Key(key) if shown.is_empty() => write!(shown, "{key}"),
            PathStep::Key(key) => write!(shown, ".{key}"),
        };
    }
    if shown.is_empty() {
        "the arguments".to_owned()
    } else {
        shown
    }
}
