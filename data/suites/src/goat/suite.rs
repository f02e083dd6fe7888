//! Lists the suites goat, restbench and apibank for the registry: agents answer their queries.

use serde::Deserialize;
use serde_json::Value;

use super::{ApiBankReport, ApiBankScore, RestBenchReport};
use crate::bootstrap::indicator;
use crate::registry::{Needs, RowsOf, SampleScores, SuiteInfo, field, less, more};

/// Of each suite of agents.
const LOWER_IS_BETTER: &[&str] = &["delta_len", "parse_error_rate"];

/// Trajectories over APIs of one's own.
pub static SUITE: SuiteInfo = SuiteInfo {
    name: "goat",
    about: "Queries to calls of APIs and an answer, with the retriever's documents.",
    metrics: &[
        "sa",
        "ia",
        "ia_strict",
        "sr",
        "correct_path",
        "delta_len",
        "parse_error_rate",
        "recall_at_gt",
        "recall_at_5",
    ],
    words: &[
        ("sa", "selection accuracy"),
        ("ia", "invocation accuracy"),
        (
            "ia_strict",
            "invocation accuracy, values as they are written",
        ),
        ("sr", "success rate"),
        ("correct_path", "correct path rate"),
        ("delta_len", "calls beyond the gold's"),
        ("parse_error_rate", "unreadable outcomes"),
        ("recall_at_gt", "recall at the number of golds"),
        ("recall_at_5", "recall at 5"),
    ],
    flat_metrics: &[],
    lower_is_better: LOWER_IS_BETTER,
    default_metric: "goat.ia",
    needs: Needs {
        rows: Some(RowsOf {
            formats: &["goat"],
            are_samples: false,
            by_default: false,
        }),
        ..Needs::AGENTS
    },
    operations: super::operations::OPERATIONS,
    metrics_mark: "goat",
    ranked_by: &[more("sa"), more("ia"), more("sr").from("success")],
    own_files: &[],
    samples: &[SampleScores {
        of: "goat",
        id: "id",
        mark: "ia",
        measures: &[
            more("sa"),
            more("ia"),
            more("ia_strict"),
            more("sr").from("success"),
            more("correct_path"),
            less("delta_len").by(delta_len_if_solved),
            less("parse_error_rate").from("parse_error"),
        ],
    }],
};

/// RestBench: queries with the paths of endpoints that answer them.
pub static RESTBENCH: SuiteInfo = SuiteInfo {
    name: "restbench",
    about: "RestBench: queries to a path of endpoints, with the retriever's documents.",
    metrics: &RestBenchReport::NAMES,
    words: &[
        ("correct_path", "correct path rate"),
        ("delta_len", "calls beyond the gold's"),
        ("sr", "success rate"),
        ("sa", "selection accuracy"),
        ("parse_error_rate", "unreadable outcomes"),
    ],
    flat_metrics: &[],
    lower_is_better: LOWER_IS_BETTER,
    default_metric: "restbench.correct_path",
    needs: Needs::AGENTS,
    operations: &[],
    metrics_mark: "restbench",
    ranked_by: &[more("sa"), more("correct_path"), more("sr").from("success")],
    own_files: &[],
    samples: &[SampleScores {
        of: "restbench",
        id: "id",
        mark: "sa",
        measures: &[
            more("correct_path"),
            more("sa"),
            more("sr").from("success"),
            less("delta_len").by(delta_len_if_solved),
            less("parse_error_rate").from("parse_error"),
        ],
    }],
};

/// API-Bank: samples of level 3, or steps of dialogues.
pub static APIBANK: SuiteInfo = SuiteInfo {
    name: "apibank",
    about: "API-Bank: samples of level 3, or dialogues of levels 1 and 2, to calls and answers.",
    metrics: &ApiBankReport::NAMES,
    words: &[
        ("correctness", "right calls"),
        ("sample_accuracy", "samples with all calls right"),
        ("rouge_l", "ROUGE-L by the published rules"),
        ("rouge_l_plain", "ROUGE-L as Google computes it"),
        ("sr", "success rate"),
        ("correct_path", "correct path rate"),
        ("delta_len", "calls beyond the gold's"),
        ("parse_error_rate", "unreadable outcomes"),
    ],
    flat_metrics: &[],
    lower_is_better: LOWER_IS_BETTER,
    default_metric: "apibank.correctness",
    needs: Needs::AGENTS,
    operations: &[],
    metrics_mark: "apibank",
    ranked_by: &[
        more("right_calls").by(share_of_calls),
        more("rouge_l"),
        more("sr").from("success"),
    ],
    own_files: &[],
    samples: &[SampleScores {
        of: "apibank",
        id: "id",
        mark: "n_right",
        measures: &[
            more("sample_accuracy").by(|line| {
                let score = ApiBankScore::deserialize(line.get("score")?).ok()?;
                score.has_right_calls().map(indicator)
            }),
            more("correct_path"),
            more("rouge_l"),
            more("rouge_l_plain"),
            more("sr").from("success"),
            less("delta_len").by(delta_len_if_solved),
            less("parse_error_rate").from("parse_error"),
        ],
    }],
};

/// Calls beyond the gold's, which count where the query is solved, as in the suite's mean: to give
/// up at once is no short path.
fn delta_len_if_solved(line: &Value) -> Option<f64> {
    let is_solved = field(line, "success")?.as_bool()?;
    is_solved
        .then(|| field(line, "delta_len")?.as_f64())
        .flatten()
}

/// Of the gold calls of a sample, and of the calls made where those are more, those that are right;
/// a sample may ask for a reply instead.
fn share_of_calls(line: &Value) -> Option<f64> {
    let n = |name: &str| field(line, name)?.as_f64();
    let n_calls = n("n_gold")?.max(n("n_pred")?);
    (n("n_gold")? > 0.0).then_some(n("n_right")? / n_calls)
}
