//! What is found while a config is read and checked: the places of its settings and all that is wrong.

use std::collections::{BTreeMap, BTreeSet};

use super::diagnostics::{Problem, SourceSpan};

/// Where each setting was written, by its path (`train.learning_rate`) or its table (`train`).
pub(crate) type Places = BTreeMap<String, SourceSpan>;

/// What reading finds besides the values.
#[derive(Debug, Clone, Default)]
pub(crate) struct Findings {
    pub(crate) problems: Vec<Problem>,
    pub(crate) places: Places,
    /// Settings that were reported as wrong; their values are the defaults.
    pub(super) unreadable: BTreeSet<String>,
    /// Settings that were meant under another name; they do not count as missing too.
    pub(super) misnamed: Vec<String>,
    /// Unknown keys so far.
    pub(super) n_unknown: usize,
}

impl Findings {
    /// Whether the setting stands in a source, readable or not.
    pub(crate) fn is_typed(&self, path: &str) -> bool {
        self.places.contains_key(path)
    }

    /// Whether the setting has the value that was typed.
    pub(crate) fn is_read(&self, path: &str) -> bool {
        self.is_typed(path) && !self.unreadable.contains(path)
    }

    /// Whether a setting was meant under another name, or any of a table if `path` ends in a dot.
    pub(crate) fn is_misnamed(&self, path: &str) -> bool {
        let is_meant =
            |meant: &String| meant == path || path.ends_with('.') && meant.starts_with(path);
        self.misnamed.iter().any(is_meant)
    }

    /// Reports what is wrong with a setting, at its place or that of the nearest table around it
    /// that was typed: what is missing has no line of its own.
    pub(crate) fn report(
        &mut self,
        path: &str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let mut place = self.places.get(path);
        let mut around = path;
        while let (None, Some(end)) = (place, around.rfind(['.', '['])) {
            around = &around[..end];
            place = self.places.get(around);
        }
        self.problems.push(Problem {
            message: message.into(),
            help: help.into(),
            place: place.copied(),
        });
    }
}
