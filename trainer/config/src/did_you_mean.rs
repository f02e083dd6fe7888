//! Suggests the intended setting for an unknown key.
//!
//! Names used by other trainers are errors that give the name used here. A config therefore has one
//! spelling, and a copied file is checked before it runs.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

/// The only setting outside the tables.
const DEVICE: &str = "device";

/// Main tables with their keys, in the order of the documentation.
#[derive(Debug)]
pub(crate) struct Tables<'a>(Vec<(&'a str, Vec<&'a str>)>);

impl<'a> Tables<'a> {
    /// Selects the tables among all top-level settings.
    pub(crate) fn new(tables: impl Iterator<Item = (&'a str, Vec<&'a str>)>) -> Self {
        Self(tables.filter(|(_, keys)| !keys.is_empty()).collect())
    }

    /// The table other than `path` that has `key`; for keys in [train] and [retriever], the former.
    fn home_of(&self, path: &str, key: &str) -> Option<&'a str> {
        let homes = self
            .0
            .iter()
            .filter(|(table, keys)| *table != path && keys.contains(&key));
        let mut homes = homes.map(|(table, _)| *table);
        let first = homes.next()?;
        Some(homes.find(|table| *table == "train").unwrap_or(first))
    }

    /// The nearest key, in this table or another one, as advice and as a path.
    fn suggest(&self, path: &str, key: &str, known: &[&str]) -> (String, Option<String>) {
        if let Some(near) = nearest(key, known) {
            let intended = if path.is_empty() {
                near.to_owned()
            } else {
                format!("{path}.{near}")
            };
            return (format!("did you mean `{near}`?"), Some(intended));
        }
        // Keys of nested tables such as mask.weights are not searched in other tables.
        if path.is_empty() || self.0.iter().any(|(table, _)| *table == path) {
            let all: Vec<&str> = self.0.iter().flat_map(|(_, keys)| keys).copied().collect();
            let near = nearest(key, &all);
            if let Some((near, table)) =
                near.and_then(|near| Some((near, self.home_of(path, near)?)))
            {
                return (format!("did you mean `{near}`, in [{table}]?"), None);
            }
        }
        (format!("the keys here are {}", list(known)), None)
    }
}

/// An unknown key with an explanation.
#[derive(Debug)]
pub(crate) struct Unknown {
    pub(crate) message: String,
    pub(crate) help: String,
    /// Path of the probably intended setting.
    pub(crate) intended: Option<String>,
}

/// Keys of other trainers, from `foreign_keys.toml`.
#[derive(Debug, Default, Deserialize)]
struct ForeignKeys {
    /// The setting here, and after a semicolon a remark on its value.
    renamed: BTreeMap<String, String>,
    /// Keys without a counterpart, with advice.
    absent: BTreeMap<String, String>,
}

static FOREIGN: LazyLock<ForeignKeys> =
    LazyLock::new(|| toml::from_str(include_str!("foreign_keys.toml")).unwrap_or_default());

/// Explains the unknown `key` in the table at `path`, which has the keys `known`.
pub(crate) fn explain_unknown(
    path: &str,
    key: &str,
    known: &[&str],
    tables: &Tables<'_>,
) -> Unknown {
    let shortened = shorten(key);
    let message = match path {
        "" => format!("unknown table or key `{shortened}`"),
        _ => format!("unknown key `{shortened}` in [{path}]"),
    };
    if key == DEVICE {
        let help = "move this key to the top of the file, before the first [table]".to_owned();
        return Unknown {
            message,
            help,
            intended: Some(DEVICE.to_owned()),
        };
    }
    // `batch_size` is also a key of [eval]; in other tables it means the training batch size.
    if let Some(renamed) = FOREIGN.renamed.get(key) {
        let (renamed, note) = renamed.split_once("; ").unwrap_or((renamed, ""));
        let help = renamed_help(path, renamed, note);
        return Unknown {
            message,
            help,
            intended: Some(renamed.to_owned()),
        };
    }
    if let Some(help) = FOREIGN.absent.get(key) {
        return Unknown {
            message,
            help: help.clone(),
            intended: None,
        };
    }
    if let Some(table) = tables.home_of(path, key) {
        let help = format!("this key belongs to [{table}]: move it there");
        return Unknown {
            message,
            help,
            intended: Some(format!("{table}.{key}")),
        };
    }
    let (help, intended) = tables.suggest(path, key, known);
    Unknown {
        message,
        help,
        intended,
    }
}

/// Reports the unknown `key` in the table at `path` without a suggestion.
pub(crate) fn unknown_without_help(path: &str, key: &str) -> Unknown {
    let shortened = shorten(key);
    Unknown {
        message: match path {
            "" => format!("unknown key `{shortened}`"),
            _ => format!("unknown key `{shortened}` in [{path}]"),
        },
        help: "fix the first mistakes; this file may not be a config".to_owned(),
        intended: None,
    }
}

/// The words as part of a sentence: `a`, `b` and `c`.
pub(crate) fn list(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}

/// The text, truncated if it is too long for a message.
pub(crate) fn shorten(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The candidate nearest to `word`, if it is near enough.
pub(crate) fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    // No setting is this long, and the distance costs the product of the lengths.
    if word.len() > 60 {
        return None;
    }
    let word = word.to_lowercase().replace('-', "_");
    let near = candidates
        .iter()
        .map(|candidate| {
            (
                strsim::damerau_levenshtein(&word, &candidate.replace('-', "_")),
                *candidate,
            )
        })
        .filter(|(distance, candidate)| *distance <= candidate.len().max(word.len()) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate);
    near.or_else(|| {
        let mut beginnings = candidates
            .iter()
            .filter(|candidate| candidate.len() >= 3 && word.starts_with(**candidate));
        beginnings.next().copied()
    })
}

fn renamed_help(path: &str, setting: &str, note: &str) -> String {
    let (table, key) = setting.split_once('.').unwrap_or(("", setting));
    let table_note = if table == path {
        String::new()
    } else {
        format!(", in [{table}]")
    };
    let note = if note.is_empty() {
        String::new()
    } else {
        format!(" ({note})")
    };
    format!("tooltune calls it `{key}`{table_note}{note}")
}

#[cfg(test)]
mod tests {
    use super::FOREIGN;
    use crate::schema;

    #[test]
    fn keys_of_other_trainers_suggest_a_setting() {
        assert!(!FOREIGN.renamed.is_empty() && !FOREIGN.absent.is_empty());
        let tables: Vec<&str> = schema::keys(schema::root());
        for (foreign, renamed) in &FOREIGN.renamed {
            let setting = renamed.split("; ").next().unwrap_or_default();
            let (table, key) = setting.split_once('.').expect(foreign);
            assert!(
                schema::keys_of(table).contains(&key),
                "{foreign}: {setting}"
            );
        }
        for absent in FOREIGN.absent.keys() {
            let mut keys = tables.iter().flat_map(|table| schema::keys_of(table));
            assert!(!FOREIGN.renamed.contains_key(absent) && keys.all(|key| key != absent));
        }
    }
}
