//! Counts the errors of leaves over all samples.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use super::{LeafErrorKind, LeafErrors};

/// Number of paths or tools that are listed.
const MAX_GROUPS: usize = 100;

/// Number of paths that are listed with an example.
const MAX_WRONG_PATHS: usize = 10;

/// How a suite groups its leaves, in addition to their depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeafGroups {
    /// By path, with list indices as `[]`.
    Path,
    /// By the called tool.
    Tool,
}

/// The errors of a run. The denominator of each count is the number `n` of reference leaves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeafErrorSummary {
    /// Number of reference leaves.
    pub n_leaves: usize,
    /// Number of leaves by error, for every kind.
    #[serde(flatten)]
    pub kinds: BTreeMap<LeafErrorKind, usize>,
    /// By depth of the leaf.
    pub by_depth: Vec<DepthErrors>,
    /// By path, for values; paths with most errors first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub by_path: Vec<PathErrors>,
    /// By tool, for calls; tools with most errors first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub by_tool: Vec<ToolErrors>,
    /// Number of paths or tools that are not listed.
    #[serde(skip_serializing_if = "is_zero")]
    pub n_more_groups: usize,
    /// The paths with most errors, each with the id of its first wrong sample.
    pub wrong_paths: Vec<WrongPath>,
}

/// Errors of the leaves of a depth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DepthErrors {
    /// The depth.
    pub depth: usize,
    /// The errors.
    #[serde(flatten)]
    pub errors: GroupErrors,
}

/// Errors of the leaves of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PathErrors {
    /// The path.
    pub path: String,
    /// The errors.
    #[serde(flatten)]
    pub errors: GroupErrors,
}

/// Errors of the arguments of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolErrors {
    /// The tool.
    pub tool: String,
    /// The errors.
    #[serde(flatten)]
    pub errors: GroupErrors,
}

/// A path with errors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WrongPath {
    /// The path.
    pub path: String,
    /// Id of the first sample with an error at this path.
    pub example: String,
    /// Number of errors of all kinds.
    pub n_errors: usize,
    /// The errors.
    #[serde(flatten)]
    pub errors: GroupErrors,
}

/// Errors of a group of leaves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct GroupErrors {
    /// Number of reference leaves.
    pub n: usize,
    /// Number of leaves by error, for the kinds that occur in the run.
    #[serde(flatten)]
    pub kinds: BTreeMap<LeafErrorKind, usize>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl GroupErrors {
    fn add(&mut self, error: Option<LeafErrorKind>) {
        self.n += usize::from(error != Some(LeafErrorKind::Invented));
        if let Some(kind) = error {
            *self.kinds.entry(kind).or_default() += 1;
        }
    }

    fn n_errors(&self) -> usize {
        self.kinds.values().sum()
    }

    /// Adds zeros for the other kinds of the run, so that all groups have the same columns.
    fn with_columns(mut self, columns: &BTreeMap<LeafErrorKind, usize>) -> Self {
        for kind in columns.keys() {
            self.kinds.entry(*kind).or_default();
        }
        self
    }
}

impl LeafErrorSummary {
    /// Counts the errors of samples, each with its id; `None` without leaves.
    pub fn new<'s>(
        samples: impl IntoIterator<Item = (&'s str, &'s LeafErrors)>,
        groups: LeafGroups,
    ) -> Option<Self> {
        let mut all = GroupErrors::default();
        let mut by_depth: BTreeMap<usize, GroupErrors> = BTreeMap::new();
        let mut by_path: BTreeMap<&str, (GroupErrors, Option<&str>)> = BTreeMap::new();
        let mut by_tool: BTreeMap<&str, GroupErrors> = BTreeMap::new();
        for (id, errors) in samples {
            for leaf in errors.leaves() {
                all.add(leaf.error);
                by_depth.entry(leaf.depth).or_default().add(leaf.error);
                let (path, example) = by_path.entry(&leaf.path).or_default();
                path.add(leaf.error);
                if leaf.error.is_some() {
                    example.get_or_insert(id);
                }
                if let Some(tool) = &leaf.tool {
                    by_tool.entry(tool).or_default().add(leaf.error);
                }
            }
        }
        let columns = all.kinds.clone();
        let mut paths: Vec<_> = by_path.into_iter().collect();
        paths.sort_by_key(|(_, (errors, _))| Reverse(errors.n_errors()));
        let mut tools: Vec<_> = by_tool.into_iter().collect();
        tools.sort_by_key(|(_, errors)| Reverse(errors.n_errors()));
        let is_wrong = paths.iter().filter_map(|(path, (errors, example))| {
            Some(WrongPath {
                path: (*path).to_owned(),
                example: (*example)?.to_owned(),
                n_errors: errors.n_errors(),
                errors: errors.clone().with_columns(&columns),
            })
        });
        let wrong_paths = is_wrong.take(MAX_WRONG_PATHS).collect();
        let n_groups = match groups {
            LeafGroups::Path => paths.len(),
            LeafGroups::Tool => tools.len(),
        };
        let by_path = paths.into_iter().filter(|_| groups == LeafGroups::Path);
        let by_tool = tools.into_iter().filter(|_| groups == LeafGroups::Tool);
        let kind = |kind: LeafErrorKind| (kind, all.kinds.get(&kind).copied().unwrap_or(0));
        (all.n > 0 || !all.kinds.is_empty()).then(|| Self {
            n_leaves: all.n,
            kinds: LeafErrorKind::ALL.into_iter().map(kind).collect(),
            by_depth: by_depth
                .into_iter()
                .map(|(depth, errors)| DepthErrors {
                    depth,
                    errors: errors.with_columns(&columns),
                })
                .collect(),
            by_path: by_path
                .take(MAX_GROUPS)
                .map(|(path, (errors, _))| PathErrors {
                    path: path.to_owned(),
                    errors: errors.with_columns(&columns),
                })
                .collect(),
            by_tool: by_tool
                .take(MAX_GROUPS)
                .map(|(tool, errors)| ToolErrors {
                    tool: tool.to_owned(),
                    errors: errors.with_columns(&columns),
                })
                .collect(),
            n_more_groups: n_groups.saturating_sub(MAX_GROUPS),
            wrong_paths,
        })
    }
}
