//! The tables of benchmarks whose queries agents answer.
//!
//! Agents have the method, the limits and the judge of `[goat]` in every suite; a benchmark brings
//! queries, documents and answers to calls of its own.

use std::path::PathBuf;

use super::SuiteTable;
use crate::rules::Rules;
use crate::suite::Suite;
use crate::tables::services::ExecutorConfig;
use crate::tables::settings::settings;

settings! {
    /// A benchmark for agents with APIs of its own.
    pub struct AgentSuiteConfig {
        /// Files in the benchmark's layout; required if `suites` contains the suite.
        #[schemars(extend("x-kind" = "path"))]
        pub data: Vec<PathBuf>,
        /// JSON Lines file of API documents; by default that of `[goat]`.
        #[schemars(extend("x-kind" = "path"))]
        pub documents: Option<PathBuf>,
        /// Executor of the agents' calls: a table with the keys of `goat.executor`; by default that
        /// of `[goat]`.
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
