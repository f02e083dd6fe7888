//! Classifies the errors of a JSON value leaf by leaf, against a reference value.
//!
//! [`LeafErrors::compare`] compares a prediction with its reference. [`LeafErrors::compare_calls`]
//! compares the arguments of calls. [`LeafErrorSummary`] counts the errors of all samples by depth
//! and by path or tool. All suites that compare JSON values use these functions.
//!
//! A leaf is a scalar or an empty container. Its depth is the number of keys and list indices in
//! its path, so the leaves of a flat object have depth 1.
//!
//! ```
//! use serde_json::json;
//! use tooltune_suites::leaf_errors::{LeafErrorKind, LeafErrors};
//!
//! let reference = json!({"name": "Ida", "address": {"street": "Quai 1", "city": "Oslo"}});
//! let prediction = json!({"name": "Ida", "address": {"street": "Quai 1"}, "city": "Oslo"});
//! let errors = LeafErrors::compare(Some(&prediction), &reference, "stop");
//! assert_eq!(errors.n_leaves(), 3);
//! assert_eq!(errors.n_of(LeafErrorKind::PrematureClose), 1);
//! ```

mod arguments;
mod compare;
mod summary;

use std::collections::BTreeMap;

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

pub use arguments::ComparedCall;
pub use summary::{LeafErrorSummary, LeafGroups};

use crate::finish::is_cut;

/// The kind of error of a leaf.
///
/// The four kinds from `PrematureClose` to `ArrayConfusion` are misplaced leaves: the prediction
/// lacks the path of the reference leaf, but has an equal value under the same key at another path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeafErrorKind {
    /// The prediction has no value at the leaf's path.
    Missing,
    /// The prediction has a leaf that the reference lacks.
    Invented,
    /// The prediction has a value of another JSON type at the leaf's path, or at the path of a
    /// container of the leaf.
    WrongType,
    /// The prediction has another value of the same type.
    WrongValue,
    /// The leaf is outside of its object, and so are all leaves of the object after it: the object
    /// was closed before the leaf.
    PrematureClose,
    /// The leaf is at another level, although the prediction has its object and later leaves of it.
    WrongLevel,
    /// The leaf is outside of its object, which the prediction lacks.
    MissingWrapper,
    /// The paths have the same keys and differ only in list indices, for example if an object
    /// replaces a list of objects.
    ArrayConfusion,
    /// The completion was cut off.
    Truncated,
    /// The completion is not JSON, or its call cannot be parsed.
    Malformed,
}

impl LeafErrorKind {
    /// All kinds, in display order.
    pub const ALL: [Self; 10] = [
        Self::Missing,
        Self::Invented,
        Self::WrongType,
        Self::WrongValue,
        Self::PrematureClose,
        Self::WrongLevel,
        Self::MissingWrapper,
        Self::ArrayConfusion,
        Self::Truncated,
        Self::Malformed,
    ];

    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Invented => "invented",
            Self::WrongType => "wrong_type",
            Self::WrongValue => "wrong_value",
            Self::PrematureClose => "premature_close",
            Self::WrongLevel => "wrong_level",
            Self::MissingWrapper => "missing_wrapper",
            Self::ArrayConfusion => "array_confusion",
            Self::Truncated => "truncated",
            Self::Malformed => "malformed",
        }
    }
}

/// A leaf of the reference, or an invented leaf of the prediction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComparedLeaf {
    /// The path with list indices as `[]`, such as `$.items[].sku`. It starts with the name of the
    /// tool if the leaf is an argument of a call. A long path starts with `…` instead.
    pub path: String,
    /// Number of keys and indices in the path.
    pub depth: usize,
    /// The error; `None` if the prediction has an equal value at this path.
    pub error: Option<LeafErrorKind>,
    /// The path of the equal value, if the leaf is misplaced.
    pub found_at: Option<String>,
    /// The called tool, if the leaf is an argument.
    pub tool: Option<String>,
}

/// All compared leaves of a sample: first the reference leaves in document order, then the invented
/// leaves.
///
/// As JSON: `{"n_leaves", "kinds": {KIND: n, ..}, "errors": [{"kind", "path", "found_at", "n"},
/// ..]}`, with up to 20 different errors and `n_more_errors`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeafErrors {
    leaves: Vec<ComparedLeaf>,
}

/// Number of different errors that a line of predictions lists.
const MAX_LISTED: usize = 20;

impl LeafErrors {
    /// Compares a prediction with its reference; `prediction` is `None` if the completion is not
    /// JSON.
    ///
    /// The work is proportional to the number of leaves of both values. Values are equal as in JSON
    /// Schema: 1 equals 1.0, but not "1". List items are compared by their index. If the completion
    /// was cut off, all leaves of the reference are `truncated`.
    pub fn compare(prediction: Option<&Value>, reference: &Value, finish_reason: &str) -> Self {
        let leaves = if is_cut(finish_reason) {
            compare::all_wrong("$", reference, LeafErrorKind::Truncated)
        } else {
            match prediction {
                Some(prediction) => compare::compare("$", prediction, reference),
                None => compare::all_wrong("$", reference, LeafErrorKind::Malformed),
            }
        };
        Self { leaves }
    }

    /// The leaves.
    pub fn leaves(&self) -> &[ComparedLeaf] {
        &self.leaves
    }

    /// Number of leaves of the reference.
    pub fn n_leaves(&self) -> usize {
        self.leaves.len() - self.n_of(LeafErrorKind::Invented)
    }

    /// Number of leaves with this error.
    pub fn n_of(&self, kind: LeafErrorKind) -> usize {
        let leaves = self.leaves.iter();
        leaves.filter(|leaf| leaf.error == Some(kind)).count()
    }

    /// Number of leaves by error.
    pub fn kinds(&self) -> BTreeMap<LeafErrorKind, usize> {
        let mut kinds = BTreeMap::new();
        for kind in self.leaves.iter().filter_map(|leaf| leaf.error) {
            *kinds.entry(kind).or_default() += 1;
        }
        kinds
    }

    /// Reads the number of reference leaves and the errors by kind from a line of predictions;
    /// `None` if the line has no such comparison.
    pub fn counts_in(line: &Value) -> Option<(usize, BTreeMap<LeafErrorKind, usize>)> {
        let own = line.get(FIELD)?;
        let n_leaves = usize::deserialize(own.get("n_leaves")?).ok()?;
        Some((n_leaves, BTreeMap::deserialize(own.get("kinds")?).ok()?))
    }
}

/// The field of a line of predictions, and of `metrics.json`.
pub const FIELD: &str = "leaf_errors";

impl Serialize for LeafErrors {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(PartialEq, Eq, PartialOrd, Ord, Serialize)]
        struct Listed<'l> {
            kind: LeafErrorKind,
            path: &'l str,
            #[serde(skip_serializing_if = "Option::is_none")]
            found_at: Option<&'l str>,
        }
        #[derive(Serialize)]
        struct Counted<'l> {
            #[serde(flatten)]
            error: Listed<'l>,
            n: usize,
        }
        let mut errors: BTreeMap<Listed<'_>, usize> = BTreeMap::new();
        for leaf in &self.leaves {
            let listed = leaf.error.map(|kind| Listed {
                kind,
                path: &leaf.path,
                found_at: leaf.found_at.as_deref(),
            });
            if let Some(listed) = listed {
                *errors.entry(listed).or_default() += 1;
            }
        }
        let n_more = errors.len().saturating_sub(MAX_LISTED);
        let errors = errors.into_iter().take(MAX_LISTED);
        let errors: Vec<Counted<'_>> = errors.map(|(error, n)| Counted { error, n }).collect();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("n_leaves", &self.n_leaves())?;
        map.serialize_entry("kinds", &self.kinds())?;
        map.serialize_entry("errors", &errors)?;
        if n_more > 0 {
            map.serialize_entry("n_more_errors", &n_more)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests;
