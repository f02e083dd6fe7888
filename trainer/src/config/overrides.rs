//! `--set a.b=c` -> a changed tree.
//!
//! Each override is a source of its own, so that a mistake in it is shown in what was typed on the
//! command line. Values are TOML; a bare word or path, which is not, is taken as text, because
//! quotes inside a shell's quotes are a nuisance.

use super::diagnostics::{Problem, Source, SourceSpan};
use super::document::{Entry, Node, Table, Value, parse_toml, parse_toml_value};

/// Settings of which a config has at most one; an override of one drops the file's other.
const EXCLUSIVE: &[(&str, &str)] = &[
    ("num_train_epochs", "max_steps"),
    ("warmup_ratio", "warmup_steps"),
];

/// What messages call an override.
pub(crate) const NAME: &str = "--set";

/// A setting of the file that an override drops, because only one of the two may be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// The setting, such as `train.warmup_ratio`.
    pub setting: String,
    /// Where it stands.
    pub place: SourceSpan,
    /// The index of the override's source.
    pub by: usize,
}

/// Applies one override, whose source has the given index; answers what of the file it drops.
///
/// # Errors
///
/// A text that sets nothing, or not a value of TOML.
pub(crate) fn apply(
    document: &mut Table,
    text: &str,
    source: usize,
) -> Result<Option<Dropped>, Problem> {
    let whole = SourceSpan::new(source, 0..text.len());
    let Some(equals) = text.find('=') else {
        return Err(Problem {
            message: format!("`{text}` sets nothing"),
            help: "write --set table.key=value, such as --set train.learning_rate=2e-4".to_owned(),
            place: Some(whole),
        });
    };
    let keys = parse_path(&text[..equals], source)?;
    let node = parse_value(&text[equals + 1..], source, equals + 1)?;
    let mut dropped = None;
    if let [table, key] = keys.as_slice()
        && table.0 == "train"
        && let Some(Entry {
            node:
                Node {
                    value: Value::Table(train),
                    ..
                },
            ..
        }) = document.get_mut("train")
    {
        dropped = drop_counterpart(train, &key.0, source);
    }
    set(document, &keys, node)?;
    Ok(dropped)
}

/// Makes the sources of the overrides, as messages show them.
pub(crate) fn sources(overrides: &[String]) -> impl Iterator<Item = Source> + '_ {
    overrides.iter().map(|text| Source {
        name: NAME.to_owned(),
        text: text.clone(),
    })
}

fn drop_counterpart(train: &mut Table, key: &str, source: usize) -> Option<Dropped> {
    let counterpart = EXCLUSIVE.iter().find_map(|(first, second)| match key {
        key if key == *first => Some(*second),
        key if key == *second => Some(*first),
        _ => None,
    })?;
    // Two overrides that exclude each other are a mistake and are left for the check.
    let place = train.get(counterpart)?.key_place;
    if place.source != 0 || source == 0 {
        return None;
    }
    train.remove(counterpart);
    Some(Dropped {
        setting: format!("train.{counterpart}"),
        place,
        by: source,
    })
}

/// The dotted path on the left, read by TOML's own rules for keys.
fn parse_path(text: &str, source: usize) -> Result<Vec<(String, SourceSpan)>, Problem> {
    let (table, problems) = parse_toml(&format!("{text} = 0"), source);
    let mut keys = Vec::new();
    let mut table = &table;
    while let [entry] = table.entries.as_slice() {
        keys.push((entry.key.clone(), entry.key_place));
        match &entry.node.value {
            Value::Table(inner) => table = inner,
            _ if problems.is_empty() => return Ok(keys),
            _ => break,
        }
    }
    Err(Problem {
        message: format!("`{text}` is not the path of a setting"),
        help: "write --set table.key=value, such as --set lora.r=16".to_owned(),
        place: Some(SourceSpan::new(source, 0..text.len())),
    })
}

fn parse_value(text: &str, source: usize, offset: usize) -> Result<Node, Problem> {
    let offset = offset + text.len() - text.trim_start().len();
    let trimmed = text.trim();
    let place = SourceSpan::new(source, offset..offset + trimmed.len());
    match parse_toml_value(trimmed, source, offset) {
        Ok(node) => Ok(node),
        Err(error) if trimmed.is_empty() || trimmed.starts_with(['[', '{', '"', '\'']) => {
            Err(Problem {
                message: format!("this is not a TOML value: {error}"),
                help: "check its quotes and brackets; a shell may have eaten some".to_owned(),
                place: Some(place),
            })
        }
        Err(_) => Ok(Node {
            value: Value::Text(trimmed.to_owned()),
            place,
        }),
    }
}

fn set(table: &mut Table, keys: &[(String, SourceSpan)], node: Node) -> Result<(), Problem> {
    let Some(((key, key_place), rest)) = keys.split_first() else {
        return Ok(());
    };
    let index = match table.entries.iter().position(|entry| entry.key == *key) {
        Some(index) => index,
        None => {
            let value = Value::Table(Table::default());
            let node = Node {
                value,
                place: *key_place,
            };
            table.entries.push(Entry {
                key: key.clone(),
                key_place: *key_place,
                node,
            });
            table.entries.len() - 1
        }
    };
    let entry = &mut table.entries[index];
    if rest.is_empty() {
        entry.key_place = *key_place;
        entry.node = node;
        return Ok(());
    }
    match &mut entry.node.value {
        Value::Table(inner) => set(inner, rest, node),
        other => Err(Problem {
            message: format!("`{key}` is {}, not a table", other.describe()),
            help: format!("set the whole of `{key}`, or leave it"),
            place: Some(*key_place),
        }),
    }
}
