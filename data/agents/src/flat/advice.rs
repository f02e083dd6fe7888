//! Decides whether flattening a schema is worthwhile.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::FlatError;
use super::flatten::{FlatSchema, FlattenOptions};

/// A schema with one nested level and fewer leaves than this is not flattened.
const MIN_LEAVES_OF_ONE_LEVEL: usize = 5;

/// The author of the arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Audience {
    /// A model.
    #[default]
    Model,
    /// People, who expect the API's own schema.
    User,
}

/// Whether to flatten a schema, with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// Whether to flatten the schema.
    pub flatten: bool,
    /// The reason.
    pub reason: Reason,
}

/// Why a schema should or should not be flattened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It is recursive, so it has no flat form.
    Recursive,
    /// It is shown to people.
    UserFacing,
    /// It has no nested level.
    AlreadyFlat,
    /// It has one nested level and fewer than five leaves.
    Simple,
    /// It is nested, and a flat form helps.
    Nested,
}

/// Decides whether to flatten a schema.
///
/// A level is an object or a list below the root, so a list of objects has two.
///
/// # Errors
///
/// As for [`FlatSchema::new`], except for recursive schemas.
///
/// # Source
///
/// "When NOT to Flatten" of the post named in [`crate::flat`].
pub fn advise(schema: &Value, audience: Audience) -> Result<Advice, FlatError> {
    let reason = match FlatSchema::new(schema, &FlattenOptions::default()) {
        Err(FlatError::Recursive { .. }) => Reason::Recursive,
        Err(error) => return Err(error),
        Ok(_) if audience == Audience::User => Reason::UserFacing,
        Ok(flat) => {
            let depth = flat.mapping().map(|(_, path)| path.len()).max();
            match depth.unwrap_or(0) {
                0 | 1 => Reason::AlreadyFlat,
                2 if flat.mapping().len() < MIN_LEAVES_OF_ONE_LEVEL => Reason::Simple,
                _ => Reason::Nested,
            }
        }
    };
    Ok(Advice {
        flatten: reason == Reason::Nested,
        reason,
    })
}
