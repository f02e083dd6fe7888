//! Whether a schema is worth flattening.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::FlatError;
use super::flatten::{FlatSchema, FlattenOptions};

/// Leaves below which one nested level is left as it is.
const FEW_LEAVES: usize = 5;

/// Who writes the arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Audience {
    /// A model.
    #[default]
    Model,
    /// People, who expect the schema of the API itself.
    User,
}

/// What to do with a schema, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// Whether to flatten it.
    pub flatten: bool,
    /// The reason.
    pub reason: Reason,
}

/// Why a schema should be flattened, or should not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It contains itself, so it has no flat form.
    Recursive,
    /// People see it.
    UserFacing,
    /// It has no nested level.
    AlreadyFlat,
    /// It has one nested level and fewer than five leaves.
    Simple,
    /// It is nested, and a flat form helps.
    Nested,
}

/// Says whether to flatten a schema.
///
/// A level is an object or a list below the whole, so a list of objects is two.
///
/// # Errors
///
/// - those of [`FlatSchema::new`], a recursive schema aside
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
                2 if flat.mapping().len() < FEW_LEAVES => Reason::Simple,
                _ => Reason::Nested,
            }
        }
    };
    Ok(Advice {
        flatten: reason == Reason::Nested,
        reason,
    })
}
