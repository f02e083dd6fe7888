//! Makes the JSON Schema that a text of a loop must satisfy, where the text is JSON alone.

use serde_json::{Value, json};
use tooltune_rows::tools::ApiDocument;

use super::prompts::Task;

/// The schema of a plan, of sub-queries or of a call; nothing for texts with words around the JSON
/// or without any.
///
/// A plan names documents that are shown, and a call is one of theirs: of the next API in the plan
/// if that is shown.
pub(super) fn text_schema(
    task: Task,
    documents: &[&ApiDocument],
    next_in_plan: Option<&str>,
    max_calls: usize,
) -> Option<Value> {
    let list = |items: Value| json!({"type": "array", "items": items, "minItems": 1, "maxItems": max_calls});
    match task {
        Task::Plan if documents.is_empty() => None,
        Task::Plan => {
            let names: Vec<String> = documents.iter().map(|one| one.call_name()).collect();
            Some(list(json!({"enum": names})))
        }
        Task::SubQueries => Some(list(json!({"type": "string"}))),
        Task::PlannedCall | Task::SubQueryCall => {
            let planned = documents
                .iter()
                .filter(|one| Some(one.call_name().as_str()) == next_in_plan);
            let mut calls: Vec<Value> = planned.map(|one| one.call_schema()).collect();
            if calls.is_empty() {
                calls = documents.iter().map(|one| one.call_schema()).collect();
            }
            (!calls.is_empty()).then(|| json!({"anyOf": calls}))
        }
        Task::Step | Task::NextSubQuery | Task::Answer => None,
    }
}
