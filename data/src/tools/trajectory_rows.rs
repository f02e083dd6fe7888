//! JSON Lines in, trajectories out, one at a time.
//!
//! A fault names file, line and field, and the reader stands at the next line afterwards, so
//! that a caller can list all faults of a file instead of the first.

use std::path::Path;

use super::error::ToolsError;
use super::source::JsonLines;
use super::trajectory::Trajectory;

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
/// JSON, and a field that is missing, unknown or of another type.
pub fn read_trajectories(path: &Path) -> Result<TrajectoryReader, ToolsError> {
    Ok(TrajectoryReader {
        lines: JsonLines::open(path)?,
        n_rows: 0,
    })
}

/// The trajectories of a file in order, from [`read_trajectories`].
#[derive(Debug)]
pub struct TrajectoryReader {
    lines: JsonLines,
    n_rows: usize,
}

impl Iterator for TrajectoryReader {
    type Item = Result<Trajectory, ToolsError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Some(line) = self.lines.next() else {
            let is_empty = self.n_rows == 0;
            self.n_rows = usize::MAX;
            let what = "trajectories";
            let place = self.lines.path().display().to_string();
            return is_empty.then(|| Err(ToolsError::Empty { what }.at(place)));
        };
        self.n_rows = self.n_rows.saturating_add(1);
        Some(line.and_then(|(place, value)| {
            let mut row = Trajectory::try_from(value).map_err(|error| error.at(&place))?;
            if row.id.is_empty() {
                row.id = place;
            }
            Ok(row)
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;

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
