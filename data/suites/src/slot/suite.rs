//! Lists the suite slot for the registry.

use super::Metrics;
use crate::bootstrap::indicator;
use crate::registry::{Needs, SampleScores, SuiteInfo, less, more};

/// Texts become the JSON that they describe, under a schema.
pub static SUITE: SuiteInfo = SuiteInfo {
    name: "slot",
    metrics: &Metrics::<f64>::NAMES,
    // Where schemas are shown flat.
    lower_is_better: &["malformed_rate"],
    default_metric: "slot.mean",
    needs: Needs {
        rows_of: Some("slot"),
        encoder: true,
        ..Needs::GENERATOR
    },
    operations: super::operations::OPERATIONS,
    samples: &[SampleScores {
        of: "slot",
        id: "id",
        mark: "parses",
        measures: &[
            more("parses"),
            more("schema"),
            more("strict_keys"),
            more("content.precision"),
            more("content.recall"),
            more("content.f"),
            more("exact.precision"),
            more("exact.recall"),
            more("exact.f"),
            more("exact_match"),
            less("malformed")
                .by(|line| Some(indicator(line.get("scored")?["malformed"].is_string()))),
        ],
    }],
};
