//! The tables of the suites restbench and apibank: what was typed, what it means, and back.
//!
//! Agents have the method, the limits and the judge of `[goat]` in every suite; a benchmark brings
//! queries, documents and answers to calls of its own.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::choices::{DataFormat, Suite};
use super::raw::RawExecutor;
use super::read::reads;
use super::rules::Checker;
use super::services::ExecutorConfig;
use super::settings::{Config, DataConfig, EvalConfig};
use super::tool_suites::{listed, named};

/// A benchmark for agents with APIs of its own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawAgentSuite {
    /// Files in the benchmark's layout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Vec<PathBuf>>,
    /// The JSON Lines file of API documents; that of `[goat]` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<PathBuf>,
    /// What answers the calls of agents; as in `[goat]` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executor: Option<RawExecutor>,
}
reads!(RawAgentSuite {
    data,
    documents,
    executor,
});

/// A benchmark for agents with APIs of its own.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AgentSuiteConfig {
    /// Files in the benchmark's layout.
    pub data: Vec<PathBuf>,
    /// The documents of its APIs; `None` for those of `[goat]`.
    pub documents: Option<PathBuf>,
    /// What answers calls; `None` for that of `[goat]`.
    pub executor: Option<ExecutorConfig>,
}

impl Checker<'_> {
    /// Checks the table of `suite`.
    pub(super) fn agent_suite(&mut self, suite: Suite, raw: RawAgentSuite) -> AgentSuiteConfig {
        let table = format!("eval.{suite}.executor");
        AgentSuiteConfig {
            data: raw.data.unwrap_or_default(),
            documents: raw.documents,
            executor: raw.executor.map(|raw| self.executor(&table, raw)),
        }
    }

    /// What a run needs that evaluates suites of agents.
    pub(super) fn agent_suites_need(&mut self, eval: &EvalConfig, data: &DataConfig) {
        for suite in [Suite::Restbench, Suite::Apibank] {
            if !eval.suites.contains(&suite) {
                continue;
            }
            let help = format!("name the benchmark's queries: [eval.{suite}] data = [\"FILE\"]");
            let files = eval.agent_suite(suite).map_or(&[][..], |table| &table.data);
            self.rows_of_suite(&format!("eval.{suite}.data"), files, &help);
            if !data.may_be(DataFormat::Goat) {
                let message = format!(
                    "the suite {suite} prompts as [goat] says, and the rows are {}",
                    data.format
                );
                let help = format!("take \"{suite}\" out, or use goat rows");
                self.report("eval.suites", message, help);
            }
        }
    }
}

impl EvalConfig {
    /// The table of a benchmark for agents.
    fn agent_suite(&self, suite: Suite) -> Option<&AgentSuiteConfig> {
        match suite {
            Suite::Restbench => self.restbench.as_ref(),
            Suite::Apibank => self.apibank.as_ref(),
            _ => None,
        }
    }
}

impl Config {
    /// The config with which agents answer the queries of `suite`: what its own table says stands in
    /// `data.eval` and `[goat]`.
    pub fn of_agents(&self, suite: Suite) -> Self {
        let mut config = self.clone();
        let Some(table) = self.eval.agent_suite(suite) else {
            return config;
        };
        if !table.data.is_empty() {
            config.data.eval.clone_from(&table.data);
        }
        if let Some(goat) = &mut config.goat {
            if let Some(documents) = &table.documents {
                goat.documents.clone_from(documents);
            }
            if let Some(executor) = &table.executor {
                goat.executor.clone_from(executor);
            }
        }
        config
    }
}

impl AgentSuiteConfig {
    pub(super) fn raw(&self) -> RawAgentSuite {
        RawAgentSuite {
            data: Some(self.data.clone()),
            documents: self.documents.clone(),
            executor: self.executor.as_ref().map(ExecutorConfig::raw),
        }
    }

    /// The files that it reads, with their settings.
    pub(super) fn files(&self, suite: Suite) -> Vec<(String, &PathBuf)> {
        let table = format!("eval.{suite}");
        let executor = self.executor.iter();
        let executor = executor.filter_map(|one| one.file(&format!("{table}.executor")));
        let mut files: Vec<_> = listed(&format!("{table}.data"), &self.data).collect();
        files.extend(named(&table, [("documents", &self.documents)]));
        files.extend(executor);
        files
    }
}
