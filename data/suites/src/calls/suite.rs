//! Registers the calls suite.

use serde_json::Value;

use super::CallsSummary;
use crate::bootstrap::indicator;
use crate::grouping::{GroupKey, score_text, texts_of_items};
use crate::registry::{
    LineFields, RowSource, SampleScores, SuiteInfo, SuiteNeeds, field, higher_better, lower_better,
};

/// Conversation turns to calls of the row's tools.
pub static SUITE: SuiteInfo = SuiteInfo {
    name: "calls",
    about: "Tool calls in conversations, turn by turn.",
    metrics: &CallsSummary::NAMES,
    plain_names: &[
        (
            "balanced",
            "harmonic mean of accuracy on turns with and without calls",
        ),
        ("right", "right turns"),
        ("exact", "turns with exactly the expected calls"),
        ("text_right", "right turns among those with expected text"),
        ("name", "expected calls whose tool is called"),
        ("arguments", "right arguments"),
        ("call_exact", "expected calls with all arguments right"),
        ("valid", "predicted calls that are valid for their tool"),
        ("malformed_rate", "turns with a malformed call"),
        ("invented_rate", "turns with a call to an unknown tool"),
        (
            "unwanted_rate",
            "turns with a call although text is expected",
        ),
        (
            "missed_rate",
            "turns without a call although calls are expected",
        ),
        ("extra_rate", "turns with more calls than expected"),
        ("cut_rate", "turns whose answer was cut off"),
    ],
    lower_is_better: &CallsSummary::LOWER_IS_BETTER,
    default_metric: "calls.balanced",
    needs: SuiteNeeds {
        rows: Some(RowSource {
            formats: &["messages", "sharegpt", "xlam", "prompt-completion", "chat"],
            are_samples: false,
            by_default: false,
        }),
        ..SuiteNeeds::GENERATOR
    },
    operations: super::operations::OPERATIONS,
    samples: &[SampleScores {
        of: "calls",
        fields: LineFields::COMPLETION,
        kinds: &["turn"],
        measures: &[
            higher_better("right"),
            higher_better("exact"),
            higher_better("text_right").computed_by(right_text),
            higher_better("name").weighted_by(|line| number(line, "n_wanted")),
            higher_better("arguments").weighted_by(|line| Some(arguments(line)?[1])),
            higher_better("call_exact")
                .computed_by(exact_calls)
                .weighted_by(|line| number(line, "n_wanted")),
            higher_better("valid").weighted_by(|line| number(line, "n_made")),
            lower_better("malformed_rate").in_field("malformed"),
            lower_better("invented_rate").in_field("invented"),
            lower_better("unwanted_rate").in_field("unwanted"),
            lower_better("missed_rate").in_field("missed"),
            lower_better("extra_rate").computed_by(has_extra_calls),
            lower_better("cut_rate").in_field("cut"),
        ],
        groups: &[
            GroupKey::new("tool", "expected tools", |line| of_calls(line, "tool")),
            GroupKey::new("n_calls", "number of expected calls", |line| {
                score_text(line, "n_wanted")
            }),
            GroupKey::new("depth", "schema depth of the expected tools", |line| {
                of_calls(line, "depth")
            }),
            GroupKey::FILE,
        ],
    }],
    ranked_by: &[
        higher_better("right"),
        higher_better("name"),
        higher_better("arguments"),
    ],
    ..SuiteInfo::EMPTY
};

/// A property of each expected call; turns with expected text are one group.
fn of_calls(line: &Value, name: &str) -> Vec<String> {
    let texts = texts_of_items(field(line, "calls"), name);
    match texts.is_empty() {
        true => vec!["no call".to_owned()],
        false => texts,
    }
}

fn number(line: &Value, name: &str) -> Option<f64> {
    field(line, name)?.as_f64()
}

/// The number of right arguments of a turn's expected calls, and the total.
fn arguments(line: &Value) -> Option<[f64; 2]> {
    let calls = field(line, "calls")?.as_array()?.iter();
    let pair = |call: &Value| {
        let n = |key: &str| call[key].as_f64();
        Some([n("n_right_arguments")?, n("n_arguments")?])
    };
    calls
        .map(pair)
        .try_fold([0.0; 2], |[a, b], pair| pair.map(|[c, d]| [a + c, b + d]))
}

/// The fraction of a turn's expected calls that are made with all arguments right.
fn exact_calls(line: &Value) -> Option<f64> {
    let calls = field(line, "calls")?.as_array()?.iter();
    let n_exact = calls.filter(|call| call["exact"] == true).count();
    let n_wanted = number(line, "n_wanted").filter(|n| *n > 0.0)?;
    Some(n_exact as f64 / n_wanted)
}

/// Whether a turn with expected text is right; `None` if calls are expected.
fn right_text(line: &Value) -> Option<f64> {
    let wants_text = field(line, "n_wanted")?.as_u64()? == 0;
    let is_right = field(line, "right")?.as_bool()?;
    wants_text.then_some(indicator(is_right))
}

/// Whether a turn has more calls than expected; `None` if no call is expected.
fn has_extra_calls(line: &Value) -> Option<f64> {
    let n = |name: &str| field(line, name)?.as_u64();
    (n("n_wanted")? > 0).then_some(indicator(n("n_made")? > n("n_wanted")?))
}
