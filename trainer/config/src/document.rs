//! Parses a config file into a tree of values with their positions.
//!
//! Serde stops at the first mistake and drops positions. TOML and YAML are therefore first
//! converted to this tree. The tree is compared with the tables of [`super::tables`], and each
//! mistake is reported with its line.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::diagnostics::{Problem, SourceSpan};
use super::did_you_mean::shorten;
use crate::budgets::SYNTAX_FAULTS;

/// A value and its position.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) span: SourceSpan,
}

/// Values of both file formats.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// YAML's `null`, `~` or an empty value.
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    /// TOML's dates and times, as written.
    Date(String),
    List(Vec<Node>),
    Table(Table),
}

impl Value {
    /// Describes the value, as in "must be a whole number, not ...".
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Null => "empty".to_owned(),
            Self::Bool(value) => format!("`{value}`"),
            Self::Integer(value) => format!("`{value}`"),
            Self::Float(value) => format!("`{value:?}`"),
            Self::Text(text) => format!("the text {:?}", shorten(text)),
            Self::Date(_) => "a date".to_owned(),
            Self::List(_) => "a list".to_owned(),
            Self::Table(_) => "a table".to_owned(),
        }
    }
}

/// Keys and values in the order of the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Table {
    pub(crate) entries: Vec<Entry>,
}

/// One `key = value` entry.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_span: SourceSpan,
    pub(crate) node: Node,
}

impl Table {
    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.key == key)
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.entries.retain(|entry| entry.key != key);
    }
}

/// Parses TOML and continues after syntax errors, which are also returned.
pub(crate) fn parse_toml(text: &str, source: usize) -> (Table, Vec<Problem>) {
    let (document, errors) = DeTable::parse_recoverable(text);
    let problems = errors
        .iter()
        .take(SYNTAX_FAULTS)
        .map(|error| Problem {
            message: format!("this is not TOML: {}", error.message().trim_end()),
            help: "write strings in quotes, tables as [name], and values after `key = `".to_owned(),
            span: error.span().map(|span| SourceSpan::new(source, span)),
        })
        .collect();
    (table_of(document.get_ref(), source, 0), problems)
}

/// Parses the right-hand side of an assignment, which is at byte `offset` of its source.
pub(crate) fn parse_toml_value(text: &str, source: usize, offset: usize) -> Result<Node, String> {
    let parsed = DeValue::parse(text).map_err(|error| error.message().trim_end().to_owned())?;
    Ok(node_of(parsed.get_ref(), parsed.span(), source, offset))
}

fn table_of(table: &DeTable<'_>, source: usize, offset: usize) -> Table {
    let entries = table
        .iter()
        .map(|(key, value)| Entry {
            key: key.get_ref().to_string(),
            key_span: SourceSpan::new(source, shift_span(key.span(), offset)),
            node: node_of(value.get_ref(), value.span(), source, offset),
        })
        .collect();
    Table { entries }
}

fn node_of(value: &DeValue<'_>, span: Range<usize>, source: usize, offset: usize) -> Node {
    let value = match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        // Numbers that are too large are kept as text, which the reader refuses.
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| Value::Text(number.to_string()), Value::Integer),
        DeValue::Float(number) => number
            .as_str()
            .parse()
            .map_or_else(|_| Value::Text(number.to_string()), Value::Float),
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Datetime(date) => Value::Date(date.to_string()),
        DeValue::Array(items) => Value::List(
            items
                .iter()
                .map(|item| node_of(item.get_ref(), item.span(), source, offset))
                .collect(),
        ),
        DeValue::Table(table) => Value::Table(table_of(table, source, offset)),
    };
    Node {
        value,
        span: SourceSpan::new(source, shift_span(span, offset)),
    }
}

fn shift_span(span: Range<usize>, offset: usize) -> Range<usize> {
    span.start + offset..span.end + offset
}
