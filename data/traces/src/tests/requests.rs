//! Logged requests in every envelope.

use std::slice;

use serde_json::{Value, json};

use super::{content, count, import, import_with, lines, weather, weather_call, weather_result};
use crate::TraceOptions;

fn request() -> Value {
    json!({"model": "m", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Weather"}, {"type": "text", "text": "in Oslo?"}]},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "x", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Oslo\"}"}},
            {"id": "y", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Bergen\"}"}}]},
        {"role": "tool", "tool_call_id": "y", "content": "sun"},
        {"role": "tool", "tool_call_id": "x", "content": {"sky": "rain"}},
    ], "tools": [weather()]})
}

fn response() -> Value {
    json!({"id": "chatcmpl-1", "object": "chat.completion", "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Rain.", "refusal": null}}]})
}

/// Results may be in another order than their calls.
fn expected() -> Value {
    json!({"messages": [
        {"role": "user", "content": "Weather\nin Oslo?"},
        {"role": "assistant", "tool_calls": [weather_call(1, "Oslo"), weather_call(2, "Bergen")]},
        weather_result(2, "sun"),
        weather_result(1, "{\"sky\": \"rain\"}"),
        {"role": "assistant", "content": "Rain."},
    ], "tools": [weather()]})
}

#[test]
fn chat_completions_are_read_in_every_envelope() {
    let mut flat = request();
    flat["choices"] = response()["choices"].clone();
    let mut page = flat.clone();
    page["object"] = "chat.completion".into();
    let envelopes = [
        json!({"request": request(), "response": response()}),
        json!({"request": request().to_string(), "response": response().to_string()}),
        json!({"request": {"body": request()}, "response": {"status_code": 200, "body": response()}}),
        flat,
        json!({"object": "list", "data": [page], "has_more": false}),
    ];
    for envelope in envelopes {
        let (rows, report) = import(&lines(slice::from_ref(&envelope)));
        assert_eq!(rows.len(), 1, "{envelope} {report:?}");
        assert_eq!(content(&rows[0]), expected(), "{envelope}");
        assert_eq!(rows[0]["metadata"]["source"], "requests");
        // The same in an array, and over several lines.
        let array = serde_json::to_string_pretty(&[&envelope]).expect("JSON");
        let document = serde_json::to_string_pretty(&envelope).expect("JSON");
        for text in [array, document] {
            assert_eq!(import(&text).0, rows, "{text}");
        }
    }
}

#[test]
fn both_files_of_a_batch_are_joined() {
    let input = json!({"custom_id": "q1", "method": "POST", "url": "/v1/chat/completions", "body": request()});
    let output = json!({"id": "b", "custom_id": "q1", "response": {"status_code": 200, "body": response()}, "error": null});
    let alone = json!({"id": "b", "custom_id": "q2", "response": {"status_code": 200, "body": response()}, "error": null});
    let files = [
        ("in.jsonl", lines(&[input])),
        ("out.jsonl", lines(&[alone, output])),
    ];
    for order in [[0, 1], [1, 0]] {
        let files = order.map(|idx| (files[idx].0, files[idx].1.as_bytes()));
        let (rows, report) = import_with(&files, &TraceOptions::default()).expect("imported");
        assert_eq!(rows.len(), 1, "{report:?}");
        assert_eq!(content(&rows[0]), expected());
        assert_eq!(
            count(&report.dropped, "without its request"),
            Some((1, "out.jsonl:1"))
        );
    }
}

#[test]
fn streamed_chunks_are_joined() {
    let chunk = |delta: Value, reason: Option<&str>| {
        json!({"id": "s1", "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
    };
    let call = |id: &str, name: &str, arguments: &str| json!({"tool_calls": [{"index": 0, "id": id, "function": {"name": name, "arguments": arguments}}]});
    let chunks = [
        chunk(json!({"role": "assistant", "content": "Let me "}), None),
        chunk(json!({"content": "look."}), None),
        chunk(call("x", "weather", ""), None),
        chunk(
            json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"city\": \"Os"}}]}),
            None,
        ),
        chunk(
            json!({"tool_calls": [{"index": 0, "function": {"arguments": "lo\"}"}}]}),
            None,
        ),
        chunk(json!({}), Some("tool_calls")),
        json!({"id": "s1", "object": "chat.completion.chunk", "choices": [], "usage": {"total_tokens": 9}}),
    ];
    let request = json!({"messages": [{"role": "user", "content": "Weather in Oslo?"}], "tools": [weather()]});
    let expected = json!([
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "content": "Let me look.", "tool_calls": [weather_call(1, "Oslo")]},
    ]);
    let stream: String = chunks
        .iter()
        .map(|chunk| format!("data: {chunk}\n\n"))
        .collect();
    let mut by_line: Vec<Value> = chunks
        .iter()
        .map(|chunk| json!({"response": chunk, "request": null}))
        .collect();
    by_line[0]["request"] = request.clone();
    for file in [
        lines(&[json!({"request": request, "response": chunks})]),
        lines(&[json!({"request": request, "response": stream + "data: [DONE]\n\n"})]),
        lines(&by_line),
    ] {
        let (rows, report) = import(&file);
        assert_eq!(rows.len(), 1, "{report:?}");
        assert_eq!(rows[0]["messages"], expected);
    }
    // Chunks alone have no prompt.
    let (rows, report) = import(&lines(&chunks));
    assert!(rows.is_empty());
    assert_eq!(
        count(&report.dropped, "without its request"),
        Some((1, "t.jsonl:7"))
    );
}

#[test]
fn anthropic_messages_have_blocks() {
    let request = json!({
    "model": "c", "max_tokens": 10, "system": [{"type": "text", "text": "Be brief."}],
    "tools": [{"name": "weather", "description": "Now", "input_schema": weather()["function"]["parameters"]},
        {"type": "web_search_20250305", "name": "web_search"}],
    "messages": [
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Look it up.", "signature": "s"},
            {"type": "tool_use", "id": "x", "name": "weather", "input": {"city": "Oslo"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "x", "content": [{"type": "text", "text": "rain"}]},
            {"type": "text", "text": "And now?"}]},
    ]});
    let response = json!({"type": "message", "role": "assistant", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "Rain."}]});
    let event = |kind: &str, fields: Value| {
        let mut event = json!({"type": kind, "index": 0});
        event
            .as_object_mut()
            .expect("an object")
            .extend(fields.as_object().expect("an object").clone());
        event
    };
    let events = json!([
        event("message_start", json!({"message": {"role": "assistant"}})),
        event(
            "content_block_start",
            json!({"content_block": {"type": "text", "text": ""}})
        ),
        event(
            "content_block_delta",
            json!({"delta": {"type": "text_delta", "text": "Ra"}})
        ),
        event(
            "content_block_delta",
            json!({"delta": {"type": "text_delta", "text": "in."}})
        ),
        event(
            "message_delta",
            json!({"delta": {"stop_reason": "end_turn"}})
        ),
    ]);
    let expected = json!({"messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "reasoning_content": "Look it up.", "tool_calls": [weather_call(1, "Oslo")]},
        weather_result(1, "rain"),
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": "Rain."},
    ], "tools": [weather()]});
    for response in [response, events] {
        let (rows, report) = import(&lines(&[json!({"request": request, "response": response})]));
        assert_eq!(rows.len(), 1, "{report:?}");
        assert_eq!(content(&rows[0]), expected);
        assert_eq!(
            count(&report.left_out, "a tool that the server runs"),
            Some((1, "t.jsonl:1"))
        );
    }
}

#[test]
fn the_responses_api_has_items() {
    let entry = json!({
        "request": {"instructions": "Be brief.", "input": [
            {"role": "user", "content": "Weather in Oslo?"},
            {"type": "function_call", "call_id": "x", "name": "weather", "arguments": "{\"city\": \"Oslo\"}"},
            {"type": "function_call_output", "call_id": "x", "output": "rain"}],
            "tools": [{"type": "function", "name": "weather", "description": "Now",
                "parameters": weather()["function"]["parameters"]}]},
        "response": {"object": "response", "status": "completed", "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "It rains."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Rain."}]}]}});
    let (rows, _) = import(&lines(&[entry]));
    assert_eq!(
        rows[0]["messages"],
        json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather in Oslo?"},
            {"role": "assistant", "tool_calls": [weather_call(1, "Oslo")]},
            weather_result(1, "rain"),
            {"role": "assistant", "reasoning_content": "It rains.", "content": "Rain."},
        ])
    );
    assert_eq!(rows[0]["tools"], json!([weather()]));
}

#[test]
fn failed_and_unfinished_responses_have_no_answer() {
    let request = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let choice = |reason: &str| json!({"choices": [{"finish_reason": reason, "message": {"content": "Well,"}}]});
    let (rows, report) = import(&lines(&[
        json!({"request": request, "response": {"error": {"message": "busy"}}}),
        json!({"request": request, "response": choice("length")}),
        json!({"request": request, "response": {"choices": []}}),
        json!({"request": request, "response": {"text": "Hi"}}),
        json!({"request": {"model": "m"}, "response": choice("stop")}),
        json!({"request": request, "response": choice("stop")}),
    ]));
    assert_eq!(rows.len(), 1);
    for (reason, expected) in [
        ("the response is an error", (2, "t.jsonl:1")),
        ("cut off by the token limit", (1, "t.jsonl:2")),
        ("unknown layout", (1, "t.jsonl:4")),
        ("a request without messages", (1, "t.jsonl:5")),
    ] {
        assert_eq!(count(&report.dropped, reason), Some(expected), "{reason}");
    }
}

#[test]
fn feedback_is_the_outcome() {
    let entry = |n: usize, fields: Value| {
        let mut entry = json!({"messages": [{"role": "user", "content": format!("{n}?")},
            {"role": "assistant", "content": "Yes."}]});
        entry
            .as_object_mut()
            .expect("an object")
            .extend(fields.as_object().expect("an object").clone());
        entry
    };
    let (rows, report) = import(&lines(&[
        entry(0, json!({"feedback": "thumbs-up"})),
        entry(1, json!({"metadata": {"score": "0.5"}})),
        entry(2, json!({"success": false})),
        entry(3, json!({"rating": 4})),
        entry(4, json!({"feedback": {"score": 0.25, "comment": "meh"}})),
        entry(5, json!({"feedback": "no idea"})),
        entry(6, json!({"reward": -1})),
    ]));
    let weights: Vec<Option<f64>> = rows
        .iter()
        .map(|row| row["messages"][1]["weight"].as_f64())
        .collect();
    assert_eq!(weights, [None, Some(0.5), None, Some(0.25), None]);
    assert_eq!(rows[2]["metadata"]["outcome"], 4.0);
    assert_eq!(count(&report.repaired, "above 1"), Some((1, "t.jsonl:4")));
    assert_eq!(
        count(&report.dropped, "outcome is 0"),
        Some((2, "t.jsonl:3"))
    );
}
