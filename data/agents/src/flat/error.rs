//! Errors from flattening schemas and converting arguments.

use std::fmt::Write;

use tooltune_json::PathStep;

/// An error in a schema or in arguments; [`FlatError::kind`] is its stable name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlatError {
    /// Two parts have the same flat name, and renaming is disabled.
    #[error(
        "{first} and {second} both have the flat name {name:?}; rename one, use another separator, or \
         number collisions"
    )]
    Collision {
        /// The flat name.
        name: String,
        /// Path of the first part.
        first: String,
        /// Path of the second part.
        second: String,
    },
    /// A schema is recursive.
    #[error("{pointer}: $ref {reference:?} is recursive; recursive schemas cannot be flattened")]
    Recursive {
        /// JSON pointer of the object with the reference.
        pointer: String,
        /// The reference as written.
        reference: String,
    },
    /// A reference has no target.
    #[error("{pointer}: $ref {reference:?} has no target; define it in the same schema")]
    MissingRef {
        /// JSON pointer of the object with the reference.
        pointer: String,
        /// The reference as written.
        reference: String,
    },
    /// A reference points outside the schema.
    #[error(
        "{pointer}: $ref {reference:?} points outside the schema and is not fetched; copy its \
         target into $defs"
    )]
    RemoteRef {
        /// JSON pointer of the object with the reference.
        pointer: String,
        /// The reference as written.
        reference: String,
    },
    /// A part is not a valid schema.
    #[error("{pointer}: {reason}")]
    BadSchema {
        /// JSON pointer of the part; empty for the root.
        pointer: String,
        /// What is wrong with it and how to fix it.
        reason: &'static str,
    },
    /// Two parts of the schema contradict each other.
    #[error("{pointer}: {reason}; no value can satisfy both, so remove one")]
    Contradiction {
        /// JSON pointer of the part; empty for the root.
        pointer: String,
        /// The contradiction.
        reason: String,
    },
    /// The schema is nested too deeply.
    #[error(
        "{pointer}: the schema has more than {max} levels after resolving references; reduce its depth"
    )]
    TooDeep {
        /// JSON pointer of the part.
        pointer: String,
        /// Maximum depth.
        max: usize,
    },
    /// The flat form is too large.
    #[error("the schema has more than {max} {what}; use fewer slots, or do not flatten it")]
    TooLarge {
        /// The unit of the limit.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// A flat argument is not in the mapping.
    #[error("unknown argument {name:?}; the flat schema lists all arguments{hint}")]
    UnknownKey {
        /// The name of the argument.
        name: String,
        /// `, did you mean "..."?`, or empty.
        hint: String,
    },
    /// A part of the nested arguments is not in the schema.
    #[error("{path}: {reason}")]
    UnknownPath {
        /// Path of the part, such as `customer.nick`.
        path: String,
        /// What the schema expects there.
        reason: String,
    },
    /// A list has more items than slots.
    #[error("{path} has {n_items} items but only {n_slots} slots; flatten with more slots")]
    TooManyItems {
        /// Path of the list.
        path: String,
        /// Length of the list.
        n_items: usize,
        /// Number of slots of the flat schema.
        n_slots: usize,
    },
    /// Arguments are not an object.
    #[error("the arguments are {found}; they must be an object")]
    NotAnObject {
        /// The actual type.
        found: &'static str,
    },
}

impl FlatError {
    /// Stable name of the error.
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
            // An item without a slot is a path missing from the mapping.
            Self::UnknownPath { .. } | Self::TooManyItems { .. } => "unknown_path",
            Self::NotAnObject { .. } => "not_an_object",
        }
    }
}

/// Formats a path for messages, such as `items[0].sku`.
pub(super) fn path_text(path: &[PathStep]) -> String {
    let mut path_text = String::new();
    for step in path {
        // Writing to a String does not fail.
        let _ = match step {
            PathStep::Index(index) => write!(path_text, "[{index}]"),
            PathStep::Key(key) if path_text.is_empty() => write!(path_text, "{key}"),
            PathStep::Key(key) => write!(path_text, ".{key}"),
        };
    }
    if path_text.is_empty() {
        "the arguments".to_owned()
    } else {
        path_text
    }
}
