//! Counts fields of rows that are not read.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::DataFormat;
use crate::text::tool_results::ToolNotes;

/// Maximum lines per kind. Without it, rows that use data as keys could produce any number.
const MAX_LINES: usize = 10;

/// Metadata field of rows in any format. It is not used in training and not counted as unread,
/// because its name declares that it is not training data.
const METADATA: &str = "metadata";

/// Number of occurrences in rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadCount {
    /// Number of rows with this entry.
    pub n_rows: usize,
    /// Id of the first row with this entry.
    pub first: String,
}

/// Information in the rows of a run that their formats do not read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadData {
    /// Unread fields of rows by name.
    pub fields: BTreeMap<String, UnreadCount>,
    /// Unknown type names of parameters, which accept any value.
    pub types: BTreeMap<String, UnreadCount>,
}

/// Notes about rows to report before training.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowNotes {
    /// Information that the formats do not read.
    pub not_read: UnreadData,
    /// Mismatches between tool calls and results.
    pub tools: ToolNotes,
}

impl RowNotes {
    /// Adds the counts of a later file.
    pub fn add(&mut self, later: &Self) {
        self.not_read.add(&later.not_read);
        self.tools.add(&later.tools);
    }

    /// The notes as sentences.
    pub fn lines(&self) -> Vec<String> {
        let not_read = self.not_read.lines();
        not_read.into_iter().chain(self.tools.lines()).collect()
    }
}

impl UnreadData {
    /// Counts the fields of a row that `format` does not read, except null and [`METADATA`].
    pub(in crate::text) fn count_fields(
        &mut self,
        id: &str,
        format: DataFormat,
        fields: &Map<String, Value>,
    ) {
        let known_fields = format.fields();
        for (name, value) in fields {
            let is_read = known_fields.contains(&name.as_str()) || name == METADATA;
            if !is_read && !value.is_null() {
                count(&mut self.fields, name, id);
            }
        }
    }

    pub(in crate::text) fn count_types(&mut self, id: &str, words: &[String]) {
        for type_name in words {
            count(&mut self.types, type_name, id);
        }
    }

    fn add(&mut self, later: &Self) {
        for (sum, part) in [
            (&mut self.fields, &later.fields),
            (&mut self.types, &later.types),
        ] {
            for (name, unread) in part {
                match sum.get_mut(name) {
                    Some(total) => total.n_rows += unread.n_rows,
                    None => drop(sum.insert(name.clone(), unread.clone())),
                }
            }
        }
    }

    /// One line for each of the most frequent entries, and one for the rest.
    fn lines(&self) -> Vec<String> {
        let fields = format_lines(&self.fields, |name, rows| {
            format!("the field {name:?} of {rows} is not read")
        });
        let types = format_lines(&self.types, |word, rows| {
            format!(
                "the parameter type {word:?} in {rows} is unknown: such parameters accept any value"
            )
        });
        fields.into_iter().chain(types).collect()
    }
}

fn count(counts: &mut BTreeMap<String, UnreadCount>, name: &str, id: &str) {
    match counts.get_mut(name) {
        Some(entry) => entry.n_rows += 1,
        None => {
            let first = id.to_owned();
            counts.insert(name.to_owned(), UnreadCount { n_rows: 1, first });
        }
    }
}

fn format_lines(
    counts: &BTreeMap<String, UnreadCount>,
    line: impl Fn(&str, String) -> String,
) -> Vec<String> {
    let mut all: Vec<_> = counts.iter().collect();
    all.sort_by_key(|(_, unread)| Reverse(unread.n_rows));
    let mut lines: Vec<String> = all
        .iter()
        .take(MAX_LINES)
        .map(|(name, UnreadCount { n_rows, first })| {
            let rows = match n_rows {
                1 => first.clone(),
                n => format!("{n} rows, such as {first},"),
            };
            line(name, rows)
        })
        .collect();
    if let Some(n_more @ 1..) = all.len().checked_sub(MAX_LINES) {
        lines.push(format!("the same applies to {n_more} more"));
    }
    lines
}
