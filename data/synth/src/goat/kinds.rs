//! The semantic types of parameters and outputs: `kinds.toml`, one line each.
//!
//! A kind has a `name`, and `values` for arguments that no call returns: a table and a `column`, a
//! range of `integers`, or a `choice` of strings. Its `type` defaults to `"text"`. `phrases`
//! describe a value in a query; without phrases the value is written as it is.

use std::sync::LazyLock;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::api::Kind;
use crate::table::{TableFile, file};

pub(super) const FILE: TableFile = file("goat/kinds.toml", include_str!("kinds.toml"));

/// Content of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kinds {
    pub(super) kinds: Vec<Kind>,
}

pub(super) static KINDS: LazyLock<Kinds> = LazyLock::new(|| FILE.read());

/// Deserializes a kind from its name.
///
/// # Errors
///
/// No kind has this name.
pub(super) fn deserialize_by_name<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<&'static Kind, D::Error> {
    let name = String::deserialize(from)?;
    let mut kinds = KINDS.kinds.iter();
    let kind_by_name = kinds.find(|kind| kind.name == name);
    kind_by_name.ok_or_else(|| D::Error::custom(format!("no kind of kinds.toml is named `{name}`")))
}

/// The phrases of a kind that has none.
pub(super) fn default_phrases() -> Vec<String> {
    vec!["{}".to_owned()]
}
