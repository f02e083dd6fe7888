//! Values by module pattern, in the order they were written.
//!
//! PEFT takes the first pattern that matches a module, so `lora.rank_pattern` and
//! `lora.alpha_pattern` cannot be sorted maps.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::document::{Node, Value};
use super::read::{Findings, FromNode};

/// A table from module pattern to value; the first pattern that matches counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Patterns<T>(pub Vec<(String, T)>);

impl<T> Default for Patterns<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: FromNode> FromNode for Patterns<T> {
    fn from_node(node: &Node, path: &str, findings: &mut Findings) -> Option<Self> {
        let Value::Table(table) = &node.value else {
            let message = format!("`{path}` must be a table, not {}", node.value.describe());
            findings.report(node, message, "write { q_proj = 16, \"layers.0.*\" = 4 }");
            return None;
        };
        let read: Vec<Option<(String, T)>> = table
            .entries
            .iter()
            .map(|entry| {
                let path = format!("{path}.{}", entry.key);
                findings.places.insert(path.clone(), entry.node.place);
                T::from_node(&entry.node, &path, findings).map(|value| (entry.key.clone(), value))
            })
            .collect();
        read.into_iter().collect::<Option<_>>().map(Self)
    }
}

impl<T: Serialize> Serialize for Patterns<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (pattern, value) in &self.0 {
            map.serialize_entry(pattern, value)?;
        }
        map.end()
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Patterns<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PatternsVisitor(PhantomData))
    }
}

struct PatternsVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for PatternsVisitor<T> {
    type Value = Patterns<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a table from module pattern to value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Patterns<T>, A::Error> {
        let mut patterns = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            patterns.push(entry);
        }
        Ok(Patterns(patterns))
    }
}

impl<T: JsonSchema> JsonSchema for Patterns<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("PatternsOf{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let value = generator.subschema_for::<T>();
        json_schema!({ "type": "object", "additionalProperties": value })
    }
}
