//! Configs of other trainers: which one wrote a file, and what its settings are called here.
//!
//! Each trainer is a table beside this file: its keys with the settings here, or with the reason why
//! they are left out. Nothing is carried over silently: what no table knows is listed, too.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tooltune_hub::RepoKind;

use super::document::Table;
use super::fetch_hint::fetch_hint;

/// A trainer with its keys.
#[derive(Debug, Deserialize)]
pub struct Origin {
    /// As people write it.
    pub name: String,
    keys: BTreeMap<String, Rule>,
    left_out: BTreeMap<String, String>,
    /// What it does where a file is silent, by the setting here, where that is not our default.
    defaults: BTreeMap<String, Value>,
    #[serde(default)]
    alpha_is_twice_the_rank: bool,
    /// The only values of a key beside which the rest of a file means something here.
    only: BTreeMap<String, Vec<String>>,
}

/// What becomes of a key.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Rule {
    /// The value stands under this setting.
    Same(String),
    Other(Renaming),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Renaming {
    to: String,
    /// The values that mean something here, by the words there.
    words: Option<BTreeMap<String, Value>>,
    /// Whether other values than those of `words` stay as they are.
    #[serde(default)]
    else_same: bool,
    /// Whether one value is a list of one, and commas part several.
    #[serde(default)]
    list: bool,
    /// Whether the value names rows: files, or data sets with their files.
    #[serde(default)]
    rows: bool,
    /// What to mind about a value that is not carried over, or about rows.
    note: Option<String>,
}

static ORIGINS: LazyLock<Vec<Origin>> = LazyLock::new(|| {
    let texts = [
        include_str!("axolotl.toml"),
        include_str!("llama_factory.toml"),
        include_str!("ms_swift.toml"),
        include_str!("trl.toml"),
    ];
    let tables = texts.iter().map(|text| toml::from_str(text));
    tables.filter_map(Result::ok).collect()
});

/// Keys that a file must have of a trainer, at least, to be taken for one of its.
const ENOUGH_KEYS: usize = 3;

impl Origin {
    /// What a file asks for that is not done here, such as training by preferences.
    pub fn refusal(&self, theirs: &Map<String, Value>) -> Option<String> {
        let mut others = theirs.iter().filter_map(|(key, value)| {
            let allowed = self.only.get(key)?;
            let word = word_of(value);
            let is_silent = value.is_null() || word.is_empty();
            (!is_silent && !allowed.contains(&word)).then(|| format!("{key} = {}", shown(value)))
        });
        let asked = others.next()?;
        Some(format!(
            "{asked}: supervised fine-tuning with LoRA is what is done here, and this file of {} asks \
             for something else",
            self.name
        ))
    }

    fn knows(&self, key: &str) -> bool {
        self.keys.contains_key(key) || self.left_out.contains_key(key)
    }

    /// The trainer that knows most of these keys; none if too few are known.
    pub fn of<'k>(keys: impl Iterator<Item = &'k str> + Clone) -> Option<&'static Self> {
        let n_known = |origin: &Origin| keys.clone().filter(|key| origin.knows(key)).count();
        let known = ORIGINS.iter().map(|origin| (n_known(origin), origin));
        // Of equal ones the first.
        let best = known.rev().max_by_key(|(n, _)| *n)?;
        (best.0 >= ENOUGH_KEYS).then_some(best.1)
    }

    /// The trainer whose config this is: it has none of the tables here, and enough of its keys.
    pub(crate) fn of_document(document: &Table, tables: &[&str]) -> Option<&'static Self> {
        let keys = document.entries.iter().map(|entry| entry.key.as_str());
        let is_ours = |key: &str| tables.contains(&key);
        if keys.clone().any(is_ours) {
            return None;
        }
        Self::of(keys)
    }
}

/// A config of another trainer in the words used here.
#[derive(Debug, Default)]
pub struct Translation {
    /// The settings, by table and key.
    pub settings: Map<String, Value>,
    /// A line for each key that was carried over.
    pub carried: Vec<String>,
    /// A line for each that was not, with the reason.
    pub left: Vec<String>,
    /// What to do before the first run.
    pub to_do: Vec<String>,
}

/// Translates the settings of another trainer; `run` names the run's folder where they do not.
pub fn translate(origin: &Origin, theirs: &Map<String, Value>, run: &str) -> Translation {
    let mut translation = Translation::default();
    for (key, value) in theirs {
        translation.take(origin, key, value);
    }
    translation.defaults_of(origin);
    translation.complete(run);
    translation
}

impl Translation {
    fn take(&mut self, origin: &Origin, key: &str, value: &Value) {
        if value.is_null() || value == "" {
            return;
        }
        if let Some(reason) = origin.left_out.get(key) {
            return self
                .left
                .push(format!("{key} = {}: {reason}", shown(value)));
        }
        let rule = match origin.keys.get(key) {
            None => {
                let name = &origin.name;
                let line = format!("{key} = {}: not known of {name} here", shown(value));
                return self.left.push(line);
            }
            Some(Rule::Same(to)) => return self.set(key, to, value.clone()),
            Some(Rule::Other(rule)) => rule,
        };
        if rule.rows {
            return self.rows(key, rule, value);
        }
        let word = word_of(value);
        let ours = rule.words.as_ref().and_then(|words| words.get(&word));
        match (ours, rule.words.is_none() || rule.else_same) {
            (Some(ours), _) => self.set(key, &rule.to, ours.clone()),
            (None, true) => self.set(
                key,
                &rule.to,
                if rule.list {
                    listed(value)
                } else {
                    value.clone()
                },
            ),
            (None, false) => {
                let why = rule.note.clone().unwrap_or_else(|| {
                    format!("no value of {} says that; its default stays", rule.to)
                });
                self.left.push(format!("{key} = {}: {why}", shown(value)));
            }
        }
    }

    /// Writes down what the program does where its file is silent.
    fn defaults_of(&mut self, origin: &Origin) {
        let has = |settings: &Map<String, Value>, to: &str| {
            let (table, key) = to.split_once('.').unwrap_or(("", to));
            settings
                .get(table)
                .is_some_and(|table| table.get(key).is_some())
        };
        let default = format!("(default of {})", origin.name);
        for (to, value) in &origin.defaults {
            let is_said = match to.as_str() {
                "train.warmup_ratio" => has(&self.settings, "train.warmup_steps"),
                "train.num_train_epochs" => has(&self.settings, "train.max_steps"),
                _ => false,
            };
            if !is_said && !has(&self.settings, to) {
                self.set(&default, to, value.clone());
            }
        }
        let rank = self
            .settings
            .get("lora")
            .and_then(|lora| lora["r"].as_u64());
        if let Some(rank) = rank
            && origin.alpha_is_twice_the_rank
            && !has(&self.settings, "lora.lora_alpha")
        {
            self.set(&default, "lora.lora_alpha", json!(2 * rank));
        }
    }

    fn set(&mut self, key: &str, to: &str, value: Value) {
        let (table, name) = to.split_once('.').unwrap_or(("", to));
        let line = format!("{key} -> {to} = {}", shown(&value));
        let table = self.settings.entry(table).or_insert_with(|| json!({}));
        let Some(table) = table.as_object_mut() else {
            return;
        };
        if table.get(name).is_some_and(|known| *known != value) {
            self.left.push(format!(
                "{line}: another key of the file says {}",
                shown(&table[name])
            ));
            return;
        }
        table.insert(name.to_owned(), value);
        self.carried.push(line);
    }

    /// Files of rows: paths, names of data sets, or objects with `path` and `type`.
    fn rows(&mut self, key: &str, rule: &Renaming, value: &Value) {
        let mut files = Vec::new();
        for one in listed(value).as_array().into_iter().flatten() {
            let path = one.as_str().or_else(|| one.get("path")?.as_str());
            let Some(path) = path else {
                self.left
                    .push(format!("{key} = {}: it names no file", shown(one)));
                continue;
            };
            let (path, most) = path.split_once('#').unwrap_or((path, ""));
            if !most.is_empty() {
                self.left.push(format!(
                    "{key}: {path}#{most}: put {most} rows into the file"
                ));
            }
            if !path.ends_with(".jsonl") {
                let why = rule.note.as_deref().unwrap_or(
                    "a data set of a hub, or a file of another kind: fetch it, and write its rows as \
                     JSON Lines",
                );
                let hint = fetch_hint(RepoKind::Dataset, Path::new(path));
                let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
                self.to_do
                    .push(format!("{path} in {}: {why}{hint}", rule.to));
            }
            files.push(path.to_owned());
        }
        if !files.is_empty() {
            self.set(key, &rule.to, json!(files));
        }
    }

    /// Adds what a config here has to say, and takes out what means nothing in it.
    fn complete(&mut self, run: &str) {
        let has = |settings: &Map<String, Value>, table: &str, key: &str| {
            settings
                .get(table)
                .is_some_and(|table| table.get(key).is_some())
        };
        if !has(&self.settings, "data", "train") {
            self.to_do
                .push("data.train: name the files of rows to learn from".to_owned());
            self.add("data", "train", json!(["data/train.jsonl"]));
        }
        let model = self.settings.get("model");
        let model = model.and_then(|model| model["model_name_or_path"].as_str());
        if let Some(hint) = model.and_then(|path| fetch_hint(RepoKind::Model, Path::new(path))) {
            self.to_do.push(format!("model.model_name_or_path: {hint}"));
        }
        if !has(&self.settings, "model", "model_name_or_path") {
            self.to_do.push(
                "model.model_name_or_path: name the folder or GGUF file of a model".to_owned(),
            );
            self.add(
                "model",
                "model_name_or_path",
                json!("models/smollm2-135m-instruct.gguf"),
            );
        }
        if !has(&self.settings, "train", "output_dir") {
            self.add("train", "output_dir", json!(format!("runs/{run}")));
        }
        if has(&self.settings, "train", "max_steps") {
            let steps = self.settings["train"]["max_steps"].as_i64();
            // transformers' -1 says: as many as the epochs have.
            if steps.is_some_and(|steps| steps < 1) {
                self.remove("train", "max_steps", "the epochs say how long the run is");
            } else if has(&self.settings, "train", "num_train_epochs") {
                self.remove(
                    "train",
                    "num_train_epochs",
                    "max_steps says how long the run is",
                );
            }
        }
        if has(&self.settings, "train", "warmup_steps")
            && has(&self.settings, "train", "warmup_ratio")
        {
            let steps = self.settings["train"]["warmup_steps"].as_f64();
            if steps == Some(0.0) {
                self.remove("train", "warmup_steps", "warmup_ratio says it");
            } else {
                self.remove("train", "warmup_ratio", "warmup_steps counts");
            }
        }
        if has(&self.settings, "data", "validation_split") {
            let share = self.settings["data"]["validation_split"].as_f64();
            let why = match share.unwrap_or_default() {
                _ if has(&self.settings, "data", "eval") => "the files of data.eval say it",
                share if share <= 0.0 => "no rows are kept back",
                share if share >= 1.0 => "it is a share of the rows here, such as 0.05",
                _ => "",
            };
            if !why.is_empty() {
                self.remove("data", "validation_split", why);
            }
        }
        let has_rows =
            has(&self.settings, "data", "eval") || has(&self.settings, "data", "validation_split");
        if !has_rows {
            let asked = self
                .settings
                .get("eval")
                .and_then(Value::as_object)
                .cloned();
            if let Some(asked) = asked {
                for (key, value) in asked {
                    self.left.push(format!(
                        "eval.{key} = {}: there are no rows to evaluate on; name some in data.eval, or set \
                         data.validation_split",
                        shown(&value)
                    ));
                }
                self.carried.retain(|line| !line.contains("-> eval."));
                self.settings.remove("eval");
            }
        }
        self.settings.entry("lora").or_insert_with(|| json!({}));
        self.settings
            .entry("mask")
            .or_insert_with(|| json!({"train_on": "assistant"}));
    }

    fn add(&mut self, table: &str, key: &str, value: Value) {
        let table = self.settings.entry(table).or_insert_with(|| json!({}));
        if let Some(table) = table.as_object_mut() {
            table.insert(key.to_owned(), value);
        }
    }

    fn remove(&mut self, table: &str, key: &str, why: &str) {
        let found = self.settings.get_mut(table).and_then(Value::as_object_mut);
        if let Some(value) = found.and_then(|found| found.remove(key)) {
            self.carried
                .retain(|line| !line.contains(&format!("-> {table}.{key} ")));
            self.left
                .push(format!("{table}.{key} = {}: {why}", shown(&value)));
        }
    }

    /// The config as TOML, in the order of the documentation, with what is left as comments.
    ///
    /// # Errors
    ///
    /// A value that TOML cannot hold.
    pub fn to_toml(&self, tables: &[&str], head: &str) -> Result<String, toml::ser::Error> {
        let mut text = format!("# {head}\n");
        for line in &self.to_do {
            text.push_str(&format!("# To do: {line}\n"));
        }
        for line in &self.left {
            text.push_str(&format!("# Left out: {line}\n"));
        }
        for table in tables {
            if let Some(settings) = self.settings.get(*table) {
                text.push_str(&format!("\n[{table}]\n"));
                for (key, value) in settings.as_object().into_iter().flatten() {
                    text.push_str(&format!("{key} = {}\n", one_line(value)?));
                }
            }
        }
        Ok(text)
    }
}

/// A value on one line, which is the same in YAML: a text of several lines is then spelled as in JSON,
/// which both read.
fn one_line(value: &Value) -> Result<String, toml::ser::Error> {
    let has_lines = |value: &Value| {
        value
            .as_str()
            .is_some_and(|text| text.contains(['\n', '\r']))
    };
    let is_json = match value {
        Value::Array(items) => items.iter().any(has_lines),
        other => has_lines(other),
    };
    if is_json {
        return Ok(value.to_string().replace('\u{7f}', "\\u007f"));
    }
    Ok(toml::Value::try_from(value)?.to_string())
}

/// The value as a list; a text may have several, parted by commas.
fn listed(value: &Value) -> Value {
    match value {
        Value::Array(_) => value.clone(),
        Value::String(text) => text
            .split(',')
            .map(str::trim)
            .filter(|one| !one.is_empty())
            .collect(),
        other => json!([other]),
    }
}

/// A value as the tables spell it.
fn word_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.to_lowercase(),
        other => other.to_string(),
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// The arguments of a command line, as in a shell script: `--key value`, `--key=value`, `--flag` and
/// `--list a b`. Words before the first argument are passed over; nothing where the text is no words of
/// a shell: a quote is not closed, or the text ends with a backslash.
pub fn arguments(text: &str) -> Option<Map<String, Value>> {
    let mut found = Map::new();
    let mut key: Option<String> = None;
    let mut values: Vec<String> = Vec::new();
    let mut end = |key: &mut Option<String>, values: &mut Vec<String>| {
        let values: Vec<Value> = values.drain(..).map(|text| scalar(&text)).collect();
        if let Some(key) = key.take() {
            let value = match values.len() {
                0 => Value::Bool(true),
                1 => values.into_iter().next().unwrap_or_default(),
                _ => Value::Array(values),
            };
            found.insert(key.replace('-', "_"), value);
        }
    };
    // A continued line parts no words.
    let text = text.replace("\r\n", "\n").replace("\\\n", "");
    for word in shlex::split(&text)? {
        match word.strip_prefix("--") {
            Some(named) => {
                end(&mut key, &mut values);
                let (name, value) = named
                    .split_once('=')
                    .map_or((named, None), |(n, v)| (n, Some(v)));
                key = Some(name.to_owned());
                values.extend(value.map(str::to_owned));
            }
            None if key.is_some() => values.push(word),
            None => {}
        }
    }
    end(&mut key, &mut values);
    Some(found)
}

/// A word as the value that it spells.
fn scalar(text: &str) -> Value {
    match text {
        "true" | "True" => return Value::Bool(true),
        "false" | "False" => return Value::Bool(false),
        _ => {}
    }
    let number = text.parse::<i64>().ok().map(Value::from);
    let number = number.or_else(|| {
        let looks_so = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '.'));
        let value = text.parse::<f64>().ok().filter(|_| looks_so)?;
        serde_json::Number::from_f64(value).map(Value::Number)
    });
    number.unwrap_or_else(|| Value::from(text))
}

/// A config of this program in TOML to the same in YAML: the settings of one table below its name, with
/// the comments of both.
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
            let shown = if indent.is_empty() {
                trimmed.to_owned()
            } else {
                trimmed.replacen(" = ", ": ", 1)
            };
            yaml.push_str(&format!("{indent}{shown}\n"));
        } else {
            yaml.push_str(&format!("{indent}{}\n", trimmed.replacen(" = ", ": ", 1)));
        }
    }
    yaml
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LoadedConfig, Preset, Source, schema};

    #[test]
    fn every_key_of_another_trainer_leads_to_a_setting_and_no_value_is_refused() {
        assert_eq!(ORIGINS.len(), 4);
        for origin in ORIGINS.iter() {
            for (key, rule) in &origin.keys {
                let to = match rule {
                    Rule::Same(to) => to,
                    Rule::Other(rule) => &rule.to,
                };
                let (table, name) = to.split_once('.').expect(key);
                assert!(
                    schema::keys_of(table).contains(&name),
                    "{}: {key}: {to}",
                    origin.name
                );
                assert!(!origin.left_out.contains_key(key), "{}: {key}", origin.name);
            }
            for to in origin.defaults.keys() {
                let (table, name) = to.split_once('.').expect(to);
                assert!(
                    schema::keys_of(table).contains(&name),
                    "{}: {to}",
                    origin.name
                );
            }
        }
    }

    #[test]
    fn arguments_of_a_shell_script_are_read_as_the_shell_reads_them() {
        let text = "CUDA_VISIBLE_DEVICES=0 \\\nswift sft \\\n  --model 'a b' \\\n  --dataset x.jsonl#500 \
                    y.jsonl \\\n  --learning_rate 1e-4 # the peak\n  --packing --lora-rank=8 --system \"\"";
        let expected = json!({"model": "a b", "dataset": ["x.jsonl#500", "y.jsonl"],
            "learning_rate": 1e-4, "packing": true, "lora_rank": 8, "system": ""});
        for text in [text.to_owned(), text.replace('\n', "\r\n")] {
            assert_eq!(arguments(&text).map(Value::Object), Some(expected.clone()));
        }
        let escaped = arguments("--a \"x \\\"y\\\"\" --b one\\ word --c lon\\\nger");
        let expected = json!({"a": "x \"y\"", "b": "one word", "c": "longer"});
        assert_eq!(escaped.map(Value::Object), Some(expected));
        for broken in ["--a 'x", "--a \"x", "--a x\\"] {
            assert_eq!(arguments(broken), None, "{broken}");
        }
    }

    #[test]
    fn presets_say_the_same_in_yaml() {
        for preset in [
            Preset::Slot,
            Preset::Sft,
            Preset::Goat,
            Preset::Retriever,
            Preset::Joint,
        ] {
            let load = |name: &str, text: String| {
                let source = Source {
                    name: name.to_owned(),
                    text,
                };
                LoadedConfig::parse(source, &[])
                    .unwrap_or_else(|e| panic!("{preset:?}: {e}"))
                    .config
            };
            let toml = load("a.toml", preset.text().to_owned());
            let yaml = toml_to_yaml(preset.text());
            assert_eq!(load("a.yaml", yaml.clone()), toml, "{yaml}");
        }
    }
}
