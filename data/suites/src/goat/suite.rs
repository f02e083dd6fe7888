//! Lists the suites goat, restbench and apibank for the registry: agents answer their queries.

use serde::Deserialize;
use serde_json::Value;

use super::{ApiBankReport, ApiBankScore, RestBenchReport};
use crate::bootstrap::indicator;
use crate::registry::{Needs, SampleScores, SuiteInfo, field, less, more};

/// Of each suite of agents.
const LOWER_IS_BETTER: &[&str] = &["delta_len", "parse_error_rate"];

/// Trajectories over APIs of one's own.
pub static SUITE: SuiteInfo = SuiteInfo {
    name: "goat",
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
    lower_is_better: LOWER_IS_BETTER,
    default_metric: "goat.ia",
    needs: Needs {
        rows_of: Some("goat"),
        ..Needs::AGENTS
    },
    operations: super::operations::OPERATIONS,
    samples: &[SampleScores {
        of: "goat",
        id: "id",
        mark: "ia",
        measures: &[
            more("sa"),
            more("ia"),
            more("ia_strict"),
            more("success"),
            more("correct_path"),
            less("delta_len").by(delta_len_if_solved),
            less("parse_error"),
        ],
    }],
};

/// RestBench: queries with the paths of endpoints that answer them.
pub static RESTBENCH: SuiteInfo = SuiteInfo {
    name: "restbench",
    metrics: &RestBenchReport::NAMES,
    lower_is_better: LOWER_IS_BETTER,
    default_metric: "restbench.correct_path",
    needs: Needs::AGENTS,
    operations: &[],
    samples: &[SampleScores {
        of: "restbench",
        id: "id",
        mark: "correct_path",
        measures: &[
            more("correct_path"),
            more("sa"),
            more("success"),
            less("delta_len").by(delta_len_if_solved),
            less("parse_error"),
        ],
    }],
};

/// API-Bank: samples of level 3, or steps of dialogues.
pub static APIBANK: SuiteInfo = SuiteInfo {
    name: "apibank",
    metrics: &ApiBankReport::NAMES,
    lower_is_better: LOWER_IS_BETTER,
    default_metric: "apibank.correctness",
    needs: Needs::AGENTS,
    operations: &[],
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
            more("success"),
            less("delta_len").by(delta_len_if_solved),
            less("parse_error"),
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
