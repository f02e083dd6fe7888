//! The table `[goat]` as it is typed, with what agents and their judge reach outside this program.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::choices::{Distractors, ExecutorKind, GoatMethod, RecordedSet};
use super::defaults;
use super::patterns::Patterns;
use super::read::reads;

/// How trajectories become rows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawGoat {
    /// The JSON Lines file of API documents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<PathBuf>,
    /// How the model is prompted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::GOAT_METHOD))]
    pub method: Option<GoatMethod>,
    /// Which documents stand beside the gold ones in a training prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::DISTRACTORS))]
    pub distractors: Option<Distractors>,
    /// Documents in a prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::N_DOCUMENTS))]
    pub n_documents: Option<usize>,
    /// Characters of a call's result in a prompt; what is longer is cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 40), extend("default" = defaults::OUTPUT_LIMIT))]
    pub output_limit: Option<usize>,
    /// How a result is shortened before that, so that its shape stays; not at all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate: Option<RawTruncate>,
    /// How much each kind of example counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<RawKindWeights>,
    /// How far agents go that are evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<RawLoopLimits>,
    /// What answers the calls of agents; the invented APIs if this table is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executor: Option<RawExecutor>,
    /// The model behind an endpoint that says which queries are solved; without this table the
    /// facts of the trajectories do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge: Option<RawJudge>,
}
reads!(RawGoat {
    documents,
    method,
    distractors,
    n_documents,
    output_limit,
    truncate,
    weights,
    limits,
    executor,
    judge,
});

/// How much each kind of example of a trajectory counts; 0 leaves the kind out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawKindWeights {
    /// Plans.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), extend("default" = defaults::KIND_WEIGHT))]
    pub plan: Option<f64>,
    /// Calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), extend("default" = defaults::KIND_WEIGHT))]
    pub call: Option<f64>,
    /// Thoughts with calls, and the answers of such loops.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), extend("default" = defaults::KIND_WEIGHT))]
    pub step: Option<f64>,
    /// Sub-queries.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), extend("default" = defaults::KIND_WEIGHT))]
    pub decompose: Option<f64>,
    /// Answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), extend("default" = defaults::KIND_WEIGHT))]
    pub answer: Option<f64>,
}
reads!(RawKindWeights {
    plan,
    call,
    step,
    decompose,
    answer
});

/// How far agents go that are evaluated.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawLoopLimits {
    /// Calls of a plan that are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::loop_limits().max_calls))]
    pub max_calls: Option<usize>,
    /// Steps, or sub-queries, of a loop without a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::loop_limits().max_steps))]
    pub max_steps: Option<usize>,
    /// Tokens of a plan or of sub-queries.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::loop_limits().plan_tokens))]
    pub plan_tokens: Option<usize>,
    /// Tokens of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::loop_limits().call_tokens))]
    pub call_tokens: Option<usize>,
    /// Tokens of an answer, and of a step, which may be one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::loop_limits().answer_tokens))]
    pub answer_tokens: Option<usize>,
}
reads!(RawLoopLimits {
    max_calls,
    max_steps,
    plan_tokens,
    call_tokens,
    answer_tokens,
});

/// How outputs are shortened before they are cut.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawTruncate {
    /// Items of a list that stay; a note says how many there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::MAX_ITEMS))]
    pub max_items: Option<usize>,
    /// Levels that stay; objects below show what they hold as a summary.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::MAX_DEPTH))]
    pub max_depth: Option<usize>,
    /// JMESPath expression that picks parts first; everything if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jmespath: Option<String>,
}
reads!(RawTruncate {
    max_items,
    max_depth,
    jmespath,
});

/// What answers the calls of agents.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawExecutor {
    /// The kind; it decides which of the other keys are needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = ExecutorKind::Synthetic))]
    pub kind: Option<ExecutorKind>,
    /// For "replay": JSON Lines of `{"api_name", "input", "output", "exception"}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<PathBuf>,
    /// For "replay": which rows count, by their field `set`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::RECORDED_SET))]
    pub set: Option<RecordedSet>,
    /// For "canned": JSON Lines of `{"api", "response"}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub responses: Option<PathBuf>,
    /// For "http": the OpenAPI 3 specification, JSON or YAML.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub specification: Option<PathBuf>,
    /// For "http": where the paths of the specification begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// For "http": headers of every request, each with the environment variable that holds its
    /// value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<Patterns<String>>,
    /// For "http": hosts that may be asked; that of `base_url` alone if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_hosts: Option<Vec<String>>,
    /// For "http": seconds until a connection stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::CONNECT_TIMEOUT_SECS))]
    pub connect_timeout_secs: Option<f64>,
    /// For "http": seconds for a whole call, redirects included.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::CALL_TIMEOUT_SECS))]
    pub timeout_secs: Option<f64>,
}
reads!(RawExecutor {
    kind,
    recorded,
    set,
    responses,
    specification,
    base_url,
    headers,
    allowed_hosts,
    connect_timeout_secs,
    timeout_secs,
});

/// The model behind an endpoint that says which queries are solved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawJudge {
    /// Where `/chat/completions` is to be found, such as `https://api.openai.com/v1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The model, by the server's name for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The environment variable that holds the key; absent for a server that needs none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// Times that a reply without a verdict is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 20), extend("default" = defaults::JUDGE_ATTEMPTS))]
    pub attempts: Option<usize>,
    /// Queries that are judged at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64), extend("default" = defaults::JUDGE_CONCURRENCY))]
    pub concurrency: Option<usize>,
    /// Longest reply, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::JUDGE_MAX_TOKENS))]
    pub max_tokens: Option<usize>,
    /// Times that a request is repeated after a fault of the server or the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 20), extend("default" = defaults::JUDGE_RETRIES))]
    pub retries: Option<usize>,
    /// Seconds for one try of a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::JUDGE_TIMEOUT_SECS))]
    pub timeout_secs: Option<f64>,
    /// Seconds for a request with all its tries and waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::JUDGE_TOTAL_SECS))]
    pub total_secs: Option<f64>,
    /// Whether the evaluations of a training run ask the judge, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::JUDGE_IN_LOOP))]
    pub in_loop: Option<bool>,
}
reads!(RawJudge {
    base_url,
    model,
    api_key_env,
    attempts,
    concurrency,
    max_tokens,
    retries,
    timeout_secs,
    total_secs,
    in_loop,
});
