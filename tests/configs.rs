//! The configs in the repository load, and docs/config.md explains every key.

use std::collections::BTreeMap;

use clap::ValueEnum as _;
use serde_json::Value;
use tooltune::config::{LoadedConfig, Preset, Source, json_schema};

use crate::support::root;

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn load(name: &str, text: String) -> LoadedConfig {
    let source = Source {
        name: name.to_owned(),
        text,
    };
    LoadedConfig::parse(source, &[]).unwrap_or_else(|error| panic!("{name} is refused:\n{error}"))
}

/// Name and text of every config file and preset.
fn configs() -> Vec<(String, String)> {
    let folder = root().join("configs");
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut configs: Vec<(String, String)> = entries
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_file())
        .map(|entry| format!("configs/{}", entry.file_name().to_string_lossy()))
        .map(|path| (path.clone(), read(&path)))
        .collect();
    assert!(
        configs.len() >= 2,
        "{} holds {} files",
        folder.display(),
        configs.len()
    );
    for preset in Preset::value_variants() {
        configs.push((format!("{preset:?}.toml"), preset.text().to_owned()));
    }
    configs
}

/// Invariant: Every config of the repository and every preset loads.
#[test]
fn every_config_and_preset_loads() {
    for (name, text) in configs() {
        let loaded = load(&name, text);
        let resolved = loaded
            .config
            .to_toml()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let again = load(&format!("{name}, resolved.toml"), resolved);
        assert_eq!(
            again.config, loaded.config,
            "{name} changes its meaning when resolved"
        );
    }
}

#[test]
fn every_config_documents_its_command_and_its_inputs() {
    for (name, text) in configs() {
        let comment: String = text
            .lines()
            .take_while(|line| line.starts_with('#'))
            .collect();
        for part in ["tooltune train", "Needs:"] {
            assert!(
                comment.contains(part),
                "{name}: its first comment has no {part:?}"
            );
        }
    }
}

#[test]
fn a_misspelt_key_in_any_config_is_refused() {
    for (name, text) in configs() {
        let misspelt = text.replacen("\nlearning_rate", "\nlerning_rate", 1);
        let source = Source {
            name: name.clone(),
            text: misspelt,
        };
        let error = LoadedConfig::parse(source, &[])
            .err()
            .unwrap_or_else(|| panic!("{name} loads"));
        assert!(
            error.to_string().contains("learning_rate"),
            "{name}: {error}"
        );
    }
}

/// The default of each key in the guide, by table.
type Guide = BTreeMap<(String, String), String>;

/// The rows of docs/config.md: `| key | default | meaning |` under a heading for each table.
fn guide() -> Guide {
    let mut table = String::new();
    let mut rows = Guide::new();
    for line in read("docs/config.md").lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            let name = heading.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
            table = name.unwrap_or_default().to_owned();
        } else if let Some(inner) = ["### Entries of ", "### Keys of "]
            .iter()
            .find_map(|begin| line.strip_prefix(begin))
        {
            table = inner.to_owned();
        } else if let Some(row) = line.strip_prefix("| `") {
            let (key, rest) = row.split_once("` | ").unwrap_or_else(|| panic!("{line}"));
            let default = rest.split(" | ").next().unwrap_or_default();
            let again = rows.insert((table.clone(), key.to_owned()), default.to_owned());
            assert!(
                again.is_none(),
                "docs/config.md explains {table}.{key} twice"
            );
        }
    }
    rows
}

/// Resolves a `$ref` within the schema; returns any other value unchanged.
fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"]
        .as_str()
        .and_then(|path| path.strip_prefix('#'))
    {
        Some(pointer) => root.pointer(pointer).unwrap_or_else(|| panic!("{pointer}")),
        None => schema,
    }
}

/// Every key of the schema with its default, by table.
fn keys_of_the_schema() -> BTreeMap<(String, String), Value> {
    let root = json_schema();
    let mut keys = BTreeMap::new();
    for (name, property) in root["properties"].as_object().expect("properties") {
        let table = resolve(&root, property);
        let Some(settings) = table["properties"].as_object() else {
            keys.insert((String::new(), name.clone()), property["default"].clone());
            continue;
        };
        for (key, setting) in settings {
            keys.insert((name.clone(), key.clone()), setting["default"].clone());
            // An entry of a list may have several types, such as a path or a table.
            let items = resolve(&root, &setting["items"]);
            let forms = items["anyOf"].as_array().cloned().unwrap_or_default();
            for form in forms.iter().chain([items]) {
                let properties = resolve(&root, form)["properties"].as_object();
                for entry in properties.into_iter().flat_map(|p| p.keys()) {
                    keys.insert((format!("{name}.{key}"), entry.clone()), Value::Null);
                }
            }
            let inner = setting["anyOf"].as_array().and_then(|forms| forms.first());
            let inner = resolve(&root, inner.unwrap_or(setting));
            for (entry, setting) in inner["properties"].as_object().into_iter().flatten() {
                let entry = (format!("{name}.{key}"), entry.clone());
                keys.insert(entry, setting["default"].clone());
            }
        }
    }
    keys
}

/// Invariant: docs/config.md matches the settings in the code.
#[test]
fn the_guide_names_every_key_of_the_config() {
    let guide = guide();
    let schema = keys_of_the_schema();
    assert!(
        schema.len() > 50,
        "only {} keys in the schema",
        schema.len()
    );
    let unexplained: Vec<_> = schema
        .keys()
        .filter(|key| !guide.contains_key(*key))
        .collect();
    assert!(
        unexplained.is_empty(),
        "docs/config.md does not explain {unexplained:?}"
    );
    let invented: Vec<_> = guide
        .keys()
        .filter(|key| !schema.contains_key(*key))
        .collect();
    assert!(
        invented.is_empty(),
        "docs/config.md explains keys that do not exist: {invented:?}"
    );
}

#[test]
fn the_guide_gives_the_defaults_of_the_schema() {
    let guide = guide();
    for ((table, key), default) in keys_of_the_schema() {
        let Some(cell) = guide.get(&(table.clone(), key.clone())) else {
            continue;
        };
        let explained = match cell.trim_matches('`') {
            "-" => Value::Null,
            text => serde_json::from_str(text)
                .unwrap_or_else(|error| panic!("docs/config.md: {table}.{key}: {text}: {error}")),
        };
        assert_eq!(
            explained, default,
            "docs/config.md: the default of {table}.{key}"
        );
    }
}
