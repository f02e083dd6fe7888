//! Joins saved predictions with their rows by ID.
//!
//! Lines may be in any order. Each row needs exactly one line, and each line needs a row.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;
use tooltune_apis::{JsonLines, ToolsError};
use tooltune_suites::{SUITE_FIELD, SuiteInfo};

use crate::error::Error;

/// Maximum number of IDs listed in a message.
const MAX_LISTED: usize = 3;

/// A line of a predictions file.
#[derive(Debug, Clone, PartialEq)]
pub struct Saved<T> {
    /// Row id.
    pub id: String,
    /// Location as `file:line`.
    pub location: String,
    /// The parsed value.
    pub value: T,
}

/// Rows to join with predictions.
#[derive(Debug, Clone)]
pub struct JoinedRows<'a> {
    /// Plural noun for the rows in messages.
    pub what: &'static str,
    /// Row ids, in order.
    pub ids: Vec<&'a str>,
    /// Whether IDs are file and line, as in `dev.jsonl:3`. The folder of the file is then ignored.
    pub are_places: bool,
    /// Whether `eval.max_samples` dropped rows. Predictions for these rows are then also dropped.
    pub are_limited: bool,
}

/// Predictions in the order of their rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Joined<T> {
    /// One entry per row.
    pub values: Vec<T>,
    /// A note about dropped predictions.
    pub note: Option<String>,
}

/// Reads the predictions of a suite from a row file. Each line has an `id` (or the ID field of the
/// suite's published files) and the fields that `value` parses.
///
/// # Errors
///
/// The file cannot be read, or a line has no id, names a different suite, or is rejected by
/// `value`.
pub fn read_saved<T>(
    path: &Path,
    suite: &SuiteInfo,
    published_id: Option<&str>,
    value: impl Fn(Value) -> Result<T, String>,
) -> Result<Vec<Saved<T>>, Error> {
    let mut saved = Vec::new();
    let records = tooltune_files::open(path).map_err(ToolsError::from)?;
    for line in JsonLines::from_records(records) {
        let (location, line) = line?;
        let refused = |reason: String| Error::Usage(format!("{location}: {reason}"));
        if let Some(other) = line.get(SUITE_FIELD).and_then(Value::as_str)
            && other != suite.name
        {
            return Err(refused(format!(
                "this line is a prediction for the suite {other}, not for {}; add --suite \
                 {other}, or use predictions for {}",
                suite.name, suite.name
            )));
        }
        let names = ["id"].into_iter().chain(published_id);
        let id = names.into_iter().find_map(|name| line.get(name)?.as_str());
        let Some(id) = id.map(str::to_owned) else {
            return Err(refused(
                "the line has no id; write each line as {\"id\": ..., \"prediction\": ...} with \
                 the id of its row, like `tooltune eval --output`"
                    .to_owned(),
            ));
        };
        let value = value(line).map_err(refused)?;
        saved.push(Saved {
            id,
            location,
            value,
        });
    }
    Ok(saved)
}

/// Assigns each row its prediction.
///
/// # Errors
///
/// Two lines or two rows have the same id, a line has no row, or a row has no line.
pub fn join_saved<T>(
    path: &Path,
    saved: Vec<Saved<T>>,
    rows: &JoinedRows<'_>,
) -> Result<Joined<T>, Error> {
    let refused = |message: String| Err(Error::Usage(message));
    let what = rows.what;
    let keys = Keys::new(rows);
    if let Some(id) = keys.repeated {
        return refused(format!(
            "two {what} have the id {id:?}, so predictions cannot be joined with them; give \
             each its own id"
        ));
    }
    let mut lines: HashMap<usize, Saved<T>> = HashMap::with_capacity(saved.len());
    let mut unknown: Vec<(String, String)> = Vec::new();
    let mut strays: HashMap<String, String> = HashMap::new();
    let n_saved = saved.len();
    for line in saved {
        let Some(row) = keys.row(&line.id) else {
            if let Some(first) = strays.insert(line.id.clone(), line.location.clone()) {
                return refused(duplicate_message(&line.location, &line.id, &first));
            }
            unknown.push((line.id, line.location));
            continue;
        };
        if let Some(first) = lines.get(&row) {
            return refused(duplicate_message(&line.location, &line.id, &first.location));
        }
        lines.insert(row, line);
    }
    if lines.is_empty() && !rows.ids.is_empty() && !unknown.is_empty() {
        let ids: Vec<&str> = unknown.iter().map(|(id, _)| id.as_str()).collect();
        return refused(format!(
            "{}: none of its {n_saved} predictions belongs to these {} {what}: their ids are {}, but the \
                 ids of the {what} are {}; name other rows with --data, or use predictions \
                 for these rows",
            path.display(),
            rows.ids.len(),
            quote_ids(&ids),
            quote_ids(&rows.ids)
        ));
    }
    if let Some((id, location)) = unknown.first().filter(|_| !rows.are_limited) {
        return refused(format!(
            "{location}: {:?} is not the id of any of the {} {what} ({} of {n_saved} predictions \
             have unknown ids); use only predictions of these {what}",
            excerpt(id),
            rows.ids.len(),
            unknown.len()
        ));
    }
    let missing = (0..rows.ids.len()).filter(|row| !lines.contains_key(row));
    let missing: Vec<&str> = missing.map(|row| rows.ids[row]).collect();
    if !missing.is_empty() {
        return refused(format!(
            "{}: {} of {} {what} have no prediction, such as {}; add one line for each, or score \
             fewer rows with --set eval.max_samples=N",
            path.display(),
            missing.len(),
            rows.ids.len(),
            quote_ids(&missing)
        ));
    }
    let note = (!unknown.is_empty()).then(|| {
        format!(
            "dropped {} of {n_saved} predictions of rows beyond eval.max_samples",
            unknown.len()
        )
    });
    let values = (0..rows.ids.len()).filter_map(|row| lines.remove(&row));
    Ok(Joined {
        values: values.map(|line| line.value).collect(),
        note,
    })
}

fn duplicate_message(location: &str, id: &str, first: &str) -> String {
    format!(
        "{location}: duplicate id {:?} (first at {first}); keep one line per row",
        excerpt(id)
    )
}

/// Maps IDs to row indices.
struct Keys<'a> {
    by_id: HashMap<&'a str, usize>,
    /// Rows by file name and line, without the folder; `None` if several rows have the same name
    /// and line.
    by_location: HashMap<&'a str, Option<usize>>,
    repeated: Option<&'a str>,
}

impl<'a> Keys<'a> {
    fn new(rows: &JoinedRows<'a>) -> Self {
        let mut keys = Self {
            by_id: HashMap::new(),
            by_location: HashMap::new(),
            repeated: None,
        };
        for (row, &id) in rows.ids.iter().enumerate() {
            if keys.by_id.insert(id, row).is_some() {
                keys.repeated.get_or_insert(id);
            }
            if rows.are_places {
                let entry = keys
                    .by_location
                    .entry(file_and_line(id))
                    .or_insert(Some(row));
                *entry = entry.filter(|known| *known == row);
            }
        }
        keys
    }

    fn row(&self, id: &str) -> Option<usize> {
        let exact = self.by_id.get(id).copied();
        exact.or_else(|| self.by_location.get(file_and_line(id)).copied().flatten())
    }
}

/// The part of a row ID after the folder: file name and line.
pub fn file_and_line(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or(id)
}

fn quote_ids(ids: &[&str]) -> String {
    let first = ids.iter().take(MAX_LISTED);
    let mut quoted: Vec<String> = first.map(|id| format!("{:?}", excerpt(id))).collect();
    if ids.len() > MAX_LISTED {
        quoted.push("...".to_owned());
    }
    quoted.join(", ")
}

/// The beginning of a text, for messages.
pub fn excerpt(text: &str) -> String {
    text.chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved_lines(ids: &[&str]) -> Vec<Saved<String>> {
        let lines = ids.iter().enumerate();
        lines
            .map(|(idx, id)| Saved {
                id: (*id).to_owned(),
                location: format!("saved.jsonl:{}", idx + 1),
                value: format!("of {id}"),
            })
            .collect()
    }

    fn rows<'a>(ids: &[&'a str]) -> JoinedRows<'a> {
        JoinedRows {
            what: "rows",
            ids: ids.to_vec(),
            are_places: true,
            are_limited: false,
        }
    }

    fn join(lines: &[&str], rows: &JoinedRows<'_>) -> Result<Joined<String>, String> {
        join_saved(Path::new("saved.jsonl"), saved_lines(lines), rows)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn each_row_gets_the_line_with_its_id_in_any_order() {
        let rows = rows(&["x/b.jsonl:1", "x/b.jsonl:2"]);
        for lines in [
            ["x/b.jsonl:2", "x/b.jsonl:1"],
            ["old/b.jsonl:2", "b.jsonl:1"],
        ] {
            let joined = join(&lines, &rows).expect("joined");
            assert_eq!(
                joined.values,
                [format!("of {}", lines[1]), format!("of {}", lines[0])]
            );
            assert_eq!(joined.note, None);
        }
    }

    #[test]
    fn a_file_name_only_identifies_a_unique_row() {
        let two = rows(&["x/b:1", "y/b:1"]);
        let joined = join(&["y/b:1", "x/b:1"], &two).expect("joined");
        assert_eq!(joined.values, ["of x/b:1", "of y/b:1"]);
        let error = join(&["b:1", "x/b:1"], &two).expect_err("ambiguous");
        assert!(error.starts_with("saved.jsonl:1: \"b:1\" is not the id of any"));
        let own = JoinedRows {
            are_places: false,
            ..rows(&["get/tide"])
        };
        assert!(join(&["tide"], &own).is_err());
    }

    #[test]
    fn duplicate_missing_and_unknown_ids_are_refused_with_locations() {
        let two = rows(&["b:1", "b:2"]);
        for (lines, expected) in [
            (
                vec!["b:1", "b:2", "b:1"],
                "saved.jsonl:3: duplicate id \"b:1\" (first at saved.jsonl:1)",
            ),
            (
                vec!["b:1", "c:9", "c:9", "b:2"],
                "saved.jsonl:3: duplicate id \"c:9\" (first at saved.jsonl:2)",
            ),
            (
                vec!["b:1"],
                "saved.jsonl: 1 of 2 rows have no prediction, such as \"b:2\"",
            ),
            (
                vec!["b:1", "b:2", "b:3"],
                "saved.jsonl:3: \"b:3\" is not the id of any of the 2 rows (1 of 3 predictions",
            ),
            (
                vec!["a:1", "a:2", "a:3", "a:4"],
                "saved.jsonl: none of its 4 predictions belongs to these 2 rows: their ids are \"a:1\", \
                 \"a:2\", \"a:3\", ..., but the ids of the rows are \"b:1\", \"b:2\"",
            ),
            (
                vec![],
                "saved.jsonl: 2 of 2 rows have no prediction, such as \"b:1\", \"b:2\"",
            ),
        ] {
            let error = join(&lines, &two).expect_err(expected);
            assert!(error.starts_with(expected), "{error}");
        }
        let error = join(&["b:1"], &rows(&["b:1", "b:1"])).expect_err("two rows");
        assert!(error.starts_with("two rows have the id \"b:1\""), "{error}");
    }

    #[test]
    fn predictions_beyond_a_limit_are_left_out_and_counted() {
        let limited = JoinedRows {
            are_limited: true,
            ..rows(&["b:1"])
        };
        let joined = join(&["b:2", "b:1", "b:3"], &limited).expect("joined");
        assert_eq!(joined.values, ["of b:1"]);
        let note = joined.note.expect("a note");
        assert!(note.starts_with("dropped 2 of 3 predictions"));
    }
}
