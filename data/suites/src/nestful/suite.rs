//! Lists the suite nestful for the registry.

use serde::Deserialize;
use serde_json::Value;

use super::{NestfulReport, Win};
use crate::bootstrap::indicator;
use crate::registry::{Needs, SampleScores, SuiteInfo, field, less, more};

/// Questions become sequences of calls that use each other's results.
pub static SUITE: SuiteInfo = SuiteInfo {
    name: "nestful",
    about: "NESTFUL: questions to sequences of calls that use each other's results.",
    metrics: &NestfulReport::NAMES,
    words: &[
        ("partial", "partial matches of calls"),
        ("full", "full matches of sequences"),
        ("win_official", "win rate by the published rules"),
        ("win_strict", "win rate"),
        ("alternate_trajectory", "wins by another sequence"),
        ("parse_error_rate", "unreadable answers"),
    ],
    flat_metrics: &[],
    lower_is_better: &["parse_error_rate", "steps"],
    default_metric: "nestful.win_strict",
    needs: Needs::GENERATOR,
    operations: super::operations::OPERATIONS,
    metrics_mark: "win_strict",
    // A sequence wins or does not, which partial matches of names and arguments refine.
    ranked_by: &[more("win_strict").by(win_strict), more("partial")],
    own_files: &[],
    // Sequences have the first two, loops the last one.
    samples: &[SampleScores {
        of: "nestful",
        id: "id",
        mark: "win",
        measures: &[
            more("partial"),
            more("full"),
            more("win_official").by(|line| win(line)?.official().map(indicator)),
            more("win_strict").by(win_strict),
            less("parse_error_rate").from("parse_error"),
            less("steps").from("n_steps"),
        ],
    }],
};

fn win(line: &Value) -> Option<Win> {
    Win::deserialize(field(line, "win")?).ok()
}

fn win_strict(line: &Value) -> Option<f64> {
    win(line)?.strict().map(indicator)
}
