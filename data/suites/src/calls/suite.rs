//! Lists the suite calls for the registry.

use super::CallsSummary;
use crate::registry::{Needs, RowsOf, SampleScores, SuiteInfo, less, more};

/// Turns of conversations become calls of the tools of their row.
pub static SUITE: SuiteInfo = SuiteInfo {
    name: "calls",
    about: "Calls of tools in conversations, turn by turn.",
    metrics: &CallsSummary::NAMES,
    flat_metrics: &[],
    lower_is_better: &CallsSummary::LOWER_IS_BETTER,
    default_metric: "calls.right",
    needs: Needs {
        rows: Some(RowsOf {
            formats: &["messages", "sharegpt", "xlam", "prompt-completion"],
            are_samples: false,
            by_default: false,
        }),
        ..Needs::GENERATOR
    },
    operations: super::operations::OPERATIONS,
    metrics_mark: "by_schema_depth",
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
    ranked_by: &[more("right"), more("name"), more("arguments")],
    own_files: &[],
};
