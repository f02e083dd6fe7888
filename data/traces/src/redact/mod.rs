//! Replaces secrets and personal data by numbered placeholders.
//!
//! The rules are in `rules.toml`. They run on decoded strings: contents, reasoning, the strings and
//! keys of arguments, strings in tool definitions, and the strings within a content that is JSON,
//! which is then written again. JSON can therefore not break. Numbers, tool names and ids are not
//! changed.
//!
//! Within a row, equal secrets have the same number, so a call and its result still agree. A secret
//! that is only recognisable by its context, such as `password=…`, is also replaced where it occurs
//! alone.
//!
//! The regex crate searches in time linear in the text for one match; bounded patterns make all
//! matches linear too.

mod checks;
mod rules;

use std::collections::HashMap;
use std::path::Path;

use aho_corasick::{AhoCorasick, MatchKind};
use regex::{RegexSet, RegexSetBuilder};
use serde_json::{Map, Value};
use tooltune_json::{Style, dumps};

use crate::budgets::{PATTERN_BYTES, REDACTION_RULES};
use crate::counts::Counts;
use crate::error::TraceError;
use crate::trace::Trace;
use rules::{Rule, Target};

/// Minimum characters of a secret that is replaced everywhere.
const MIN_EVERYWHERE: usize = 8;

/// Fields of a JSON Schema whose strings are not text.
const NOT_TEXT: [&str; 8] = [
    "$id", "$ref", "$schema", "format", "name", "pattern", "required", "type",
];

/// The rules that are switched on.
pub(crate) struct Redactor {
    rules: Vec<Rule>,
    /// The patterns of all rules, to see at once which ones match; a key matches no text.
    patterns: RegexSet,
}

impl Redactor {
    /// # Errors
    ///
    /// As in [`rules::read`].
    pub(crate) fn new(
        file: Option<&Path>,
        keep: &[String],
        also: &[String],
    ) -> Result<Self, TraceError> {
        let rules = rules::read(file, keep, also)?;
        let patterns = rules.iter().map(|rule| match &rule.target {
            Target::Pattern(pattern) => pattern.as_str(),
            Target::Key(_) => r"[^\s\S]",
        });
        let mut builder = RegexSetBuilder::new(patterns);
        let patterns = builder.size_limit(PATTERN_BYTES * REDACTION_RULES).build();
        let patterns = patterns.map_err(|error| TraceError::Rule {
            place: "the redaction rules".to_owned(),
            reason: error.to_string(),
            remedy: "shorten the patterns".to_owned(),
        })?;
        Ok(Self { rules, patterns })
    }

    /// Redacts a conversation; whether arguments changed.
    pub(crate) fn redact(&self, trace: &mut Trace, counts: &mut Counts) -> bool {
        let mut row = Row {
            redactor: self,
            location: &trace.location,
            counts,
            placeholders: HashMap::new(),
            n_by_replacement: HashMap::new(),
            everywhere: Vec::new(),
            is_tool: false,
        };
        let mut has_new_arguments = false;
        for turn in &mut trace.turns {
            for text in [&mut turn.content, &mut turn.reasoning]
                .into_iter()
                .flatten()
            {
                row.content(text);
            }
            for call in &mut turn.calls {
                has_new_arguments |= row.value(&mut call.arguments, None);
            }
        }
        row.is_tool = true;
        for tool in &mut trace.tools {
            row.value(tool, None);
        }
        let Some(literals) = Literals::new(std::mem::take(&mut row.everywhere)) else {
            return has_new_arguments;
        };
        for turn in &mut trace.turns {
            for text in [&mut turn.content, &mut turn.reasoning]
                .into_iter()
                .flatten()
            {
                literals.replace_in_content(text);
            }
            for call in &mut turn.calls {
                has_new_arguments |= literals.replace_in(&mut call.arguments);
            }
        }
        has_new_arguments
    }
}

/// The secrets of one row.
struct Row<'r> {
    redactor: &'r Redactor,
    location: &'r str,
    counts: &'r mut Counts,
    /// The placeholder of each secret, by replacement.
    placeholders: HashMap<(usize, String), String>,
    n_by_replacement: HashMap<&'r str, usize>,
    /// Secrets to replace everywhere, with their placeholders.
    everywhere: Vec<(String, String)>,
    is_tool: bool,
}

impl Row<'_> {
    /// Redacts a content, which may be JSON.
    fn content(&mut self, text: &mut String) {
        if let Some(mut value) = json_content(text) {
            if self.value(&mut value, None) {
                *text = dumps(&value, Style::Python);
            }
        } else if let Some(redacted) = self.text(text) {
            *text = redacted;
        }
    }

    /// Redacts the strings of a value; whether any changed. `key` is the name of the field.
    fn value(&mut self, value: &mut Value, key: Option<&str>) -> bool {
        match value {
            Value::String(text) => {
                let redacted = key
                    .and_then(|key| self.field(key, text))
                    .or_else(|| self.text(text));
                let is_changed = redacted.is_some();
                if let Some(redacted) = redacted {
                    *text = redacted;
                }
                is_changed
            }
            Value::Array(items) => items
                .iter_mut()
                .fold(false, |changed, item| self.value(item, key) | changed),
            Value::Object(fields) => self.object(fields),
            _ => false,
        }
    }

    fn object(&mut self, fields: &mut Map<String, Value>) -> bool {
        let mut is_changed = false;
        let mut keys: Vec<Option<String>> = Vec::new();
        for (name, value) in fields.iter_mut() {
            let is_text = value.is_object() || !NOT_TEXT.contains(&name.as_str());
            if !self.is_tool || is_text {
                is_changed |= self.value(value, Some(name));
            }
            // The keys of a tool are names of parameters.
            keys.push(if self.is_tool { None } else { self.text(name) });
        }
        if keys.iter().any(Option::is_some) {
            let old = std::mem::take(fields);
            for ((name, value), new) in old.into_iter().zip(keys) {
                let mut name = new.unwrap_or(name);
                // The row may already contain such a placeholder.
                while fields.contains_key(&name) {
                    name.push('_');
                }
                fields.insert(name, value);
            }
            is_changed = true;
        }
        is_changed
    }

    /// The placeholder of a field whose name matches a rule.
    fn field(&mut self, key: &str, text: &str) -> Option<String> {
        let rules = self.redactor.rules.iter().enumerate();
        let is_match = |rule: &Rule| match &rule.target {
            Target::Key(pattern) => pattern.is_match(key),
            Target::Pattern(_) => false,
        };
        let (idx, rule) = rules.into_iter().find(|(_, rule)| is_match(rule))?;
        let passes = rule.check.is_none_or(|check| check.passes(text));
        (passes && !text.is_empty()).then(|| self.placeholder(idx, text))
    }

    /// The text with placeholders; `None` if nothing matches.
    fn text(&mut self, text: &str) -> Option<String> {
        let redactor = self.redactor;
        let mut redacted: Option<String> = None;
        for idx in redactor.patterns.matches(text) {
            let rule = &redactor.rules[idx];
            let Target::Pattern(pattern) = &rule.target else {
                continue;
            };
            let before = redacted.as_deref().unwrap_or(text);
            let mut after = String::new();
            let mut end = 0;
            for captures in pattern.captures_iter(before) {
                let Some(secret) = captures.name("secret").or(captures.get(0)) else {
                    continue;
                };
                if secret.is_empty()
                    || !rule.check.is_none_or(|check| check.passes(secret.as_str()))
                {
                    continue;
                }
                after.push_str(&before[end..secret.start()]);
                after.push_str(&self.placeholder(idx, secret.as_str()));
                end = secret.end();
            }
            if end > 0 {
                after.push_str(&before[end..]);
                redacted = Some(after);
            }
        }
        redacted
    }

    /// Counts a secret and returns its placeholder.
    fn placeholder(&mut self, idx: usize, secret: &str) -> String {
        let rules = &self.redactor.rules;
        let rule = &rules[idx];
        self.counts.add(rule.name.clone(), self.location);
        let first = rules
            .iter()
            .position(|one| one.replacement == rule.replacement);
        let key = (first.unwrap_or(idx), secret.to_owned());
        if let Some(known) = self.placeholders.get(&key) {
            return known.clone();
        }
        let n = self.n_by_replacement.entry(&rule.replacement).or_default();
        *n += 1;
        let placeholder = numbered(&rule.replacement, *n);
        if rule.everywhere && secret.chars().count() >= MIN_EVERYWHERE {
            self.everywhere
                .push((secret.to_owned(), placeholder.clone()));
        }
        self.placeholders.insert(key, placeholder.clone());
        placeholder
    }
}

/// A content that is an object or array of JSON, unless it cannot be written as it was.
fn json_content(text: &str) -> Option<Value> {
    let is_json = text.trim_start().starts_with(['{', '[']);
    let value = is_json.then(|| tooltune_json::parse_unique(text).ok())??;
    let is_exact = tooltune_json::oversized_integer(text, |_| true).is_none();
    is_exact.then_some(value)
}

/// Puts the number at `{n}`, before a final bracket, or at the end.
fn numbered(replacement: &str, n: usize) -> String {
    if replacement.contains("{n}") {
        return replacement.replace("{n}", &n.to_string());
    }
    match replacement.strip_suffix(']') {
        Some(start) => format!("{start}_{n}]"),
        None => format!("{replacement}_{n}"),
    }
}

/// Secrets that are replaced wherever they occur.
struct Literals {
    search: AhoCorasick,
    placeholders: Vec<String>,
}

impl Literals {
    /// `None` if there are none.
    fn new(secrets: Vec<(String, String)>) -> Option<Self> {
        let (secrets, placeholders): (Vec<String>, Vec<String>) = secrets.into_iter().unzip();
        if secrets.is_empty() {
            return None;
        }
        let mut builder = AhoCorasick::builder();
        let search = builder
            .match_kind(MatchKind::LeftmostLongest)
            .build(&secrets)
            .ok()?;
        Some(Self {
            search,
            placeholders,
        })
    }

    /// Replaces in a content, which may be JSON.
    fn replace_in_content(&self, text: &mut String) {
        match json_content(text) {
            Some(mut value) => {
                if self.replace_in(&mut value) {
                    *text = dumps(&value, Style::Python);
                }
            }
            None => {
                self.replace(text);
            }
        }
    }

    fn replace(&self, text: &mut String) -> bool {
        let is_found = self.search.is_match(text.as_str());
        if is_found {
            *text = self.search.replace_all(text, &self.placeholders);
        }
        is_found
    }

    fn replace_in(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => self.replace(text),
            Value::Array(items) => items
                .iter_mut()
                .fold(false, |changed, item| self.replace_in(item) | changed),
            Value::Object(fields) => fields
                .iter_mut()
                .fold(false, |changed, (_, item)| self.replace_in(item) | changed),
            _ => false,
        }
    }
}
