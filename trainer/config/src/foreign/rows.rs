//! Translates data set entries of other trainers: files of rows with their options.

use std::path::Path;

use serde_json::{Map, Value, json};
use tooltune_disk::regular_file;
use tooltune_hub::RepoKind;

use super::Rule;
use super::results::{Carried, is_empty};
use super::translation::{Translation, to_list};
use crate::fetch_hint::fetch_hint;

/// Values of `path` that name a loader for `data_files`.
const LOADERS: [&str; 6] = ["json", "csv", "parquet", "arrow", "text", "webdataset"];

/// Types of Axolotl's entries with a counterpart in our row formats.
const TYPES: [(&str, &str); 5] = [
    ("alpaca", "alpaca"),
    ("chat_template", "messages or sharegpt"),
    ("sharegpt", "sharegpt"),
    ("alpaca_w_system", "alpaca"),
    ("messages", "messages"),
];

/// Names of message fields supported here: role and content.
const MESSAGE_FIELDS: [(&str, &str); 2] = [("role", "content"), ("from", "value")];

/// Keys of an entry that are omitted, with the reason.
const LEFT_OUT: [(&str, &str); 15] = [
    (
        "ds_type",
        "the file format is detected from the first bytes",
    ),
    ("name", "the files are listed"),
    ("trust_remote_code", "code of data sets is not run"),
    ("shards", "rows are read one after the other"),
    (
        "shards_idx",
        "whole files are read; data.max_samples limits the rows",
    ),
    ("preprocess_shards", "rows are read one after the other"),
    ("streaming", "rows are prepared before the first step"),
    ("conversation", "the model's chat template is used"),
    (
        "chat_template",
        "the model's chat template is used; data.chat_template selects another one",
    ),
    (
        "template_thinking_key",
        "thoughts are in the field reasoning_content of a message",
    ),
    (
        "field_thinking",
        "thoughts are in the field reasoning_content of a message",
    ),
    (
        "split_thinking",
        "thoughts are read from <think>...</think> in the content",
    ),
    (
        "message_field_training",
        "the message fields train, training, weight and loss set whether its turn is trained",
    ),
    ("no_input_format", "rows are rendered by the chat template"),
    ("format", "rows are rendered by the chat template"),
];

impl Translation<'_> {
    /// Translates files of rows: paths, data set names, or objects with `path` and options.
    pub(super) fn rows(&mut self, key: &str, rule: &Rule, value: &Value) {
        let mut files: Vec<(String, Value)> = Vec::new();
        let entries = to_list(value);
        let entries = entries.as_array().map_or(&[][..], Vec::as_slice);
        for (idx, entry) in entries.iter().enumerate() {
            match entry {
                Value::Object(fields) => {
                    let path = format!("{key}[{idx}]");
                    files.extend(self.entry(&path, rule, fields, entries.len()));
                }
                Value::String(path) => {
                    let key_path = match value {
                        Value::Array(_) => format!("{key}[{idx}]"),
                        _ => key.to_owned(),
                    };
                    files.push((key_path, self.file(key, rule, path)));
                }
                other => {
                    let path = format!("{key}[{idx}]");
                    self.results.add_to_do(
                        &path,
                        other,
                        "there is no file name; add its path to data.train",
                    );
                }
            }
        }
        let is_set = self.has_setting(&rule.to);
        for (from, file) in &files {
            self.results.mark(from);
            let line = Carried {
                from: from.clone(),
                to: rule.to.clone(),
                value: file.clone(),
                note: String::new(),
            };
            if is_set {
                let line = format!("{}: another key of the file names the rows", line.line());
                self.results.left_out.push(line);
            } else {
                self.results.carried.push(line);
            }
        }
        // A list of strings has one path.
        if !entries
            .iter()
            .any(|entry| entry.is_object() || entry.is_array())
        {
            self.results.mark(key);
        }
        if let Some((table, name)) = rule
            .to
            .split_once('.')
            .filter(|_| !is_set && !files.is_empty())
        {
            let files = files.into_iter().map(|(_, file)| file);
            self.add(table, name, files.collect());
        }
    }

    /// Translates a path, without a row count after `#`.
    fn file(&mut self, key: &str, rule: &Rule, path: &str) -> Value {
        let (path, most) = path.split_once('#').unwrap_or((path, ""));
        if !most.is_empty() {
            let line = format!(
                "{key}: {path}#{most}: put {most} rows into the file, or set data.max_samples = {most}"
            );
            self.results.left_out.push(line);
        }
        self.check_exists(rule, path);
        json!(path)
    }

    /// Adds advice if a path does not exist here.
    fn check_exists(&mut self, rule: &Rule, path: &str) {
        let is_rows = [".jsonl", ".json", ".parquet", ".arrow", ".gz", ".zst"]
            .iter()
            .any(|end| path.ends_with(end));
        if matches!(regular_file::is_there(Path::new(path)), Ok(true))
            || path.starts_with("hf://")
            || is_rows
        {
            return;
        }
        let why = rule.note.as_deref().unwrap_or(
            "a Hub data set or another kind of file: download it, and write its rows as JSON Lines",
        );
        let hint = fetch_hint(RepoKind::Dataset, Path::new(path));
        let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        self.results
            .to_do
            .push(format!("{path} in {}: {why}{hint}", rule.to));
    }

    /// Returns the files of an entry with their weights, and adds results for all other keys of the
    /// entry.
    fn entry(
        &mut self,
        entry_path: &str,
        rule: &Rule,
        entry: &Map<String, Value>,
        n_entries: usize,
    ) -> Vec<(String, Value)> {
        let files = self.files_of(entry_path, rule, entry);
        let mut weight = None;
        for (key, value) in entry.iter().filter(|(_, value)| !is_empty(value)) {
            let path = format!("{entry_path}.{key}");
            let reason = LEFT_OUT.iter().find(|(name, _)| name == key);
            match key.as_str() {
                "path" | "data_files" | "data_dir" | "revision" => {}
                "weight" => {
                    let number = value.as_f64().unwrap_or_default();
                    if number > 0.0 && number <= 1000.0 {
                        weight = Some(value.clone());
                    } else {
                        let what = "the weight must be above 0 and at most 1000";
                        self.results.add_to_do(&path, value, what);
                    }
                }
                "split" => self.split(&path, value, n_entries),
                "type" => self.entry_type(&path, value),
                "field_messages" => self.column(&path, messages_field(entry), value),
                "field_tools" => self.column(&path, "tools", value),
                "roles_to_train" => self.roles(&path, value),
                "message_property_mappings" => self.message_fields(&path, value),
                "message_field_role" | "message_field_content" => {
                    self.message_fields(entry_path, &legacy_fields(entry));
                    self.results.mark(&path);
                }
                "roles" => self.role_names(&path, value),
                "train_on_eos" | "train_on_eot" if value == "turn" => {
                    self.results
                        .leave_out(&path, value, "tooltune does the same");
                }
                "train_on_eos" | "train_on_eot" => self.results.leave_out(
                    &path,
                    value,
                    "only trained turns have a supervised end token",
                ),
                "drop_system_message" if *value == Value::Bool(false) => {
                    self.results
                        .leave_out(&path, value, "tooltune does the same");
                }
                "drop_system_message" => {
                    let what = "remove the system messages from the rows";
                    self.results.add_to_do(&path, value, what);
                }
                "columns" if value.is_array() => {
                    let why = "unknown fields are ignored and counted";
                    self.results.leave_out(&path, value, why);
                }
                "fraction" => {
                    let what = "a share of the mixture; give the file a weight instead, as in { path = \"...\", \
                                weight = 0.5 }, relative to its own rows";
                    self.results.add_to_do(&path, value, what);
                }
                "field" | "field_human" | "field_model" | "input_format" | "input_transform" => {
                    let what =
                        "rewrite rows of this kind as messages, or as a prompt with its completion";
                    self.results.add_to_do(&path, value, what);
                }
                _ => {
                    if let Some((_, reason)) = reason {
                        self.results.leave_out(&path, value, reason);
                    }
                }
            }
        }
        if let Some(weight) = &weight {
            self.results.mark(&format!("{entry_path}.weight"));
            let line = format!("{entry_path}.weight = {weight}: included in {}", rule.to);
            self.results
                .left_out
                .extend((weight.as_f64() == Some(1.0)).then_some(line));
        }
        let names_files = entry
            .get("data_files")
            .is_some_and(|files| !is_empty(files));
        let from = if names_files { "data_files" } else { "path" };
        let weighted = |path: String| {
            let file = match &weight {
                Some(weight) if weight.as_f64() != Some(1.0) => {
                    json!({"path": path, "weight": weight})
                }
                _ => Value::from(path),
            };
            (format!("{entry_path}.{from}"), file)
        };
        files.into_iter().map(weighted).collect()
    }

    /// Paths of an entry: `data_files`, or `path` itself.
    fn files_of(
        &mut self,
        entry_path: &str,
        rule: &Rule,
        entry: &Map<String, Value>,
    ) -> Vec<String> {
        let text = |key: &str| {
            entry
                .get(key)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
        };
        let path = text("path").unwrap_or_default();
        let is_loader = LOADERS.contains(&path);
        let files: Vec<String> = match entry.get("data_files") {
            Some(Value::String(file)) => vec![file.clone()],
            Some(Value::Array(files)) if files.iter().all(Value::is_string) => files
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
            Some(Value::Object(splits)) => self.files_of_split(entry_path, entry, splits),
            _ => Vec::new(),
        };
        let revision = text("revision");
        let is_folder = Path::new(path).is_dir();
        let full_paths: Vec<String> = if is_loader && !files.is_empty() {
            let reason = "the file format is detected from the first bytes";
            self.results
                .leave_out(&format!("{entry_path}.path"), &json!(path), reason);
            files
        } else if files.is_empty() {
            vec![path.to_owned()]
        } else if is_folder || path.is_empty() {
            self.results.leave_out(
                &format!("{entry_path}.path"),
                &json!(path),
                "included in the file names",
            );
            files
                .iter()
                .map(|file| Path::new(path).join(file).display().to_string())
                .collect()
        } else {
            // Files of a data set on the Hub.
            self.results.leave_out(
                &format!("{entry_path}.path"),
                &json!(path),
                "included in the file names",
            );
            let at_revision = revision
                .map(|revision| format!("@{revision}"))
                .unwrap_or_default();
            files
                .iter()
                .map(|file| format!("hf://datasets/{path}{at_revision}/{file}"))
                .collect()
        };
        let is_in_name = full_paths.iter().any(|file| file.starts_with("hf://"));
        if let Some(revision) = revision {
            let reason = if is_in_name {
                "included in the file name"
            } else {
                "include it in the file names, for example hf://datasets/owner/name@revision/train.jsonl"
            };
            self.results
                .leave_out(&format!("{entry_path}.revision"), &json!(revision), reason);
        }
        if let Some(folder) = text("data_dir") {
            let what = "list the files of this folder in data.train";
            self.results
                .add_to_do(&format!("{entry_path}.data_dir"), &json!(folder), what);
        }
        if full_paths.iter().all(String::is_empty) {
            let what = format!(
                "{entry_path}: there is no file name; add its path to {}",
                rule.to
            );
            self.results.to_do.push(what);
            return Vec::new();
        }
        full_paths
            .iter()
            .for_each(|file| self.check_exists(rule, file));
        full_paths
    }

    /// Selects the files of the entry's split from `splits`, which has the files of each split. The
    /// files of other splits are omitted.
    fn files_of_split(
        &mut self,
        entry_path: &str,
        entry: &Map<String, Value>,
        splits: &Map<String, Value>,
    ) -> Vec<String> {
        let split = entry
            .get("split")
            .and_then(Value::as_str)
            .unwrap_or("train");
        let mut files = Vec::new();
        for (name, value) in splits {
            let path = format!("{entry_path}.data_files.{name}");
            let split_files = to_list(value);
            let split_files = split_files.as_array().map_or(&[][..], Vec::as_slice);
            if name == split {
                self.results.mark(&path);
                files.extend(
                    split_files
                        .iter()
                        .filter_map(Value::as_str)
                        .map(str::to_owned),
                );
            } else {
                let reason = format!("this file is for split {name:?}; only {split:?} is read");
                self.results.leave_out(&path, value, &reason);
            }
        }
        files
    }

    fn split(&mut self, path: &str, value: &Value, n_entries: usize) {
        let text = value.as_str().unwrap_or_default();
        let first = text
            .split_once("[:")
            .and_then(|(_, rest)| rest.strip_suffix(']'))
            .and_then(|most| most.parse::<u64>().ok());
        match first {
            Some(most) if n_entries == 1 => self.set(path, "data.max_samples", json!(most)),
            _ if text.contains('[') => {
                let what = "whole files are read; write the intended rows to a separate file, or set \
                            data.max_samples to read only the first rows of each file";
                self.results.add_to_do(path, value, what);
            }
            _ => self.results.leave_out(path, value, "the files are listed"),
        }
    }

    fn entry_type(&mut self, path: &str, value: &Value) {
        if let Value::Object(fields) = value {
            for (key, column) in fields.iter().filter(|(_, column)| !is_empty(column)) {
                let path = format!("{path}.{key}");
                match key.as_str() {
                    "field_instruction" => self.column(&path, "instruction", column),
                    "field_input" => self.column(&path, "input", column),
                    "field_output" => self.column(&path, "output", column),
                    "field_system" => self.column(&path, "system", column),
                    "system_prompt" => self.set(&path, "data.system", column.clone()),
                    "format" | "no_input_format" | "system_format" => {
                        let what = "rows are rendered by the chat template; add the text around the fields \
                                    to the rows";
                        self.results.add_to_do(&path, column, what);
                    }
                    _ => {}
                }
            }
            return;
        }
        let text = value.as_str().unwrap_or_default();
        let base = text.split(['.', ':']).next().unwrap_or_default();
        match TYPES.iter().find(|(name, _)| *name == base) {
            Some((_, format)) => {
                let reason = format!("detected from the first row as {format}");
                self.results.leave_out(path, value, &reason);
            }
            None => {
                let what = "no row format here has this name; `tooltune inspect` shows whether the rows \
                            are read, and docs/data.md lists the formats";
                self.results.add_to_do(path, value, what);
            }
        }
    }

    /// Translates a field with another name in the files.
    fn column(&mut self, path: &str, field: &str, value: &Value) {
        let Some(column) = value.as_str() else {
            return self
                .results
                .add_to_do(path, value, "the name of a column must be a string");
        };
        // ShareGPT itself calls this list `conversations`.
        if column == field
            || ["messages", "conversations"].contains(&field) && column == "conversations"
        {
            return self
                .results
                .leave_out(path, value, "supported with this name");
        }
        let known = self
            .value("data.columns")
            .and_then(|columns| columns[field].as_str());
        if let Some(known) = known.filter(|known| *known != column) {
            let what = format!(
                "data.columns applies to all files, and {field} is already mapped to {known}; rename the field \
                 in the rows"
            );
            return self.results.add_to_do(path, value, &what);
        }
        self.merge(path, "data.columns", field, value.clone());
    }

    /// Translates a mapping from columns to fields, which may be JSON in a string.
    pub(super) fn columns(&mut self, path: &str, value: &Value) {
        let parsed = value
            .as_str()
            .and_then(|text| serde_json::from_str::<Value>(text).ok());
        let fields = parsed.as_ref().unwrap_or(value);
        let Some(fields) = fields.as_object() else {
            return self.results.add_to_do(
                path,
                value,
                "set data.columns, as in { prompt = \"question\" }",
            );
        };
        for (column, field) in fields {
            match field.as_str() {
                Some(field) => {
                    self.column(
                        &format!("{path}.{column}"),
                        field,
                        &Value::from(column.as_str()),
                    );
                }
                None => {
                    let what = "the name of a field must be a string";
                    self.results
                        .add_to_do(&format!("{path}.{column}"), field, what);
                }
            }
        }
        self.results.mark(path);
    }

    fn roles(&mut self, path: &str, value: &Value) {
        let names = to_list(value);
        let names = names.as_array().map_or(&[][..], Vec::as_slice);
        let is_assistant =
            |name: &Value| ["assistant", "gpt", "model"].iter().any(|one| name == one);
        if !names.is_empty() && names.iter().all(is_assistant) {
            return self.set(path, "mask.train_on", json!("assistant"));
        }
        let what = "only the assistant's turns (mask.train_on = \"assistant\") or all turns (\"all\") \
                    can be trained";
        self.results.add_to_do(path, value, what);
    }

    /// Translates the names of message fields.
    fn message_fields(&mut self, path: &str, value: &Value) {
        let Some(fields) = value.as_object() else {
            return self
                .results
                .add_to_do(path, value, "it must be a mapping of names");
        };
        let name = |key: &'static str| fields.get(key).and_then(Value::as_str).unwrap_or(key);
        let pair = (name("role"), name("content"));
        let is_same = |(key, name): (&String, &Value)| {
            matches!(key.as_str(), "role" | "content") || name.as_str() == Some(key)
        };
        if MESSAGE_FIELDS.contains(&pair) && fields.iter().all(is_same) {
            return self
                .results
                .leave_out(path, value, "supported with these names");
        }
        let what = "rename the fields of the messages: role and content, or from and value";
        for (key, value) in fields {
            self.results
                .add_to_do(&format!("{path}.{key}"), value, what);
        }
        self.results.mark(path);
    }

    /// Translates role names in the rows.
    fn role_names(&mut self, path: &str, value: &Value) {
        let known = |role: &str| -> &[&str] {
            match role {
                "user" => &["user", "human"],
                "assistant" => &["assistant", "gpt"],
                "system" => &["system"],
                "tool" => &["tool", "observation"],
                _ => &[],
            }
        };
        for (role, names) in value.as_object().into_iter().flatten() {
            let path = format!("{path}.{role}");
            let names_in_rows = to_list(names);
            let names_in_rows = names_in_rows.as_array().map_or(&[][..], Vec::as_slice);
            let is_known = |name: &Value| known(role).iter().any(|one| name == one);
            if names_in_rows.iter().all(is_known) {
                self.results
                    .leave_out(&path, names, "these roles are supported");
            } else {
                let what = "rename these roles in the rows: user, assistant, system, tool";
                self.results.add_to_do(&path, names, what);
            }
        }
        self.results.mark(path);
    }
}

/// The field that contains the list of messages, detected by the field names of the messages.
fn messages_field(entry: &Map<String, Value>) -> &'static str {
    let mapped = entry
        .get("message_property_mappings")
        .and_then(|fields| fields.get("role"));
    let role = mapped.or(entry.get("message_field_role"));
    if role.is_some_and(|role| role == "from") {
        "conversations"
    } else {
        "messages"
    }
}

/// Names of message fields in the older syntax of Axolotl.
fn legacy_fields(entry: &Map<String, Value>) -> Value {
    let names = [
        ("role", "message_field_role"),
        ("content", "message_field_content"),
    ];
    let fields = names.iter().filter_map(|(name, key)| {
        let value = entry.get(*key).filter(|value| !is_empty(value))?;
        Some(((*name).to_owned(), value.clone()))
    });
    Value::Object(fields.collect())
}
