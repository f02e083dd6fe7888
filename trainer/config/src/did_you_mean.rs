//! Suggests the intended setting for an unknown key.
//!
//! A name from another trainer is an error whose message gives the name used here. A config
//! therefore has one spelling, and a copied file is checked before it runs.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The only setting outside the tables.
const DEVICE: &str = "device";

/// The setting here for a name in another program.
#[derive(Debug, Clone)]
pub(crate) struct OtherName {
    /// The setting here.
    pub(crate) setting: String,
    /// Remark on its value; may be empty.
    pub(crate) note: &'static str,
}

/// Main tables with their keys, in the order of the documentation, and other names of settings.
#[derive(Debug)]
pub(crate) struct Tables<'a> {
    tables: Vec<(&'a str, Vec<&'a str>)>,
    other_names: &'a BTreeMap<&'a str, OtherName>,
}

impl<'a> Tables<'a> {
    /// Selects the tables among all top-level settings.
    pub(crate) fn new(
        tables: impl Iterator<Item = (&'a str, Vec<&'a str>)>,
        other_names: &'a BTreeMap<&'a str, OtherName>,
    ) -> Self {
        Self {
            tables: tables.filter(|(_, keys)| !keys.is_empty()).collect(),
            other_names,
        }
    }

    /// The table other than `path` that has `key`; `train` if several tables have it, such as
    /// `train` and `retriever`.
    fn home_of(&self, path: &str, key: &str) -> Option<&'a str> {
        let homes = self
            .tables
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
        if path.is_empty() || self.tables.iter().any(|(table, _)| *table == path) {
            let all: Vec<&str> = self
                .tables
                .iter()
                .flat_map(|(_, keys)| keys)
                .copied()
                .collect();
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

/// Keys of other trainers without a counterpart here, with advice.
static ABSENT: LazyLock<BTreeMap<String, String>> =
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
    if let Some(OtherName { setting, note }) = tables.other_names.get(key) {
        return Unknown {
            message,
            help: renamed_help(path, setting, note),
            intended: Some(setting.clone()),
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
    if let Some(help) = ABSENT.get(key) {
        return Unknown {
            message,
            help: help.clone(),
            intended: None,
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
    // No setting is this long, and computing the distance takes time proportional to the product of
    // the lengths.
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
    use super::ABSENT;
    use crate::schema;

    #[test]
    fn a_name_of_another_program_means_one_setting_or_none() {
        assert!(!ABSENT.is_empty());
        let mut names: Vec<&str> = ABSENT.keys().map(String::as_str).collect();
        for (_, field) in schema::settings() {
            let also = schema::strings(&field["x-also"]).into_iter();
            names.extend(also.map(|also| also.split("; ").next().unwrap_or_default()));
        }
        names.sort_unstable();
        let repeated: Vec<&[&str]> = names.windows(2).filter(|two| two[0] == two[1]).collect();
        assert_eq!(repeated, Vec::<&[&str]>::new());
        assert_eq!(schema::other_names()["lora_rank"].setting, "lora.r");
    }
}
