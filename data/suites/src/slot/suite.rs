//! Lists the suite slot for the registry.

use super::Metrics;
use crate::bootstrap::indicator;
use crate::registry::{Needs, RowsOf, SampleScores, SuiteInfo, field, less, more};

/// Texts become the JSON that they describe, under a schema.
pub static SUITE: SuiteInfo = SuiteInfo {
    name: "slot",
    about: "Text to JSON by schema.",
    metrics: &Metrics::<f64>::NAMES,
    words: &[
        ("parse_rate", "JSON parses"),
        ("schema_accuracy", "valid under the schema"),
        (
            "strict_keys_accuracy",
            "valid with exactly the declared keys",
        ),
        ("content_similarity", "content similarity"),
        ("exact_match_f", "F of equal values"),
        ("exact_match", "equal to the gold"),
        ("mean", "mean of schema accuracy and content similarity"),
        ("malformed_rate", "flat answers that are no form"),
    ],
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
            more("parse_rate").from("parses"),
            more("schema_accuracy").from("schema"),
            more("strict_keys_accuracy").from("strict_keys"),
            more("content_similarity").from("content.f"),
            more("exact_match_f").from("exact.f"),
            more("exact_match"),
            more("mean").by(|line| {
                let [schema, content] = ["schema", "content.f"].map(|key| field(line, key));
                Some((indicator(schema?.as_bool()?) + content?.as_f64()?) / 2.0)
            }),
            less("malformed_rate")
                .by(|line| Some(indicator(line.get("scored")?["malformed"].is_string()))),
        ],
    }],
    // The mean that chooses checkpoints.
    ranked_by: &[
        more("schema_accuracy").from("schema"),
        more("content_similarity").from("content.f"),
    ],
    own_files: &[],
};
