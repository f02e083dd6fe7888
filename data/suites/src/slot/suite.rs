//! Registers the slot suite.

use super::Metrics;
use crate::bootstrap::indicator;
use crate::grouping::{GroupKey, score_text};
use crate::registry::{
    LineFields, RowSource, SampleScores, SuiteInfo, SuiteNeeds, field, higher_better, lower_better,
};

/// Texts to JSON under a schema.
pub static SUITE: SuiteInfo = SuiteInfo {
    name: "slot",
    about: "Text to JSON under a schema.",
    metrics: &Metrics::<f64>::NAMES,
    plain_names: &[
        ("parse_rate", "JSON parses"),
        ("schema_accuracy", "valid under the schema"),
        (
            "strict_keys_accuracy",
            "valid with exactly the declared keys",
        ),
        ("content_similarity", "content similarity"),
        ("exact_match_f", "F1 of equal values"),
        ("exact_match", "equal to the gold value"),
        ("mean", "mean of schema accuracy and content similarity"),
        ("malformed_rate", "malformed flat answers"),
    ],
    flat_metrics: &["malformed_rate"],
    lower_is_better: &["malformed_rate"],
    default_metric: "slot.mean",
    needs: SuiteNeeds {
        rows: Some(RowSource {
            formats: &["slot"],
            are_samples: true,
            by_default: true,
        }),
        encoder: true,
        ..SuiteNeeds::GENERATOR
    },
    operations: super::operations::OPERATIONS,
    samples: &[SampleScores {
        of: "slot",
        fields: LineFields {
            prompt: &["input_text"],
            ..LineFields::COMPLETION
        },
        kinds: &["completion"],
        measures: &[
            higher_better("parse_rate").in_field("parses"),
            higher_better("schema_accuracy").in_field("schema"),
            higher_better("strict_keys_accuracy").in_field("strict_keys"),
            higher_better("content_similarity").in_field("content.f"),
            higher_better("exact_match_f").in_field("exact.f"),
            higher_better("exact_match"),
            higher_better("mean").computed_by(|line| {
                let [schema, content] = ["schema", "content.f"].map(|key| field(line, key));
                Some((indicator(schema?.as_bool()?) + content?.as_f64()?) / 2.0)
            }),
            lower_better("malformed_rate")
                .computed_by(|line| Some(indicator(line.get("scored")?["malformed"].is_string()))),
        ],
        groups: &[
            GroupKey::new("depth", "depth of the gold value", |line| {
                score_text(line, "gold_depth")
            }),
            GroupKey::FILE,
        ],
    }],
    // The mean of these scores selects checkpoints.
    ranked_by: &[
        higher_better("schema_accuracy").in_field("schema"),
        higher_better("content_similarity").in_field("content.f"),
    ],
    ..SuiteInfo::EMPTY
};
