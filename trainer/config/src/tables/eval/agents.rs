//! The tables of the agent benchmarks.
//!
//! Agents use the method, limits and judge of `[goat]` in every suite. A benchmark has its own
//! queries, documents and executor.

use std::path::PathBuf;

use super::SuiteTable;
use crate::rules::Rules;
use crate::suite::Suite;
use crate::tables::services::ExecutorConfig;
use crate::tables::settings::settings;

settings! {
    /// An agent benchmark with its own APIs.
    pub struct AgentSuiteConfig {
        /// Files in the benchmark's layout; required if `suites` contains the suite.
        #[schemars(extend("x-kind" = "path"))]
        pub data: Vec<PathBuf>,
        /// JSON Lines file of API documents; by default `goat.documents`.
        #[schemars(extend("x-kind" = "path"))]
        pub documents: Option<PathBuf>,
        /// Executor of the agents' calls: a table with the keys of `goat.executor`. By default
        /// `goat.executor` is used.
        pub executor: Option<ExecutorConfig>,
    }
}

impl SuiteTable for AgentSuiteConfig {
    fn data(&self) -> &[PathBuf] {
        &self.data
    }

    fn data_help(&self, suite: Suite) -> String {
        format!("set the benchmark's queries: [eval.{suite}] data = [\"FILE\"]")
    }

    fn agents(&self) -> Option<&AgentSuiteConfig> {
        Some(self)
    }

    fn check(&self, table: &str, rules: &mut Rules<'_>) {
        if let Some(executor) = &self.executor {
            executor.check(&format!("{table}.executor"), rules);
        }
    }
}
