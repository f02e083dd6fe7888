//! Lists the suite slot for the registry.

use super::Metrics;
use crate::bootstrap::indicator;
use crate::registry::{Needs, RowsOf, SampleScores, SuiteInfo, less, more};

/// Texts become the JSON that they describe, under a schema.
pub static SUITE: SuiteInfo = SuiteInfo {
    name: "slot",
    about: "Text to JSON by schema.",
    metrics: &Metrics::<f64>::NAMES,
    flat_metrics: &["malformed_rate"],
    lower_is_better: &["malformed_rate"],
    default_metric: "slot.mean",
    needs: Needs {
        rows: Some(RowsOf {
            formats: &["slot"],
            are_samples: true,
            by_default: true,
        }),
        encoder: true,
        ..Needs::GENERATOR
    },
    operations: super::operations::OPERATIONS,
    metrics_mark: "schema_accuracy",
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
    }], // The mean that chooses checkpoints.
    ranked_by: &[more("schema"), more("content.f")],
    own_files: &[],
};
