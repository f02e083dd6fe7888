//! Lists the suite calls for the registry.

use super::CallsSummary;
use crate::registry::{Needs, SampleScores, SuiteInfo, less, more};

/// Turns of conversations become calls of the tools of their row.
pub static SUITE: SuiteInfo = SuiteInfo {
    name: "calls",
    metrics: &CallsSummary::NAMES,
    lower_is_better: &CallsSummary::LOWER_IS_BETTER,
    default_metric: "calls.right",
    needs: Needs {
        rows_of: Some("messages"),
        ..Needs::GENERATOR
    },
    operations: super::operations::OPERATIONS,
    samples: &[SampleScores {
        of: "calls",
        id: "id",
        mark: "n_wanted",
        measures: &[
            more("right"),
            more("exact"),
            more("name"),
            more("arguments"),
            more("valid"),
            less("malformed"),
            less("invented"),
            less("unwanted"),
            less("missed"),
            less("n_extra"),
        ],
    }],
};
