//! The tables of single suites, `[eval.nestful]` to `[eval.apibank]`, and of their sandbox.
//!
//! Agents have the method, the limits and the judge of `[goat]` in every suite; a benchmark brings
//! queries, documents and answers to calls of its own.

use std::path::PathBuf;

use schemars::{Schema, SchemaGenerator, json_schema};
use tooltune_agents::truncation::{MAX_CHARS, MAX_DEPTH, MAX_ITEMS, TruncationOptions};
use tooltune_suites::nestful::{NestfulReport, ReactReport, own_families};
use tooltune_suites::toolqa::{Setting, Shortening};

use super::goat::TruncateConfig;
use super::services::{ExecutorConfig, JudgeConfig};
use super::settings::settings;
use crate::config::enums::ResponseReduction;

settings! {
    /// The suite nestful: questions to sequences of calls that use each other's results.
    pub struct NestfulConfig {
        /// Files in the benchmark's format; a run whose `suites` hold "nestful" needs them.
        #[schemars(extend("x-kind" = "path"))]
        pub data: Vec<PathBuf>,
        /// The prompt and the parser of this model family: json_list, granite31, llama, hammer,
        /// hermes, xlam or toolace, or a name in the file `prompts`.
        #[schemars(extend("description" = nestful_family("the file `prompts`")))]
        pub family: String = NESTFUL_FAMILY.to_owned(),
        /// Examples in the prompt; 0, 1 and 3 in the paper. A file of `prompts` without
        /// `icl_examples` shows none, and a warning says so.
        pub n_examples: usize = 3,
        /// Whether the tools are a JSON string that holds JSON, as the published scripts write
        /// them.
        pub tools_twice: bool = false,
        /// A file of prompts in place of our own: `{"prompts": {family: template}, "icl_examples":
        /// [{"input", "output", "tools"}]}`, or templates alone.
        #[schemars(extend("x-kind" = "path"))]
        pub prompts: Option<PathBuf>,
        /// Whether the model calls one function after another and sees each result (ReAct);
        /// otherwise it writes all calls at once.
        pub react: bool = false,
        /// Texts of the model in such a loop at most; the paper's number.
        #[schemars(range(min = 1))]
        pub max_steps: usize = 10,
        /// The benchmark's `data_v2/executable_functions`, run in the sandbox; without it only rows
        /// of arithmetic have win rates.
        #[schemars(extend("x-kind" = "path"))]
        pub exec_dir: Option<PathBuf>,
    }
}

/// The family of prompt and parser that is the default of the suite nestful.
const NESTFUL_FAMILY: &str = "json_list";

/// What says of a setting that it names a family of the suite nestful; `prompts` is the file that
/// may have more of them.
fn nestful_family(prompts: &str) -> String {
    let known: Vec<&str> = own_families().collect();
    format!(
        "The prompt and the parser of this model family, {NESTFUL_FAMILY} by default: {}, or a name \
         in {prompts}.",
        known.join(", ")
    )
}

impl NestfulConfig {
    /// The metrics of the suite: a loop of calls has wins and steps, but no matches with the gold.
    pub(crate) fn metrics(&self) -> &'static [&'static str] {
        if self.react {
            &ReactReport::NAMES
        } else {
            &NestfulReport::NAMES
        }
    }
}

settings! {
    /// The suite toolqa: questions about outputs of tools.
    pub struct ToolQaConfig {
        /// Files of questions; a run whose `suites` hold "toolqa" needs them.
        #[schemars(extend("x-kind" = "path"))]
        pub data: Vec<PathBuf>,
        /// The JSON Lines file of the responses that they are about.
        #[schemars(extend("x-kind" = "path"))]
        pub responses: Option<PathBuf>,
        /// What the prompt shows and asks for: answer, answer_schema, cot_answer_schema, code,
        /// code_schema, code_schema_no_response, code_schema_reduced or cot_code_schema.
        #[schemars(schema_with = "settings_of_toolqa")]
        pub setting: Setting = Setting::Answer,
        /// Longest answer, with its reasoning, or function, in tokens; 1,000 in the paper. The
        /// suite does not read `eval.max_new_tokens`.
        #[schemars(range(min = 1))]
        pub max_new_tokens: usize = 1_000,
        /// A folder of released schemas by endpoint; inferred from each response if absent.
        #[schemars(extend("x-kind" = "path"))]
        pub schemas: Option<PathBuf>,
        /// How responses are shortened in every setting, for models whose context does not hold
        /// them: "official" or "paths" keep items of lists that bring new keys, "truncate" is
        /// bounded by the next four keys; not at all if absent.
        pub reduce: Option<ResponseReduction>,
        /// For reduce = "truncate": items of a list that stay; a note says how many there are.
        pub max_items: Option<usize> = Some(MAX_ITEMS),
        /// For reduce = "truncate": levels that stay; objects below show what they hold as a
        /// summary.
        pub max_depth: Option<usize> = Some(MAX_DEPTH),
        /// For reduce = "truncate": characters that stay; a note says how many are gone.
        pub max_chars: Option<usize> = Some(MAX_CHARS),
        /// For reduce = "truncate": [JMESPath](https://jmespath.org) expression that picks parts
        /// first; everything if absent.
        pub jmespath: Option<String>,
        /// Whether settings for code show responses as Python writes them, as in the published
        /// runs.
        pub python_repr: bool = false,
        /// A file of prompts in place of our own.
        #[schemars(extend("x-kind" = "path"))]
        pub prompts: Option<PathBuf>,
        /// Whether the functions that the model writes are run, each in the sandbox; settings for
        /// code need it.
        pub run_code: bool = false,
        /// Whether the type of each question is asked for in place of its answer, as the paper's
        /// classifier does.
        pub classify: bool = false,
        /// The model behind an endpoint that says which answers mean the same as the gold: a table
        /// with the keys of `goat.judge`.
        pub judge: Option<JudgeConfig>,
    }
}

fn settings_of_toolqa(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": Setting::ALL.map(Setting::name) })
}

impl ToolQaConfig {
    /// How responses are shortened in every setting, if they are.
    pub fn shortening(&self) -> Option<Shortening> {
        let truncate = TruncateConfig {
            max_items: self.max_items.unwrap_or(MAX_ITEMS),
            max_depth: self.max_depth.unwrap_or(MAX_DEPTH),
            jmespath: self.jmespath.clone(),
        };
        let options = TruncationOptions {
            shape: truncate.shape(),
            max_chars: self.max_chars.unwrap_or(MAX_CHARS),
        };
        self.reduce.map(|word| word.shortening(options))
    }
}

settings! {
    /// A benchmark for agents with APIs of its own.
    pub struct AgentSuiteConfig {
        /// Files in the benchmark's layout; a run whose `suites` hold the suite needs them.
        #[schemars(extend("x-kind" = "path"))]
        pub data: Vec<PathBuf>,
        /// The JSON Lines file of API documents; that of `[goat]` if absent.
        #[schemars(extend("x-kind" = "path"))]
        pub documents: Option<PathBuf>,
        /// What answers the calls of agents: a table with the keys of `goat.executor`; as in
        /// `[goat]` if absent.
        pub executor: Option<ExecutorConfig>,
    }
}

settings! {
    /// What runs functions that models wrote, and those of benchmarks.
    pub struct SandboxConfig {
        /// The Python that runs functions, a path or a name in PATH.
        pub python: String = "python3".to_owned(),
        /// Whether they run even where the machine cannot isolate them ([sandbox.md](sandbox.md)):
        /// only on a machine that is thrown away.
        pub allow_unisolated: bool = false,
    }
}
