//! One API as its documentation describes it, in StableToolBench's layout.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApiDocument {
    /// The field of use, such as `Entertainment`.
    #[serde(default)]
    pub category_name: String,
    /// The tool that the API belongs to; empty where APIs stand alone.
    #[serde(default)]
    pub tool_name: String,
    /// The API's own name.
    pub api_name: String,
    /// What it does.
    #[serde(default)]
    pub api_description: String,
    /// Parameters that every call must give.
    #[serde(default)]
    pub required_parameters: Vec<ApiParameter>,
    /// Parameters that a call may leave out.
    #[serde(default)]
    pub optional_parameters: Vec<ApiParameter>,
    /// The HTTP method, where there is one.
    #[serde(default)]
    pub method: String,
    /// What it returns, where the source says so apart from the description.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output_description: String,
}

/// One parameter of an API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApiParameter {
    /// Its name in `arguments`.
    pub name: String,
    /// Its type as the source spells it, such as `STRING` or `NUMBER`.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// What it means.
    #[serde(default)]
    pub description: String,
    /// The value that stands for an absent argument; an empty text where there is none.
    #[serde(default)]
    pub default: Value,
}

impl ApiDocument {
    /// The name that calls carry: `tool/api`, or the API's name where it belongs to no tool.
    pub fn call_name(&self) -> String {
        if self.tool_name.is_empty() {
            return self.api_name.clone();
        }
        format!("{}/{}", self.tool_name, self.api_name)
    }

    /// All parameters, the required ones first.
    pub fn parameters(&self) -> impl Iterator<Item = &ApiParameter> {
        self.required_parameters
            .iter()
            .chain(&self.optional_parameters)
    }
}
