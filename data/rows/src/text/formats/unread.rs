//! What rows have and nobody reads, counted.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::DataFormat;
use crate::text::tool_results::ToolNotes;

/// Lines for one kind at most; a row whose keys are data could have any number.
const MAX_LINES: usize = 10;

/// How often something stands in the rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unread {
    /// Rows that have it.
    pub n_rows: usize,
    /// The first of them.
    pub first: String,
}

/// What the rows of a run have and its formats do not read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotRead {
    /// Fields of rows, by their names.
    pub fields: BTreeMap<String, Unread>,
    /// Words for types of parameters that are not known, and allow any value.
    pub types: BTreeMap<String, Unread>,
}

/// What whoever trains should know of the rows beside what becomes of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowNotes {
    /// What the formats of the rows do not read.
    pub not_read: NotRead,
    /// Calls and results of tools that do not belong together.
    pub tools: ToolNotes,
}

impl RowNotes {
    /// Adds the counts of a further file.
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

impl NotRead {
    /// Counts the fields of a row that `format` does not read; null stands for none.
    pub(in crate::text) fn count_fields(
        &mut self,
        id: &str,
        format: DataFormat,
        fields: &Map<String, Value>,
    ) {
        let read = format.fields();
        for (name, value) in fields {
            if !read.contains(&name.as_str()) && !value.is_null() {
                count(&mut self.fields, name, id);
            }
        }
    }

    pub(in crate::text) fn count_types(&mut self, id: &str, words: &[String]) {
        for word in words {
            count(&mut self.types, word, id);
        }
    }

    fn add(&mut self, later: &Self) {
        for (sum, part) in [
            (&mut self.fields, &later.fields),
            (&mut self.types, &later.types),
        ] {
            for (name, unread) in part {
                match sum.get_mut(name) {
                    Some(found) => found.n_rows += unread.n_rows,
                    None => drop(sum.insert(name.clone(), unread.clone())),
                }
            }
        }
    }

    /// A line for each of the commonest, and one for the others.
    fn lines(&self) -> Vec<String> {
        let fields = lines_of(&self.fields, |name, rows| {
            format!("the field {name:?} of {rows} is not read")
        });
        let types = lines_of(&self.types, |word, rows| {
            format!(
                "the type {word:?} of a parameter, in {rows} is not known: such parameters take \
                 any value"
            )
        });
        fields.into_iter().chain(types).collect()
    }
}

fn count(counts: &mut BTreeMap<String, Unread>, name: &str, id: &str) {
    match counts.get_mut(name) {
        Some(found) => found.n_rows += 1,
        None => {
            let first = id.to_owned();
            counts.insert(name.to_owned(), Unread { n_rows: 1, first });
        }
    }
}

fn lines_of(
    counts: &BTreeMap<String, Unread>,
    line: impl Fn(&str, String) -> String,
) -> Vec<String> {
    let mut all: Vec<_> = counts.iter().collect();
    all.sort_by_key(|(_, unread)| Reverse(unread.n_rows));
    let mut lines: Vec<String> = all
        .iter()
        .take(MAX_LINES)
        .map(|(name, Unread { n_rows, first })| {
            let rows = match n_rows {
                1 => first.clone(),
                n => format!("{n} rows, such as {first},"),
            };
            line(name, rows)
        })
        .collect();
    if let Some(n_more @ 1..) = all.len().checked_sub(MAX_LINES) {
        lines.push(format!("and so are {n_more} further ones"));
    }
    lines
}
