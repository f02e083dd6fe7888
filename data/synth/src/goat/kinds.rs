//! The semantic types of parameters and outputs: `kinds.toml`, one line for each.
//!
//! A kind has a `name`, and `values` of its own for arguments that no call gives: a table and a
//! `column`, a range of `integers`, or a `choice` of texts. Its `type` is `"text"` where it says
//! nothing else. `phrases` name a value in a query; without them it stands alone.

use std::sync::LazyLock;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::api::Kind;
use crate::table::{TableFile, file};

pub(super) const FILE: TableFile = file("goat/kinds.toml", include_str!("kinds.toml"));

/// What the file holds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kinds {
    pub(super) kinds: Vec<Kind>,
}

pub(super) static KINDS: LazyLock<Kinds> = LazyLock::new(|| FILE.read());

/// Reads a name and gives its kind.
///
/// # Errors
///
/// - no kind has the name
pub(super) fn by_name<'de, D: Deserializer<'de>>(from: D) -> Result<&'static Kind, D::Error> {
    let name = String::deserialize(from)?;
    let mut kinds = KINDS.kinds.iter();
    let named = kinds.find(|kind| kind.name == name);
    named.ok_or_else(|| D::Error::custom(format!("no kind of kinds.toml is named `{name}`")))
}

/// The phrases of a kind that has none of its own.
pub(super) fn the_value_alone() -> Vec<String> {
    vec!["{}".to_owned()]
}
