//! Registers the toolqa suite.

use serde::Deserialize;
use serde_json::Value;

use super::prompt_texts::{CLASSIFIER, JUDGE};
use super::statistics::{QUESTIONS, RESPONSES};
use super::{AnswerStatus, TaskType, ToolQaNumbers};
use crate::bootstrap::indicator;
use crate::grouping::{GroupKey, score_text};
use crate::registry::{
    LineFields, SampleScores, SuiteInfo, SuiteNeeds, higher_better, lower_better,
};

/// Questions about tool outputs to answers, or to functions that compute them.
pub static SUITE: SuiteInfo = SuiteInfo {
    name: "toolqa",
    about: "Questions about tool outputs to answers, or to functions that compute them.",
    metrics: &ToolQaNumbers::NAMES,
    plain_names: &[
        ("exact_match", "exact matches"),
        ("exact_match_strict", "exact matches with strict numbers"),
        ("contains", "answers that contain the gold answer"),
        ("judged", "accepted by the judge"),
        ("parse_error_rate", "answers without code"),
    ],
    lower_is_better: &["parse_error_rate"],
    default_metric: "toolqa.exact_match_strict",
    is_judged: true,
    needs: SuiteNeeds::GENERATOR,
    operations: super::operations::OPERATIONS,
    prompts: &[("judge", JUDGE), ("classifier", CLASSIFIER)],
    ranked_by: &[
        higher_better("exact_match_strict"),
        higher_better("contains"),
        higher_better("judged"),
    ],
    own_files: &[RESPONSES, QUESTIONS],
    samples: &[
        SampleScores {
            of: "toolqa",
            fields: LineFields {
                prompt: &["question"],
                gold: &["gold_answer"],
                ..LineFields::COMPLETION
            },
            kinds: &["answer"],
            measures: &[
                higher_better("exact_match"),
                higher_better("exact_match_strict"),
                higher_better("contains"),
                higher_better("judged"),
                lower_better("parse_error_rate").computed_by(|line| {
                    let status = AnswerStatus::deserialize(line.get("status")?).ok()?;
                    Some(indicator(status == AnswerStatus::NoCode))
                }),
            ],
            groups: &[
                TYPE,
                GroupKey::new("endpoint", "endpoint of the response", |line| {
                    score_text(line, "endpoint")
                }),
                GroupKey::new("metric", "metric of the question", |line| {
                    score_text(line, "metric")
                }),
            ],
        },
        SampleScores {
            of: "toolqa --classify",
            fields: LineFields {
                prompt: &["question"],
                gold: &["gold_answer"],
                ..LineFields::COMPLETION
            },
            kinds: &["classification"],
            measures: &[
                higher_better("accuracy").computed_by(|line| {
                    let gold = TaskType::deserialize(line.get("task_type")?).ok()?;
                    Some(indicator(named_type(line)? == Some(gold)))
                }),
                lower_better("parse_error_rate")
                    .computed_by(|line| Some(indicator(named_type(line)?.is_none()))),
            ],
            groups: &[TYPE],
        },
    ],
    ..SuiteInfo::EMPTY
};

const TYPE: GroupKey = GroupKey::new("type", "type of the question", |line| {
    score_text(line, "task_type")
});

/// The question type named by a classifier's output.
fn named_type(line: &Value) -> Option<Option<TaskType>> {
    let output = line.get("prediction")?.as_str()?;
    Some(TaskType::from_output(output))
}
