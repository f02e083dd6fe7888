//! The table `[eval]`; those of its suites are in `suites.rs`.

use std::path::PathBuf;

use super::settings::settings;
use super::suites::{AgentSuiteConfig, NestfulConfig, SandboxConfig, ToolQaConfig};
use crate::config::enums::{EvalStrategy, Sampling, Suite};

settings! {
    /// Evaluation while training and after.
    pub struct EvalConfig {
        /// When the run evaluates: "no", or "steps", which is before the first step, every
        /// `eval_steps` and after the last; "steps" if this table exists.
        #[schemars(extend("default" = null))]
        pub eval_strategy: EvalStrategy = EvalStrategy::No,
        /// Optimizer steps between two evaluations.
        #[schemars(range(min = 1))]
        pub eval_steps: u64 = 100,
        /// Benchmarks to run: "slot", "goat" (on `data.eval`), "retrieval", "nestful", "toolqa",
        /// "restbench", "apibank" (on files of their own tables); ["slot"] by default for slot
        /// rows, otherwise only the loss is computed.
        pub suites: Vec<Suite>,
        /// At most this many rows are evaluated, the first ones; all if absent.
        #[schemars(range(min = 1))]
        pub max_samples: Option<usize>,
        /// Seconds that an answer may take, counted from when its prompt is read; an answer that
        /// has used them up is cut. In suites of agents those of the loop of a query, its share of
        /// what is generated together; a loop that has used them up ends without an answer. No
        /// limit if absent.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub max_time: Option<f64>,
        /// Longest generated answer, in tokens; the suite toolqa has a key of its own, agents those
        /// of `goat.limits` below it.
        #[schemars(range(min = 1))]
        pub max_new_tokens: usize = 512,
        /// Rows generated at the same time; a row that ends makes room for the next.
        #[schemars(range(min = 1))]
        pub batch_size: usize = 8,
        /// Tokens that the keys and values of all rows generated at the same time may have room
        /// for; fewer rows are generated together where they would need more. As many as
        /// `batch_size` rows need if absent.
        #[schemars(range(min = 1))]
        pub kv_cache_tokens: Option<usize>,
        /// Whether the suite slot allows only tokens that keep to a row's JSON Schema, and agents
        /// and the suite nestful only plans and calls of the tools that they are shown
        /// ([constrained.md](constrained.md)); NESTFUL's family toolace, its loops and the suite
        /// toolqa write freely, with a warning; schemas that cannot be enforced are named before
        /// generation, and their rows are generated freely.
        pub constrained: bool = false,
        /// Sampling temperature; 0 takes the most likely token. Draws follow `train.seed` and the
        /// row, not the batch.
        #[schemars(range(min = 0.0))]
        pub temperature: f64 = 0.0,
        /// Samples among this many of the most likely tokens; among all if absent.
        #[schemars(range(min = 1))]
        pub top_k: Option<usize>,
        /// Samples among the fewest tokens whose probabilities sum to this share.
        #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0))]
        pub top_p: f64 = 1.0,
        /// Texts that end an answer, besides the model's own end of turn; they are cut off. None if
        /// absent.
        pub stop_strings: Vec<String>,
        /// What the best checkpoint is chosen by: "loss" or "suite.metric", such as
        /// "slot.strict_keys_accuracy"; by default "slot.mean" if the suite slot runs, "goat.ia" if
        /// the suite goat does, otherwise "loss"; or a weighted sum of such, `0.5*goat.sa +
        /// 0.5*nestful.win_strict`. A sum with a metric that an evaluation does not have, such as a
        /// win rate where no gold could be run, selects nothing there.
        pub metric_for_best_model: String,
        /// Whether more is better; by default false for "loss", for rates of errors
        /// (`parse_error_rate`, `malformed_rate`), for `delta_len` and `steps`, and for sums of
        /// which every term falls as the model gets better; true for all else.
        #[schemars(extend("default" = null))]
        pub greater_is_better: bool = false,
        /// Ends the run after this many evaluations in a row of which none is better than the best
        /// before, by `metric_for_best_model`; the first evaluation is that of step 0. Never if
        /// absent.
        #[schemars(range(min = 1))]
        pub early_stopping_patience: Option<u64>,
        /// An evaluation is better only if it is by more than this.
        #[schemars(range(min = 0.0))]
        pub early_stopping_threshold: f64 = 0.0,
        /// Folder of the MiniLM encoder that content similarity is computed with; the suite slot
        /// needs it.
        #[schemars(extend("x-kind" = "path"))]
        pub encoder: Option<PathBuf>,
        /// The suite nestful.
        pub nestful: Option<NestfulConfig>,
        /// The suite toolqa.
        pub toolqa: Option<ToolQaConfig>,
        /// The suite restbench.
        pub restbench: Option<AgentSuiteConfig>,
        /// The suite apibank.
        pub apibank: Option<AgentSuiteConfig>,
        /// What runs functions for nestful and toolqa.
        pub sandbox: SandboxConfig,
    }
}

impl EvalConfig {
    /// How tokens are chosen.
    pub fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
        }
    }

    /// Most tokens of a text that the suites of a run have written.
    pub fn longest_answer(&self) -> usize {
        let toolqa = self.toolqa.as_ref();
        let toolqa = toolqa.filter(|_| self.suites.contains(&Suite::Toolqa));
        let longest = toolqa.map_or(0, |toolqa| toolqa.max_new_tokens);
        self.max_new_tokens.max(longest)
    }

    /// The table of a benchmark for agents.
    pub(crate) fn agent_suite(&self, suite: Suite) -> Option<&AgentSuiteConfig> {
        match suite {
            Suite::Restbench => self.restbench.as_ref(),
            Suite::Apibank => self.apibank.as_ref(),
            _ => None,
        }
    }
}
