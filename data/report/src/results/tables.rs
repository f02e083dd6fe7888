//! Flattens a `metrics.json` into tables: metrics with values, and groups of samples with metrics.
//!
//! Any nesting is allowed. An object with a number `value` is an estimate. An array of objects, or
//! an object whose key starts with `by_`, is a table of groups. Any other object is a separate
//! table.

use serde_json::{Map, Value};
use tooltune_json::{Style, dumps};

use crate::truncation::shorten_cell;

/// Key of the gold answer's scores, for the metrics whose maximum it does not reach.
const CEILINGS: &str = "ceilings";

/// One table of one result.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Block {
    /// One value per metric.
    Metrics {
        /// Path of the table in the file, such as `retrieval`; empty for the outermost table.
        title: String,
        /// Number of samples.
        n: Option<u64>,
        /// The metrics, in file order.
        measures: Vec<Measure>,
    },
    /// One value per metric and group.
    Groups {
        /// Path of the table in the file.
        title: String,
        /// The property that distinguishes the groups, such as `depth`.
        label: String,
        /// The groups, in file order.
        groups: Vec<Group>,
    },
}

/// A metric's value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measure {
    pub(super) name: String,
    pub(super) entry: Entry,
}

/// Samples with a common property.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) n: Option<u64>,
    pub(super) measures: Vec<Measure>,
}

/// The content of a table cell.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Entry {
    /// A whole number.
    Count { n: u64 },
    /// Any other number, with its interval and number of samples if available.
    Number {
        value: f64,
        interval: Option<(f64, f64)>,
        n: Option<u64>,
        /// The score of the gold answer, if it is below the maximum.
        ceiling: Option<f64>,
    },
    /// Any other value, formatted as text.
    Text { text: String },
}

impl Block {
    /// Title and shape. The tables of two results are merged if these are equal.
    pub(super) fn key(&self) -> (&str, bool) {
        match self {
            Self::Metrics { title, .. } => (title, false),
            Self::Groups { title, .. } => (title, true),
        }
    }
}

impl Entry {
    /// The entry of a JSON null.
    pub(super) fn null() -> Self {
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

/// The tables of a result; outer tables come first.
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
        "" => shorten_cell(name),
        _ => format!("{title} / {}", shorten_cell(name)),
    };
    let mut measures = Vec::new();
    let mut inner = Vec::new();
    for (name, value) in object {
        let groups = groups(name, value);
        match value {
            _ if name == "n" && value.is_u64() => {}
            // The page already names the suite.
            _ if name == "suite" && title.is_empty() && value.is_string() => {}
            // Ceilings are shown next to their metrics.
            _ if name == CEILINGS => {}
            _ if groups.is_some() => inner.extend(groups.map(|(label, groups)| {
                vec![Block::Groups {
                    title: path(name),
                    label,
                    groups,
                }]
            })),
            Value::Object(object) if !object.is_empty() && estimate(object).is_none() => {
                let mut nested_blocks = Vec::new();
                add_blocks(object, &path(name), ceilings, &mut nested_blocks);
                inner.push(nested_blocks);
            }
            _ => measures.push(Measure {
                name: shorten_cell(name),
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

/// The gold answer's scores, for the metrics whose maximum it does not reach.
fn ceilings(object: &Map<String, Value>) -> impl Iterator<Item = (&str, f64)> {
    let ceilings = object.get(CEILINGS).and_then(Value::as_array);
    let score = |ceiling: &'_ Value| ceiling["value"].as_f64();
    ceilings
        .into_iter()
        .flatten()
        .filter_map(move |ceiling| Some((ceiling["metric"].as_str()?, score(ceiling)?)))
}

fn n_of(object: &Map<String, Value>) -> Option<u64> {
    let n = object.get("n").or_else(|| object.get("n_loss_rows"));
    n.and_then(Value::as_u64)
}

fn estimate(object: &Map<String, Value>) -> Option<Entry> {
    let number = |name| object.get(name).and_then(Value::as_f64);
    // An integer here is a count whose name happens to equal the name of a metric, for example a
    // rule.
    let is_count = object.get("value").is_some_and(Value::is_u64);
    Some(Entry::Number {
        value: number("value").filter(|_| !is_count)?,
        interval: number("low").zip(number("high")),
        n: n_of(object),
        ceiling: None,
    })
}

fn entry(value: &Value) -> Entry {
    let text = |text: &str| Entry::Text {
        text: shorten_cell(text),
    };
    match value {
        Value::Null => Entry::null(),
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

/// The property that distinguishes the groups, and the groups; `None` if the value is not a table
/// of groups.
fn groups(name: &str, value: &Value) -> Option<(String, Vec<Group>)> {
    let label = name.strip_prefix("by_").unwrap_or(name);
    match value {
        Value::Array(items) if !items.is_empty() => {
            let objects: Option<Vec<_>> = items.iter().map(Value::as_object).collect();
            let key = label_key(objects.as_ref()?.first()?, label)?;
            let group = |object: &Map<String, Value>| Group {
                name: object.get(&key).map_or_else(String::new, plain_text),
                n: n_of(object),
                measures: flatten(object, &key),
            };
            let groups = objects?.into_iter().map(group).collect();
            Some((shorten_cell(&key.replace('_', " ")), groups))
        }
        Value::Object(members) if name.starts_with("by_") && !members.is_empty() => {
            let group = |(name, value): (&String, &Value)| {
                let object = value.as_object()?;
                Some(Group {
                    name: shorten_cell(name),
                    n: n_of(object),
                    measures: match estimate(object) {
                        Some(entry) => vec![Measure {
                            name: "value".to_owned(),
                            entry,
                        }],
                        None => flatten(object, "n"),
                    },
                })
            };
            let groups: Option<Vec<Group>> = members.iter().map(group).collect();
            Some((shorten_cell(&label.replace('_', " ")), groups?))
        }
        _ => None,
    }
}

/// The field that names a group: the field with the table's name, otherwise the first string,
/// otherwise the first field.
fn label_key(object: &Map<String, Value>, label: &str) -> Option<String> {
    let label_field = object.keys().find(|key| key.as_str() == label);
    let text = || object.iter().find(|(_, value)| value.is_string());
    let key = label_field.or_else(|| text().map(|(key, _)| key));
    key.or_else(|| object.keys().next()).cloned()
}

fn plain_text(value: &Value) -> String {
    match value {
        Value::String(text) => shorten_cell(text),
        other => shorten_cell(&compact(other)),
    }
}

/// The metrics of a group, with inner objects flattened to paths.
fn flatten(object: &Map<String, Value>, label: &str) -> Vec<Measure> {
    let mut measures = Vec::new();
    for (name, value) in object {
        match value {
            _ if name == label || name == "n" => {}
            Value::Object(inner) if !inner.is_empty() && estimate(inner).is_none() => {
                measures.extend(flatten(inner, "n").into_iter().map(|measure| Measure {
                    name: format!("{}.{}", shorten_cell(name), measure.name),
                    entry: measure.entry,
                }));
            }
            _ => measures.push(Measure {
                name: shorten_cell(name),
                entry: entry(value),
            }),
        }
    }
    measures
}
