//! Lists the suite calls for the registry.

use serde_json::Value;

use super::CallsSummary;
use crate::bootstrap::indicator;
use crate::registry::{Needs, RowsOf, SampleScores, SuiteInfo, field, less, more};

/// Turns of conversations become calls of the tools of their row.
pub static SUITE: SuiteInfo = SuiteInfo {
    name: "calls",
    about: "Calls of tools in conversations, turn by turn.",
    metrics: &CallsSummary::NAMES,
    words: &[
        ("right", "turns that are right"),
        ("exact", "turns with all wanted calls and no other"),
        ("name", "wanted calls whose tool is called"),
        ("arguments", "right arguments"),
        ("call_exact", "wanted calls with all arguments right"),
        ("valid", "calls that their tool takes"),
        (
            "malformed_rate",
            "turns with something that is to be a call and is none",
        ),
        (
            "invented_rate",
            "turns with a call of a tool that there is not",
        ),
        ("unwanted_rate", "turns with a call where a text is wanted"),
        ("missed_rate", "turns without a call where calls are wanted"),
        ("extra_rate", "turns with more calls than are wanted"),
    ],
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
            less("malformed_rate").from("malformed"),
            less("invented_rate").from("invented"),
            less("unwanted_rate").from("unwanted"),
            less("missed_rate").from("missed"),
            less("extra_rate").by(has_extra_calls),
        ],
    }],
    ranked_by: &[more("right"), more("name"), more("arguments")],
    own_files: &[],
};

/// Whether a turn has more calls than are wanted; absent where none is.
fn has_extra_calls(line: &Value) -> Option<f64> {
    let n = |name: &str| field(line, name)?.as_u64();
    (n("n_wanted")? > 0).then_some(indicator(n("n_extra")? > 0))
}
