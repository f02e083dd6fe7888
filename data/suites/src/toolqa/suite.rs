//! Lists the suite toolqa for the registry.

use serde::Deserialize;
use serde_json::Value;

use super::statistics::{QUESTIONS, RESPONSES};
use super::{AnswerStatus, TaskType, ToolQaNumbers};
use crate::bootstrap::indicator;
use crate::registry::{Needs, SampleScores, SuiteInfo, less, more};

/// Questions about outputs of tools become answers, or functions that compute them.
pub static SUITE: SuiteInfo = SuiteInfo {
    name: "toolqa",
    about: "Questions about outputs of tools, to answers or to functions that find them.",
    metrics: &ToolQaNumbers::NAMES,
    words: &[
        ("exact_match", "exact matches"),
        ("exact_match_strict", "exact matches, numbers strictly"),
        ("contains", "answers that contain the gold"),
        ("judged", "right by the judge"),
        ("parse_error_rate", "answers without code"),
    ],
    flat_metrics: &[],
    lower_is_better: &["parse_error_rate"],
    default_metric: "toolqa.exact_match_strict",
    needs: Needs::GENERATOR,
    operations: super::operations::OPERATIONS,
    metrics_mark: "n_parse_errors",
    ranked_by: &[more("exact_match_strict"), more("contains"), more("judged")],
    own_files: &[RESPONSES, QUESTIONS],
    samples: &[
        SampleScores {
            of: "toolqa",
            id: "uid",
            mark: "exact_match",
            measures: &[
                more("exact_match"),
                more("exact_match_strict"),
                more("contains"),
                more("judged"),
                less("parse_error_rate").by(|line| {
                    let status = AnswerStatus::deserialize(line.get("status")?).ok()?;
                    Some(indicator(status == AnswerStatus::NoCode))
                }),
            ],
        },
        SampleScores {
            of: "toolqa --classify",
            id: "uid",
            mark: "task_type",
            measures: &[
                more("accuracy").by(|line| {
                    let gold = TaskType::deserialize(line.get("task_type")?).ok()?;
                    Some(indicator(named_type(line)? == Some(gold)))
                }),
                less("parse_error_rate").by(|line| Some(indicator(named_type(line)?.is_none()))),
            ],
        },
    ],
};

/// What a classifier's output names.
fn named_type(line: &Value) -> Option<Option<TaskType>> {
    let output = line.get("model_output")?.as_str()?;
    Some(TaskType::of_output(output))
}
