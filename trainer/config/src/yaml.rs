//! Parses YAML into the same tree of values as TOML.
//!
//! YAML 1.2 is parsed by serde-saphyr, which refuses duplicate keys. Parsing stops at the first
//! syntax error; mistakes in keys and values are all reported.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::diagnostics::{Problem, SourceSpan};
use super::document::{Entry, Node, Table, Value};

/// Parses a YAML document whose top level is a mapping.
pub(crate) fn parse_yaml(text: &str, source: usize) -> (Table, Vec<Problem>) {
    // Without this option, `eval_strategy: no` would be false.
    let options = serde_saphyr::options! { strict_booleans: true };
    match serde_saphyr::from_str_with_options::<Spanned<Yaml>>(text, options) {
        Ok(document) => match node_of(document, source) {
            Node {
                value: Value::Table(table),
                ..
            } => (table, Vec::new()),
            Node {
                value: Value::Null, ..
            } => (Table::default(), Vec::new()),
            Node { value, span } => (Table::default(), vec![not_a_mapping(&value, span)]),
        },
        Err(error) => (Table::default(), vec![syntax_problem(text, &error, source)]),
    }
}

fn not_a_mapping(value: &Value, span: SourceSpan) -> Problem {
    Problem {
        message: format!(
            "the file must be a mapping of tables, not {}",
            value.describe()
        ),
        help: "begin with `model:` and indent its settings below".to_owned(),
        span: Some(span),
    }
}

/// Describes the error in our words; the library's messages name its own options.
fn syntax_problem(text: &str, error: &serde_saphyr::Error, source: usize) -> Problem {
    let reason = match tooltune_json::yaml::parse(text) {
        Err(fault) => fault.reason,
        Ok(_) => "the value cannot be read here".to_owned(),
    };
    Problem {
        message: format!("this is not YAML: {reason}"),
        help: "check the indentation, the colons and the quotes here".to_owned(),
        span: error.location().map(|location| span_of(&location, source)),
    }
}

/// A YAML value before its positions are converted.
enum Yaml {
    Plain(Value),
    List(Vec<Spanned<Yaml>>),
    Table(Vec<(Spanned<String>, Spanned<Yaml>)>),
}

fn node_of(yaml: Spanned<Yaml>, source: usize) -> Node {
    let span = span_of(&yaml.referenced, source);
    let value = match yaml.value {
        Yaml::Plain(value) => value,
        Yaml::List(items) => Value::List(
            items
                .into_iter()
                .map(|item| node_of(item, source))
                .collect(),
        ),
        Yaml::Table(entries) => Value::Table(Table {
            entries: entries
                .into_iter()
                .map(|(key, value)| Entry {
                    key_span: span_of(&key.referenced, source),
                    key: key.value,
                    node: node_of(value, source),
                })
                .collect(),
        }),
    };
    Node { value, span }
}

fn span_of(location: &Location, source: usize) -> SourceSpan {
    let span = location.span();
    let start = span.byte_offset().unwrap_or_else(|| span.offset());
    let length = span.byte_len().unwrap_or_else(|| span.len());
    let start = usize::try_from(start).unwrap_or(0);
    SourceSpan::new(source, start..start + usize::try_from(length).unwrap_or(0))
}

impl<'de> Deserialize<'de> for Yaml {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(YamlVisitor)
    }
}

struct YamlVisitor;

impl<'de> Visitor<'de> for YamlVisitor {
    type Value = Yaml;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a setting")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Yaml, E> {
        Ok(Yaml::Plain(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Yaml, E> {
        Ok(Yaml::Plain(Value::Integer(value.into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Yaml, E> {
        Ok(Yaml::Plain(Value::Integer(value.into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Yaml, E> {
        Ok(Yaml::Plain(Value::Float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Yaml, E> {
        Ok(Yaml::Plain(Value::Text(value.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<Yaml, E> {
        Ok(Yaml::Plain(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Yaml, E> {
        Ok(Yaml::Plain(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Yaml, D::Error> {
        Yaml::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Yaml, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Yaml::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Yaml, A::Error> {
        let mut table = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            table.push(entry);
        }
        Ok(Yaml::Table(table))
    }
}
