//! The table `[eval]`, and a file for the table of each suite that has one.
//!
//! A table says itself what is wrong with it (`SuiteTable`); a new one is a file here, a field of
//! [`EvalConfig`] and a line of each of the two lists below it.

mod agents;
mod nestful;
mod sandbox;
mod toolqa;

use std::path::PathBuf;

use tooltune_suites::SuiteInfo;

use super::settings::settings;
use crate::config::enums::{EvalStrategy, Sampling};
use crate::config::rules::Rules;
use crate::config::suite::Suite;

pub use agents::AgentSuiteConfig;
pub use nestful::NestfulConfig;
pub use sandbox::SandboxConfig;
pub use toolqa::ToolQaConfig;

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
        /// Benchmarks to run: "slot", "calls", "goat" (on `data.eval`), "retrieval", "nestful",
        /// "toolqa", "restbench", "apibank" (on files of their own tables); ["slot"] by default for
        /// slot rows. The loss of the rows of `data.eval` is measured in any case.
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
        /// Whether the suite slot allows only tokens that keep to a row's JSON Schema, the suite
        /// calls, where calls are wanted, only calls of the row's tools, and agents and the suite
        /// nestful only plans and calls of the tools that they are shown
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

    /// The tables of suites, in the order of the suites.
    pub(crate) fn suite_tables(&self) -> [SuiteTableOf<'_>; 4] {
        [
            SuiteTableOf::new(&tooltune_suites::nestful::SUITE, self.nestful.as_ref()),
            SuiteTableOf::new(&tooltune_suites::toolqa::SUITE, self.toolqa.as_ref()),
            SuiteTableOf::new(&tooltune_suites::goat::RESTBENCH, self.restbench.as_ref()),
            SuiteTableOf::new(&tooltune_suites::goat::APIBANK, self.apibank.as_ref()),
        ]
    }

    /// Those that are there, to be completed.
    pub(crate) fn suite_tables_mut(&mut self) -> impl Iterator<Item = &mut dyn SuiteTable> {
        let tables: [Option<&mut dyn SuiteTable>; 4] = [
            self.nestful
                .as_mut()
                .map(|table| table as &mut dyn SuiteTable),
            self.toolqa
                .as_mut()
                .map(|table| table as &mut dyn SuiteTable),
            self.restbench
                .as_mut()
                .map(|table| table as &mut dyn SuiteTable),
            self.apibank
                .as_mut()
                .map(|table| table as &mut dyn SuiteTable),
        ];
        tables.into_iter().flatten()
    }

    /// The table of a suite, if it has one that is there.
    pub(crate) fn table_of(&self, suite: Suite) -> Option<&dyn SuiteTable> {
        let mut tables = self.suite_tables().into_iter();
        tables.find(|one| one.suite == suite)?.table
    }

    /// Most tokens of a text that the suites of a run have written.
    pub fn longest_answer(&self) -> usize {
        let suites = self.suites.iter();
        let tables = suites.filter_map(|suite| self.table_of(*suite)?.longest_answer());
        tables.fold(self.max_new_tokens, usize::max)
    }

    /// The settings that limit the tokens of the answers of suites, such as `eval.max_new_tokens`.
    pub(crate) fn limits_of_answers(suites: &[Suite]) -> Vec<String> {
        const COMMON: &str = "eval.max_new_tokens";
        let config = Self::default();
        let tables = config.suite_tables();
        let own = |suite: &Suite| {
            let mut tables = tables.iter();
            let own = tables
                .find(|one| one.suite == *suite && one.or_default().longest_answer().is_some());
            own.map_or_else(
                || COMMON.to_owned(),
                |one| format!("{}.max_new_tokens", one.path()),
            )
        };
        let mut limits: Vec<String> = suites.iter().map(own).collect();
        if limits.is_empty() {
            limits.push(COMMON.to_owned());
        }
        limits.sort();
        limits.dedup();
        limits
    }

    /// The table of a benchmark for agents.
    pub(crate) fn agent_suite(&self, suite: Suite) -> Option<&AgentSuiteConfig> {
        self.table_of(suite)?.agents()
    }
}

/// What the rest of the config asks of the table of a suite; `table` is its path, `eval.SUITE`.
pub(crate) trait SuiteTable {
    /// The files that the suite reads.
    fn data(&self) -> &[PathBuf];

    /// What to write where there are none.
    fn data_help(&self, suite: Suite) -> String;

    /// The metrics of the suite where they follow from the table; else those of the registry.
    fn metrics(&self) -> Option<&'static [&'static str]> {
        None
    }

    /// Most tokens of an answer, in the table's `max_new_tokens`; else those of `[eval]`.
    fn longest_answer(&self) -> Option<usize> {
        None
    }

    /// The table of a benchmark for agents.
    fn agents(&self) -> Option<&AgentSuiteConfig> {
        None
    }

    /// Takes out what means nothing beside the rest of the table.
    fn complete(&mut self) {}

    /// Reports what is wrong with the table, whether its suite runs or not.
    fn check(&self, _table: &str, _rules: &mut Rules<'_>) {}

    /// Reports what a run that evaluates the suite lacks, besides files.
    fn check_needs(&self, _table: &str, _rules: &mut Rules<'_>) {}
}

/// A suite with its table.
pub(crate) struct SuiteTableOf<'c> {
    /// The suite.
    pub(crate) suite: Suite,
    /// Its table, if it is there.
    pub(crate) table: Option<&'c dyn SuiteTable>,
    default: Box<dyn SuiteTable>,
}

impl<'c> SuiteTableOf<'c> {
    fn new<T: SuiteTable + Default + 'static>(
        suite: &'static SuiteInfo,
        table: Option<&'c T>,
    ) -> Self {
        Self {
            suite: Suite::of(suite),
            table: table.map(|table| table as &dyn SuiteTable),
            default: Box::new(T::default()),
        }
    }

    /// The table, with the defaults of its settings where it is not there.
    pub(crate) fn or_default(&self) -> &dyn SuiteTable {
        self.table.unwrap_or(&*self.default)
    }

    /// Where the table stands.
    pub(crate) fn path(&self) -> String {
        format!("eval.{}", self.suite)
    }
}
