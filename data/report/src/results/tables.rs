//! Flattens a `metrics.json` into tables: metrics with their values, and groups of samples with theirs.
//!
//! A suite may nest as it likes. An object with a number `value` is an estimate; an array of
//! objects, or an object whose name begins with `by_`, is a table of groups; any other object is a
//! table of its own.

use serde_json::{Map, Value};
use tooltune_rows::json::{Style, dumps};

use crate::shortened::cell;

/// Where the metrics of a suite say in which of them the gold is not the best.
const CEILINGS: &str = "ceilings";

/// One table of one result.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Block {
    /// A value for each metric.
    Metrics {
        /// Where it stood, such as `retrieval`; empty for the outermost.
        title: String,
        /// Samples behind the metrics.
        n: Option<u64>,
        /// In order.
        measures: Vec<Measure>,
    },
    /// A value for each metric and group.
    Groups {
        /// Where it stood.
        title: String,
        /// What tells the groups apart, such as `depth`.
        label: String,
        /// In order.
        groups: Vec<Group>,
    },
}

/// A metric's value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measure {
    pub(super) name: String,
    pub(super) entry: Entry,
}

/// Samples with something in common.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) n: Option<u64>,
    pub(super) measures: Vec<Measure>,
}

/// What stands in a cell.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Entry {
    /// A whole number.
    Count { n: u64 },
    /// Any other number, with its interval and samples if it has some.
    Number {
        value: f64,
        interval: Option<(f64, f64)>,
        n: Option<u64>,
        /// What the gold itself scores, where that is not the best.
        ceiling: Option<f64>,
    },
    /// All else.
    Text { text: String },
}

impl Block {
    /// What the tables of two results must share to be one: title and shape.
    pub(super) fn key(&self) -> (&str, bool) {
        match self {
            Self::Metrics { title, .. } => (title, false),
            Self::Groups { title, .. } => (title, true),
        }
    }
}

impl Entry {
    /// What stands for null.
    pub(super) fn none() -> Self {
        Self::Text {
            text: "none".to_owned(),
        }
    }

    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Self::Count { n } => Some(*n as f64),
            Self::Number { value, .. } => Some(*value),
            Self::Text { .. } => None,
        }
    }

    pub(super) fn interval(&self) -> Option<(f64, f64)> {
        match self {
            Self::Number { interval, .. } => *interval,
            _ => None,
        }
    }

    pub(super) fn n(&self) -> Option<u64> {
        match self {
            Self::Number { n, .. } => *n,
            _ => None,
        }
    }
}

/// The tables of a result, outer ones first.
pub(super) fn blocks(metrics: &Map<String, Value>) -> Vec<Block> {
    let mut blocks = Vec::new();
    let ceilings: Vec<(&str, f64)> = ceilings(metrics).collect();
    add_blocks(metrics, "", &ceilings, &mut blocks);
    blocks
}

fn add_blocks(
    object: &Map<String, Value>,
    title: &str,
    ceilings: &[(&str, f64)],
    blocks: &mut Vec<Block>,
) {
    let path = |name: &str| match title {
        "" => cell(name),
        _ => format!("{title} / {}", cell(name)),
    };
    let mut measures = Vec::new();
    let mut inner = Vec::new();
    for (name, value) in object {
        let groups = groups(name, value);
        match value {
            _ if name == "n" && value.is_u64() => {}
            // They stand beside the metrics that they are of.
            _ if name == CEILINGS => {}
            _ if groups.is_some() => inner.extend(groups.map(|(label, groups)| {
                vec![Block::Groups {
                    title: path(name),
                    label,
                    groups,
                }]
            })),
            Value::Object(object) if !object.is_empty() && estimate(object).is_none() => {
                let mut below = Vec::new();
                add_blocks(object, &path(name), ceilings, &mut below);
                inner.push(below);
            }
            _ => measures.push(Measure {
                name: cell(name),
                entry: entry(value),
            }),
        }
    }
    for (metric, value) in ceilings {
        let measure = measures.iter_mut().find(|one| one.name == *metric);
        if let Some(Entry::Number { ceiling, .. }) = measure.map(|one| &mut one.entry) {
            *ceiling = Some(*value);
        }
    }
    if !measures.is_empty() {
        blocks.push(Block::Metrics {
            title: title.to_owned(),
            n: n_of(object),
            measures,
        });
    }
    blocks.extend(inner.into_iter().flatten());
}

/// The metrics in which the gold is not the best, with what it scores.
fn ceilings(object: &Map<String, Value>) -> impl Iterator<Item = (&str, f64)> {
    let ceilings = object.get(CEILINGS).and_then(Value::as_array);
    let of_one = |one: &'_ Value| one["value"].as_f64();
    ceilings
        .into_iter()
        .flatten()
        .filter_map(move |one| Some((one["metric"].as_str()?, of_one(one)?)))
}

fn n_of(object: &Map<String, Value>) -> Option<u64> {
    let n = object.get("n").or_else(|| object.get("n_loss_rows"));
    n.and_then(Value::as_u64)
}

fn estimate(object: &Map<String, Value>) -> Option<Entry> {
    let number = |name| object.get(name).and_then(Value::as_f64);
    // A whole number counts something that happens to be called so, such as a rule of that name.
    let is_count = object.get("value").is_some_and(Value::is_u64);
    Some(Entry::Number {
        value: number("value").filter(|_| !is_count)?,
        interval: number("low").zip(number("high")),
        n: n_of(object),
        ceiling: None,
    })
}

fn entry(value: &Value) -> Entry {
    let text = |text: &str| Entry::Text { text: cell(text) };
    match value {
        Value::Null => Entry::none(),
        Value::Bool(true) => text("yes"),
        Value::Bool(false) => text("no"),
        Value::String(string) => text(string),
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(n), _) => Entry::Count { n },
            (None, Some(value)) => Entry::Number {
                value,
                interval: None,
                n: None,
                ceiling: None,
            },
            (None, None) => text(&number.to_string()),
        },
        Value::Array(items) if items.is_empty() => text("none"),
        Value::Object(object) if object.is_empty() => text("none"),
        Value::Object(object) => estimate(object).unwrap_or_else(|| text(&compact(value))),
        Value::Array(_) => text(&compact(value)),
    }
}

fn compact(value: &Value) -> String {
    dumps(value, Style::Compact)
}

/// What tells the groups apart, and the groups; none where a value is no table of groups.
fn groups(name: &str, value: &Value) -> Option<(String, Vec<Group>)> {
    let label = name.strip_prefix("by_").unwrap_or(name);
    match value {
        Value::Array(items) if !items.is_empty() => {
            let objects: Option<Vec<_>> = items.iter().map(Value::as_object).collect();
            let key = label_key(objects.as_ref()?.first()?, label)?;
            let group = |object: &Map<String, Value>| Group {
                name: object.get(&key).map_or_else(String::new, plain),
                n: n_of(object),
                measures: flat(object, &key),
            };
            let groups = objects?.into_iter().map(group).collect();
            Some((cell(&key.replace('_', " ")), groups))
        }
        Value::Object(members) if name.starts_with("by_") && !members.is_empty() => {
            let group = |(name, value): (&String, &Value)| {
                let object = value.as_object()?;
                Some(Group {
                    name: cell(name),
                    n: n_of(object),
                    measures: match estimate(object) {
                        Some(entry) => vec![Measure {
                            name: "value".to_owned(),
                            entry,
                        }],
                        None => flat(object, "n"),
                    },
                })
            };
            let groups: Option<Vec<Group>> = members.iter().map(group).collect();
            Some((cell(&label.replace('_', " ")), groups?))
        }
        _ => None,
    }
}

/// The field that names a group: that of the table's own name, else the first text, else the first.
fn label_key(object: &Map<String, Value>, label: &str) -> Option<String> {
    let own = object.keys().find(|key| key.as_str() == label);
    let text = || object.iter().find(|(_, value)| value.is_string());
    let key = own.or_else(|| text().map(|(key, _)| key));
    key.or_else(|| object.keys().next()).cloned()
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => cell(text),
        other => cell(&compact(other)),
    }
}

/// The measures of a group, those of inner objects under their path.
fn flat(object: &Map<String, Value>, label: &str) -> Vec<Measure> {
    let mut measures = Vec::new();
    for (name, value) in object {
        match value {
            _ if name == label || name == "n" => {}
            Value::Object(inner) if !inner.is_empty() && estimate(inner).is_none() => {
                measures.extend(flat(inner, "n").into_iter().map(|measure| Measure {
                    name: format!("{}.{}", cell(name), measure.name),
                    entry: measure.entry,
                }));
            }
            _ => measures.push(Measure {
                name: cell(name),
                entry: entry(value),
            }),
        }
    }
    measures
}
