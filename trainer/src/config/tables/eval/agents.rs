//! The tables of benchmarks whose queries agents answer.
//!
//! Agents have the method, the limits and the judge of `[goat]` in every suite; a benchmark brings
//! queries, documents and answers to calls of its own.

use std::path::PathBuf;

use super::SuiteTable;
use crate::config::rules::Rules;
use crate::config::suite::Suite;
use crate::config::tables::services::ExecutorConfig;
use crate::config::tables::settings::settings;

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

impl SuiteTable for AgentSuiteConfig {
    fn data(&self) -> &[PathBuf] {
        &self.data
    }

    fn data_help(&self, suite: Suite) -> String {
        format!("name the benchmark's queries: [eval.{suite}] data = [\"FILE\"]")
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
