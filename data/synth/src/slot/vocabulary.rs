//! Names that the fields of all families share, and irrelevant sentences, from `vocabulary.toml`.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::table::{TableFile, file};

pub(super) const FILE: TableFile = file("slot/vocabulary.toml", include_str!("vocabulary.toml"));

pub(super) static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| FILE.read());

/// Content of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Vocabulary {
    pub(super) first_names: Vec<String>,
    pub(super) last_names: Vec<String>,
    pub(super) places: Vec<String>,
    pub(super) streets: Vec<String>,
    pub(super) companies: Vec<String>,
    /// Sentences that are irrelevant to every schema.
    pub(super) asides: Vec<String>,
}
