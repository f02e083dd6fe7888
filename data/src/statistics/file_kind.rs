//! The first row of a file to what its rows are.

use std::path::Path;

use serde_json::Value;

use crate::tools::{JsonLines, ToolsError};

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
    /// `messages`.
    Messages,
    /// `prompt` and `completion`.
    PromptCompletion,
}

impl FileKind {
    const FIELDS: [(Self, [&'static str; 2]); 6] = [
        (Self::Slot, ["input_text", "json_schema"]),
        (Self::Trajectories, ["query", "calls"]),
        (Self::Responses, ["response_id", "response"]),
        (Self::Questions, ["response_id", "question"]),
        (Self::Messages, ["messages", "messages"]),
        (Self::PromptCompletion, ["prompt", "completion"]),
    ];

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
        let mut kinds = Self::FIELDS.into_iter();
        let has = |field: &str| row.get(field).is_some();
        kinds.find_map(|(kind, fields)| fields.into_iter().all(has).then_some(kind))
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
            (json!({"messages": []}), Some(FileKind::Messages)),
            (
                json!({"prompt": "", "completion": ""}),
                Some(FileKind::PromptCompletion),
            ),
            (json!({"text": "a"}), None),
            (json!([1]), None),
        ] {
            assert_eq!(FileKind::of_row(&row), kind, "{row}");
        }
    }
}
