//! Conditions on arrays and objects.

use serde_json::{Map, Value, json};

use super::scalars::count;
use super::{Document, Draft, Lowerer, SchemaLocation};
use crate::error::GrammarError;

/// Items and properties are counted by copies of their grammar.
const MAX_COUNT: u64 = 10_000;
/// The keys of an object are walked by recursion.
const MAX_PROPERTIES: usize = 2_000;

impl Lowerer {
    pub(super) fn arrays<'s>(
        &mut self,
        document: &mut Document<'s>,
        place: &SchemaLocation<'s>,
        fields: &'s Map<String, Value>,
        lowered: &mut Map<String, Value>,
    ) -> Result<(), GrammarError> {
        // Until 2019-09 a list under `items` is what `prefixItems` is today.
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
                for item in place.list(prefix, schemas)? {
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
                return Err(place.refused(rest, "is a list; draft 2020-12 calls it prefixItems"));
            }
            let schema = self.schema(document, place.below(schema, &[rest]))?;
            lowered.insert("items".to_owned(), schema);
        }
        for keyword in ["minItems", "maxItems"] {
            let limit = count(place, fields, keyword, MAX_COUNT)?;
            lowered.extend(limit.map(|limit| (keyword.to_owned(), json!(limit))));
        }
        Ok(())
    }

    pub(super) fn objects<'s>(
        &mut self,
        document: &mut Document<'s>,
        place: &SchemaLocation<'s>,
        fields: &'s Map<String, Value>,
        lowered: &mut Map<String, Value>,
    ) -> Result<(), GrammarError> {
        for keyword in ["properties", "patternProperties"] {
            let Some(schemas) = fields.get(keyword) else {
                continue;
            };
            let Some(schemas) = schemas.as_object() else {
                return Err(place.refused(keyword, "is no object of schemas"));
            };
            if schemas.len() > MAX_PROPERTIES {
                return Err(GrammarError::TooLarge {
                    reason: format!("an object has {} {keyword}", schemas.len()),
                });
            }
            let mut parts = Map::new();
            for (key, schema) in schemas {
                let part = self.schema(document, place.below(schema, &[keyword, key]))?;
                parts.insert(key.clone(), part);
            }
            lowered.insert(keyword.to_owned(), Value::Object(parts));
        }
        let plain = "additionalProperties";
        let rest = if fields.contains_key(plain) || document.draft < Draft::Draft201909 {
            plain
        } else {
            "unevaluatedProperties"
        };
        if let Some(schema) = fields.get(rest) {
            let schema = self.schema(document, place.below(schema, &[rest]))?;
            lowered.insert(plain.to_owned(), schema);
        }
        required(place, fields, lowered)?;
        for keyword in ["minProperties", "maxProperties"] {
            let limit = count(place, fields, keyword, MAX_COUNT)?;
            lowered.extend(limit.map(|limit| (keyword.to_owned(), json!(limit))));
        }
        Ok(())
    }
}

fn required(
    place: &SchemaLocation<'_>,
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
        return Err(place.refused("required", "is no list of keys"));
    };
    let mut seen = std::collections::HashSet::new();
    keys.retain(|key| seen.insert(*key));
    if keys.len() > MAX_PROPERTIES {
        return Err(GrammarError::TooLarge {
            reason: format!("an object has {} required keys", keys.len()),
        });
    }
    lowered.insert("required".to_owned(), json!(keys));
    Ok(())
}
