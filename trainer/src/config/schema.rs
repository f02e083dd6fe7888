//! The config format -> JSON Schema, for editors and agents.
//!
//! Made from the raw tables, so it cannot fall behind. The `null` that `Option` fields bring is
//! taken out again: TOML has no null, and an absent key is how a setting is left to its default.

use serde_json::Value;

use super::raw::RawConfig;

/// The JSON Schema (draft 2020-12) of a config file.
pub fn json_schema() -> Value {
    let mut schema = schemars::schema_for!(RawConfig).to_value();
    remove_null(&mut schema);
    if let Value::Object(root) = &mut schema {
        root.insert("title".to_owned(), "tooltune config".into());
    }
    schema
}

fn remove_null(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(remove_null),
        Value::Object(object) => {
            object.values_mut().for_each(remove_null);
            if let Some(Value::Array(types)) = object.get_mut("type") {
                types.retain(|name| name != "null");
                if let [one] = types.as_slice() {
                    let one = one.clone();
                    object.insert("type".to_owned(), one);
                }
            }
            if let Some(Value::Array(options)) = object.get_mut("anyOf") {
                options.retain(|option| option.get("type").is_none_or(|name| name != "null"));
                if options.len() == 1
                    && let Some(Value::Object(only)) = options.pop()
                {
                    object.remove("anyOf");
                    object.extend(only);
                }
            }
        }
        _ => {}
    }
}
