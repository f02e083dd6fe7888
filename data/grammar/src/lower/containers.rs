//! Lowers conditions on arrays and objects.

use serde_json::{Map, Value, json};

use super::scalars::count;
use super::{Document, Draft, Lowerer, SchemaLocation};
use crate::error::GrammarError;

/// Maximum count of items or properties. A count is expanded into copies of the grammar of one
/// item.
const MAX_COUNT: u64 = 10_000;
/// Maximum properties of an object. Its keys are processed recursively.
const MAX_PROPERTIES: usize = 2_000;

impl Lowerer {
    pub(super) fn arrays<'s>(
        &mut self,
        document: &mut Document<'s>,
        location: &SchemaLocation<'s>,
        fields: &'s Map<String, Value>,
        lowered: &mut Map<String, Value>,
    ) -> Result<(), GrammarError> {
        // Up to draft 2019-09, a list under `items` means what `prefixItems` means in 2020-12.
        let is_old_tuple =
            document.draft < Draft::Draft202012 && fields.get("items").is_some_and(Value::is_array);
        let has_prefix = document.draft >= Draft::Draft202012;
        let (prefix, rest) = if is_old_tuple {
            ("items", "additionalItems")
        } else {
            ("prefixItems", "items")
        };
        if let Some(schemas) = fields.get(prefix).filter(|_| is_old_tuple || has_prefix) {
            let is_empty = schemas.as_array().is_some_and(Vec::is_empty);
            let mut items = Vec::new();
            if !is_empty {
                for item in location.list(prefix, schemas)? {
                    items.push(self.schema(document, item)?);
                }
            }
            lowered.insert("prefixItems".to_owned(), Value::Array(items));
        }
        let unevaluated = "unevaluatedItems";
        let rest = if fields.contains_key(rest) || document.draft < Draft::Draft201909 {
            rest
        } else {
            unevaluated
        };
        if let Some(schema) = fields.get(rest) {
            if schema.is_array() {
                return Err(
                    location.unsupported(rest, "is a list; use prefixItems in draft 2020-12")
                );
            }
            let schema = self.schema(document, location.child(schema, &[rest]))?;
            lowered.insert("items".to_owned(), schema);
        }
        for keyword in ["minItems", "maxItems"] {
            let limit = count(location, fields, keyword, MAX_COUNT)?;
            lowered.extend(limit.map(|limit| (keyword.to_owned(), json!(limit))));
        }
        Ok(())
    }

    pub(super) fn objects<'s>(
        &mut self,
        document: &mut Document<'s>,
        location: &SchemaLocation<'s>,
        fields: &'s Map<String, Value>,
        lowered: &mut Map<String, Value>,
    ) -> Result<(), GrammarError> {
        for keyword in ["properties", "patternProperties"] {
            let Some(schemas) = fields.get(keyword) else {
                continue;
            };
            let Some(schemas) = schemas.as_object() else {
                return Err(location.unsupported(keyword, "is not an object of schemas"));
            };
            if schemas.len() > MAX_PROPERTIES {
                return Err(GrammarError::TooLarge {
                    reason: format!("an object has {} {keyword}", schemas.len()),
                });
            }
            let mut parts = Map::new();
            for (key, schema) in schemas {
                let part = self.schema(document, location.child(schema, &[keyword, key]))?;
                parts.insert(key.clone(), part);
            }
            lowered.insert(keyword.to_owned(), Value::Object(parts));
        }
        let additional_properties = "additionalProperties";
        let rest =
            if fields.contains_key(additional_properties) || document.draft < Draft::Draft201909 {
                additional_properties
            } else {
                "unevaluatedProperties"
            };
        if let Some(schema) = fields.get(rest) {
            let schema = self.schema(document, location.child(schema, &[rest]))?;
            lowered.insert(additional_properties.to_owned(), schema);
        }
        required(location, fields, lowered)?;
        for keyword in ["minProperties", "maxProperties"] {
            let limit = count(location, fields, keyword, MAX_COUNT)?;
            lowered.extend(limit.map(|limit| (keyword.to_owned(), json!(limit))));
        }
        Ok(())
    }
}

fn required(
    location: &SchemaLocation<'_>,
    fields: &Map<String, Value>,
    lowered: &mut Map<String, Value>,
) -> Result<(), GrammarError> {
    let Some(keys) = fields.get("required") else {
        return Ok(());
    };
    let keys: Option<Vec<&str>> = keys
        .as_array()
        .and_then(|keys| keys.iter().map(Value::as_str).collect());
    let Some(mut keys) = keys else {
        return Err(location.unsupported("required", "is not a list of keys"));
    };
    let mut seen_keys = std::collections::HashSet::new();
    keys.retain(|key| seen_keys.insert(*key));
    if keys.len() > MAX_PROPERTIES {
        return Err(GrammarError::TooLarge {
            reason: format!("an object has {} required keys", keys.len()),
        });
    }
    lowered.insert("required".to_owned(), json!(keys));
    Ok(())
}
