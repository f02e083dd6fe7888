//! A query, the calls that answer it in order, and the answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One solved query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    /// Name of the row, for reports.
    #[serde(default)]
    pub id: String,
    /// What the user asks.
    pub query: String,
    /// The calls, in the order of their execution.
    pub calls: Vec<TrajectoryCall>,
    /// The final answer.
    pub response: String,
    /// Names of the APIs whose sub-graph the query was made from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subgraph: Vec<String>,
    /// Texts that a right final answer must hold, for checking without a judge.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<String>,
}

/// One call of a trajectory.
///
/// The paper's letters `s`, `c` and `o` are read too, `c` being `{"name", "arguments"}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrajectoryCall {
    /// What this call is to find out, in words.
    pub sub_query: String,
    /// The API's `tool/api` name.
    pub name: String,
    /// Arguments by name, in the order of the data.
    pub arguments: Map<String, Value>,
    /// What the API answered.
    pub output: Value,
    /// Which arguments came from an earlier output, and from where in it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub derived: BTreeMap<String, Derived>,
}

/// The origin of an argument in the output of an earlier call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Derived {
    /// Index of the earlier call, from 0.
    pub call: usize,
    /// Where in its output, such as `results[].currency`.
    pub path: String,
    /// Which of several values, such as `first`.
    #[serde(default)]
    pub pick: String,
}
