//! JSON Lines in, trajectories out, one at a time.
//!
//! A fault names file, line and field, and the reader stands at the next line afterwards, so
//! that a caller can list all faults of a file instead of the first.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::iter;
use std::path::Path;

use super::catalogue::ApiCatalogue;
use super::error::ToolsError;
use super::source::TextLines;
use super::trajectory::Trajectory;
use crate::faults::all_rows;
use crate::json;
use crate::lines::{Records, open_rows};
use crate::read_error::ReadError;

/// Opens a file of trajectories, gzip-compressed or not.
///
/// A row without an `id` is called `file:line`. The reader checks the shape of each row;
/// [`Trajectory::check`] checks what it says.
///
/// # Errors
///
/// - the file cannot be opened
///
/// The reader itself yields an error for a file without rows, a line that is not UTF-8 or not
/// JSON, a key that stands twice, an integer beyond 64 bits, and a field that is missing, unknown
/// or of another type.
pub fn read_trajectories(path: &Path) -> Result<TrajectoryReader, ToolsError> {
    Ok(TrajectoryReader::new(open_rows(path)?))
}

/// The trajectories of a file in order, from [`read_trajectories`].
#[derive(Debug)]
pub struct TrajectoryReader {
    lines: TextLines,
    is_done: bool,
}

/// Opens a file of trajectories whose rows are checked by [`Trajectory::check`], too; a fault
/// names file, line and id.
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

/// Reads the trajectories of several files, at most `limit`, checked and each with an id of its
/// own, as predictions need that are known by it.
///
/// # Errors
///
/// - rows cannot be read, or do not fit `catalogue`; the error tells of all rows at fault
/// - two rows have one id; the error names both lines
pub fn read_distinct_trajectories(
    files: Vec<Box<dyn Records>>,
    catalogue: &ApiCatalogue,
    limit: usize,
) -> Result<Vec<Trajectory>, ToolsError> {
    let rows = files
        .into_iter()
        .map(|records| CheckedTrajectories::new(records, catalogue))
        .flat_map(|mut reader| iter::from_fn(move || reader.next_placed()));
    let mut places: HashMap<String, String> = HashMap::new();
    let distinct = rows.take(limit).map(|row| {
        let (place, row) = row?;
        match places.entry(row.id.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(place);
                Ok(row)
            }
            Entry::Occupied(first) => {
                let (id, first) = (row.id, first.get().clone());
                Err(ToolsError::DuplicateTrajectory { id, first }.at(place))
            }
        }
    });
    all_rows(distinct)
}

/// The trajectories of a file in order, checked by [`Trajectory::check`], too; a fault names file, line
/// and id.
#[derive(Debug)]
pub struct CheckedTrajectories<'c> {
    rows: TrajectoryReader,
    catalogue: &'c ApiCatalogue,
}

impl<'c> CheckedTrajectories<'c> {
    /// Those of a file that is open.
    pub fn new(records: Box<dyn Records>, catalogue: &'c ApiCatalogue) -> Self {
        Self {
            rows: TrajectoryReader::new(records),
            catalogue,
        }
    }

    fn next_placed(&mut self) -> Option<Result<(String, Trajectory), ToolsError>> {
        let row = self.rows.next_placed()?;
        Some(row.and_then(|(place, row)| {
            row.check_at(&place, self.catalogue)?;
            Ok((place, row))
        }))
    }
}

impl Iterator for CheckedTrajectories<'_> {
    type Item = Result<Trajectory, ToolsError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.next_placed()?.map(|(_, row)| row))
    }
}

impl Iterator for TrajectoryReader {
    type Item = Result<Trajectory, ToolsError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.next_placed()?.map(|(_, row)| row))
    }
}

impl TrajectoryReader {
    /// The trajectories of a file that is open.
    pub fn new(records: Box<dyn Records>) -> Self {
        Self {
            lines: TextLines::of_records(records),
            is_done: false,
        }
    }

    /// The rows with their places as `file:line`, in order.
    pub fn placed(mut self) -> impl Iterator<Item = Result<(String, Trajectory), ToolsError>> {
        iter::from_fn(move || self.next_placed())
    }

    /// The next row with its place as `file:line`.
    fn next_placed(&mut self) -> Option<Result<(String, Trajectory), ToolsError>> {
        let Some(line) = self.lines.next() else {
            let is_empty = !self.is_done && !self.lines.has_any();
            self.is_done = true;
            let what = "trajectories";
            let place = self.lines.path().display().to_string();
            return is_empty.then(|| Err(ToolsError::Empty { what }.at(place)));
        };
        // What cannot be read is told for what it is, and not as an empty file behind that.
        self.is_done |= line.is_err();
        Some(line.and_then(|(place, text)| {
            let value =
                json::parse_unique(&text).map_err(|error| ToolsError::of_row(error).at(&place))?;
            if let Some(oversized) = json::oversized_integer(&text, |_| true) {
                return Err(ToolsError::from(ReadError::from(oversized)).at(&place));
            }
            let mut row = Trajectory::try_from(value).map_err(|error| error.at(&place))?;
            if row.id.is_empty() {
                row.id.clone_from(&place);
            }
            Ok((place, row))
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;
    use crate::tools::ApiDocument;

    fn read(text: &str) -> Vec<Result<Trajectory, ToolsError>> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.jsonl");
        fs::write(&path, text).expect("written");
        read_trajectories(&path).expect("opens").collect()
    }

    fn long() -> Value {
        json!({"id": "r1", "query": "Who sings?", "response": "Ann.", "facts": ["Ann"],
            "subgraph": ["Tune/Find", "Tune/Singer"], "calls": [
            {"sub_query": "Find it.", "name": "Tune/Find", "arguments": {"q": "x"}, "output": {"id": 3}},
            {"sub_query": "Its singer.", "name": "Tune/Singer", "arguments": {"id": 3}, "output": null,
             "derived": {"id": {"call": 0, "path": "id", "pick": "first"}}},
        ]})
    }

    fn short() -> Value {
        json!({"id": "r1", "query": "Who sings?", "response": "Ann.", "facts": ["Ann"],
            "subgraph": ["Tune/Find", "Tune/Singer"], "single_tool": true, "calls": [
            {"s": "Find it.", "c": {"name": "Tune/Find", "arguments": {"q": "x"}}, "o": {"id": 3}, "derived": {}},
            {"s": "Its singer.", "c": {"name": "Tune/Singer", "arguments": {"id": 3}}, "o": null,
             "derived": {"id": {"call": 0, "path": "id", "pick": "first"}}},
        ]})
    }

    #[test]
    fn an_integer_that_would_be_learned_rounded_is_refused_with_its_place() {
        let text = long().to_string();
        let rows = read(&text.replacen("{\"id\":3}", "{\"id\":99999999999999999999}", 1));
        let error = rows[0].as_ref().expect_err("refused").to_string();
        let said = "rows.jsonl:1: calls[0].output.id is the integer 99999999999999999999, which";
        assert!(error.contains(said), "{error}");
    }

    #[test]
    fn a_key_that_stands_twice_and_a_file_in_utf16_are_refused_by_name() {
        let text = long().to_string();
        let twice = text.replacen("{\"id\":3}", "{\"id\":3,\"id\":4}", 1);
        let error = read(&twice)[0].as_ref().expect_err("twice").to_string();
        assert!(error.contains("rows.jsonl:1: column "), "{error}");
        assert!(error.contains("the key \"id\" stands twice"), "{error}");
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
    fn the_letters_of_the_paper_say_what_the_long_names_say() {
        let rows = read(&format!("{}\n{}\n", long(), short()));
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
        let written = serde_json::to_value(first).expect("written");
        assert_eq!(written, long(), "what is written is the long form");
        assert_eq!(
            &serde_json::from_value::<Trajectory>(written).expect("read"),
            first
        );
    }

    #[test]
    fn a_row_without_an_id_is_called_by_its_place() {
        let mut row = long();
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
    fn what_a_row_says_wrongly_is_named_with_file_line_and_id() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.jsonl");
        let (mut unknown, mut cyclic, mut empty) = (long(), long(), long());
        unknown["calls"][0]["name"] = json!("Tune/Fin");
        cyclic["calls"][1]["derived"]["id"]["call"] = json!(1);
        empty["calls"] = json!([]);
        empty.as_object_mut().expect("an object").remove("id");
        let rows = [long(), unknown, cyclic, empty].map(|row| row.to_string());
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
    fn an_id_that_comes_twice_is_refused_with_both_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = ["a.jsonl", "b.jsonl"].map(|name| folder.path().join(name));
        let mut other = long();
        other["id"] = json!("r2");
        fs::write(&paths[0], format!("{}\n{other}\n", long())).expect("written");
        fs::write(&paths[1], format!("\n{}\n", short())).expect("written");
        let read = |limit| {
            let files = paths.iter().map(|path| open_rows(path).expect("opens"));
            read_distinct_trajectories(files.collect(), &catalogue(), limit)
        };
        let message = read(usize::MAX).expect_err("twice").to_string();
        assert!(
            message.contains("b.jsonl:2: id \"r1\" stands at "),
            "{message}"
        );
        assert!(message.contains("a.jsonl:1 already"), "{message}");
        assert_eq!(read(2).expect("distinct so far").len(), 2);
        assert_eq!(read(0).expect("nothing is read"), []);
    }

    #[test]
    fn the_faults_of_all_files_are_told_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = ["a.jsonl", "b.jsonl"].map(|name| folder.path().join(name));
        let unknown = |id: &str| {
            let mut row = long();
            row["id"] = json!(id);
            row["calls"][0]["name"] = json!("Tune/Fin");
            row
        };
        let twice = long().to_string().replacen("{", "{\"id\":\"r0\",", 1);
        let first = format!("{}\n{}\n{twice}\n", long(), unknown("r2"));
        fs::write(&paths[0], first).expect("written");
        let second = format!("{}\n{}\n", unknown("r3"), short());
        fs::write(&paths[1], second).expect("written");
        let read = |limit| {
            let files = paths.iter().map(|path| open_rows(path).expect("opens"));
            read_distinct_trajectories(files.collect(), &catalogue(), limit)
        };
        let error = read(usize::MAX).expect_err("four faults");
        let is_unknown = matches!(error.fault(), ToolsError::UnknownApi { .. });
        assert!(is_unknown, "{error:?}");
        let told = error.to_string();
        let lines: Vec<&str> = told.lines().collect();
        for (line, expected) in lines.iter().zip([
            "a.jsonl:2: r2: calls[0].name: no API is called \"Tune/Fin\"",
            "a.jsonl:3: column ",
            "b.jsonl:1: r3: the same",
            "b.jsonl:2: id \"r1\" stands at ",
        ]) {
            assert!(line.contains(expected), "{line}");
        }
        assert!(lines[1].contains("the key \"id\" stands twice in one object; keep one of"));
        assert_eq!(lines.len(), 4, "{told}");
        // Rows beyond the limit are not looked at.
        assert_eq!(read(2).expect_err("one fault").to_string(), lines[0]);
        assert_eq!(read(1).expect("a sound row").len(), 1);

        let many: Vec<String> = (0..13)
            .map(|n| unknown(&n.to_string()).to_string())
            .collect();
        fs::write(&paths[0], many.join("\n")).expect("written");
        let told = read(12).expect_err("twelve faults").to_string();
        assert_eq!(told.lines().count(), 11, "{told}");
        assert_eq!(told.lines().last(), Some("and 2 more rows at fault"));
    }

    #[test]
    fn an_empty_file_is_one_error() {
        let rows = read(" \n");
        assert_eq!(rows.len(), 1);
        let message = rows[0].as_ref().expect_err("empty").to_string();
        assert!(
            message.contains("rows.jsonl: the file holds no trajectories"),
            "{message}"
        );
    }

    #[test]
    fn a_broken_row_is_named_and_the_next_one_read() {
        let rows = read(&format!("{{\"query\": \n{}\n", long()));
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
            ("/query", json!(3), "query is a number, but must be a text"),
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
                "facts[1] is a number, but must be a text",
            ),
            (
                "/calls/0",
                json!("x"),
                "calls[0] is a text, but must be an object",
            ),
            (
                "/calls/0/arguments",
                json!("{}"),
                "calls[0].arguments is a text, but must be an object",
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
            let mut row = long();
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
        let mut row = short();
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
