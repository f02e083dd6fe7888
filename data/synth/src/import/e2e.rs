//! Makes rows of the E2E restaurant descriptions: `mr,ref` in comma-separated values.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Map, Value};
use tooltune_rows::text::SlotRow;
use tooltune_rows::tools::read_text;

use super::gold::row_of;
use super::{ImportError, Imported};

const FORMAT: &str = "the columns mr and ref, with mr such as `name[Alimentum], area[riverside]`";

/// Which lines become rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum E2eRows {
    /// All of them.
    #[default]
    Every,
    /// The first of each meaning representation, as GEM counts the cleaned sets: dev 1,484, test
    /// 1,847.
    OnePerMeaning,
    /// Those whose text speaks of every attribute, since crowd workers left some out: a value must
    /// stand in the text, and for rating, price and family friendliness one of the words by which
    /// texts speak of them, whatever the case. This is a filter by rule and errs on the side of
    /// keeping: `moderately` counts as a word about ratings, too.
    Mentioned,
}

/// Imports a file of the E2E data, original or cleaned.
///
/// One row for each line that `rows` selects: the text is `ref`, the gold the attributes of `mr`
/// in their order, all texts, keys as they are written (`customer rating`). Of an attribute that
/// comes again, as in some cleaned lines, the last value counts; the others are counted.
///
/// # Errors
///
/// - the file cannot be read, is no comma-separated values, or lacks a column, as the test set
///   without references does
///
/// # Source
///
/// SLOT, appendix D.1, whose example agrees with the cleaned set and not with the original one.
pub fn import_e2e(path: &Path, rows: E2eRows) -> Result<Imported, ImportError> {
    let text = read_text(path)?;
    let file = path.display();
    let bad = |place: String, reason: String| ImportError::Format {
        place,
        reason,
        expected: FORMAT,
    };
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let header = reader.headers();
    let header = header.map_err(|error| bad(file.to_string(), error.to_string()))?;
    let column = |name: &str| {
        let found = header.iter().position(|column| column.trim() == name);
        found.ok_or_else(|| bad(file.to_string(), format!("there is no column {name}")))
    };
    let (mr_column, ref_column) = (column("mr")?, column("ref")?);
    let mut imported = Imported::default();
    let mut seen = HashSet::new();
    let mut lines = LineCount::new(&text);
    for record in reader.records() {
        let record = record.map_err(|error| bad(file.to_string(), error.to_string()))?;
        let line = lines.of(record.position().map_or(0, csv::Position::byte));
        let field = |column: usize| record.get(column).unwrap_or_default();
        let (meaning, text) = (field(mr_column), field(ref_column));
        let is_repeated = rows == E2eRows::OnePerMeaning && !seen.insert(meaning.to_owned());
        let outcome = if is_repeated {
            Err("the meaning had a text already")
        } else {
            let id = format!("{file}:{line}");
            attributes(meaning, &mut imported).and_then(|gold| line_row(id, gold, text, rows))
        };
        imported.record(outcome);
    }
    Ok(imported)
}

/// Lines of records, counted once for records that come in order.
///
/// The lines that the reader itself counts are one short where lines end in `\r\n`, because it
/// begins a record before the `\n`.
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

    /// The line, from 1, of a record that begins at a byte, or at a line break before it.
    fn of(&mut self, byte: u64) -> usize {
        let begin = usize::try_from(byte).unwrap_or(usize::MAX);
        let rest = self.text.as_bytes().get(self.byte..).unwrap_or_default();
        let within = begin.saturating_sub(self.byte);
        let is_break = |byte: &&u8| matches!(byte, b'\r' | b'\n');
        let n_breaks = rest.iter().skip(within).take_while(is_break).count();
        let passed = rest.iter().take(within + n_breaks);
        self.line += passed.filter(|byte| **byte == b'\n').count();
        self.byte += (within + n_breaks).min(rest.len());
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
    if rows == E2eRows::Mentioned && !speaks_of_all(text, &gold) {
        return Err("an attribute is not mentioned in the text");
    }
    Ok(row_of(id, text, gold))
}

/// `name[Alimentum], customer rating[5 out of 5]` as an object of texts; of an attribute that comes
/// again the last value counts.
fn attributes(meaning: &str, imported: &mut Imported) -> Result<Map<String, Value>, &'static str> {
    const UNREADABLE: &str = "the meaning representation is malformed";
    let mut attributes = Map::new();
    let mut rest = meaning.trim();
    while !rest.is_empty() {
        let (name, after_name) = rest.split_once('[').ok_or(UNREADABLE)?;
        let (value, after_value) = after_name.split_once(']').ok_or(UNREADABLE)?;
        let name = name.trim();
        if name.is_empty() || name.contains([',', ']']) || value.contains('[') {
            return Err(UNREADABLE);
        }
        if attributes.insert(name.to_owned(), value.into()).is_some() {
            imported.leave_out("an attribute that comes again in its meaning representation");
        }
        rest = after_value.trim_start();
        if !rest.is_empty() {
            rest = rest.strip_prefix(',').ok_or(UNREADABLE)?.trim_start();
        }
    }
    if attributes.is_empty() {
        Err("the meaning representation is empty")
    } else {
        Ok(attributes)
    }
}

/// Words by which texts speak of attributes whose values they put in words of their own.
const SPOKEN_OF: [(&str, &[&str]); 3] = [
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

fn speaks_of_all(text: &str, gold: &Map<String, Value>) -> bool {
    let text = text.to_lowercase();
    gold.iter().all(|(name, value)| {
        let spoken_of = SPOKEN_OF.iter().find(|(known, _)| known == name);
        match spoken_of {
            Some((_, words)) => words.iter().any(|word| text.contains(word)),
            None => value
                .as_str()
                .is_some_and(|value| text.contains(&value.to_lowercase())),
        }
    })
}
