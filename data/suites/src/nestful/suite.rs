//! Registers the nestful suite.

use serde::Deserialize;
use serde_json::Value;

use super::{NestfulReport, Win};
use crate::bootstrap::indicator;
use crate::grouping::{GroupKey, score_text};
use crate::registry::{
    LineFields, SampleScores, SuiteInfo, SuiteNeeds, field, higher_better, lower_better,
};

/// Questions to sequences of nested calls.
pub static SUITE: SuiteInfo = SuiteInfo {
    name: "nestful",
    about: "NESTFUL: questions to sequences of nested calls.",
    metrics: &NestfulReport::NAMES,
    plain_names: &[
        ("partial", "partial sequence accuracy"),
        ("full", "full sequence accuracy"),
        ("win_official", "win rate by the published rules"),
        ("win_strict", "win rate"),
        ("alternate_trajectory", "wins by an alternative sequence"),
        ("parse_error_rate", "unparsable answers"),
    ],
    lower_is_better: &["parse_error_rate", "steps"],
    default_metric: "nestful.win_strict",
    needs: SuiteNeeds::GENERATOR,
    operations: super::operations::OPERATIONS,
    // A sequence wins or loses. Partial matches of names and arguments refine the rank.
    ranked_by: &[
        higher_better("win_strict").computed_by(win_strict),
        higher_better("partial"),
    ],
    // Sequences have the first two scores, loops have the last.
    samples: &[SampleScores {
        of: "nestful",
        fields: LineFields {
            prompt: &["question"],
            output: &["prediction", "steps"],
            finish_reason: &["finish_reason", "steps.finish_reason"],
            ..LineFields::COMPLETION
        },
        kinds: &["sequence", "loop"],
        measures: &[
            higher_better("partial"),
            higher_better("full"),
            higher_better("win_official")
                .computed_by(|line| outcome_of(line)?.official().map(indicator)),
            higher_better("win_strict").computed_by(win_strict),
            lower_better("parse_error_rate").in_field("parse_error"),
            lower_better("steps").in_field("n_steps"),
        ],
        groups: &[
            GroupKey::new("tool", "gold functions", |line| {
                let names = field(line, "gold_names").and_then(Value::as_array);
                let names = names.into_iter().flatten().filter_map(Value::as_str);
                names.map(str::to_owned).collect()
            }),
            GroupKey::new("n_calls", "number of gold calls", |line| {
                score_text(line, "gold_dag.calls")
            }),
            GroupKey::new("depth", "dependencies on the longest path", |line| {
                score_text(line, "gold_dag.max_depth")
            }),
            GroupKey::new("dependencies", "number of dependencies", |line| {
                score_text(line, "gold_dag.dependencies")
            }),
            GroupKey::new("pattern", "shape of the gold sequence", |line| {
                score_text(line, "gold_dag.pattern")
            }),
        ],
    }],
    ..SuiteInfo::EMPTY
};

fn outcome_of(line: &Value) -> Option<Win> {
    Win::deserialize(field(line, "win")?).ok()
}

fn win_strict(line: &Value) -> Option<f64> {
    outcome_of(line)?.strict().map(indicator)
}
