//! What is said of calls without results and results without calls.

use serde_json::{Value, json};

use super::reading::file;
use super::*;

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn call(name: &str, id: Option<&str>) -> Value {
    let mut call = json!({"type": "function", "function": {"name": name, "arguments": {}}});
    if let Some(id) = id {
        call["id"] = json!(id);
    }
    call
}

fn calls(calls: &[Value]) -> Value {
    json!({"role": "assistant", "tool_calls": calls})
}

fn result(text: &str, id: Option<&str>) -> Value {
    match id {
        None => json!({"role": "tool", "content": text}),
        Some(id) => json!({"role": "tool", "content": text, "tool_call_id": id}),
    }
}

fn answer() -> Value {
    json!({"role": "assistant", "content": "Done."})
}

/// The notes of one row, without the path of its file.
fn said(messages: Vec<Value>) -> Vec<String> {
    said_of(&json!({"messages": messages}), DataFormat::Messages)
}

fn said_of(row: &Value, format: DataFormat) -> Vec<String> {
    let file = file(format!("{row}\n").as_bytes());
    let mut reader = read_rows(file.path(), format).unwrap();
    reader.next().unwrap().unwrap();
    let path = file.path().display().to_string();
    let lines = reader.notes().lines().into_iter();
    lines.map(|line| line.replace(&path, "FILE")).collect()
}

#[test]
fn results_and_calls_that_belong_together_are_no_news() {
    for messages in [
        vec![
            user("Go"),
            calls(&[call("f", Some("a")), call("g", Some("b"))]),
            result("2", Some("b")),
            result("1", Some("a")),
            answer(),
        ],
        vec![
            user("Go"),
            calls(&[call("f", None), call("g", None)]),
            result("1", None),
            result("2", None),
            answer(),
        ],
        // An id that each turn uses again, and one that two calls share.
        vec![
            user("Go"),
            calls(&[call("f", Some("a"))]),
            result("1", Some("a")),
            calls(&[call("f", Some("a")), call("g", Some("a"))]),
            result("1", Some("a")),
            result("2", Some("a")),
            answer(),
        ],
        // The last calls are what is learned, and have no results yet.
        vec![user("Go"), calls(&[call("f", Some("a"))])],
        // A result may come after words of the user, and two of one call.
        vec![
            user("Go"),
            calls(&[call("f", Some("a"))]),
            user("Well?"),
            result("1", Some("a")),
            result("2", Some("a")),
            answer(),
        ],
    ] {
        assert_eq!(said(messages.clone()), [""; 0], "{messages:?}");
    }
}

#[test]
fn results_with_tags_ids_without_calls_and_calls_without_results_are_counted() {
    let tagged = "\n<tool_response>\n{\"n\": 1}\n</tool_response>";
    let messages = vec![
        user("Go"),
        calls(&[call("f", Some("a")), call("g", Some("b"))]),
        result(tagged, Some("a")),
        result("1", Some("c")),
        user("And?"),
        calls(&[call("f", Some("d"))]),
        answer(),
    ];
    assert_eq!(
        said(messages),
        [
            "results of tools that bring their own <tool_response>: 1, the first FILE:1, messages[2]; \
             the chat template writes what stands around a result, so take the tags out of the rows",
            "results of tools whose tool_call_id no call before them has: 1, the first FILE:1, \
             messages[3]; give the call that id, or take the field out",
            "calls without a result where the conversation goes on: 2, the first FILE:1, \
             messages[1].tool_calls[1]; add the message of the tool, or end the row with the call",
        ]
    );
    // A call without an id takes the result that comes next, whatever id that has.
    let messages = vec![
        user("Go"),
        calls(&[call("f", None)]),
        result("1", Some("c")),
        answer(),
    ];
    let lines = said(messages);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("messages[2]"), "{lines:?}");
}

#[test]
fn places_are_those_of_the_file_whatever_its_format() {
    let tagged = "<tool_response>1</tool_response>";
    let row = json!({"system": "Be brief.", "conversations": [
        {"from": "human", "value": "Go"},
        {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"},
        {"from": "observation", "value": tagged},
        {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"},
        {"from": "gpt", "value": "Done."},
    ]});
    let lines = said_of(&row, DataFormat::ShareGpt);
    assert!(lines[0].contains("FILE:1, conversations[2];"), "{lines:?}");
    assert!(
        lines[1].contains("FILE:1, conversations[3].value[0];"),
        "{lines:?}"
    );
    let row = json!({
        "prompt": [user("Go"), calls(&[call("f", None)])],
        "completion": [answer()],
    });
    let lines = said_of(&row, DataFormat::PromptCompletion);
    assert!(
        lines[0].contains("FILE:1, prompt[1].tool_calls[0];"),
        "{lines:?}"
    );
}

#[test]
fn the_counts_of_several_files_keep_the_first_place() {
    let row = json!({"messages": [user("Go"), calls(&[call("f", None)]), answer()]});
    let file = file(format!("{row}\n{row}\n").as_bytes());
    let notes = || {
        let mut reader = read_rows(file.path(), DataFormat::Messages).unwrap();
        assert_eq!(reader.by_ref().filter(Result::is_ok).count(), 2);
        reader.notes().clone()
    };
    let mut sum = RowNotes::default();
    sum.add(&notes());
    sum.add(&notes());
    let counted = &sum.tools.calls_without_result;
    assert_eq!(counted.n, 4);
    let first = counted.first.as_deref().unwrap();
    assert!(first.ends_with(":1, messages[1].tool_calls[0]"), "{first}");
}

#[test]
fn a_result_that_names_another_tool_than_its_call_is_refused() {
    let mut named = result("1", Some("a"));
    named["name"] = json!("g");
    let row = json!({"messages": [user("Go"), calls(&[call("f", Some("a"))]), named, answer()]});
    let file = file(format!("{row}\n").as_bytes());
    let read = || read_rows(file.path(), DataFormat::Messages).unwrap();
    let error = read().next().unwrap().unwrap_err().to_string();
    for part in [
        ":1: messages[2].name is \"g\"",
        "messages[1].tool_calls[0], calls \"f\"",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let unchecked = read().with(RowParser::with_unchecked_calls).next().unwrap();
    assert!(unchecked.is_ok(), "{unchecked:?}");
}

/// The work is that of the messages, not that of their square.
#[test]
fn a_hundred_thousand_calls_of_one_id_are_followed() {
    let many = vec![call("f", Some("a")); 100_000];
    let mut messages = vec![user("Go"), calls(&many)];
    messages.extend(vec![result("1", Some("a")); 100_000]);
    messages.push(answer());
    assert_eq!(said(messages), [""; 0]);
}
