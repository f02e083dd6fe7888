//! Data passed between stages.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tooltune_apis::TrajectoryCall;
use tooltune_synth::graph::NamedEdge;

/// Descriptions of an API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ParsedApi {
    /// Name of the API.
    pub(super) api: String,
    /// Description of each parameter, by name.
    pub(super) input_params: Map<String, Value>,
    /// Description of the output.
    pub(super) output: String,
}

impl ParsedApi {
    /// The description of a parameter; its name if it has no description.
    pub(super) fn meaning<'a>(&'a self, parameter: &'a str) -> &'a str {
        let text = self.input_params.get(parameter).and_then(Value::as_str);
        text.filter(|text| !text.trim().is_empty())
            .unwrap_or(parameter)
    }
}

/// APIs in call order, with the edges that fill their parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Task {
    /// Id of the task.
    pub(super) id: String,
    /// API names, each after the ones that it depends on.
    pub(super) apis: Vec<String>,
    /// At most one edge per parameter.
    pub(super) edges: Vec<NamedEdge>,
    /// Arguments used in an earlier row with the same sub-graph, by API; the new values should
    /// differ.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) taken: BTreeMap<String, Map<String, Value>>,
}

/// A task with its calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct CalledTask {
    /// The task.
    #[serde(flatten)]
    pub(super) task: Task,
    /// The calls, with sub-queries once they are written.
    pub(super) calls: Vec<TrajectoryCall>,
    /// The user's query, once it is written.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) query: String,
}
