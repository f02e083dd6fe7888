//! Lists the suite nestful for the registry.

use serde::Deserialize;
use serde_json::Value;

use super::{NestfulReport, Win};
use crate::bootstrap::indicator;
use crate::registry::{Needs, SampleScores, SuiteInfo, field, less, more};

/// Questions become sequences of calls that use each other's results.
pub static SUITE: SuiteInfo = SuiteInfo {
    name: "nestful",
    metrics: &NestfulReport::NAMES,
    lower_is_better: &["parse_error_rate", "steps"],
    default_metric: "nestful.win_strict",
    needs: Needs::GENERATOR,
    operations: super::operations::OPERATIONS,
    // Sequences have the first two, loops the last one.
    samples: &[SampleScores {
        of: "nestful",
        id: "id",
        mark: "win",
        measures: &[
            more("partial"),
            more("full"),
            more("win_official").by(|line| win(line)?.official().map(indicator)),
            more("win_strict").by(|line| win(line)?.strict().map(indicator)),
            less("parse_error"),
            less("n_steps"),
        ],
    }],
};

fn win(line: &Value) -> Option<Win> {
    Win::deserialize(field(line, "win")?).ok()
}
