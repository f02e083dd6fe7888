//! Reads trajectories from JSON Lines, one at a time.
//!
//! Errors name file, line and field. The reader then continues with the next line, so callers can
//! list all errors of a file.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::iter;
use std::path::Path;

use tooltune_json as json;
use tooltune_json::ReadError;
use tooltune_json::faults::collect_rows;
use tooltune_json::json_schema::FormatRule;
use tooltune_json::lines::{Records, open_rows};

use super::catalogue::ApiCatalogue;
use super::error::ToolsError;
use super::source::TextLines;
use super::trajectory::Trajectory;

/// Opens a file of trajectories, optionally gzip-compressed.
///
/// A row without an `id` is named `file:line`. The reader checks the structure of each row;
/// [`Trajectory::check`] checks its contents.
///
/// # Errors
///
/// - the file cannot be opened
///
/// The iterator yields an error for a file without rows, a line that is not UTF-8 or not JSON, a
/// duplicate key, an integer beyond 64 bits, and a field that is missing, unknown or of the
/// wrong type.
pub fn read_trajectories(path: &Path) -> Result<TrajectoryReader, ToolsError> {
    Ok(TrajectoryReader::new(open_rows(path)?))
}

/// Iterates over the trajectories of a file; created by [`read_trajectories`].
#[derive(Debug)]
pub struct TrajectoryReader {
    lines: TextLines,
    is_done: bool,
}

/// Opens a file of trajectories and checks each row with [`Trajectory::check`]. Errors name file,
/// line and id.
///
/// # Errors
///
/// As [`read_trajectories`].
pub fn read_checked_trajectories<'c>(
    path: &Path,
    catalogue: &'c ApiCatalogue,
) -> Result<CheckedTrajectories<'c>, ToolsError> {
    Ok(CheckedTrajectories::new(open_rows(path)?, catalogue))
}

/// Reads and checks at most `limit` trajectories from several files. Ids must be unique, because
/// predictions refer to them. The rows are for evaluation, so formats such as `date` are not
/// asserted.
///
/// # Errors
///
/// - rows cannot be read or do not match `catalogue`; the error lists all bad rows
/// - two rows have the same id; the error names both lines
pub fn read_distinct_trajectories(
    files: Vec<Box<dyn Records>>,
    catalogue: &ApiCatalogue,
    limit: usize,
) -> Result<Vec<Trajectory>, ToolsError> {
    let rows = files
        .into_iter()
        .map(|records| CheckedTrajectories {
            formats: FormatRule::Annotated,
            ..CheckedTrajectories::new(records, catalogue)
        })
        .flat_map(|mut reader| iter::from_fn(move || reader.next_located()));
    let mut locations_by_id: HashMap<String, String> = HashMap::new();
    let distinct = rows.take(limit).map(|row| {
        let (location, row) = row?;
        match locations_by_id.entry(row.id.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(location);
                Ok(row)
            }
            Entry::Occupied(first) => {
                let (id, first) = (row.id, first.get().clone());
                Err(ToolsError::DuplicateTrajectory { id, first }.at(location))
            }
        }
    });
    collect_rows(distinct)
}

/// Iterates over the trajectories of a file, each checked by [`Trajectory::check`]. Errors name
/// file, line and id.
#[derive(Debug)]
pub struct CheckedTrajectories<'c> {
    rows: TrajectoryReader,
    catalogue: &'c ApiCatalogue,
    formats: FormatRule,
}

impl<'c> CheckedTrajectories<'c> {
    /// Reads and checks the trajectories of an open file.
    pub fn new(records: Box<dyn Records>, catalogue: &'c ApiCatalogue) -> Self {
        Self {
            rows: TrajectoryReader::new(records),
            catalogue,
            formats: FormatRule::Asserted,
        }
    }

    fn next_located(&mut self) -> Option<Result<(String, Trajectory), ToolsError>> {
        let row = self.rows.next_located()?;
        Some(row.and_then(|(location, row)| {
            row.check_at(&location, self.catalogue, self.formats)?;
            Ok((location, row))
        }))
    }
}

impl Iterator for CheckedTrajectories<'_> {
    type Item = Result<Trajectory, ToolsError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.next_located()?.map(|(_, row)| row))
    }
}

impl Iterator for TrajectoryReader {
    type Item = Result<Trajectory, ToolsError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.next_located()?.map(|(_, row)| row))
    }
}

impl TrajectoryReader {
    /// Reads the trajectories of an open file.
    pub fn new(records: Box<dyn Records>) -> Self {
        Self {
            lines: TextLines::from_records(records),
            is_done: false,
        }
    }

    /// The rows in order, each with its location `file:line`.
    pub fn with_locations(
        mut self,
    ) -> impl Iterator<Item = Result<(String, Trajectory), ToolsError>> {
        iter::from_fn(move || self.next_located())
    }

    /// The next row with its location `file:line`.
    fn next_located(&mut self) -> Option<Result<(String, Trajectory), ToolsError>> {
        let Some(line) = self.lines.next() else {
            let is_empty = !self.is_done && !self.lines.has_any();
            self.is_done = true;
            let what = "trajectories";
            let file = self.lines.path().display().to_string();
            return is_empty.then(|| Err(ToolsError::Empty { what }.at(file)));
        };
        // Report an unreadable file as such, not as an empty file.
        self.is_done |= line.is_err();
        Some(line.and_then(|(file, text)| {
            let value = json::parse_unique(&text)
                .map_err(|error| ToolsError::from_row_json(error).at(&file))?;
            if let Some(oversized) = json::oversized_integer(&text, |_| true) {
                return Err(ToolsError::from(ReadError::from(oversized)).at(&file));
            }
            let mut row = Trajectory::try_from(value).map_err(|error| error.at(&file))?;
            if row.id.is_empty() {
                row.id.clone_from(&file);
            }
            Ok((file, row))
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;
    use crate::ApiDocument;

    fn read(text: &str) -> Vec<Result<Trajectory, ToolsError>> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.jsonl");
        fs::write(&path, text).expect("written");
        read_trajectories(&path).expect("opens").collect()
    }

    fn long_form() -> Value {
        json!({"id": "r1", "query": "Who sings?", "response": "Ann.", "facts": ["Ann"],
            "subgraph": ["Tune/Find", "Tune/Singer"], "calls": [
            {"sub_query": "Find it.", "name": "Tune/Find", "arguments": {"q": "x"}, "output": {"id": 3}},
            {"sub_query": "Its singer.", "name": "Tune/Singer", "arguments": {"id": 3}, "output": null,
             "derived": {"id": {"call": 0, "path": "id", "pick": "first"}}},
        ]})
    }

    fn short_form() -> Value {
        json!({"id": "r1", "query": "Who sings?", "response": "Ann.", "facts": ["Ann"],
            "subgraph": ["Tune/Find", "Tune/Singer"], "single_tool": true, "calls": [
            {"s": "Find it.", "c": {"name": "Tune/Find", "arguments": {"q": "x"}}, "o": {"id": 3}, "derived": {}},
            {"s": "Its singer.", "c": {"name": "Tune/Singer", "arguments": {"id": 3}}, "o": null,
             "derived": {"id": {"call": 0, "path": "id", "pick": "first"}}},
        ]})
    }

    #[test]
    fn an_integer_beyond_64_bits_is_rejected_with_its_path() {
        let text = long_form().to_string();
        let rows = read(&text.replacen("{\"id\":3}", "{\"id\":99999999999999999999}", 1));
        let error = rows[0].as_ref().expect_err("refused").to_string();
        let expected =
            "rows.jsonl:1: calls[0].output.id is the integer 99999999999999999999, which";
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn duplicate_keys_and_utf16_files_are_rejected_by_name() {
        let text = long_form().to_string();
        let twice = text.replacen("{\"id\":3}", "{\"id\":3,\"id\":4}", 1);
        let error = read(&twice)[0].as_ref().expect_err("twice").to_string();
        assert!(error.contains("rows.jsonl:1: column "), "{error}");
        assert!(error.contains("the key \"id\" occurs twice"), "{error}");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.jsonl");
        let units = format!("\u{feff}{text}\n");
        let bytes: Vec<u8> = units.encode_utf16().flat_map(u16::to_le_bytes).collect();
        fs::write(&path, bytes).expect("written");
        let rows: Vec<_> = read_trajectories(&path).expect("opens").collect();
        let error = rows[0].as_ref().expect_err("UTF-16").to_string();
        assert!(
            error.contains("rows.jsonl: the file is UTF-16; convert it"),
            "{error}"
        );
        assert_eq!(rows.len(), 1, "{rows:?}");
    }

    #[test]
    fn short_and_long_names_are_equivalent() {
        let rows = read(&format!("{}\n{}\n", long_form(), short_form()));
        let [first, second] = rows.as_slice() else {
            panic!("{rows:?}");
        };
        let (first, second) = (
            first.as_ref().expect("long"),
            second.as_ref().expect("short"),
        );
        assert_eq!(first, second);
        assert_eq!(first.calls[1].derived["id"].call, 0);
        assert_eq!(first.calls[1].output, Value::Null);
        let json = serde_json::to_value(first).expect("written");
        assert_eq!(json, long_form(), "rows are written in the long form");
        assert_eq!(
            &serde_json::from_value::<Trajectory>(json).expect("read"),
            first
        );
    }

    #[test]
    fn a_row_without_an_id_is_named_by_file_and_line() {
        let mut row = long_form();
        row.as_object_mut().expect("an object").remove("id");
        let rows = read(&format!("\n{row}\n"));
        let id = &rows[0].as_ref().expect("a row").id;
        assert!(id.ends_with("rows.jsonl:2"), "{id}");
    }

    fn catalogue() -> ApiCatalogue {
        let parameters = json!([{"name": "q"}, {"name": "id"}]);
        let document = |name: &str| {
            let document =
                json!({"tool_name": "Tune", "api_name": name, "optional_parameters": parameters});
            ApiDocument::try_from(document).expect("a document")
        };
        ApiCatalogue::new(["Find", "Singer"].map(document).to_vec()).expect("two names")
    }

    #[test]
    fn an_error_in_a_row_is_reported_with_file_line_and_id() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.jsonl");
        let (mut unknown, mut cyclic, mut empty) = (long_form(), long_form(), long_form());
        unknown["calls"][0]["name"] = json!("Tune/Fin");
        cyclic["calls"][1]["derived"]["id"]["call"] = json!(1);
        empty["calls"] = json!([]);
        empty.as_object_mut().expect("an object").remove("id");
        let rows = [long_form(), unknown, cyclic, empty].map(|row| row.to_string());
        fs::write(&path, rows.join("\n")).expect("written");
        let catalogue = catalogue();
        let read = read_checked_trajectories(&path, &catalogue).expect("opens");
        let faults: Vec<String> = read
            .filter_map(|row| Some(row.err()?.to_string()))
            .collect();
        assert_eq!(faults.len(), 3, "{faults:?}");
        for (fault, expected) in faults.iter().zip([
            "rows.jsonl:2: r1: calls[0].name: no API is called \"Tune/Fin\"",
            "rows.jsonl:3: r1: calls[1].derived.id takes its value from calls[1]",
            "rows.jsonl:4: calls is empty",
        ]) {
            assert!(fault.contains(expected), "{fault}");
        }
    }

    #[test]
    fn formats_are_asserted_in_trajectories_for_training_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.jsonl");
        let parameter = json!({"name": "day", "type": "string", "schema": {"type": "string", "format": "date"}});
        let document = json!({"api_name": "Book", "optional_parameters": [parameter]});
        let document = ApiDocument::try_from(document).expect("a document");
        let catalogue = ApiCatalogue::new(vec![document]).expect("one name");
        let arguments = json!({"day": "20 July 2026"});
        let mut row = long_form();
        row["subgraph"] = json!(["Book"]);
        row["calls"] =
            json!([{"sub_query": "", "name": "Book", "arguments": arguments, "output": 1}]);
        fs::write(&path, row.to_string()).expect("written");
        let mut read = read_checked_trajectories(&path, &catalogue).expect("opens");
        let message = read
            .next()
            .expect("a row")
            .expect_err("no date")
            .to_string();
        assert!(
            message.contains("is not a \"date\" (formats are checked"),
            "{message}"
        );
        let files = vec![open_rows(&path).expect("opens")];
        let evaluated = read_distinct_trajectories(files, &catalogue, 9);
        assert_eq!(evaluated.expect("no format is asserted").len(), 1);
    }

    #[test]
    fn a_duplicate_id_is_rejected_with_both_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = ["a.jsonl", "b.jsonl"].map(|name| folder.path().join(name));
        let mut other = long_form();
        other["id"] = json!("r2");
        fs::write(&paths[0], format!("{}\n{other}\n", long_form())).expect("written");
        fs::write(&paths[1], format!("\n{}\n", short_form())).expect("written");
        let read = |limit| {
            let files = paths.iter().map(|path| open_rows(path).expect("opens"));
            read_distinct_trajectories(files.collect(), &catalogue(), limit)
        };
        let message = read(usize::MAX).expect_err("twice").to_string();
        assert!(
            message.contains("b.jsonl:2: duplicate id \"r1\", first at "),
            "{message}"
        );
        assert!(message.contains("a.jsonl:1; give"), "{message}");
        assert_eq!(read(2).expect("distinct so far").len(), 2);
        assert_eq!(read(0).expect("nothing is read"), []);
    }

    #[test]
    fn errors_of_all_files_are_reported_together() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = ["a.jsonl", "b.jsonl"].map(|name| folder.path().join(name));
        let unknown = |id: &str| {
            let mut row = long_form();
            row["id"] = json!(id);
            row["calls"][0]["name"] = json!("Tune/Fin");
            row
        };
        let twice = long_form().to_string().replacen("{", "{\"id\":\"r0\",", 1);
        let first = format!("{}\n{}\n{twice}\n", long_form(), unknown("r2"));
        fs::write(&paths[0], first).expect("written");
        let second = format!("{}\n{}\n", unknown("r3"), short_form());
        fs::write(&paths[1], second).expect("written");
        let read = |limit| {
            let files = paths.iter().map(|path| open_rows(path).expect("opens"));
            read_distinct_trajectories(files.collect(), &catalogue(), limit)
        };
        let error = read(usize::MAX).expect_err("four faults");
        let is_unknown = matches!(error.fault(), ToolsError::UnknownApi { .. });
        assert!(is_unknown, "{error:?}");
        let message = error.to_string();
        let lines: Vec<&str> = message.lines().collect();
        for (line, expected) in lines.iter().zip([
            "a.jsonl:2: r2: calls[0].name: no API is called \"Tune/Fin\"",
            "a.jsonl:3: column ",
            "b.jsonl:1: r3: same error",
            "b.jsonl:2: duplicate id \"r1\", first at ",
        ]) {
            assert!(line.contains(expected), "{line}");
        }
        assert!(lines[1].contains("the key \"id\" occurs twice in one object; delete one of"));
        assert_eq!(lines.len(), 4, "{message}");
        // Rows beyond the limit are not read.
        assert_eq!(read(2).expect_err("one fault").to_string(), lines[0]);
        assert_eq!(read(1).expect("a sound row").len(), 1);

        let many: Vec<String> = (0..13)
            .map(|n| unknown(&n.to_string()).to_string())
            .collect();
        fs::write(&paths[0], many.join("\n")).expect("written");
        let message = read(12).expect_err("twelve faults").to_string();
        assert_eq!(message.lines().count(), 11, "{message}");
        assert_eq!(message.lines().last(), Some("and 2 more rows with errors"));
    }

    #[test]
    fn an_empty_file_is_one_error() {
        let rows = read(" \n");
        assert_eq!(rows.len(), 1);
        let message = rows[0].as_ref().expect_err("empty").to_string();
        assert!(
            message.contains("rows.jsonl: the file has no trajectories"),
            "{message}"
        );
    }

    #[test]
    fn reading_continues_after_an_invalid_row() {
        let rows = read(&format!("{{\"query\": \n{}\n", long_form()));
        let message = rows[0].as_ref().expect_err("broken").to_string();
        assert!(
            message.contains("rows.jsonl:1: not valid JSON"),
            "{message}"
        );
        assert!(rows[1].is_ok());
    }

    #[test]
    fn every_wrong_shape_names_its_field() {
        let cases: [(&str, Value, &str); 14] = [
            (
                "/query",
                json!(3),
                "query is a number, but must be a string",
            ),
            (
                "/qury",
                json!("x"),
                "unknown field \"qury\", did you mean \"query\"?",
            ),
            (
                "/calls",
                json!({}),
                "calls is an object, but must be a list",
            ),
            ("/calls", json!(null), "field \"calls\" is missing"),
            ("/response", json!(null), "field \"response\" is missing"),
            (
                "/facts",
                json!(["a", 1]),
                "facts[1] is a number, but must be a string",
            ),
            (
                "/calls/0",
                json!("x"),
                "calls[0] is a string, but must be an object",
            ),
            (
                "/calls/0/arguments",
                json!("{}"),
                "calls[0].arguments is a string, but must be an object",
            ),
            (
                "/calls/0/arguments",
                json!(null),
                "field \"calls[0].arguments\" is missing",
            ),
            (
                "/calls/0/s",
                json!("x"),
                "calls[0].sub_query and s are the same field",
            ),
            (
                "/calls/1/args",
                json!({}),
                "unknown field \"calls[1].args\"",
            ),
            (
                "/calls/1/derived/id/call",
                json!(-1),
                "calls[1].derived.id.call is a number, but",
            ),
            (
                "/calls/1/derived/id/path",
                json!(null),
                "field \"calls[1].derived.id.path\" is missing",
            ),
            (
                "/calls/1/c",
                json!({"name": "n", "arguments": []}),
                "calls[1].name and c are the same",
            ),
        ];
        for (pointer, value, expected) in cases {
            let mut row = long_form();
            let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
            match row.pointer_mut(parent).expect("a parent") {
                Value::Object(map) => drop(map.insert(key.to_owned(), value)),
                Value::Array(items) => items[key.parse::<usize>().expect("a number")] = value,
                other => panic!("{other}"),
            }
            let message = read(&row.to_string())[0]
                .as_ref()
                .expect_err(expected)
                .to_string();
            assert!(message.contains(expected), "{pointer}: {message}");
            assert!(message.contains("rows.jsonl:1: "), "{message}");
        }
        let mut row = short_form();
        row["calls"][0]["c"] = json!({"name": "n", "arguments": [1]});
        let message = read(&row.to_string())[0]
            .as_ref()
            .expect_err("a list")
            .to_string();
        assert!(
            message.contains("calls[0].c.arguments is a list"),
            "{message}"
        );
        row["calls"][0]["c"] = json!({"name": "n", "arguments": {}, "arg": 1});
        let message = read(&row.to_string())[0]
            .as_ref()
            .expect_err("extra")
            .to_string();
        assert!(
            message.contains("unknown field \"calls[0].c.arg\""),
            "{message}"
        );
        row["calls"][0]["c"] = json!({"name": "n", "arguments": {}});
        row["calls"][0].as_object_mut().expect("a call").remove("o");
        let message = read(&row.to_string())[0]
            .as_ref()
            .expect_err("no output")
            .to_string();
        assert!(
            message.contains("field \"calls[0].output\" is missing"),
            "{message}"
        );
    }
}
