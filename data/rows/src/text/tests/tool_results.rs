//! Notes about calls without results and results without calls.

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
fn notes_of(messages: Vec<Value>) -> Vec<String> {
    notes_of_row(&json!({"messages": messages}), DataFormat::Messages)
}

fn notes_of_row(row: &Value, format: DataFormat) -> Vec<String> {
    let file = file(format!("{row}\n").as_bytes());
    let reader = read_rows(file.path(), format).unwrap();
    let mut reader = reader.with(RowParser::with_unchecked_calls);
    reader.next().unwrap().unwrap();
    let path = file.path().display().to_string();
    let lines = reader.notes().lines().into_iter();
    lines.map(|line| line.replace(&path, "FILE")).collect()
}

#[test]
fn matching_calls_and_results_give_no_notes() {
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
        // An id reused in each turn, and one shared by two calls.
        vec![
            user("Go"),
            calls(&[call("f", Some("a"))]),
            result("1", Some("a")),
            calls(&[call("f", Some("a")), call("g", Some("a"))]),
            result("1", Some("a")),
            result("2", Some("a")),
            answer(),
        ],
        // The last calls are the supervised answer and have no results yet.
        vec![user("Go"), calls(&[call("f", Some("a"))])],
        // A result may follow a user message, and one call may have two results.
        vec![
            user("Go"),
            calls(&[call("f", Some("a"))]),
            user("Well?"),
            result("1", Some("a")),
            result("2", Some("a")),
            answer(),
        ],
    ] {
        assert_eq!(notes_of(messages.clone()), [""; 0], "{messages:?}");
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
        notes_of(messages),
        [
            "tool results that contain <tool_response> tags: 1, the first FILE:1, messages[2]; \
             the chat template writes these tags, so remove them from the rows",
            "tool results whose tool_call_id matches no earlier call: 1, the first FILE:1, \
             messages[3]; give the call that id, or remove the field",
            "calls without a result in conversations that continue: 2, the first FILE:1, \
             messages[1].tool_calls[1]; add the tool message, or end the row with the call",
        ]
    );
    // A call without an id matches the next result, whatever its id.
    let messages = vec![
        user("Go"),
        calls(&[call("f", None)]),
        result("1", Some("c")),
        answer(),
    ];
    let lines = notes_of(messages);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("messages[2]"), "{lines:?}");
}

#[test]
fn locations_refer_to_the_source_file_in_every_format() {
    let tagged = "<tool_response>1</tool_response>";
    let row = json!({"system": "Be brief.", "conversations": [
        {"from": "human", "value": "Go"},
        {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"},
        {"from": "observation", "value": tagged},
        {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"},
        {"from": "gpt", "value": "Done."},
    ]});
    let lines = notes_of_row(&row, DataFormat::ShareGpt);
    assert!(lines[0].contains("FILE:1, conversations[2];"), "{lines:?}");
    assert!(
        lines[1].contains("FILE:1, conversations[3].value[0];"),
        "{lines:?}"
    );
    let row = json!({
        "prompt": [user("Go"), calls(&[call("f", None)])],
        "completion": [answer()],
    });
    let lines = notes_of_row(&row, DataFormat::PromptCompletion);
    assert!(
        lines[0].contains("FILE:1, prompt[1].tool_calls[0];"),
        "{lines:?}"
    );
}

#[test]
fn merged_counts_keep_the_first_location() {
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
    let without_result = &sum.tools.calls_without_result;
    assert_eq!(without_result.n, 4);
    let first = without_result.first.as_deref().unwrap();
    assert!(first.ends_with(":1, messages[1].tool_calls[0]"), "{first}");
}

#[test]
fn a_result_that_names_another_tool_than_its_call_is_refused() {
    let mut misnamed = result("1", Some("a"));
    misnamed["name"] = json!("g");
    let row = json!({"messages": [user("Go"), calls(&[call("f", Some("a"))]), misnamed, answer()]});
    let file = file(format!("{row}\n").as_bytes());
    let read = || read_rows(file.path(), DataFormat::Messages).unwrap();
    let error = read().next().unwrap().unwrap_err().to_string();
    for part in [
        ":1: messages[2].name is \"g\"",
        "the tool_call_id of this message belongs to messages[1].tool_calls[0], which calls \"f\"",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let unchecked = read().with(RowParser::with_unchecked_calls).next().unwrap();
    assert!(unchecked.is_ok(), "{unchecked:?}");
}

#[test]
fn a_result_with_an_id_that_no_call_has_is_refused() {
    let refusal = |messages: Vec<Value>| {
        let row = json!({"messages": messages});
        let file = file(format!("{row}\n").as_bytes());
        let mut reader = read_rows(file.path(), DataFormat::Messages).unwrap();
        reader.next().unwrap().err().map(|error| error.to_string())
    };
    let two = || calls(&[call("f", Some("a")), call("g", Some("b"))]);
    let messages = vec![
        user("Go"),
        two(),
        result("1", Some("a")),
        result("2", Some("c")),
        answer(),
    ];
    let error = refusal(messages.clone()).unwrap();
    for part in [
        ":1: messages[3].tool_call_id is \"c\"",
        "the calls before it have \"a\", \"b\"",
        "remove messages[3].tool_call_id",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let many: Vec<Value> = (0..9).map(|n| call("f", Some(&format!("id{n}")))).collect();
    let error = refusal(vec![
        user("Go"),
        calls(&many),
        result("1", Some("c")),
        answer(),
    ])
    .unwrap();
    assert!(
        error.contains("have …, \"id3\", ") && error.contains("\"id8\". Give"),
        "{error}"
    );
    // A call after the result does not count.
    let later = vec![
        user("Go"),
        two(),
        result("1", Some("c")),
        calls(&[call("f", Some("c"))]),
    ];
    assert!(refusal(later).is_some());
    for accepted in [
        vec![
            user("Go"),
            two(),
            result("1", None),
            result("2", None),
            answer(),
        ],
        vec![
            user("Go"),
            calls(&[call("f", None)]),
            result("1", Some("c")),
            answer(),
        ],
        vec![user("Go"), result("1", Some("c")), answer()],
        vec![
            user("Go"),
            two(),
            result("2", Some("b")),
            result("1", Some("a")),
            answer(),
        ],
    ] {
        assert_eq!(refusal(accepted.clone()), None, "{accepted:?}");
    }
}

/// The work is linear in the number of messages.
#[test]
fn a_hundred_thousand_calls_of_one_id_are_followed() {
    let many = vec![call("f", Some("a")); 100_000];
    let mut messages = vec![user("Go"), calls(&many)];
    messages.extend(vec![result("1", Some("a")); 100_000]);
    messages.push(answer());
    assert_eq!(notes_of(messages), [""; 0]);
}
