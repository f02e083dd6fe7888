//! Settings of another trainer -> a config here, and what became of each.

use std::path::Path;

use serde_json::{Map, Value, json};
use tooltune_hub::RepoKind;

use super::{Origin, Renaming, Rule};
use crate::config::fetch_hint::fetch_hint;
use crate::config::names::name_of;
use crate::config::schema;

/// The setting of the base model.
const MODEL: &str = "model.model_name_or_path";

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

/// Translates the settings of another trainer; `run` names the run's folder where they do not. Where
/// the rows are prompts with their completions (`has_completions`), some programs learn otherwise.
pub fn translate(
    origin: &Origin,
    theirs: &Map<String, Value>,
    run: &str,
    has_completions: bool,
) -> Translation {
    let mut translation = Translation::default();
    // What is switched off gives way to another key that says the same setting.
    let is_off = |value: &Value| *value == Value::Bool(false);
    let (off, on): (Vec<_>, Vec<_>) = theirs.iter().partition(|(_, value)| is_off(value));
    for (key, value) in on.into_iter().chain(off) {
        translation.take(origin, key, value);
    }
    translation.defaults_of(origin, has_completions);
    for (key, line) in &origin.otherwise {
        if theirs.get(key).is_none_or(Value::is_null) {
            translation.left.push(format!("{key} is not set: {line}"));
        }
    }
    translation.complete(run);
    translation
}

/// The files of rows that the settings of another trainer name to learn from.
pub fn rows_to_learn(origin: &Origin, theirs: &Map<String, Value>) -> Vec<String> {
    let translation = translate(origin, theirs, "run", false);
    let files = translation.settings["data"]["train"].as_array().cloned();
    let files = files.unwrap_or_default().into_iter();
    files
        .filter_map(|file| file.as_str().map(str::to_owned))
        .collect()
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
    fn defaults_of(&mut self, origin: &Origin, has_completions: bool) {
        let has = |settings: &Map<String, Value>, to: &str| {
            let (table, key) = to.split_once('.').unwrap_or(("", to));
            settings
                .get(table)
                .is_some_and(|table| table.get(key).is_some())
        };
        let default = format!("(default of {})", origin.name);
        let of_completions = &origin.defaults_of_completions;
        for (to, value) in &origin.defaults {
            let value = of_completions
                .get(to)
                .filter(|_| has_completions)
                .unwrap_or(value);
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
        let (to, value) = match whole(to, &value) {
            Ok(whole) => (to, whole),
            // transformers takes a number of steps, or their share of the run.
            Err(Share) if to == "train.warmup_steps" => ("train.warmup_ratio", value),
            Err(Share) => {
                let shown = shown(&value);
                // Its table says that there are evaluations.
                let table = to.split('.').next().unwrap_or(to);
                self.settings.entry(table).or_insert_with(|| json!({}));
                return self.left.push(format!(
                    "{key} = {shown}: a share of the run; {to} counts optimizer steps, and its default \
                     stays"
                ));
            }
        };
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
        // A name of the hub needs nothing: what uses the config fetches it.
        let is_nothing = |path: &&str| {
            !Path::new(path).exists() && matches!(name_of(MODEL, path), Ok(None) | Err(_))
        };
        if let Some(path) = model.filter(is_nothing) {
            self.to_do.push(format!(
                "{MODEL}: {path} is no path here and no name of the Hugging Face hub; name the folder or \
                 GGUF file of a model"
            ));
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

/// A share of a run, where steps are counted.
struct Share;

/// The value of a setting, as a whole number where one is counted.
fn whole(to: &str, value: &Value) -> Result<Value, Share> {
    let number = value.as_f64().filter(|_| !value.is_i64());
    let is_counted = schema::target(schema::setting_of(to))["type"] == "integer";
    match number.filter(|_| is_counted) {
        None => Ok(value.clone()),
        Some(number) if number.fract() == 0.0 && number.abs() < 1e15 => {
            Ok(Value::from(number as i64))
        }
        Some(number) if number > 0.0 && number < 1.0 => Err(Share),
        // What it is instead is said where the config is read.
        Some(_) => Ok(value.clone()),
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
pub(super) fn word_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.to_lowercase(),
        other => other.to_string(),
    }
}

pub(super) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
