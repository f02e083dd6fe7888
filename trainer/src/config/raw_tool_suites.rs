//! The tables of the suites nestful and toolqa as they are typed, with the sandbox that both use.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::choices::ResponseReduction;
use super::defaults;
use super::raw_goat::RawJudge;
use super::read::reads;
use super::tool_suites::nestful_family;

/// The suite nestful: questions to sequences of calls that use each other's results.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawNestful {
    /// Files in the benchmark's format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Vec<PathBuf>>,
    /// The prompt and the parser of this model family.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend(
        "default" = defaults::NESTFUL_FAMILY,
        "description" = nestful_family("the file `prompts`"),
    ))]
    pub family: Option<String>,
    /// Examples in the prompt; 0, 1 and 3 in the paper.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::NESTFUL_EXAMPLES))]
    pub n_examples: Option<usize>,
    /// Whether the tools are a JSON string that holds JSON, as the published scripts write them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub tools_twice: Option<bool>,
    /// A file of prompts in place of our own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<PathBuf>,
    /// Whether the model calls one function after another and sees each result (ReAct); otherwise it
    /// writes all calls at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub react: Option<bool>,
    /// Texts of the model in such a loop at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::NESTFUL_STEPS))]
    pub max_steps: Option<usize>,
    /// The benchmark's `data_v2/executable_functions`, run in the sandbox; without it only rows of
    /// arithmetic have win rates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec_dir: Option<PathBuf>,
}
reads!(RawNestful {
    data,
    family,
    n_examples,
    tools_twice,
    prompts,
    react,
    max_steps,
    exec_dir,
});

/// The suite toolqa: questions about outputs of tools.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawToolQa {
    /// Files of questions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Vec<PathBuf>>,
    /// The JSON Lines file of the responses that they are about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub responses: Option<PathBuf>,
    /// What the prompt shows and asks for: answer, answer_schema, cot_answer_schema, code,
    /// code_schema, code_schema_no_response, code_schema_reduced or cot_code_schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::TOOLQA_SETTING.name()))]
    pub setting: Option<String>,
    /// Longest answer, with its reasoning, or function, in tokens; 1,000 in the paper. The suite does
    /// not read `eval.max_new_tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::TOOLQA_MAX_NEW_TOKENS))]
    pub max_new_tokens: Option<usize>,
    /// A folder of released schemas by endpoint; inferred from each response if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schemas: Option<PathBuf>,
    /// How responses are shortened in every setting, for models whose context does not hold them;
    /// not at all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reduce: Option<ResponseReduction>,
    /// For reduce = "truncate": items of a list that stay; a note says how many there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::MAX_ITEMS))]
    pub max_items: Option<usize>,
    /// For reduce = "truncate": levels that stay; objects below show what they hold as a summary.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::MAX_DEPTH))]
    pub max_depth: Option<usize>,
    /// For reduce = "truncate": characters that stay; a note says how many are gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::MAX_CHARS))]
    pub max_chars: Option<usize>,
    /// For reduce = "truncate": JMESPath expression that picks parts first; everything if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jmespath: Option<String>,
    /// Whether settings for code show responses as Python writes them, as in the published runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub python_repr: Option<bool>,
    /// A file of prompts in place of our own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<PathBuf>,
    /// Whether the functions that the model writes are run, each in the sandbox; settings for code
    /// need it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub run_code: Option<bool>,
    /// The model behind an endpoint that says which answers mean the same as the gold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge: Option<RawJudge>,
}
reads!(RawToolQa {
    data,
    responses,
    setting,
    max_new_tokens,
    schemas,
    reduce,
    max_items,
    max_depth,
    max_chars,
    jmespath,
    python_repr,
    prompts,
    run_code,
    judge,
});

/// What runs functions that models wrote, and those of benchmarks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawSandbox {
    /// The Python that runs them, a path or a name in PATH.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::PYTHON))]
    pub python: Option<String>,
    /// Whether they run even where the machine cannot isolate them: only on a machine that is thrown
    /// away.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub allow_unisolated: Option<bool>,
}
reads!(RawSandbox {
    python,
    allow_unisolated,
});
