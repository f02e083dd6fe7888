//! `data.chat_template_kwargs`: variables of a chat template, with values of any JSON type.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use tooltune_rows::text::TemplateKwargError;

use super::document::{Node, Value};
use super::read::{Findings, FromNode};

/// Variables by name, sorted, so that their order in a file makes no other run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TemplateKwargs(pub Map<String, Json>);

impl FromNode for TemplateKwargs {
    fn from_node(node: &Node, path: &str, findings: &mut Findings) -> Option<Self> {
        let Value::Table(table) = &node.value else {
            let message = format!("`{path}` must be a table, not {}", node.value.describe());
            findings.report(node, message, "write { enable_thinking = false }");
            return None;
        };
        let mut read = Map::new();
        let mut is_whole = true;
        for entry in &table.entries {
            if let Err(error) = TemplateKwargError::check_name(&entry.key) {
                let message = format!("`{path}` cannot have the key `{}`", entry.key);
                findings.report(&entry.node, message, error.to_string());
                is_whole = false;
                continue;
            }
            match json_of(&entry.node, &format!("{path}.{}", entry.key), findings) {
                Some(value) => drop(read.insert(entry.key.clone(), value)),
                None => is_whole = false,
            }
        }
        read.sort_keys();
        is_whole.then_some(Self(read))
    }
}

/// A value as templates see it; `None` after reporting what JSON or TOML does not have.
fn json_of(node: &Node, path: &str, findings: &mut Findings) -> Option<Json> {
    let json = match &node.value {
        Value::Bool(value) => Some(Json::from(*value)),
        Value::Integer(value) => i64::try_from(*value).ok().map(Json::from),
        Value::Float(value) if value.is_finite() => Some(Json::from(*value)),
        Value::Text(text) => Some(Json::from(text.as_str())),
        Value::List(items) => {
            let items = items
                .iter()
                .enumerate()
                .map(|(idx, item)| json_of(item, &format!("{path}[{idx}]"), findings));
            return items.collect::<Option<Vec<_>>>().map(Json::from);
        }
        Value::Table(table) => {
            let fields = table.entries.iter().map(|entry| {
                let value = json_of(&entry.node, &format!("{path}.{}", entry.key), findings)?;
                Some((entry.key.clone(), value))
            });
            return fields.collect::<Option<Map<_, _>>>().map(Json::from);
        }
        Value::Null | Value::Float(_) | Value::Date(_) => None,
    };
    if json.is_none() {
        let message = format!("`{path}` cannot be {}", node.value.describe());
        let help = "write a text in quotes, a number of at most 64 bits, true, false, a list or a \
                    table, or leave the key out";
        findings.report(node, message, help);
    }
    json
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
