//! Schema of the config, generated from its tables. It is used to check documents, and by editors
//! and agents.
//!
//! The `null` type of `Option` fields is removed: TOML has no null, and an absent key selects the
//! default.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};

use super::did_you_mean::OtherName;
use super::tables::Config;

static ROOT: LazyLock<Value> = LazyLock::new(|| {
    let mut schema = schemars::schema_for!(Config).to_value();
    remove_null(&mut schema);
    schema
});

/// Schema with our own keywords (`x-`), which the macro `settings!` documents.
pub(crate) fn root() -> &'static Value {
    &ROOT
}

/// Resolves a reference; other schemas are returned unchanged.
pub(crate) fn target(schema: &'static Value) -> &'static Value {
    let pointer = schema["$ref"].as_str();
    let pointer = pointer.and_then(|path| path.strip_prefix('#'));
    pointer
        .and_then(|path| ROOT.pointer(path))
        .unwrap_or(schema)
}

/// Keys of a table, in the order of the documentation.
pub(crate) fn keys(table: &'static Value) -> Vec<&'static str> {
    let properties = table["properties"].as_object();
    properties
        .into_iter()
        .flat_map(|table| table.keys())
        .map(String::as_str)
        .collect()
}

/// Keys of a main table.
pub(crate) fn keys_of(table: &str) -> Vec<&'static str> {
    keys(self::table(table))
}

/// Schema of a main table.
pub(crate) fn table(name: &str) -> &'static Value {
    target(&ROOT["properties"][name])
}

/// The settings of the main tables, by path, in the order of the documentation.
pub(crate) fn settings() -> Vec<(String, &'static Value)> {
    let settings = keys(root()).into_iter().flat_map(|name| {
        let fields = table(name)["properties"].as_object().into_iter().flatten();
        fields.map(move |(key, field)| (format!("{name}.{key}"), field))
    });
    settings.collect()
}

/// All settings by path, also those of tables in tables.
pub(crate) fn nested_settings() -> Vec<(String, &'static Value)> {
    fn add(path: &str, table: &'static Value, settings: &mut Vec<(String, &'static Value)>) {
        for (key, field) in table["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}{key}");
            let inner = target(field);
            if inner["properties"].is_object() {
                add(&format!("{path}."), inner, settings);
            } else {
                settings.push((path, field));
            }
        }
    }
    let mut settings = Vec::new();
    add("", root(), &mut settings);
    settings
}

/// Maps names of settings in other programs to the setting here, with a remark on its value.
/// Contains all names in `x-also`, and the names in `x-elsewhere` that are not settings here.
pub(crate) fn other_names() -> &'static BTreeMap<&'static str, OtherName> {
    static NAMES: LazyLock<BTreeMap<&'static str, OtherName>> = LazyLock::new(|| {
        let mut names = BTreeMap::new();
        for (path, field) in settings() {
            for also in strings(&field["x-also"]) {
                let (name, note) = also.split_once("; ").unwrap_or((also, ""));
                let setting = path.clone();
                names.insert(name, OtherName { setting, note });
            }
        }
        let ours: Vec<&str> = keys(root()).into_iter().flat_map(keys_of).collect();
        for (path, field) in settings() {
            let trainers = field["x-elsewhere"].as_object().into_iter().flatten();
            for name in trainers.flat_map(|(_, names)| strings(names)) {
                if !ours.contains(&name) {
                    let setting = path.clone();
                    names.entry(name).or_insert(OtherName { setting, note: "" });
                }
            }
        }
        names
    });
    &NAMES
}

/// A string, or the strings of a list.
pub(crate) fn strings(value: &'static Value) -> Vec<&'static str> {
    match value {
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect(),
    }
}

/// Schema of a setting, by path.
pub(crate) fn setting_of(path: &str) -> &'static Value {
    let keys = path.split('.');
    keys.fold(root(), |schema, key| &target(schema)["properties"][key])
}

/// Calls `visit` with each path setting and its value. `visit` may change the value.
pub(crate) fn visit_paths(
    table: &mut Map<String, Value>,
    schema: &'static Value,
    path: &str,
    visit: &mut dyn FnMut(&str, &mut String),
) {
    for (key, value) in table {
        let setting = format!("{path}{key}");
        let schema = &schema["properties"][key];
        let is_path = schema["x-kind"] == "path";
        let is_built_in = |file: &str| built_in(schema).contains(&file);
        match value {
            Value::Object(inner) => {
                visit_paths(inner, target(schema), &format!("{setting}."), visit);
            }
            Value::String(file) if is_path && schema["$ref"].is_null() && !is_built_in(file) => {
                visit(&setting, file);
            }
            Value::Array(list) if is_path => {
                for (i, file) in list.iter_mut().enumerate() {
                    // A file, or a table with its path.
                    let file = match file {
                        Value::Object(table) => table.get_mut("path"),
                        file => Some(file),
                    };
                    if let Some(Value::String(file)) = file {
                        visit(&format!("{setting}[{i}]"), file);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Built-in names that a path setting accepts.
pub(crate) fn built_in(schema: &'static Value) -> Vec<&'static str> {
    strings(&schema["x-names"])
}

/// JSON Schema (draft 2020-12) of a config file.
pub fn json_schema() -> Value {
    let mut schema = root().clone();
    simplify(&mut schema);
    if let Value::Object(root) = &mut schema {
        root.insert("title".to_owned(), "tooltune config".into());
    }
    schema
}

/// Removes the null type, and defaults that state nothing: null, empty lists and strings, and the
/// defaults of inner tables.
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
            let states_nothing = match object.get("default") {
                Some(Value::Array(items)) => items.is_empty(),
                Some(Value::String(text)) => text.is_empty(),
                Some(default) => default.is_null() || default.is_object(),
                None => false,
            };
            if states_nothing {
                object.remove("default");
            }
        }
        _ => {}
    }
}

/// Removes our own keywords, and links in descriptions, which refer to the guide.
fn simplify(schema: &mut Value) {
    static LINK: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"\[([^\]]+)\]\([^)]+\)").ok());
    match schema {
        Value::Array(items) => items.iter_mut().for_each(simplify),
        Value::Object(object) => {
            object.retain(|keyword, _| !keyword.starts_with("x-"));
            object.values_mut().for_each(simplify);
            if let (Some(Value::String(text)), Some(link)) = (object.get_mut("description"), &*LINK)
            {
                let user_text = text.split("\n\n# ").next().unwrap_or_default();
                *text = link.replace_all(user_text, "$1").replace('\n', " ");
            }
        }
        _ => {}
    }
}
