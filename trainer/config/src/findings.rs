//! Results of reading and checking a config: positions of settings and problems.

use std::collections::{BTreeMap, BTreeSet};

use super::diagnostics::{Problem, SourceSpan};

/// Position of each setting, by its path (`train.learning_rate`) or its table (`train`).
pub(crate) type Spans = BTreeMap<String, SourceSpan>;

/// Results of reading other than the values.
#[derive(Debug, Clone, Default)]
pub(crate) struct Findings {
    pub(crate) problems: Vec<Problem>,
    pub(crate) spans: Spans,
    /// Settings reported as wrong; their values are the defaults.
    pub(super) unreadable: BTreeSet<String>,
    /// Settings that have another name in the file; they are not reported as missing.
    pub(super) misnamed: Vec<String>,
    /// Number of unknown keys so far.
    pub(super) n_unknown: usize,
}

impl Findings {
    /// Whether the setting is in a source, readable or not.
    pub(crate) fn is_in_source(&self, path: &str) -> bool {
        self.spans.contains_key(path)
    }

    /// Whether a problem at the position of the setting is reported already.
    pub(crate) fn has_problem(&self, path: &str) -> bool {
        let span = self.spans.get(path);
        span.is_some() && self.problems.iter().any(|one| one.span.as_ref() == span)
    }

    /// Whether the setting has its value from a source, and not the default.
    pub(crate) fn has_source_value(&self, path: &str) -> bool {
        self.is_in_source(path) && !self.unreadable.contains(path)
    }

    /// Whether the file has another name for a setting, or for any in a table if `path` ends in a
    /// dot.
    pub(crate) fn is_misnamed(&self, path: &str) -> bool {
        let is_meant =
            |name: &String| name == path || path.ends_with('.') && name.starts_with(path);
        self.misnamed.iter().any(is_meant)
    }

    /// Reports a problem with a setting, at its position or, if it is missing, at its nearest
    /// parent table.
    pub(crate) fn report(
        &mut self,
        path: &str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let mut span = self.spans.get(path);
        let mut enclosing_path = path;
        while let (None, Some(end)) = (span, enclosing_path.rfind(['.', '['])) {
            enclosing_path = &enclosing_path[..end];
            span = self.spans.get(enclosing_path);
        }
        self.problems.push(Problem {
            message: message.into(),
            help: help.into(),
            span: span.copied(),
        });
    }
}
