//! Imports the E2E restaurant descriptions: CSV with the columns `mr` and `ref`.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Map, Value};
use tooltune_apis::read_text;
use tooltune_rows::text::SlotRow;

use super::gold::slot_row;
use super::{ImportError, Imported};

const FORMAT: &str = "the columns mr and ref, with mr such as `name[Alimentum], area[riverside]`";

/// Which lines become rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum E2eRows {
    /// All lines.
    #[default]
    Every,
    /// The first line of each meaning representation, as GEM counts the cleaned sets: dev 1,484,
    /// test 1,847.
    OnePerMeaning,
    /// Lines whose text mentions every attribute, because crowd workers omitted some. A value must
    /// occur in the text; for rating, price and family friendliness, one of the usual words is
    /// enough, in upper or lower case. This rule errs on the side of keeping lines: `moderately`
    /// also counts as a word about ratings.
    Mentioned,
}

/// Imports a file of the E2E data, original or cleaned.
///
/// Each line selected by `rows` gives a row: the text is `ref`, and the gold value has the
/// attributes of `mr` in order, all as strings, with unchanged keys (`customer rating`). If an
/// attribute is repeated, as in some cleaned lines, its last value is used and the others are
/// counted.
///
/// # Errors
///
/// The file cannot be read, is not CSV, or lacks a column; the test set without references lacks
/// one.
///
/// # Source
///
/// SLOT, appendix D.1; its example agrees with the cleaned set and not with the original one.
pub fn import_e2e(path: &Path, rows: E2eRows) -> Result<Imported, ImportError> {
    let text = read_text(path)?;
    let file = path.display();
    let format_error = |location: String, reason: String| ImportError::Format {
        place: location,
        reason,
        expected: FORMAT,
    };
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let header = reader.headers();
    let header = header.map_err(|error| format_error(file.to_string(), error.to_string()))?;
    let column = |name: &str| {
        let column_idx = header.iter().position(|column| column.trim() == name);
        column_idx.ok_or_else(|| format_error(file.to_string(), format!("no column {name}")))
    };
    let (mr_column, ref_column) = (column("mr")?, column("ref")?);
    let mut imported = Imported::default();
    let mut seen_meanings = HashSet::new();
    let mut lines = LineCount::new(&text);
    for record in reader.records() {
        let record = record.map_err(|error| format_error(file.to_string(), error.to_string()))?;
        let line = lines.line_at(record.position().map_or(0, csv::Position::byte));
        let field = |column: usize| record.get(column).unwrap_or_default();
        let (meaning, text) = (field(mr_column), field(ref_column));
        let is_repeated =
            rows == E2eRows::OnePerMeaning && !seen_meanings.insert(meaning.to_owned());
        let outcome = if is_repeated {
            Err("the meaning representation already had a text")
        } else {
            let id = format!("{file}:{line}");
            attributes(meaning, &mut imported).and_then(|gold| line_row(id, gold, text, rows))
        };
        imported.record(outcome);
    }
    Ok(imported)
}

/// Line numbers of records, counted incrementally for records in order.
///
/// The CSV reader's own count is one too low for `\r\n` line ends, because it starts a record before
/// the `\n`.
struct LineCount<'t> {
    text: &'t str,
    byte: usize,
    line: usize,
}

impl<'t> LineCount<'t> {
    fn new(text: &'t str) -> Self {
        let (byte, line) = (0, 1);
        Self { text, byte, line }
    }

    /// The line number, from 1, of a record that starts at a byte, or after a line break at that
    /// byte.
    fn line_at(&mut self, byte: u64) -> usize {
        let start = usize::try_from(byte).unwrap_or(usize::MAX);
        let remaining = self.text.as_bytes().get(self.byte..).unwrap_or_default();
        let offset = start.saturating_sub(self.byte);
        let is_break = |byte: &&u8| matches!(byte, b'\r' | b'\n');
        let n_breaks = remaining.iter().skip(offset).take_while(is_break).count();
        let skipped = remaining.iter().take(offset + n_breaks);
        self.line += skipped.filter(|byte| **byte == b'\n').count();
        self.byte += (offset + n_breaks).min(remaining.len());
        self.line
    }
}

fn line_row(
    id: String,
    gold: Map<String, Value>,
    text: &str,
    rows: E2eRows,
) -> Result<SlotRow, &'static str> {
    if text.trim().is_empty() {
        return Err("the text is empty");
    }
    if rows == E2eRows::Mentioned && !mentions_all(text, &gold) {
        return Err("an attribute is not mentioned in the text");
    }
    Ok(slot_row(id, text, gold))
}

/// Parses `name[Alimentum], customer rating[5 out of 5]` as an object of strings. If an attribute
/// is repeated, its last value is used.
fn attributes(meaning: &str, imported: &mut Imported) -> Result<Map<String, Value>, &'static str> {
    const UNREADABLE: &str = "the meaning representation is malformed";
    let mut attributes = Map::new();
    let mut remaining = meaning.trim();
    while !remaining.is_empty() {
        let (name, after_name) = remaining.split_once('[').ok_or(UNREADABLE)?;
        let (value, after_value) = after_name.split_once(']').ok_or(UNREADABLE)?;
        let name = name.trim();
        if name.is_empty() || name.contains([',', ']']) || value.contains('[') {
            return Err(UNREADABLE);
        }
        if attributes.insert(name.to_owned(), value.into()).is_some() {
            imported.skip("a repeated attribute in its meaning representation");
        }
        remaining = after_value.trim_start();
        if !remaining.is_empty() {
            remaining = remaining.strip_prefix(',').ok_or(UNREADABLE)?.trim_start();
        }
    }
    if attributes.is_empty() {
        Err("the meaning representation is empty")
    } else {
        Ok(attributes)
    }
}

/// Words that indicate attributes whose values are usually paraphrased.
const PARAPHRASES: [(&str, &[&str]); 3] = [
    ("familyFriendly", &["famil", "child", "kid"]),
    ("customer rating", &["rat", "star", "out of", "review"]),
    (
        "priceRange",
        &[
            "pric",
            "£",
            "cheap",
            "expensive",
            "cost",
            "moderate",
            "afford",
        ],
    ),
];

fn mentions_all(text: &str, gold: &Map<String, Value>) -> bool {
    let text = text.to_lowercase();
    gold.iter().all(|(name, value)| {
        let paraphrases = PARAPHRASES
            .iter()
            .find(|(known_name, _)| known_name == name);
        match paraphrases {
            Some((_, words)) => words.iter().any(|word| text.contains(word)),
            None => value
                .as_str()
                .is_some_and(|value| text.contains(&value.to_lowercase())),
        }
    })
}
