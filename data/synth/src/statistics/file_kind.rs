//! Tells from the first row of a file what its rows are.

use std::path::Path;

use serde_json::Value;
use tooltune_agents::pairs::PAIR_FIELDS;
use tooltune_rows::text::{DataFormat, RecognisedFormat, recognise};
use tooltune_rows::tools::{JsonLines, ToolsError};
use tooltune_suites::OwnFile;

/// What the rows of a file are, told by their fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// `input_text`, `json_schema`, `gold`.
    Slot,
    /// `query` and `calls`: trajectories of GOAT.
    Trajectories,
    /// Rows that only a suite reads.
    OfSuite(&'static OwnFile),
    /// Rows of one of the other formats.
    Rows(DataFormat),
    /// A query with a right document: what a retriever learns from.
    Pairs,
}

impl FileKind {
    /// What the first row of a file shows; none for a row of another kind.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, or its first row is no JSON
    pub fn of_file(path: &Path) -> Result<Option<Self>, ToolsError> {
        match JsonLines::of_rows(path)?.next() {
            None => Ok(None),
            Some(line) => Ok(Self::of_row(&line?.1)),
        }
    }

    fn of_row(row: &Value) -> Option<Self> {
        let fields = row.as_object()?;
        if let Some(file) = OwnFile::of_row(fields) {
            return Some(Self::OfSuite(file));
        }
        let is_text = |names: &[&str; 2]| {
            names
                .iter()
                .any(|name| fields.get(*name).is_some_and(Value::is_string))
        };
        let found = match recognise(fields) {
            Ok(found) => found,
            Err(_) if PAIR_FIELDS.iter().all(is_text) => return Some(Self::Pairs),
            Err(_) => return None,
        };
        Some(match found {
            RecognisedFormat::Trajectories => Self::Trajectories,
            RecognisedFormat::Rows(DataFormat::Slot) => Self::Slot,
            RecognisedFormat::Rows(format) => Self::Rows(format),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_are_told_by_their_fields() {
        let of_suite = |rows: &str| {
            let file = OwnFile::all().find(|file| file.rows == rows);
            file.map(FileKind::OfSuite)
        };
        for (row, kind) in [
            (
                json!({"input_text": "", "json_schema": {}, "gold": 1}),
                Some(FileKind::Slot),
            ),
            (
                json!({"id": "a", "query": "?", "calls": []}),
                Some(FileKind::Trajectories),
            ),
            (
                json!({"response_id": "r", "endpoint": "e", "response": null}),
                of_suite("outputs of tools"),
            ),
            (
                json!({"uid": "u", "response_id": "r", "question": "?"}),
                of_suite("questions about outputs of tools"),
            ),
            (
                json!({"messages": []}),
                Some(FileKind::Rows(DataFormat::Messages)),
            ),
            (
                json!({"conversations": []}),
                Some(FileKind::Rows(DataFormat::ShareGpt)),
            ),
            (
                json!({"prompt": "", "completion": ""}),
                Some(FileKind::Rows(DataFormat::PromptCompletion)),
            ),
            (
                json!({"query": "q", "positive": "d"}),
                Some(FileKind::Pairs),
            ),
            (
                json!({"anchor": "q", "document": "d", "negative": "n"}),
                Some(FileKind::Pairs),
            ),
            (json!({"query": "q", "positive": 1}), None),
            (json!({"text": "a"}), None),
            (json!([1]), None),
        ] {
            assert_eq!(FileKind::of_row(&row), kind, "{row}");
        }
    }
}
