//! Builds the JSON Schema of a loop's text, if the text is pure JSON.

use serde_json::{Value, json};
use tooltune_apis::ApiDocument;

use super::prompts::Task;

/// The schema of a plan, of sub-queries or of a call; `None` for texts with other content.
///
/// A plan contains names of shown documents. A call must use a shown document. If the next API of
/// the plan is shown, the call must use that API.
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
            let names: Vec<String> = documents
                .iter()
                .map(|document| document.call_name())
                .collect();
            Some(list(json!({"enum": names})))
        }
        Task::SubQueries => Some(list(json!({"type": "string"}))),
        Task::PlannedCall | Task::SubQueryCall => {
            let planned = documents
                .iter()
                .filter(|document| Some(document.call_name().as_str()) == next_in_plan);
            let mut calls: Vec<Value> = planned.map(|document| document.call_schema()).collect();
            if calls.is_empty() {
                calls = documents
                    .iter()
                    .map(|document| document.call_schema())
                    .collect();
            }
            (!calls.is_empty()).then(|| json!({"anyOf": calls}))
        }
        Task::Step | Task::NextSubQuery | Task::Answer => None,
    }
}
