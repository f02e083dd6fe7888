//! What the stages hand on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tooltune_rows::tools::TrajectoryCall;
use tooltune_synth::graph::NamedEdge;

/// An API in words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ParsedApi {
    /// Its name.
    pub(super) api: String,
    /// What each parameter means, by its name.
    pub(super) input_params: Map<String, Value>,
    /// What it returns.
    pub(super) output: String,
}

impl ParsedApi {
    /// What a parameter means; its name, if nobody has said that.
    pub(super) fn meaning<'a>(&'a self, parameter: &'a str) -> &'a str {
        let text = self.input_params.get(parameter).and_then(Value::as_str);
        text.filter(|text| !text.trim().is_empty())
            .unwrap_or(parameter)
    }
}

/// APIs in the order of their calls, and what gives their arguments values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Task {
    /// Its name.
    pub(super) id: String,
    /// Names, each after those that it depends on.
    pub(super) apis: Vec<String>,
    /// At most one for each parameter.
    pub(super) edges: Vec<NamedEdge>,
    /// What the APIs were called with in an earlier row over the same sub-graph, by their names;
    /// other values are wanted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) taken: BTreeMap<String, Map<String, Value>>,
}

/// A task whose calls are made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct CalledTask {
    /// The task.
    #[serde(flatten)]
    pub(super) task: Task,
    /// The calls, with their sub-queries once these are written.
    pub(super) calls: Vec<TrajectoryCall>,
    /// What the user asks, once that is written.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) query: String,
}
