//! The rules for broken traces.

use serde_json::{Value, json};

use super::{count, import, import_with, lines, weather, weather_call};
use crate::TraceOptions;

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn answer(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

fn call(id: &str, arguments: &str) -> Value {
    json!({"role": "assistant", "tool_calls": [
        {"id": id, "function": {"name": "weather", "arguments": arguments}}]})
}

fn result(id: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": "rain"})
}

/// Imports a conversation with the tool `weather`.
fn import_one(messages: &[Value]) -> (Vec<Value>, crate::TraceReport) {
    import(&lines(&[
        json!({"messages": messages, "tools": [weather()]}),
    ]))
}

#[test]
fn a_trace_ends_before_its_first_broken_message() {
    const OSLO: &str = "{\"city\": \"Oslo\"}";
    let good = [user("Hi"), answer("Hello")];
    for (broken, reason) in [
        (
            vec![json!({"role": "critic", "content": "?"})],
            "unknown role",
        ),
        (vec![json!({"content": "?"})], "not an object with a role"),
        (vec![json!("?")], "not an object with a role"),
        (
            vec![json!({"role": "user", "content": 7})],
            "neither text nor a list",
        ),
        (
            vec![json!({"role": "user", "content": [{"type": "image_url", "image_url": {}}]})],
            "an image",
        ),
        (
            vec![json!({"role": "user", "content": [{"type": "sketch"}]})],
            "unknown type",
        ),
        (
            vec![user("?"), call("a", "{\"city\": ")],
            "arguments of a call are not",
        ),
        (
            vec![user("?"), call("a", "[1]")],
            "arguments of a call are not",
        ),
        (
            vec![user("?"), call("a", "{\"city\": 1, \"city\": 2}")],
            "arguments of a call are not",
        ),
        (
            vec![user("?"), call("a", "{\"n\": 99999999999999999999}")],
            "arguments of a call are not",
        ),
        (
            vec![
                user("?"),
                json!({"role": "assistant", "tool_calls": [{"id": "a"}]}),
            ],
            "has no name",
        ),
        (vec![result("a")], "belongs to no call"),
        (vec![user("?"), answer("")], "neither text nor calls"),
    ] {
        let mut messages = good.to_vec();
        messages.extend(broken.clone());
        messages.extend([user("More?"), answer("No.")]);
        let (rows, report) = import_one(&messages);
        assert_eq!(rows.len(), 1, "{broken:?} {report:?}");
        assert_eq!(rows[0]["messages"], json!(good), "{broken:?}");
        assert_eq!(
            count(&report.repaired, reason),
            Some((1, "t.jsonl:1")),
            "{reason} {report:?}"
        );
        // Without an answer before it, the trace is dropped for the same reason.
        let mut messages = vec![user("Hi")];
        messages.extend(broken);
        messages.push(answer("No."));
        let (rows, report) = import_one(&messages);
        assert!(rows.is_empty());
        assert_eq!(
            count(&report.dropped, reason),
            Some((1, "t.jsonl:1")),
            "{reason}"
        );
    }
    // The call before the broken result remains the answer.
    for (broken, reason) in [
        (vec![result("b")], "belongs to no call"),
        (vec![user("Well?")], "no result before the next message"),
        (vec![result("a"), result("a")], "two results"),
    ] {
        let mut messages = vec![user("Weather?"), call("a", OSLO)];
        messages.extend(broken);
        messages.extend([answer("Rain."), user("?"), answer("!")]);
        let (rows, report) = import_one(&messages);
        assert_eq!(
            count(&report.repaired, reason),
            Some((1, "t.jsonl:1")),
            "{report:?}"
        );
        let row = rows[0]["messages"].as_array().expect("a list");
        assert_eq!(
            row[..2],
            [
                user("Weather?"),
                json!({"role": "assistant", "tool_calls": [weather_call(1, "Oslo")]})
            ]
        );
        assert_eq!(row.len(), 2, "{reason}");
    }
}

#[test]
fn a_trace_ends_in_an_answer_or_in_calls() {
    const OSLO: &str = "{\"city\": \"Oslo\"}";
    let two_calls = json!({"role": "assistant", "tool_calls": [
        {"id": "a", "function": {"name": "weather", "arguments": OSLO}},
        {"id": "b", "function": {"name": "weather", "arguments": {"city": "Rome"}}}]});
    for (messages, n_kept, reason) in [
        (vec![user("?"), call("a", OSLO)], 2, None),
        (
            vec![user("?"), answer("!"), user("Bye")],
            2,
            Some("after the last answer"),
        ),
        (
            vec![user("?"), call("a", OSLO), result("a")],
            2,
            Some("after the last answer"),
        ),
        (
            vec![user("?"), two_calls, result("b")],
            2,
            Some("results of a turn that lacks others"),
        ),
    ] {
        let (rows, report) = import_one(&messages);
        assert_eq!(
            rows[0]["messages"].as_array().map(Vec::len),
            Some(n_kept),
            "{messages:?}"
        );
        assert_eq!(
            report.repaired.total(),
            usize::from(reason.is_some()),
            "{report:?}"
        );
        if let Some(reason) = reason {
            assert_eq!(count(&report.repaired, reason), Some((1, "t.jsonl:1")));
        }
    }
    for (messages, reason) in [
        (vec![user("?")], "no answer of the model"),
        (vec![], "no answer of the model"),
        (vec![answer("Hi")], "first message is not the user's"),
        (
            vec![json!({"role": "system", "content": "S"}), answer("Hi")],
            "first message is not the user's",
        ),
    ] {
        let (rows, report) = import_one(&messages);
        assert!(rows.is_empty());
        assert_eq!(
            count(&report.dropped, reason),
            Some((1, "t.jsonl:1")),
            "{report:?}"
        );
    }
}

#[test]
fn calls_without_ids_get_their_results_by_name_and_order() {
    let call = |name: &str| json!({"function": {"name": name, "arguments": {}}});
    let result = |name: &str| json!({"role": "function", "name": name, "content": name});
    let (rows, report) = import(&lines(&[json!({"messages": [
        user("?"),
        {"role": "assistant", "tool_calls": [call("a"), call("b"), call("a")]},
        result("b"), result("a"), result("a"),
        {"role": "assistant", "content": null, "function_call": {"name": "c", "arguments": ""}},
        result("c"),
        answer("Done."),
    ]})]));
    assert_eq!(rows.len(), 1, "{report:?}");
    let ids: Vec<&Value> = [2, 3, 4, 6]
        .iter()
        .map(|idx| &rows[0]["messages"][idx]["tool_call_id"])
        .collect();
    assert_eq!(ids, ["call00002", "call00001", "call00003", "call00004"]);
}

#[test]
fn tools_are_given_or_follow_from_the_calls() {
    let file = lines(&[json!({"messages": [
        user("?"),
        {"role": "assistant", "tool_calls": [
            {"id": "a", "function": {"name": "f", "arguments": {"x": 1, "y": "s", "z": [1]}}},
            {"id": "b", "function": {"name": "f", "arguments": {"x": 1.5, "w": {}}}},
            {"id": "c", "function": {"name": "f", "arguments": {"x": null, "y": "t", "v": true}}}]},
    ]})]);
    let (rows, report) = import(&file);
    assert_eq!(
        rows[0]["tools"],
        json!([{"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {
            "x": {"type": ["integer", "number", "null"]}, "y": {"type": "string"},
            "z": {"type": "array"}, "w": {"type": "object"}, "v": {"type": "boolean"}}}}}])
    );
    assert_eq!(
        count(&report.repaired, "derived the tools"),
        Some((1, "t.jsonl:1"))
    );
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let options = TraceOptions {
        tools: Some(vec![tool.clone()]),
        ..TraceOptions::default()
    };
    let (rows, report) = import_with(&[("t", file.as_bytes())], &options).expect("imported");
    assert_eq!(rows[0]["tools"], json!([tool]));
    assert_eq!(count(&report.repaired, "--tools"), Some((1, "t:1")));
}

#[test]
fn a_row_that_training_refuses_is_dropped_with_the_reason() {
    let (rows, report) = import_one(&[user("?"), call("a", "{\"town\": \"Oslo\"}")]);
    assert!(rows.is_empty());
    let (reason, _) = report.dropped.iter().next().expect("a reason");
    assert!(reason.starts_with("training refuses the row: "), "{reason}");
    assert!(reason.contains("town"), "{reason}");
    // Further rows count with the first.
    let bad = |n: usize| json!({"messages": [user(&n.to_string()), call("a", "{}")], "tools": [weather()]});
    let (_, report) = import(&lines(&[bad(1), bad(2), bad(3)]));
    assert_eq!(
        count(&report.dropped, "training refuses"),
        Some((3, "t.jsonl:1"))
    );
}
