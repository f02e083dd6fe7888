//! Detects and translates configs of other trainers.
//!
//! The fields of our tables have the names of settings in other trainers. Each trainer also has a
//! table next to this file, for keys whose values differ and for keys without a setting here, with
//! the reason. Nothing is omitted silently: unknown keys are listed by path.

mod arguments;
mod fields;
mod results;
mod rows;
mod schedule;
mod shell;
#[cfg(test)]
mod tests;
mod translation;
mod written;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value};

pub use arguments::{ScriptError, TrainingCommand, find_training_command};
pub use translation::{RowFacts, RowFile, Translation, rows_to_learn, translate};
pub use written::{one_line, to_toml, to_yaml};

use super::document::Table;
use results::truncated_json;
use translation::word_of;

/// A trainer with its keys.
#[derive(Debug, Deserialize)]
pub struct Origin {
    /// Usual spelling.
    pub name: String,
    /// Translation rules by key, including the rules from the fields of our tables.
    keys: BTreeMap<String, Rule>,
    left_out: BTreeMap<String, String>,
    /// Its defaults that differ from ours, by the setting here.
    defaults: BTreeMap<String, Value>,
    /// Its defaults for prompt-completion rows, if they differ.
    #[serde(default)]
    defaults_of_completions: BTreeMap<String, Value>,
    /// Actions done here by default that the other program does not do by default, by the key that
    /// would enable them there.
    #[serde(default)]
    otherwise: BTreeMap<String, String>,
    /// Commands of its program.
    #[serde(default)]
    command: Commands,
    #[serde(default)]
    alpha_is_twice_the_rank: bool,
    /// Its default evaluation strategy if the file has evaluation rows: "epoch" or "steps". If
    /// absent, it does not evaluate by default.
    #[serde(default)]
    evaluates: Option<String>,
    /// Values of a key that are required for the rest of the file to be translated.
    only: BTreeMap<String, Vec<String>>,
}

/// Commands of a trainer in a script.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Commands {
    program: String,
    /// Supported commands.
    done: Vec<String>,
    /// Unsupported commands and Python files.
    others: Vec<String>,
}

impl Commands {
    /// The first unsupported command among these words, as written.
    fn unsupported_command(&self, words: &[String]) -> Option<String> {
        let last = |word: &str, separator: char| {
            word.rsplit(separator).next().unwrap_or_default().to_owned()
        };
        let is_other = |name: &str| self.others.iter().any(|other| other == name);
        for (idx, word) in words.iter().enumerate() {
            let script = word.strip_suffix(".py").map(|path| last(path, '/'));
            let module = word.split_once('.').map(|_| last(word, '.'));
            if script.or(module).is_some_and(|name| is_other(&name)) {
                return Some(word.clone());
            }
            let command = words
                .get(idx + 1)
                .filter(|_| last(word, '/') == self.program);
            let is_command = |next: &&String| next.starts_with(char::is_alphabetic);
            if let Some(next) = command
                .filter(is_command)
                .filter(|next| !self.done.contains(next))
            {
                return Some(format!("{} {next}", self.program));
            }
        }
        None
    }
}

/// Translation rule of a key.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// The setting here; for `Kind::Settings`, the table.
    to: String,
    /// Our values, by the trainer's words.
    words: Option<BTreeMap<String, Value>>,
    /// Whether values not in `words` are copied unchanged.
    #[serde(default)]
    else_same: bool,
    /// Whether a single value becomes a list, and commas separate items.
    #[serde(default)]
    list: bool,
    /// How the value is converted.
    #[serde(default)]
    kind: Kind,
    /// Whether the key has precedence over another one for the same setting.
    #[serde(default)]
    first: bool,
    /// Remark on values that are not copied, or on rows.
    note: Option<String>,
}

/// Conversion of a key's value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    /// By `words`, or unchanged.
    #[default]
    Words,
    /// Rows: files, or data sets with their files.
    Rows,
    /// Module names, or a regular expression.
    Targets,
    /// A mapping whose entries become entries of a table here.
    Table,
    /// Column names, by the fields that they are read as.
    Columns,
    /// A mapping whose entries are settings of the table `to`, if the table has them.
    Settings,
    /// A chat-template variable with the name of the key.
    TemplateSwitch,
    /// The adapter to continue from.
    Adapter,
    /// The revision of the model.
    Revision,
    /// When the run evaluates or saves.
    Timing,
}

static ORIGINS: LazyLock<Vec<Origin>> = LazyLock::new(|| {
    let texts = [
        include_str!("axolotl.toml"),
        include_str!("llama_factory.toml"),
        include_str!("ms_swift.toml"),
        include_str!("trl.toml"),
    ];
    let tables = texts.iter().map(|text| toml::from_str(text));
    let origins = tables.filter_map(Result::ok);
    origins.map(Origin::with_rules_of_fields).collect()
});

/// Minimum number of a trainer's keys to recognise its file.
const ENOUGH_KEYS: usize = 3;

impl Origin {
    /// Reason why a file cannot be translated, such as preference training, from its settings or
    /// from the command in `words`.
    pub fn refusal(&self, theirs: &Map<String, Value>, words: &[String]) -> Option<String> {
        let mut others = theirs.iter().filter_map(|(key, value)| {
            let allowed = self.only.get(key)?;
            let word = word_of(value);
            let is_silent = value.is_null() || word.is_empty();
            (!is_silent && !allowed.contains(&word))
                .then(|| format!("{key} = {}", truncated_json(value)))
        });
        let unsupported = self
            .command
            .unsupported_command(words)
            .or_else(|| others.next())?;
        Some(format!(
            "{unsupported}: only supervised fine-tuning with LoRA is supported, and this file of {} \
             requires something else",
            self.name
        ))
    }

    /// Adds the rules that follow from the fields of our tables.
    fn with_rules_of_fields(mut self) -> Self {
        for (key, rule) in fields::rules(&self.name, &self.keys) {
            self.left_out.remove(&key);
            self.keys.insert(key, rule);
        }
        self
    }

    fn knows_key(&self, key: &str) -> bool {
        self.keys.contains_key(key)
            || self.left_out.contains_key(key)
            || self.only.contains_key(key)
    }

    /// The trainer that knows most of these keys; `None` if too few are known.
    pub fn detect<'k>(keys: impl Iterator<Item = &'k str> + Clone) -> Option<&'static Self> {
        let n_known = |origin: &Origin| keys.clone().filter(|key| origin.knows_key(key)).count();
        let known = ORIGINS.iter().map(|origin| (n_known(origin), origin));
        // `max_by_key` returns the last maximum; in reverse order, that is the first trainer.
        let best = known.rev().max_by_key(|(n, _)| *n)?;
        (best.0 >= ENOUGH_KEYS).then_some(best.1)
    }

    /// The trainer of a text that is not TOML: JSON, or arguments in a script.
    pub(crate) fn detect_in_text(text: &str) -> Option<&'static Self> {
        let settings = match serde_json::from_str(text) {
            Ok(Value::Object(settings)) => settings,
            _ => arguments::first_run(text)?.settings,
        };
        Self::detect(settings.keys().map(String::as_str))
    }

    /// The trainer of a config that has none of our tables and enough keys of that trainer.
    pub(crate) fn detect_in_document(document: &Table, tables: &[&str]) -> Option<&'static Self> {
        let keys = document.entries.iter().map(|entry| entry.key.as_str());
        let is_ours = |key: &str| tables.contains(&key);
        if keys.clone().any(is_ours) {
            return None;
        }
        Self::detect(keys)
    }
}

/// Converts a config from TOML to YAML with its comments: each table becomes a mapping under its
/// name.
pub fn toml_to_yaml(text: &str) -> String {
    let mut yaml = String::new();
    let mut indent = "";
    for line in text.lines() {
        let trimmed = line.trim_start();
        if let Some((table, rest)) = trimmed
            .strip_prefix('[')
            .and_then(|line| line.split_once(']'))
        {
            yaml.push_str(&format!("{table}:{rest}\n"));
            indent = "  ";
        } else if trimmed.is_empty() {
            yaml.push('\n');
        } else if trimmed.starts_with('#') {
            let indent = if line.starts_with("# ") && trimmed.contains(" = ") {
                indent
            } else {
                ""
            };
            let converted = if indent.is_empty() {
                trimmed.to_owned()
            } else {
                trimmed.replacen(" = ", ": ", 1)
            };
            yaml.push_str(&format!("{indent}{converted}\n"));
        } else {
            yaml.push_str(&format!("{indent}{}\n", trimmed.replacen(" = ", ": ", 1)));
        }
    }
    yaml
}
