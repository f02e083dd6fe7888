//! The table `[eval]`, with the tables of suites.
//!
//! Each table checks itself (`SuiteTable`). The table of a new suite needs a field of
//! [`EvalConfig`] and an entry in `suite_tables!` below it. The type of the field is [`DataTable`],
//! or a type in a module here.

mod agents;
mod calls;
mod data;
mod nestful;
mod sandbox;
mod toolqa;

use std::path::PathBuf;

use tooltune_suites::SuiteInfo;

use super::settings::settings;
use crate::enums::{EvalStrategy, Sampling};
use crate::rules::Rules;
use crate::suite::Suite;

pub use agents::AgentSuiteConfig;
pub use calls::CallsConfig;
pub use data::DataTable;
pub use nestful::NestfulConfig;
pub use sandbox::SandboxConfig;
pub use toolqa::ToolQaConfig;

settings! {
    /// Evaluation during and after training.
    pub struct EvalConfig {
        /// "no", or "steps" (before the first step, every `eval_steps`, and after the last step).
        /// "steps" by default if this table exists.
        #[schemars(extend("default" = null))]
        #[schemars(extend("x-also" = ["evaluation_strategy"]))]
        pub eval_strategy: EvalStrategy = EvalStrategy::No,
        /// Number of optimizer steps between two evaluations.
        #[schemars(range(min = 1))]
        #[schemars(extend("x-also" = ["evals_per_epoch; in optimizer steps"]))]
        pub eval_steps: u64 = 100,
        /// Benchmarks to run. The loss on `data.eval` is always measured.
        #[schemars(extend("description" = benchmarks_to_run(), "x-also" = ["metrics"]))]
        pub suites: Vec<Suite>,
        /// Maximum number of rows, taken from the start; all by default.
        #[schemars(range(min = 1))]
        pub max_samples: Option<usize>,
        /// Time limit per answer in seconds, including its prompt; a longer answer is cut. For
        /// agents the limit applies per query, and the time of a shared batch is divided among its
        /// queries; a query over the limit has no answer. No limit by default.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub max_time: Option<f64>,
        /// Maximum number of tokens of an answer. The suite toolqa has its own setting, and
        /// `goat.limits` has smaller limits for agents.
        #[schemars(range(min = 1))]
        #[schemars(extend("x-also" = ["max_tokens"]))]
        pub max_new_tokens: usize = 512,
        /// Number of rows generated at the same time. When a row finishes, the next one starts.
        #[schemars(range(min = 1))]
        #[schemars(extend("x-elsewhere" = {
            "Axolotl": "eval_batch_size", "LLaMA-Factory": "per_device_eval_batch_size",
            "ms-swift": "per_device_eval_batch_size", "TRL": "per_device_eval_batch_size"
        }))]
        pub batch_size: usize = 8,
        /// Total size of the KV cache in tokens. If the rows need more, fewer of them are generated
        /// at a time. By default the cache has room for `batch_size` rows.
        #[schemars(range(min = 1))]
        pub kv_cache_tokens: Option<usize>,
        /// Whether to use [constrained decoding](constrained.md). slot: answers follow the row's
        /// JSON Schema. calls: turns that expect calls are limited to calls of the row's tools.
        /// nestful and agents: plans and calls are limited to the tools in the prompt. The suite
        /// toolqa, nestful with `family = "toolace"` or `react`, and rows whose schema cannot be
        /// enforced are generated unconstrained, with a warning.
        pub constrained: bool = false,
        /// Sampling temperature; 0 selects the most likely token. Samples depend on `train.seed`
        /// and the row, not on the batch.
        #[schemars(range(min = 0.0))]
        pub temperature: f64 = 0.0,
        /// Number of most likely tokens to sample from; all by default.
        #[schemars(range(min = 1))]
        pub top_k: Option<usize>,
        /// Probability mass of the most likely tokens to sample from.
        #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0))]
        pub top_p: f64 = 1.0,
        /// Strings that end an answer, in addition to the model's end-of-turn token. They are
        /// removed from the answer.
        pub stop_strings: Vec<String>,
        /// Metric of the best checkpoint: "loss", "suite.metric" such as
        /// "slot.strict_keys_accuracy", or a weighted sum such as `0.5*goat.sa +
        /// 0.5*nestful.win_strict`; by default "slot.mean" with the suite slot, "goat.ia" with the
        /// suite goat, otherwise "loss". If one of the metrics is missing in an evaluation, its
        /// checkpoint cannot be selected.
        #[schemars(extend("x-elsewhere" = {
            "Axolotl": "metric_for_best_model", "LLaMA-Factory": "metric_for_best_model",
            "ms-swift": "metric_for_best_model", "TRL": "metric_for_best_model"
        }))]
        #[schemars(extend("x-words" = {"eval_loss": "loss", "loss": "loss"}))]
        #[schemars(extend("x-example" = "loss"))]
        pub metric_for_best_model: String,
        /// Whether a larger value is better; by default false for "loss", error rates
        /// (`parse_error_rate`, `malformed_rate`), `delta_len`, `steps`, and sums of these metrics;
        /// otherwise true.
        #[schemars(extend("default" = null))]
        #[schemars(extend("x-elsewhere" = {
            "Axolotl": "greater_is_better", "TRL": "greater_is_better"
        }))]
        pub greater_is_better: bool = false,
        /// Ends the run after this many consecutive evaluations without improvement of
        /// `metric_for_best_model`, counted from step 0. Off by default.
        #[schemars(range(min = 1))]
        #[schemars(extend("x-elsewhere" = {"Axolotl": "early_stopping_patience"}))]
        #[schemars(extend("x-only-with" = {"eval_strategy": "steps"}))]
        pub early_stopping_patience: Option<u64>,
        /// Minimum change of the metric that counts as an improvement.
        #[schemars(range(min = 0.0))]
        #[schemars(extend("x-only-with" = {"early_stopping_patience": true}))]
        pub early_stopping_threshold: f64 = 0.0,
        /// Folder of the MiniLM encoder for content similarity. Required for the suite slot.
        #[schemars(extend("x-kind" = "path"))]
        #[schemars(extend("x-also" = ["sbert"]))]
        pub encoder: Option<PathBuf>,
        /// The suite calls.
        pub calls: Option<CallsConfig>,
        /// The suite nestful.
        pub nestful: Option<NestfulConfig>,
        /// The suite toolqa.
        pub toolqa: Option<ToolQaConfig>,
        /// The suite restbench.
        pub restbench: Option<AgentSuiteConfig>,
        /// The suite apibank.
        pub apibank: Option<AgentSuiteConfig>,
        /// The sandbox for functions of the suites nestful and toolqa.
        pub sandbox: SandboxConfig,
    }
}

/// Description of `suites`, from the registry.
fn benchmarks_to_run() -> String {
    let all: Vec<Suite> = Suite::all().collect();
    let clause = |is_meant: &dyn Fn(&Suite) -> bool, rows: &str| {
        let names = all.iter().filter(|suite| is_meant(suite));
        let names: Vec<String> = names.map(|suite| format!("\"{suite}\"")).collect();
        match names.as_slice() {
            [only] => format!("{only} uses {rows}"),
            [most @ .., last] => format!("{} and {last} use {rows}", most.join(", ")),
            [] => String::new(),
        }
    };
    let has_table = |suite: &Suite| suite.needs().generator && suite.needs().rows.is_none();
    let example = all.iter().find(|suite| has_table(suite));
    let example = example.map_or("", |suite| suite.as_str());
    let on_rows = clause(
        &|suite| suite.needs().rows.is_some(),
        "the rows of `data.eval`",
    );
    let on_pairs = clause(
        &|suite| suite.needs().is_ranking_only(),
        "the retriever's evaluation pairs",
    );
    let on_tables = clause(
        &has_table,
        &format!("the `data` of their own tables, such as `[eval.{example}]`"),
    );
    let defaults = all.iter().filter_map(|suite| {
        let rows = suite.needs().rows.filter(|rows| rows.by_default)?;
        let formats = rows.formats.join(" or ");
        Some(format!(" [\"{suite}\"] by default for {formats} rows."))
    });
    let defaults: String = defaults.collect();
    format!(
        "Benchmarks to run. {on_rows}; {on_pairs}; {on_tables}.{defaults} The loss on `data.eval` \
         is always measured."
    )
}

/// Lists the suites that have tables, each with its field.
macro_rules! suite_tables {
    ($($field:ident: $suite:path),* $(,)?) => {
        impl EvalConfig {
            /// The tables of suites.
            pub(crate) fn suite_tables(&self) -> Vec<SuiteTableOf<'_>> {
                vec![$(SuiteTableOf::new(&$suite, self.$field.as_ref())),*]
            }

            /// The suite tables that the config has.
            pub(crate) fn suite_tables_mut(&mut self) -> Vec<&mut dyn SuiteTable> {
                let mut tables: Vec<&mut dyn SuiteTable> = Vec::new();
                $(tables.extend(self.$field.as_mut().map(|table| table as &mut dyn SuiteTable));)*
                tables
            }
        }
    };
}

suite_tables! {
    nestful: tooltune_suites::nestful::SUITE,
    toolqa: tooltune_suites::toolqa::SUITE,
    restbench: tooltune_suites::goat::RESTBENCH,
    apibank: tooltune_suites::goat::APIBANK,
}

impl EvalConfig {
    /// Sampling of tokens.
    pub fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
        }
    }

    /// The table of `suite`, if the config has it.
    pub(crate) fn table_of(&self, suite: Suite) -> Option<&dyn SuiteTable> {
        let mut tables = self.suite_tables().into_iter();
        tables.find(|one| one.suite == suite)?.table
    }

    /// The files in the table of a suite; none without a table.
    pub fn files_of(&self, suite: Suite) -> &[PathBuf] {
        self.table_of(suite).map_or(&[], SuiteTable::data)
    }

    /// Maximum tokens of an answer in a suite.
    pub fn max_new_tokens_of(&self, suite: Suite) -> usize {
        let mut tables = self.suite_tables().into_iter();
        let table = tables.find(|one| one.suite == suite);
        let own = table.and_then(|one| one.or_default().longest_answer());
        own.unwrap_or(self.max_new_tokens)
    }

    /// Largest limit of new tokens among the suites of a run.
    pub fn longest_answer(&self) -> usize {
        let suites = self.suites.iter();
        let tables = suites.filter_map(|suite| self.table_of(*suite)?.longest_answer());
        tables.fold(self.max_new_tokens, usize::max)
    }

    /// Paths of the settings that limit the answer length of `suites`, such as
    /// `eval.max_new_tokens`.
    pub fn answer_limit_keys(suites: &[Suite]) -> Vec<String> {
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

/// A suite's table in the config. The argument `table` is its path, `eval.SUITE`.
pub(crate) trait SuiteTable {
    /// The data files of the suite.
    fn data(&self) -> &[PathBuf];

    /// The help text for a table without data files.
    fn data_help(&self, suite: Suite) -> String;

    /// Metrics of the suite, if they depend on the table; `None` for the metrics of the registry.
    fn metrics(&self) -> Option<&'static [&'static str]> {
        None
    }

    /// The table's own `max_new_tokens`; `None` if `eval.max_new_tokens` applies.
    fn longest_answer(&self) -> Option<usize> {
        None
    }

    /// The table of a benchmark for agents.
    fn agents(&self) -> Option<&AgentSuiteConfig> {
        None
    }

    /// Clears settings that have no effect with the other settings of this table.
    fn clear_unused(&mut self) {}

    /// Reports mistakes in the table, even if its suite is not run.
    fn check(&self, _table: &str, _rules: &mut Rules<'_>) {}

    /// Reports missing settings if the suite is run, except for missing files.
    fn check_needs(&self, _table: &str, _rules: &mut Rules<'_>) {}
}

/// A suite with its table.
pub(crate) struct SuiteTableOf<'c> {
    /// The suite.
    pub(crate) suite: Suite,
    /// Its table, if the config has it.
    pub(crate) table: Option<&'c dyn SuiteTable>,
    default: Box<dyn SuiteTable>,
}

impl<'c> SuiteTableOf<'c> {
    fn new<T: SuiteTable + Default + 'static>(
        suite: &'static SuiteInfo,
        table: Option<&'c T>,
    ) -> Self {
        Self {
            suite: Suite::from_info(suite),
            table: table.map(|table| table as &dyn SuiteTable),
            default: Box::new(T::default()),
        }
    }

    /// The table, or its defaults if the config has none.
    pub(crate) fn or_default(&self) -> &dyn SuiteTable {
        self.table.unwrap_or(&*self.default)
    }

    /// Path of the table.
    pub(crate) fn path(&self) -> String {
        format!("eval.{}", self.suite)
    }
}
