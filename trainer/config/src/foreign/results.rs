//! Translation result for each key of another trainer's file.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// A key with a counterpart here.
#[derive(Debug, Clone, PartialEq)]
pub struct Carried {
    /// Path of the key in the other file, or a description.
    pub from: String,
    /// The setting here.
    pub to: String,
    /// Value of the setting.
    pub value: Value,
    /// Remark; may be empty.
    pub note: String,
}

impl Carried {
    /// The line to print.
    pub fn line(&self) -> String {
        let Self {
            from,
            to,
            value,
            note,
        } = self;
        let note = if note.is_empty() {
            String::new()
        } else {
            format!(" ({note})")
        };
        format!("{from} -> {to} = {}{note}", truncated_json(value))
    }
}

/// Results for all keys of a file.
#[derive(Debug, Default)]
pub struct KeyResults {
    /// Keys with a counterpart here.
    pub carried: Vec<Carried>,
    /// One line per key without a counterpart, with the reason.
    pub left_out: Vec<String>,
    /// What to do before the first run.
    pub to_do: Vec<String>,
    /// Paths with a result. The result also applies to all keys below.
    handled: BTreeSet<String>,
}

impl KeyResults {
    /// Marks the path and everything below it as handled.
    pub(super) fn mark(&mut self, path: &str) {
        self.handled.insert(path.to_owned());
    }

    /// Omits the value at the path: one line per nested value.
    pub(super) fn leave_out(&mut self, path: &str, value: &Value, reason: &str) {
        self.mark(path);
        for (path, value) in leaves(path, value) {
            self.left_out
                .push(format!("{path} = {}: {reason}", truncated_json(value)));
        }
    }

    /// Records that the value at the path needs manual work.
    pub(super) fn add_to_do(&mut self, path: &str, value: &Value, what: &str) {
        self.mark(path);
        self.to_do
            .push(format!("{path} = {}: {what}", truncated_json(value)));
    }

    /// Lists keys without a rule.
    pub(super) fn list_unknown_keys(&mut self, theirs: &Map<String, Value>, origin: &str) {
        let mut empty = Vec::new();
        for (key, value) in theirs {
            for (path, value) in leaves(key, value) {
                if self.is_handled(&path) {
                    continue;
                }
                if is_empty(value) {
                    empty.push(path);
                } else {
                    let line = format!(
                        "{path} = {}: unknown key of {origin}",
                        truncated_json(value)
                    );
                    self.left_out.push(line);
                }
            }
        }
        if !empty.is_empty() {
            self.left_out
                .push(format!("{}: without a value", empty.join(", ")));
        }
    }

    fn is_handled(&self, path: &str) -> bool {
        let ends = path.match_indices(['.', '[']).map(|(idx, _)| idx);
        ends.chain([path.len()])
            .any(|end| self.handled.contains(&path[..end]))
    }
}

/// Whether a value is empty.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// Nested values below a path, in objects and in lists of objects.
pub(super) fn leaves<'v>(path: &str, value: &'v Value) -> Vec<(String, &'v Value)> {
    let mut leaves = Vec::new();
    let mut open = vec![(path.to_owned(), value)];
    while let Some((path, value)) = open.pop() {
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                let inner = fields.iter().rev();
                open.extend(inner.map(|(key, value)| (format!("{path}.{key}"), value)));
            }
            Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
                let inner = items.iter().enumerate().rev();
                open.extend(inner.map(|(idx, value)| (format!("{path}[{idx}]"), value)));
            }
            value => leaves.push((path, value)),
        }
    }
    leaves
}

/// The value as JSON, truncated.
pub(super) fn truncated_json(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
