//! Tells from the first row of a file what its rows are.

use std::path::Path;

use serde_json::Value;
use tooltune_rows::text::{DataFormat, RecognisedFormat, recognise};
use tooltune_rows::tools::{JsonLines, ToolsError};

/// What the rows of a file are, told by their fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// `input_text`, `json_schema`, `gold`.
    Slot,
    /// `query` and `calls`: trajectories of GOAT.
    Trajectories,
    /// `response_id` and `response`: outputs of tools.
    Responses,
    /// `response_id` and `question`: questions about outputs of tools.
    Questions,
    /// Rows of one of the other formats.
    Rows(DataFormat),
}

impl FileKind {
    /// What the first row of a file shows; none for a row of another kind.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, or its first row is no JSON
    pub fn of_file(path: &Path) -> Result<Option<Self>, ToolsError> {
        match JsonLines::open(path)?.next() {
            None => Ok(None),
            Some(line) => Ok(Self::of_row(&line?.1)),
        }
    }

    fn of_row(row: &Value) -> Option<Self> {
        let fields = row.as_object()?;
        let has = |field: &str| fields.contains_key(field);
        match has("response_id") {
            true if has("response") => return Some(Self::Responses),
            true if has("question") => return Some(Self::Questions),
            _ => {}
        }
        Some(match recognise(fields).ok()? {
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
                Some(FileKind::Responses),
            ),
            (
                json!({"uid": "u", "response_id": "r", "question": "?"}),
                Some(FileKind::Questions),
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
            (json!({"text": "a"}), None),
            (json!([1]), None),
        ] {
            assert_eq!(FileKind::of_row(&row), kind, "{row}");
        }
    }
}
