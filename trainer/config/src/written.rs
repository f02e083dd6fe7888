//! Writes a checked config as a file that reproduces it, computes its digest, and compares it with
//! another config.
//!
//! All three use the same flat list of settings, so every written setting is compared. A setting
//! must not change on resume unless its definition marks it as safe.

use std::collections::BTreeMap;
use std::path::Path;

use serde::ser::Error as _;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::hub_names::revision_of;
use super::schema::{root, target, visit_paths};
use super::suite::Suite;
use super::tables::{Config, RetrieverConfig};

/// The file that contains the config of a run.
pub(crate) const RESOLVED: &str = "config.resolved.toml";

/// Whether a run may be resumed with a changed setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnResume {
    /// The remaining steps do not change.
    Safe,
    /// The run becomes longer, and the steps so far do not change.
    Extends,
    /// The run would be shorter.
    Shortens,
    /// The remaining steps would change.
    Refused,
}

/// A difference between two configs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The setting, such as `train.learning_rate`.
    pub path: String,
    /// Its old value as JSON; `None` if it was not set.
    pub old: Option<String>,
    /// Its new value as JSON; `None` if it is no longer set.
    pub new: Option<String>,
    /// Whether a run may be resumed with the change.
    pub on_resume: OnResume,
}

impl Config {
    /// The config as a complete TOML file, including defaults.
    ///
    /// # Errors
    ///
    /// A path is not UTF-8 or a number exceeds TOML's 64-bit integers; neither occurs in a config
    /// read from a file.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        let settings = settings_for_file(self).map_err(toml::ser::Error::custom)?;
        let body = toml::to_string(&settings)?;
        Ok(format!(
            "# Every setting of the run. Training with this file repeats the run.\n\n{body}"
        ))
    }

    /// SHA-256, in hex, of all settings that must not change on resume.
    pub fn resume_digest(&self) -> String {
        let mut hasher = Sha256::new();
        for (path, value) in flat(self) {
            if resume_rule(&path) != OnResume::Safe {
                hasher.update(format!("{path}={value}\n"));
            }
        }
        hasher
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

/// Settings that differ, sorted by path.
pub fn diff(old: &Config, new: &Config) -> Vec<Change> {
    let (old, new) = (flat(old), flat(new));
    let mut paths: Vec<&String> = old.keys().chain(new.keys()).collect();
    paths.sort();
    paths.dedup();
    paths
        .into_iter()
        .filter(|path| old.get(*path) != new.get(*path))
        .map(|path| Change::new(path, old.get(path), new.get(path)))
        .collect()
}

impl Change {
    fn new(path: &str, old: Option<&String>, new: Option<&String>) -> Self {
        let number = |text: &String| text.parse::<f64>().ok();
        let on_resume = match (
            resume_rule(path),
            old.and_then(number),
            new.and_then(number),
        ) {
            // A run with fewer steps is a different run. If the unit also changes, the run compares
            // the steps itself.
            (OnResume::Extends, Some(old), Some(new)) if new < old => OnResume::Shortens,
            (on_resume, ..) => on_resume,
        };
        Self {
            path: path.to_owned(),
            old: old.cloned(),
            new: new.cloned(),
            on_resume,
        }
    }
}

fn resume_rule(path: &str) -> OnResume {
    let mut schema = root();
    for key in path.split('.') {
        schema = &target(schema)["properties"][key];
        if schema["x-on-resume"] == "safe" {
            return OnResume::Safe;
        }
        if schema["x-on-resume"] == "longer" {
            return OnResume::Extends;
        }
    }
    OnResume::Refused
}

/// Settings by path, `table.key`, as JSON text. The text keeps the order of patterns, which
/// matters.
pub fn flat(config: &Config) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    for (table, value) in settings_for_file(config).unwrap_or_default() {
        match value {
            Value::Object(keys) => {
                let keys = keys.into_iter();
                settings.extend(keys.map(|(key, v)| (format!("{table}.{key}"), v.to_string())));
            }
            value => {
                settings.insert(table, value.to_string());
            }
        }
    }
    settings
}

/// Settings as written to a file: [`settings_of`], with cached paths replaced by Hub names at their
/// commits.
///
/// # Errors
///
/// As for [`settings_of`].
pub(crate) fn settings_for_file(config: &Config) -> Result<Map<String, Value>, serde_json::Error> {
    let mut settings = settings_of(config)?;
    visit_paths(&mut settings, root(), "", &mut |setting, text| {
        if let Some(origin) = config.hub.origin_of(Path::new(text.as_str())) {
            *text = match revision_of(setting) {
                // The revision has a separate setting.
                Some(_) => origin.name.clone(),
                None => origin.at_commit(),
            };
        }
    });
    Ok(settings)
}

/// Settings without tables and keys that have no meaning in this config.
///
/// # Errors
///
/// A path is not UTF-8, which does not occur in a config read from a file.
pub(crate) fn settings_of(config: &Config) -> Result<Map<String, Value>, serde_json::Error> {
    let mut settings = serde_json::to_value(config)?;
    remove_null(&mut settings);
    let executors = Suite::all().map(|suite| {
        let table = config.eval.agent_suite(suite);
        let executor = table.and_then(|table| table.executor.as_ref());
        (format!("/eval/{suite}/executor"), executor)
    });
    let goat_executor = config.goat.as_ref().map(|goat| &goat.executor);
    let goat_executor = ("/goat/executor".to_owned(), goat_executor);
    for (table, executor) in std::iter::once(goat_executor).chain(executors) {
        if let (Some(Value::Object(table)), Some(executor)) =
            (settings.pointer_mut(&table), executor)
        {
            table.retain(|key, _| executor.kind.accepts(key));
        }
    }
    // If the format of the rows is not detected yet, [goat] may lack documents.
    if let Some(Value::Object(goat)) = settings.get_mut("goat")
        && goat["documents"] == ""
    {
        goat.shift_remove("documents");
    }
    if let Some(Value::Object(retriever)) = settings.get_mut("retriever")
        && config.trained_retriever().is_none()
    {
        retriever.retain(|key, _| RetrieverConfig::UNTRAINED_KEYS.contains(&key.as_str()));
    }
    let Value::Object(mut tables) = settings else {
        return Ok(Map::new());
    };
    if config.model.is_none() {
        tables.shift_remove("lora");
        tables.shift_remove("mask");
        if config.data.train.is_empty() {
            tables.shift_remove("data");
        }
    }
    Ok(tables)
}

fn remove_null(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(remove_null),
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_null);
        }
        _ => {}
    }
}
