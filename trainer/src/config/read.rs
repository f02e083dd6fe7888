//! Tree of values -> the raw tables, with every unknown key and every wrong type on the way.
//!
//! A table lists its keys once, in [`reads!`](reads); reading, the search for the nearest known
//! key and the struct itself cannot drift apart, because the list fills a struct literal.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tooltune_rows::text::Recognised;

use super::diagnostics::{Place, Problem};
use super::document::{Node, Table, Value};
use super::names;
use super::raw::Day;
use crate::budgets::EXPLAINED_KEYS;

/// Where each setting was written, by its path (`train.learning_rate`) or its table (`train`).
pub(crate) type Places = BTreeMap<String, Place>;

/// What reading finds besides the values.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) problems: Vec<Problem>,
    pub(crate) places: Places,
    /// Settings that were meant under another name; they do not count as missing too.
    pub(crate) misnamed: Vec<String>,
    /// Unknown keys so far.
    pub(crate) n_unknown: usize,
    /// What the rows were recognised as, where the config leaves it to them.
    pub(crate) recognised: Option<Recognised>,
}

impl Findings {
    pub(crate) fn report(&mut self, node: &Node, message: String, help: impl Into<String>) {
        self.problems.push(Problem {
            message,
            help: help.into(),
            place: Some(node.place),
        });
    }
}

/// A type that a setting may have.
pub(crate) trait FromNode: Sized {
    /// Reads the setting at `path`; `None` after reporting what is wrong.
    fn from_node(node: &Node, path: &str, findings: &mut Findings) -> Option<Self>;
}

/// A table of the config: its known keys and how they are read.
pub(crate) trait RawTable: Sized {
    /// Every key of the table, in the order of the documentation.
    const KEYS: &'static [&'static str];

    /// Takes each key from the table.
    fn read(fields: &mut Fields<'_>) -> Self;
}

/// Implements [`RawTable`] for a struct of `Option` fields.
macro_rules! reads {
    ($raw:ident { $($key:ident),* $(,)? }) => {
        impl $crate::config::read::RawTable for $raw {
            const KEYS: &'static [&'static str] = &[$(stringify!($key)),*];

            fn read(fields: &mut $crate::config::read::Fields<'_>) -> Self {
                Self { $($key: fields.take(stringify!($key))),* }
            }
        }

        impl $crate::config::read::FromNode for $raw {
            fn from_node(
                node: &$crate::config::document::Node,
                path: &str,
                findings: &mut $crate::config::read::Findings,
            ) -> Option<Self> {
                $crate::config::read::read_table(node, path, findings)
            }
        }
    };
}
pub(crate) use reads;

/// A table being read.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    table: &'a Table,
    path: &'a str,
    findings: &'a mut Findings,
}

impl Fields<'_> {
    /// The value of `key`, or `None` if it is absent or was reported as wrong.
    pub(crate) fn take<T: FromNode>(&mut self, key: &str) -> Option<T> {
        let entry = self.table.get(key)?;
        let path = join(self.path, key);
        let place = match entry.node.value {
            Value::Table(_) => entry.key_place,
            _ => entry.node.place,
        };
        self.findings.places.insert(path.clone(), place);
        T::from_node(&entry.node, &path, self.findings)
    }
}

/// Reads a whole document.
pub(crate) fn read_document<T: RawTable>(document: &Table, findings: &mut Findings) -> T {
    report_unknown_keys::<T>(document, "", findings);
    T::read(&mut Fields {
        table: document,
        path: "",
        findings,
    })
}

/// Reads the table at `path`, whose known keys are those of `T`.
pub(crate) fn read_table<T: RawTable>(
    node: &Node,
    path: &str,
    findings: &mut Findings,
) -> Option<T> {
    let Value::Table(table) = &node.value else {
        let message = format!("`{path}` must be a table, not {}", node.value.describe());
        findings.report(
            node,
            message,
            format!("its keys are {}", names::list(T::KEYS)),
        );
        return None;
    };
    report_unknown_keys::<T>(table, path, findings);
    Some(T::read(&mut Fields {
        table,
        path,
        findings,
    }))
}

fn report_unknown_keys<T: RawTable>(table: &Table, path: &str, findings: &mut Findings) {
    for entry in table
        .entries
        .iter()
        .filter(|entry| !T::KEYS.contains(&entry.key.as_str()))
    {
        findings.n_unknown += 1;
        // The search for the nearest name takes its time, and more are not drawn anyway.
        let unknown = match findings.n_unknown <= EXPLAINED_KEYS {
            true => names::explain(path, &entry.key, T::KEYS),
            false => names::unexplained(path, &entry.key),
        };
        findings.misnamed.extend(unknown.meant);
        findings.problems.push(Problem {
            message: unknown.message,
            help: unknown.help,
            place: Some(entry.key_place),
        });
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn wrong_type(node: &Node, path: &str, expected: &str, findings: &mut Findings) {
    let help = match &node.value {
        Value::Text(text) if text.parse::<f64>().is_ok() || matches!(&**text, "true" | "false") => {
            format!("remove the quotes: {text}")
        }
        Value::Null => "give it a value, or delete the line for the default".to_owned(),
        Value::Float(value) if value.fract() == 0.0 && expected.contains("whole") => {
            format!("write it without point and exponent: {value:.0}")
        }
        Value::Integer(value) if *value > LARGEST => format!("at most {LARGEST} can be written"),
        Value::List(_) => "give one value, without the brackets".to_owned(),
        _ => "`tooltune schema` describes every setting".to_owned(),
    };
    findings.report(
        node,
        format!("`{path}` must be {expected}, not {}", node.value.describe()),
        help,
    );
}

impl FromNode for bool {
    fn from_node(node: &Node, path: &str, findings: &mut Findings) -> Option<Self> {
        if let Value::Bool(value) = node.value {
            return Some(value);
        }
        wrong_type(node, path, "true or false", findings);
        None
    }
}

/// The largest integer of TOML, so that everything read can be written again.
const LARGEST: i128 = i64::MAX as i128;

macro_rules! whole_numbers {
    ($($number:ty),*) => {$(
        impl FromNode for $number {
            fn from_node(node: &Node, path: &str, findings: &mut Findings) -> Option<Self> {
                let read = match node.value {
                    Value::Integer(value) if value <= LARGEST => Self::try_from(value).ok(),
                    _ => None,
                };
                if read.is_none() {
                    wrong_type(node, path, "a whole number that is not negative", findings);
                }
                read
            }
        }
    )*};
}
whole_numbers!(u64, usize);

impl FromNode for f64 {
    fn from_node(node: &Node, path: &str, findings: &mut Findings) -> Option<Self> {
        match node.value {
            Value::Float(value) if value.is_finite() => return Some(value),
            // Exact below 2^53; settings are far smaller, and the checks refuse what is not.
            Value::Integer(value) => return Some(value as Self),
            _ => {}
        }
        wrong_type(node, path, "a finite number", findings);
        None
    }
}

impl FromNode for String {
    fn from_node(node: &Node, path: &str, findings: &mut Findings) -> Option<Self> {
        if let Value::Text(text) = &node.value {
            return Some(text.clone());
        }
        wrong_type(node, path, "a text in quotes", findings);
        None
    }
}

impl FromNode for Day {
    fn from_node(node: &Node, path: &str, findings: &mut Findings) -> Option<Self> {
        if let Value::Text(text) | Value::Date(text) = &node.value {
            return Some(Self(text.clone()));
        }
        wrong_type(node, path, "a day such as \"2026-01-31\"", findings);
        None
    }
}

impl FromNode for PathBuf {
    fn from_node(node: &Node, path: &str, findings: &mut Findings) -> Option<Self> {
        match &node.value {
            Value::Text(text) if !text.is_empty() => Some(Self::from(text)),
            Value::Text(_) => {
                let help = "name a file or folder, or delete the line";
                findings.report(node, format!("`{path}` is an empty path"), help);
                None
            }
            _ => {
                wrong_type(node, path, "a path in quotes", findings);
                None
            }
        }
    }
}

impl<T: FromNode> FromNode for Vec<T> {
    fn from_node(node: &Node, path: &str, findings: &mut Findings) -> Option<Self> {
        let Value::List(items) = &node.value else {
            let message = format!("`{path}` must be a list, not {}", node.value.describe());
            let help = match &node.value {
                Value::Text(text) => format!("put it in brackets: [{text:?}]"),
                _ => "write its items in brackets, with commas between them".to_owned(),
            };
            findings.report(node, message, help);
            return None;
        };
        // Every item is read before the first bad one spoils the list, so all of them are reported.
        let read: Vec<Option<T>> = items
            .iter()
            .enumerate()
            .map(|(index, item)| T::from_node(item, &format!("{path}[{index}]"), findings))
            .collect();
        read.into_iter().collect()
    }
}
