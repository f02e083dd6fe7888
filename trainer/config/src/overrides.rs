//! Applies `--set a.b=c` to a parsed config.
//!
//! Each override is a separate source, so that a mistake in it is displayed with the command-line
//! text. Values are TOML. Other text, such as a bare word or path, is used as a string including
//! its whitespace, because quotes inside shell quotes are inconvenient.

use super::diagnostics::{Problem, Source, SourceSpan};
use super::document::{Entry, Node, Table, Value, parse_toml, parse_toml_value};

/// Settings that exclude each other: an override of one removes the other from the file.
const EXCLUSIVE: &[(&str, &str)] = &[
    ("num_train_epochs", "max_steps"),
    ("warmup_ratio", "warmup_steps"),
];

/// Name of an override in messages.
pub(crate) const NAME: &str = "--set";

/// A setting in the file that an override removes, because the two exclude each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// The setting, such as `train.warmup_ratio`.
    pub setting: String,
    /// Position in the file.
    pub span: SourceSpan,
    /// Index of the override's source.
    pub by: usize,
}

/// Applies one override from the source with this index; returns the setting that it removes.
///
/// # Errors
///
/// The text has no assignment, or the value is invalid TOML.
pub(crate) fn apply(
    document: &mut Table,
    text: &str,
    source: usize,
) -> Result<Option<Dropped>, Problem> {
    let full_span = SourceSpan::new(source, 0..text.len());
    let Some(equals) = text.find('=') else {
        return Err(Problem {
            message: format!("`{text}` sets nothing"),
            help: "write --set table.key=value, such as --set train.learning_rate=2e-4".to_owned(),
            span: Some(full_span),
        });
    };
    let keys = parse_path(&text[..equals], source)?;
    // In `key = value` the spaces around the sign belong to TOML; in `key=value` they belong to the
    // value.
    let mut begin = equals + 1;
    if text[..equals].ends_with(char::is_whitespace) {
        begin = text.len() - text[begin..].trim_start().len();
    }
    let node = parse_value(&text[begin..], source, begin)?;
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

/// Sources of the overrides, for messages.
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
    // Two overrides that exclude each other are a mistake, which the check reports.
    let span = train.get(counterpart)?.key_span;
    if span.source != 0 || source == 0 {
        return None;
    }
    train.remove(counterpart);
    Some(Dropped {
        setting: format!("train.{counterpart}"),
        span,
        by: source,
    })
}

/// Parses the dotted path on the left as a TOML key.
fn parse_path(text: &str, source: usize) -> Result<Vec<(String, SourceSpan)>, Problem> {
    let (table, problems) = parse_toml(&format!("{text} = 0"), source);
    let mut keys = Vec::new();
    let mut table = &table;
    while let [entry] = table.entries.as_slice() {
        keys.push((entry.key.clone(), entry.key_span));
        match &entry.node.value {
            Value::Table(inner) => table = inner,
            _ if problems.is_empty() => return Ok(keys),
            _ => break,
        }
    }
    Err(Problem {
        message: format!("`{text}` is not the path of a setting"),
        help: "write --set table.key=value, such as --set lora.r=16".to_owned(),
        span: Some(SourceSpan::new(source, 0..text.len())),
    })
}

fn parse_value(text: &str, source: usize, offset: usize) -> Result<Node, Problem> {
    let start = text.len() - text.trim_start().len();
    let trimmed = text.trim();
    let span = SourceSpan::new(source, offset..offset + text.len());
    match parse_toml_value(trimmed, source, offset + start) {
        Ok(node) => Ok(node),
        Err(error) if trimmed.is_empty() || trimmed.starts_with(['[', '{', '"', '\'']) => {
            Err(Problem {
                message: format!("this is not a TOML value: {error}"),
                help: "check its quotes and brackets; the shell may have removed some".to_owned(),
                span: Some(span),
            })
        }
        Err(_) => Ok(Node {
            value: Value::Text(text.to_owned()),
            span,
        }),
    }
}

fn set(table: &mut Table, keys: &[(String, SourceSpan)], node: Node) -> Result<(), Problem> {
    let Some(((key, key_span), rest)) = keys.split_first() else {
        return Ok(());
    };
    let index = match table.entries.iter().position(|entry| entry.key == *key) {
        Some(index) => index,
        None => {
            let value = Value::Table(Table::default());
            let node = Node {
                value,
                span: *key_span,
            };
            table.entries.push(Entry {
                key: key.clone(),
                key_span: *key_span,
                node,
            });
            table.entries.len() - 1
        }
    };
    let entry = &mut table.entries[index];
    if rest.is_empty() {
        entry.key_span = *key_span;
        entry.node = node;
        return Ok(());
    }
    match &mut entry.node.value {
        Value::Table(inner) => set(inner, rest, node),
        other => Err(Problem {
            message: format!("`{key}` is {}, not a table", other.describe()),
            help: format!("set all of `{key}`, or remove this override"),
            span: Some(*key_span),
        }),
    }
}
