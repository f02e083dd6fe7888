//! Registers the agent suites goat, restbench and apibank.

use serde::Deserialize;
use serde_json::Value;

use super::{ApiBankReport, ApiBankScore, RestBenchReport};
use crate::bootstrap::indicator;
use crate::grouping::GroupKey;
use crate::registry::{
    LineFields, RowSource, SampleScores, SuiteInfo, SuiteNeeds, field, higher_better, lower_better,
};

/// Metrics of all agent suites for which lower is better.
const LOWER_IS_BETTER: &[&str] = &["delta_len", "parse_error_rate"];

/// Fields of a line with an agent loop.
const LOOP: LineFields = LineFields {
    id: "id",
    prompt: &["query"],
    gold: &["gold"],
    output: &["outcome"],
    finish_reason: &["outcome.texts.finish_reason"],
};

const API: GroupKey = GroupKey::new("api", "gold APIs", gold_names);

const N_CALLS: GroupKey = GroupKey::new("n_calls", "number of gold calls", |line| {
    vec![gold_names(line).len().to_string()]
});

/// Names of the gold calls.
fn gold_names(line: &Value) -> Vec<String> {
    let gold = line.get("gold");
    let calls = gold.and_then(|gold| gold.get("calls")).or(gold);
    let calls = calls.and_then(Value::as_array).into_iter().flatten();
    let name = |call: &Value| {
        let name = call.as_str().or_else(|| call.get("name")?.as_str());
        name.map(str::to_owned)
    };
    calls.filter_map(name).collect()
}

/// The tools of the gold calls, each once.
fn gold_tools(line: &Value) -> Vec<String> {
    let tools = line.get("tools").and_then(Value::as_array);
    let tools = tools.into_iter().flatten().filter_map(Value::as_str);
    tools.map(str::to_owned).collect()
}

/// Trajectories over user-defined APIs.
pub static SUITE: SuiteInfo = SuiteInfo {
    name: "goat",
    about: "Queries to API calls and an answer, with retrieved documents.",
    metrics: &[
        "sa",
        "ia",
        "ia_strict",
        "sr",
        "correct_path",
        "delta_len",
        "parse_error_rate",
        "recall_at_gt",
        "recall_at_5",
    ],
    plain_names: &[
        ("sa", "selection accuracy"),
        ("ia", "invocation accuracy"),
        ("ia_strict", "invocation accuracy, values compared exactly"),
        ("sr", "success rate"),
        ("correct_path", "correct path rate"),
        ("delta_len", "calls beyond the gold calls"),
        ("parse_error_rate", "unparsable outcomes"),
        ("recall_at_gt", "recall at the number of gold documents"),
        ("recall_at_5", "recall at 5"),
    ],
    lower_is_better: LOWER_IS_BETTER,
    default_metric: "goat.ia",
    is_judged: true,
    needs: SuiteNeeds {
        rows: Some(RowSource {
            formats: &["goat"],
            are_samples: false,
            by_default: false,
        }),
        ..SuiteNeeds::AGENTS
    },
    operations: super::operations::OPERATIONS,
    ranked_by: &[
        higher_better("sa"),
        higher_better("ia"),
        higher_better("sr").in_field("success"),
    ],
    samples: &[SampleScores {
        of: "goat",
        fields: LOOP,
        kinds: &["loop"],
        measures: &[
            higher_better("sa"),
            higher_better("ia"),
            higher_better("ia_strict"),
            higher_better("sr").in_field("success"),
            higher_better("correct_path"),
            lower_better("delta_len").computed_by(delta_len_if_solved),
            lower_better("parse_error_rate").in_field("parse_error"),
            higher_better("recall_at_gt")
                .in_field("retrieval.recall_at_gt")
                .weighted_by(n_retrieval_texts),
            higher_better("recall_at_5")
                .in_field("retrieval.recall_at_5")
                .weighted_by(n_retrieval_texts),
        ],
        groups: &[
            GroupKey::new("tool", "tools of the gold calls", gold_tools),
            GroupKey::new("tools", "queries of a single tool, or of several", |line| {
                let group = match gold_tools(line).len() {
                    0 => "unknown",
                    1 => "single tool",
                    _ => "inter tool",
                };
                vec![group.to_owned()]
            }),
            API,
            N_CALLS,
            GroupKey::FILE,
        ],
    }],
    ..SuiteInfo::EMPTY
};

/// RestBench: queries with the endpoint paths that answer them.
pub static RESTBENCH: SuiteInfo = SuiteInfo {
    name: "restbench",
    about: "RestBench: queries to a path of endpoints, with retrieved documents.",
    metrics: &RestBenchReport::NAMES,
    plain_names: &[
        ("correct_path", "correct path rate"),
        ("delta_len", "calls beyond the gold calls"),
        ("sr", "success rate"),
        ("sa", "selection accuracy"),
        ("parse_error_rate", "unparsable outcomes"),
    ],
    lower_is_better: LOWER_IS_BETTER,
    default_metric: "restbench.correct_path",
    is_judged: true,
    needs: SuiteNeeds::AGENTS,
    ranked_by: &[
        higher_better("sa"),
        higher_better("correct_path"),
        higher_better("sr").in_field("success"),
    ],
    samples: &[SampleScores {
        of: "restbench",
        fields: LOOP,
        kinds: &["loop"],
        measures: &[
            higher_better("correct_path"),
            higher_better("sa"),
            higher_better("sr").in_field("success"),
            lower_better("delta_len").computed_by(delta_len_if_solved),
            lower_better("parse_error_rate").in_field("parse_error"),
        ],
        groups: &[API, N_CALLS, GroupKey::FILE],
    }],
    ..SuiteInfo::EMPTY
};

/// API-Bank: level-3 samples, or steps of dialogues.
pub static APIBANK: SuiteInfo = SuiteInfo {
    name: "apibank",
    about: "API-Bank: level-3 samples, or dialogues of levels 1 and 2, to calls and answers.",
    metrics: &ApiBankReport::NAMES,
    plain_names: &[
        ("correctness", "right calls"),
        ("sample_accuracy", "samples with all calls right"),
        ("rouge_l", "ROUGE-L by the published rules"),
        ("rouge_l_plain", "ROUGE-L as Google computes it"),
        ("sr", "success rate"),
        ("correct_path", "correct path rate"),
        ("delta_len", "calls beyond the gold calls"),
        ("parse_error_rate", "unparsable outcomes"),
    ],
    lower_is_better: LOWER_IS_BETTER,
    default_metric: "apibank.correctness",
    is_judged: true,
    needs: SuiteNeeds::AGENTS,
    ranked_by: &[
        higher_better("right_calls").computed_by(share_of_calls),
        higher_better("rouge_l"),
        higher_better("sr").in_field("success"),
    ],
    samples: &[SampleScores {
        of: "apibank",
        fields: LOOP,
        kinds: &["loop"],
        measures: &[
            higher_better("sample_accuracy").computed_by(|line| {
                let score = ApiBankScore::deserialize(line.get("score")?).ok()?;
                score.has_right_calls().map(indicator)
            }),
            higher_better("correct_path"),
            higher_better("rouge_l"),
            higher_better("rouge_l_plain"),
            higher_better("sr").in_field("success"),
            lower_better("delta_len").computed_by(delta_len_if_solved),
            lower_better("parse_error_rate").in_field("parse_error"),
        ],
        groups: &[API, N_CALLS, GroupKey::FILE],
    }],
    ..SuiteInfo::EMPTY
};

/// Number of calls in addition to the gold calls. Only solved queries count, as in the suite's
/// mean, because a query that was given up at once does not have a short path.
fn delta_len_if_solved(line: &Value) -> Option<f64> {
    let is_solved = field(line, "success")?.as_bool()?;
    is_solved
        .then(|| field(line, "delta_len")?.as_f64())
        .flatten()
}

/// Number of retrieval texts that are used for the first time in this query. Each text counts only
/// once in the suite's mean.
fn n_retrieval_texts(line: &Value) -> Option<f64> {
    field(line, "retrieval.n_texts")?.as_f64()
}

/// Number of right calls, divided by the larger of the numbers of gold and predicted calls. `None`
/// if the sample expects a reply instead.
fn share_of_calls(line: &Value) -> Option<f64> {
    let n = |name: &str| field(line, name)?.as_f64();
    let n_calls = n("n_gold")?.max(n("n_pred")?);
    (n("n_gold")? > 0.0).then_some(n("n_right")? / n_calls)
}
