//! `data.chat_template_kwargs`: variables for a chat template, with values of any JSON type.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Variables by name, sorted so that their order in a file does not matter.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, Value>")]
pub struct TemplateKwargs(pub Map<String, Value>);

impl TemplateKwargs {
    /// Whether there are no variables.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<BTreeMap<String, Value>> for TemplateKwargs {
    fn from(sorted: BTreeMap<String, Value>) -> Self {
        Self(sorted.into_iter().collect())
    }
}

impl JsonSchema for TemplateKwargs {
    fn schema_name() -> Cow<'static, str> {
        "TemplateKwargs".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "propertyNames": { "pattern": "^[A-Za-z_][A-Za-z0-9_]*$" },
            "additionalProperties": true,
        })
    }
}
