//! Translates settings of another trainer to a config, with a result for each key.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::results::{Carried, KeyResults, is_empty, truncated_json};
use super::schedule::Schedule;
use super::{Kind, Origin, Rule, fields};
use crate::names::name_of;
use crate::schema;

/// Setting of the base model.
const MODEL: &str = "model.model_name_or_path";

/// Facts about the rows that the trainer's file does not contain.
#[derive(Debug, Clone, Copy, Default)]
pub struct RowFacts {
    /// Whether all rows are prompts with completions. Trainers supervise different parts of such
    /// rows.
    pub have_completions: bool,
    /// Number of rows in all training files, if they exist here.
    pub n_rows: Option<u64>,
    /// Number of rows per epoch, including file weights.
    pub n_in_epoch: Option<f64>,
}

/// Translated config.
#[derive(Debug)]
pub struct Translation<'o> {
    /// Settings by table and key.
    pub settings: Map<String, Value>,
    /// Result for each key.
    pub results: KeyResults,
    pub(super) origin: &'o Origin,
    pub(super) facts: RowFacts,
    pub(super) schedule: Schedule,
}

/// Translates the settings of another trainer. `run` names the run directory if the settings have
/// none.
pub fn translate<'o>(
    origin: &'o Origin,
    theirs: &Map<String, Value>,
    run: &str,
    facts: RowFacts,
) -> Translation<'o> {
    let mut translation = Translation {
        settings: Map::new(),
        results: KeyResults::default(),
        origin,
        facts,
        schedule: Schedule::default(),
    };
    // If two keys set the same setting, the first one is used. Sort keys with precedence first, and
    // disabled keys last.
    let precedence = |(key, value): &(&String, &Value)| {
        let is_first = origin.keys.get(*key).is_some_and(|rule| rule.first);
        (
            !is_first || **value == Value::Bool(false),
            **value == Value::Bool(false),
        )
    };
    let mut keys: Vec<(&String, &Value)> = theirs.iter().collect();
    keys.sort_by_key(precedence);
    for (key, value) in keys {
        translation.take(key, value);
    }
    translation.add_defaults();
    for (key, line) in &origin.otherwise {
        if theirs.get(key).is_none_or(Value::is_null) {
            translation
                .results
                .left_out
                .push(format!("{key} is not set: {line}"));
        }
    }
    translation.complete(run);
    translation.results.list_unknown_keys(theirs, &origin.name);
    translation
}

/// A training file in another trainer's settings.
#[derive(Debug, Clone, PartialEq)]
pub struct RowFile {
    /// Path of the file.
    pub path: String,
    /// How often its rows are used per epoch.
    pub weight: f64,
}

/// Training files in the settings of another trainer.
pub fn rows_to_learn(origin: &Origin, theirs: &Map<String, Value>) -> Vec<RowFile> {
    let translation = translate(origin, theirs, "run", RowFacts::default());
    let files = translation.value("data.train").and_then(Value::as_array);
    let file = |file: &Value| {
        let path = file.as_str().or_else(|| file.get("path")?.as_str())?;
        let weight = file.get("weight").and_then(Value::as_f64);
        Some(RowFile {
            path: path.to_owned(),
            weight: weight.unwrap_or(1.0),
        })
    };
    files.into_iter().flatten().filter_map(file).collect()
}

impl Translation<'_> {
    fn take(&mut self, key: &str, value: &Value) {
        if is_empty(value) {
            return;
        }
        if let Some(reason) = self.origin.left_out.get(key) {
            return self.results.leave_out(key, value, reason);
        }
        let rule = match self.origin.keys.get(key) {
            None if self.origin.only.contains_key(key) => {
                let reason = "only supervised fine-tuning with LoRA is supported";
                return self.results.leave_out(key, value, reason);
            }
            None => return,
            Some(rule) => rule,
        };
        let to = rule.to.as_str();
        match rule.kind {
            Kind::Words => self.translate_choice(key, rule, value),
            Kind::Rows => self.rows(key, rule, value),
            Kind::Targets => {
                let targets = targets(value);
                match rule
                    .words
                    .as_ref()
                    .and_then(|words| words.get(&word_of(value)))
                {
                    Some(ours) => self.set(key, to, ours.clone()),
                    None => self.set(key, to, targets),
                }
            }
            Kind::Table if value.is_object() => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    self.merge(&format!("{key}.{name}"), to, name, value.clone());
                }
            }
            Kind::Settings => self.settings_of_table(key, rule, value),
            Kind::Columns => self.columns(key, value),
            Kind::Table => {
                self.results
                    .leave_out(key, value, "it must be a mapping of names to values")
            }
            Kind::TemplateSwitch => self.merge(key, to, key, value.clone()),
            Kind::Adapter => self.adapter(key, to, value),
            Kind::Revision => self.revision(key, to, value),
            Kind::Timing => self.schedule.take(key, value),
        }
    }

    /// Translates the entries that are settings of a table, and leaves the others out.
    fn settings_of_table(&mut self, key: &str, rule: &Rule, value: &Value) {
        // In a command, the mapping is JSON in a string.
        let parsed = value
            .as_str()
            .and_then(|text| serde_json::from_str(text).ok());
        let entries = parsed.as_ref().unwrap_or(value).as_object();
        let known = schema::keys_of(&rule.to);
        let is_known = |name: &str| known.contains(&name);
        let reason = rule.note.as_deref().unwrap_or_default();
        let Some(entries) = entries.filter(|entries| entries.keys().any(|name| is_known(name)))
        else {
            return self.results.leave_out(key, value, reason);
        };
        self.results.mark(key);
        for (name, value) in entries {
            let from = format!("{key}.{name}");
            if is_known(name) {
                let to = format!("{}.{name}", rule.to);
                let rule = fields::rule(&to, schema::setting_of(&to));
                self.translate_choice(&from, &rule, value);
            } else {
                self.results.leave_out(&from, value, reason);
            }
        }
    }

    /// Translates a value by the words of its rule, or copies it if the rule allows that.
    fn translate_choice(&mut self, key: &str, rule: &Rule, value: &Value) {
        let ours = rule
            .words
            .as_ref()
            .and_then(|words| words.get(&word_of(value)));
        match (ours, rule.words.is_none() || rule.else_same) {
            (Some(ours), _) => self.set(key, &rule.to, ours.clone()),
            (None, true) if rule.list => self.set(key, &rule.to, to_list(value)),
            (None, true) => self.set(key, &rule.to, value.clone()),
            (None, false) => {
                let why = rule.note.clone().unwrap_or_else(|| {
                    format!("{} has no such value; its default is used", rule.to)
                });
                self.results.leave_out(key, value, &why);
            }
        }
    }

    fn adapter(&mut self, key: &str, to: &str, value: &Value) {
        let paths = to_list(value);
        let n_paths = paths.as_array().map_or(0, Vec::len);
        let is_path = value.as_str().is_some_and(|text| Path::new(text).exists());
        match value.as_str().filter(|_| n_paths == 1 || is_path) {
            Some(path) => self.set(key, to, json!(path)),
            None => {
                let what = "a run continues from one adapter: merge the others into the base, and set one in \
                            lora.init_from";
                self.results.add_to_do(key, value, what);
            }
        }
    }

    fn revision(&mut self, key: &str, to: &str, value: &Value) {
        let model = self.value(MODEL).and_then(Value::as_str);
        let is_named =
            |path: &str| !Path::new(path).exists() && matches!(name_of(MODEL, path), Ok(Some(_)));
        if model.is_none_or(is_named) {
            self.set(key, to, value.clone());
        } else {
            let reason = "the model is a path; only Hub names have a revision";
            self.results.leave_out(key, value, reason);
        }
    }

    /// Adds the program's defaults for missing keys.
    fn add_defaults(&mut self) {
        let origin = self.origin;
        let default = format!("(default of {})", origin.name);
        let of_completions = &origin.defaults_of_completions;
        for (to, value) in &origin.defaults {
            let value = of_completions
                .get(to)
                .filter(|_| self.facts.have_completions)
                .unwrap_or(value);
            let is_set = match to.as_str() {
                "train.warmup_ratio" => self.has_setting("train.warmup_steps"),
                "train.num_train_epochs" => self.has_setting("train.max_steps"),
                "checkpoint.save_steps" => self.schedule.sets_saving(),
                _ => false,
            };
            if !is_set && !self.has_setting(to) {
                self.set(&default, to, value.clone());
            }
        }
        let rank = self.value("lora.r").and_then(Value::as_u64);
        if let Some(rank) = rank
            && origin.alpha_is_twice_the_rank
            && !self.has_setting("lora.lora_alpha")
        {
            self.set(&default, "lora.lora_alpha", json!(2 * rank));
        }
    }

    /// The value of a setting, if it has one.
    pub(super) fn value(&self, to: &str) -> Option<&Value> {
        let (table, key) = to.split_once('.').unwrap_or(("", to));
        self.settings.get(table)?.get(key)
    }

    pub(super) fn has_setting(&self, to: &str) -> bool {
        self.value(to).is_some()
    }

    pub(super) fn number(&self, to: &str) -> Option<f64> {
        self.value(to)?.as_f64()
    }

    pub(super) fn set(&mut self, from: &str, to: &str, value: Value) {
        self.set_noted(from, to, value, "");
    }

    /// Sets a value with a remark.
    pub(super) fn set_noted(&mut self, from: &str, to: &str, value: Value, note: &str) {
        self.results.mark(from);
        let (to, value) = match integer_value(to, &value) {
            Ok(integer_value) => (to, integer_value),
            // transformers accepts a number of steps or a share of the run.
            Err(Share) if to == "train.warmup_steps" => ("train.warmup_ratio", value),
            Err(Share) => {
                let reason = format!(
                    "a share of the run; {to} is a number of optimizer steps, and its default is used"
                );
                return self.results.leave_out(from, &value, &reason);
            }
        };
        let carried = Carried {
            from: from.to_owned(),
            to: to.to_owned(),
            value: value.clone(),
            note: note.to_owned(),
        };
        let (table, name) = to.split_once('.').unwrap_or(("", to));
        let table = self.settings.entry(table).or_insert_with(|| json!({}));
        let Some(table) = table.as_object_mut() else {
            return;
        };
        if let Some(known) = table.get(name) {
            if *known == value {
                self.results.carried.push(carried);
            } else {
                let known = truncated_json(known);
                let line = format!("{}: another key of the file sets {known}", carried.line());
                self.results.left_out.push(line);
            }
            return;
        }
        table.insert(name.to_owned(), value);
        self.results.carried.push(carried);
    }

    /// Sets an entry of a nested table.
    pub(super) fn merge(&mut self, from: &str, to: &str, name: &str, value: Value) {
        self.results.mark(from);
        let carried = Carried {
            from: from.to_owned(),
            to: format!("{to}.{name}"),
            value: value.clone(),
            note: String::new(),
        };
        let (table, key) = to.split_once('.').unwrap_or(("", to));
        let table = self.settings.entry(table).or_insert_with(|| json!({}));
        let Some(table) = table.as_object_mut() else {
            return;
        };
        let inner = table.entry(key).or_insert_with(|| json!({}));
        let known = inner
            .as_object_mut()
            .map(|inner| inner.entry(name).or_insert_with(|| value.clone()));
        match known {
            Some(known) if *known == value => self.results.carried.push(carried),
            _ => {
                let line = format!(
                    "{}: another key of the file sets another value",
                    carried.line()
                );
                self.results.left_out.push(line);
            }
        }
    }

    /// Adds required settings and removes meaningless ones.
    fn complete(&mut self, run: &str) {
        self.complete_names(run);
        self.complete_length();
        self.complete_split();
        self.translate_schedule();
        self.settings.entry("lora").or_insert_with(|| json!({}));
        if self.settings.get("device").is_none() {
            self.settings.insert("device".to_owned(), json!("cpu"));
            self.results.to_do.push(format!(
                "device = \"cpu\": {} uses a GPU if there is one; set device = \"cuda\" to use it here",
                self.origin.name
            ));
        }
    }

    /// Checks rows, model and run directory.
    fn complete_names(&mut self, run: &str) {
        if !self.has_setting("data.train") {
            let line = "data.train: list the training files";
            self.results.to_do.push(line.to_owned());
            self.add("data", "train", json!(["data/train.jsonl"]));
        }
        let model = self.value(MODEL).and_then(Value::as_str);
        // A Hub name is downloaded when the config is used.
        let is_missing = |path: &&str| {
            !Path::new(path).exists() && matches!(name_of(MODEL, path), Ok(None) | Err(_))
        };
        if let Some(path) = model.filter(is_missing) {
            self.results.to_do.push(format!(
                "{MODEL}: {path} is neither an existing path nor a Hugging Face Hub name; set the folder or \
                 GGUF file of a model"
            ));
        }
        if !self.has_setting(MODEL) {
            let line = format!("{MODEL}: set the folder or GGUF file of a model");
            self.results.to_do.push(line);
            self.add(
                "model",
                "model_name_or_path",
                json!("models/smollm2-135m-instruct.gguf"),
            );
        }
        if !self.has_setting("train.output_dir") {
            self.add("train", "output_dir", json!(format!("runs/{run}")));
        }
    }

    /// Resolves length and warm-up, which may be set by two keys.
    fn complete_length(&mut self) {
        if self.has_setting("train.max_steps") {
            let steps = self.number("train.max_steps");
            // In transformers, -1 means that the epochs set the length.
            if steps.is_some_and(|steps| steps < 1.0) {
                self.remove(
                    "train",
                    "max_steps",
                    "the number of epochs sets the length of the run",
                );
            } else if self.has_setting("train.num_train_epochs") {
                self.remove(
                    "train",
                    "num_train_epochs",
                    "max_steps sets the length of the run",
                );
            }
        }
        if self.has_setting("train.warmup_steps") && self.has_setting("train.warmup_ratio") {
            if self.number("train.warmup_steps") == Some(0.0) {
                self.remove("train", "warmup_steps", "warmup_ratio is used");
            } else {
                self.remove("train", "warmup_ratio", "warmup_steps is used");
            }
        }
    }

    /// Resolves the held-out share of rows, which other trainers also give as a number.
    fn complete_split(&mut self) {
        let Some(share) = self.number("data.validation_split") else {
            return;
        };
        if self.has_setting("data.eval") {
            return self.remove("data", "validation_split", "data.eval lists files");
        }
        match (share, self.facts.n_rows) {
            (share, _) if share <= 0.0 => {
                self.remove("data", "validation_split", "no rows are held out");
            }
            (share, Some(n_rows)) if share >= 1.0 && share < n_rows as f64 => {
                let rounded = (share / n_rows as f64 * 1e4).round() / 1e4;
                let note = format!("{share} of {n_rows} rows");
                self.replace("data.validation_split", json!(rounded.max(1e-4)), &note);
            }
            (share, _) if share >= 1.0 => {
                let why = "set a share of the rows, such as 0.05";
                self.remove("data", "validation_split", why);
            }
            _ => {}
        }
    }

    /// Replaces the value of a setting.
    fn replace(&mut self, to: &str, value: Value, note: &str) {
        let (table, key) = to.split_once('.').unwrap_or(("", to));
        self.add(table, key, value.clone());
        for carried in self
            .results
            .carried
            .iter_mut()
            .filter(|carried| carried.to == to)
        {
            carried.value = value.clone();
            note.clone_into(&mut carried.note);
        }
    }

    pub(super) fn add(&mut self, table: &str, key: &str, value: Value) {
        let table = self.settings.entry(table).or_insert_with(|| json!({}));
        if let Some(table) = table.as_object_mut() {
            table.insert(key.to_owned(), value);
        }
    }

    pub(super) fn remove(&mut self, table: &str, key: &str, why: &str) {
        let table_settings = self.settings.get_mut(table).and_then(Value::as_object_mut);
        if let Some(value) = table_settings.and_then(|table| table.shift_remove(key)) {
            let to = format!("{table}.{key}");
            let froms = self
                .results
                .carried
                .iter()
                .filter(|carried| carried.to == to);
            let froms: Vec<&str> = froms.map(|carried| carried.from.as_str()).collect();
            let from = match froms.as_slice() {
                [] => String::new(),
                froms => format!(" (from {})", froms.join(", ")),
            };
            self.results
                .left_out
                .push(format!("{to} = {}{from}: {why}", truncated_json(&value)));
            self.results.carried.retain(|carried| carried.to != to);
        }
    }

    /// Comments at the start of the config.
    pub fn comments(&self, head: &str) -> Vec<String> {
        let to_do = self
            .results
            .to_do
            .iter()
            .map(|line| format!("To do: {line}"));
        let left = self
            .results
            .left_out
            .iter()
            .map(|line| format!("Left out: {line}"));
        [head.to_owned()]
            .into_iter()
            .chain(to_do)
            .chain(left)
            .collect()
    }
}

/// Target modules: a list of names, or one regular expression.
fn targets(value: &Value) -> Value {
    let is_pattern =
        |text: &str| text.contains(['*', '+', '?', '(', '[', '|', '\\', '^', '$', '{']);
    match value {
        Value::String(text) if is_pattern(text) => value.clone(),
        Value::Array(items) => match items.as_slice() {
            [Value::String(text)] if is_pattern(text) || text == "all-linear" => json!(text),
            _ => value.clone(),
        },
        other => to_list(other),
    }
}

/// Error for a share of a run in a setting that counts steps.
struct Share;

/// The value of a setting, as an integer if the setting is one.
fn integer_value(to: &str, value: &Value) -> Result<Value, Share> {
    let number = value.as_f64().filter(|_| !value.is_i64());
    let is_integer = schema::target(schema::setting_of(to))["type"] == "integer";
    match number.filter(|_| is_integer) {
        None => Ok(value.clone()),
        Some(number) if number.fract() == 0.0 && number.abs() < 1e15 => {
            Ok(Value::from(number as i64))
        }
        Some(number) if number > 0.0 && number < 1.0 => Err(Share),
        // Reading the config reports other values.
        Some(_) => Ok(value.clone()),
    }
}

/// The value as a list; a string may be several items separated by commas.
pub(super) fn to_list(value: &Value) -> Value {
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

/// A value as a word.
pub(super) fn word_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.to_lowercase(),
        other => other.to_string(),
    }
}
