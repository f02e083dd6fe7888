//! Determines the kind of a file's rows from its first row.

use serde_json::Value;
use tooltune_agents::pairs::PAIR_FIELDS;
use tooltune_apis::{JsonLines, ToolsError};
use tooltune_json::lines::Records;
use tooltune_rows::text::{DataFormat, RecognisedFormat, recognise};
use tooltune_suites::SuiteFile;

/// The kind of a file's rows, recognized by their fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// `input_text`, `json_schema`, `gold`.
    Slot,
    /// `query` and `calls`: GOAT trajectories.
    Trajectories,
    /// Rows that only one suite uses.
    SuiteRows(&'static SuiteFile),
    /// Rows of one of the training formats.
    Rows(DataFormat),
    /// Queries with positive documents: training pairs of a retriever.
    Pairs,
}

impl FileKind {
    /// The kind of the first row of an open file; `None` if it is unknown.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or its first row is not JSON.
    pub fn detect(records: Box<dyn Records>) -> Result<Option<Self>, ToolsError> {
        match JsonLines::from_records(records).next() {
            None => Ok(None),
            Some(line) => Ok(Self::detect_row(&line?.1)),
        }
    }

    fn detect_row(row: &Value) -> Option<Self> {
        let fields = row.as_object()?;
        if let Some(file) = SuiteFile::for_row(fields) {
            return Some(Self::SuiteRows(file));
        }
        let is_text = |names: &[&str; 2]| {
            names
                .iter()
                .any(|name| fields.get(*name).is_some_and(Value::is_string))
        };
        let kind = match recognise(fields) {
            Ok(kind) => kind,
            Err(_) if PAIR_FIELDS.iter().all(is_text) => return Some(Self::Pairs),
            Err(_) => return None,
        };
        Some(match kind {
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
    fn rows_are_recognised_by_their_fields() {
        let suite_rows = |rows: &str| {
            let file = SuiteFile::all().find(|file| file.rows == rows);
            file.map(FileKind::SuiteRows)
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
                suite_rows("tool outputs"),
            ),
            (
                json!({"uid": "u", "response_id": "r", "question": "?"}),
                suite_rows("questions about tool outputs"),
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
            assert_eq!(FileKind::detect_row(&row), kind, "{row}");
        }
    }
}
