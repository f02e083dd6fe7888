//! An unknown key -> what was probably meant.
//!
//! The words of other trainers are refused with the word used here instead of being accepted
//! silently: a config then has one spelling, and a copied file is understood before it runs.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

/// The one setting outside the tables.
const DEVICE: &str = "device";

/// The main tables with their keys, in the order of the documentation.
#[derive(Debug)]
pub(crate) struct Tables<'a>(Vec<(&'a str, Vec<&'a str>)>);

impl<'a> Tables<'a> {
    /// Of all settings at the top, those that have keys.
    pub(crate) fn new(tables: impl Iterator<Item = (&'a str, Vec<&'a str>)>) -> Self {
        Self(tables.filter(|(_, keys)| !keys.is_empty()).collect())
    }

    /// The table outside `path` that has `key`; what [train] and [retriever] both have is the
    /// former's.
    fn home_of(&self, path: &str, key: &str) -> Option<&'a str> {
        let homes = self
            .0
            .iter()
            .filter(|(table, keys)| *table != path && keys.contains(&key));
        let mut homes = homes.map(|(table, _)| *table);
        let first = homes.next()?;
        Some(homes.find(|table| *table == "train").unwrap_or(first))
    }

    /// The nearest key, here or in another table, as advice and as the path of the setting.
    fn suggest(&self, path: &str, key: &str, known: &[&str]) -> (String, Option<String>) {
        if let Some(near) = nearest(key, known) {
            let meant = if path.is_empty() {
                near.to_owned()
            } else {
                format!("{path}.{near}")
            };
            return (format!("did you mean `{near}`?"), Some(meant));
        }
        // Keys of nested tables such as mask.weights cannot have been meant for another table.
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

/// An unknown key, explained.
#[derive(Debug)]
pub(crate) struct Unknown {
    pub(crate) message: String,
    pub(crate) help: String,
    /// Path of the setting that was meant, if that is likely.
    pub(crate) meant: Option<String>,
}

/// Keys of other trainers, as `foreign_keys.toml` has them.
#[derive(Debug, Default, Deserialize)]
struct ForeignKeys {
    /// The setting here, and behind a semicolon what to mind about its value.
    renamed: BTreeMap<String, String>,
    /// Those without a counterpart, and what to do.
    absent: BTreeMap<String, String>,
}

static FOREIGN: LazyLock<ForeignKeys> =
    LazyLock::new(|| toml::from_str(include_str!("foreign_keys.toml")).unwrap_or_default());

/// Says what `key` in the table at `path` should be, given the keys that the table has.
pub(crate) fn explain(path: &str, key: &str, known: &[&str], tables: &Tables<'_>) -> Unknown {
    let shown = shorten(key);
    let message = match path {
        "" => format!("unknown table or key `{shown}`"),
        _ => format!("unknown key `{shown}` in [{path}]"),
    };
    if key == DEVICE {
        let help = "this key stands at the top of the file, before the first [table]".to_owned();
        return Unknown {
            message,
            help,
            meant: Some(DEVICE.to_owned()),
        };
    }
    // `batch_size` is also a key of [eval]; who writes it elsewhere means the training batch.
    if let Some(meant) = FOREIGN.renamed.get(key) {
        let (meant, note) = meant.split_once("; ").unwrap_or((meant, ""));
        let help = called(path, meant, note);
        return Unknown {
            message,
            help,
            meant: Some(meant.to_owned()),
        };
    }
    if let Some(help) = FOREIGN.absent.get(key) {
        return Unknown {
            message,
            help: help.clone(),
            meant: None,
        };
    }
    if let Some(table) = tables.home_of(path, key) {
        let help = format!("this key belongs to [{table}]: move it there");
        return Unknown {
            message,
            help,
            meant: Some(format!("{table}.{key}")),
        };
    }
    let (help, meant) = tables.suggest(path, key, known);
    Unknown {
        message,
        help,
        meant,
    }
}

/// Says that `key` in the table at `path` is unknown, and no more.
pub(crate) fn unexplained(path: &str, key: &str) -> Unknown {
    let shown = shorten(key);
    Unknown {
        message: match path {
            "" => format!("unknown key `{shown}`"),
            _ => format!("unknown key `{shown}` in [{path}]"),
        },
        help: "fix the first mistakes; this may be no config at all".to_owned(),
        meant: None,
    }
}

/// The words as a sentence part: `a`, `b` and `c`.
pub(crate) fn list(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}

/// The text as it is, or its beginning if it is too long for a message.
pub(crate) fn shorten(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The candidate nearest to `word`, if any is near enough to have been meant.
pub(crate) fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    // No setting is this long, and the distance takes time in the product of the lengths.
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

fn called(path: &str, meant: &str, note: &str) -> String {
    let (table, key) = meant.split_once('.').unwrap_or(("", meant));
    let place = if table == path {
        String::new()
    } else {
        format!(", in [{table}]")
    };
    let note = if note.is_empty() {
        String::new()
    } else {
        format!(" ({note})")
    };
    format!("tooltune calls it `{key}`{place}{note}")
}

#[cfg(test)]
mod tests {
    use super::FOREIGN;
    use crate::config::schema;

    #[test]
    fn keys_of_other_trainers_are_no_keys_here_and_lead_to_one() {
        assert!(!FOREIGN.renamed.is_empty() && !FOREIGN.absent.is_empty());
        let tables: Vec<&str> = schema::keys(schema::root());
        for (foreign, meant) in &FOREIGN.renamed {
            let setting = meant.split("; ").next().unwrap_or_default();
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
