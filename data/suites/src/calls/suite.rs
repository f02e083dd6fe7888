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
            more("name").weighed(|line| number(line, "n_wanted")),
            more("arguments").weighed(|line| Some(arguments(line)?[1])),
            more("call_exact")
                .by(exact_calls)
                .weighed(|line| number(line, "n_wanted")),
            more("valid").weighed(|line| number(line, "n_made")),
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

fn number(line: &Value, name: &str) -> Option<f64> {
    field(line, name)?.as_f64()
}

/// The right arguments of a turn's wanted calls, and all of them.
fn arguments(line: &Value) -> Option<[f64; 2]> {
    let calls = field(line, "calls")?.as_array()?.iter();
    let pair = |call: &Value| {
        let n = |key: &str| call[key].as_f64();
        Some([n("n_right_arguments")?, n("n_arguments")?])
    };
    calls
        .map(pair)
        .try_fold([0.0; 2], |[a, b], pair| pair.map(|[c, d]| [a + c, b + d]))
}

/// The share of a turn's wanted calls that are made with all arguments right.
fn exact_calls(line: &Value) -> Option<f64> {
    let calls = field(line, "calls")?.as_array()?.iter();
    let n_exact = calls.filter(|call| call["exact"] == true).count();
    let n_wanted = number(line, "n_wanted").filter(|n| *n > 0.0)?;
    Some(n_exact as f64 / n_wanted)
}

/// Whether a turn has more calls than are wanted; absent where none is.
fn has_extra_calls(line: &Value) -> Option<f64> {
    let n = |name: &str| field(line, name)?.as_u64();
    (n("n_wanted")? > 0).then_some(indicator(n("n_made")? > n("n_wanted")?))
}
