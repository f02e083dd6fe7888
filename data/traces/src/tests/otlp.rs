//! Spans and log records in every convention.

use std::slice;

use serde_json::{Value, json};

use super::{content, count, import, import_with, lines, weather, weather_call, weather_result};
use crate::TraceOptions;

/// An attribute with a string.
fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// A file with the spans of one trace.
fn spans(spans: &[Value]) -> Value {
    json!({"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "s"}, "spans": spans}]}]})
}

fn span(id: &str, attributes: &[Value]) -> Value {
    json!({"traceId": "t1", "spanId": id, "parentSpanId": "root", "name": id,
        "startTimeUnixNano": "1700000000000000001", "attributes": attributes})
}

/// The messages of a chat span, in the layout of `gen-ai-input-messages.json`.
fn chat_span(id: &str, input: &Value, output: &Value) -> Value {
    let tools = json!([{"type": "function", "name": "weather", "description": "Now",
        "parameters": weather()["function"]["parameters"]}]);
    span(
        id,
        &[
            text("gen_ai.operation.name", "chat"),
            text("gen_ai.request.model", "m"),
            text(
                "gen_ai.system_instructions",
                r#"[{"type": "text", "content": "Be brief."}]"#,
            ),
            text("gen_ai.tool.definitions", &tools.to_string()),
            text("gen_ai.input.messages", &input.to_string()),
            text("gen_ai.output.messages", &output.to_string()),
        ],
    )
}

fn question() -> Value {
    json!({"role": "user", "parts": [{"type": "text", "content": "Weather in Oslo?"}]})
}

fn call() -> Value {
    json!({"role": "assistant", "parts": [{"type": "tool_call", "id": "c9", "name": "weather",
        "arguments": {"city": "Oslo"}}], "finish_reason": "tool_call"})
}

fn answer() -> Value {
    json!({"role": "assistant", "parts": [{"type": "reasoning", "content": "It rains."},
        {"type": "text", "content": "Rain."}], "finish_reason": "stop"})
}

fn expected() -> Value {
    json!({"messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "tool_calls": [weather_call(1, "Oslo")]},
        weather_result(1, "rain, 9 °C"),
        {"role": "assistant", "reasoning_content": "It rains.", "content": "Rain."},
    ], "tools": [weather()]})
}

#[test]
fn spans_of_a_conversation_become_the_longest_request_with_its_answer() {
    let result = json!({"role": "tool", "parts": [{"type": "tool_call_response", "id": "c9",
        "response": "rain, 9 °C"}]});
    let first = chat_span("a", &json!([question()]), &json!([call()]));
    let second = chat_span(
        "b",
        &json!([question(), call(), result]),
        &json!([answer()]),
    );
    // In either order, in one document or two lines.
    for file in [
        lines(&[spans(&[first.clone(), second.clone()])]),
        lines(&[
            spans(slice::from_ref(&second)),
            spans(slice::from_ref(&first)),
        ]),
        serde_json::to_string_pretty(&spans(&[first, second])).expect("JSON"),
    ] {
        let (rows, report) = import(&file);
        assert_eq!(rows.len(), 1, "{report:?}");
        assert_eq!(content(&rows[0]), expected());
        assert_eq!(rows[0]["metadata"], json!({"source": "otlp"}));
        assert_eq!(
            report.dropped.total() + report.repaired.total(),
            0,
            "{report:?}"
        );
    }
}

#[test]
fn execute_tool_spans_give_the_results_that_the_messages_lack() {
    let tool = span(
        "tool",
        &[
            text("gen_ai.operation.name", "execute_tool"),
            text("gen_ai.tool.call.id", "c9"),
            text("gen_ai.tool.call.result", "rain, 9 °C"),
        ],
    );
    let chat = chat_span("b", &json!([question(), call()]), &json!([answer()]));
    let (rows, _) = import(&lines(&[spans(&[chat.clone(), tool])]));
    assert_eq!(content(&rows[0]), expected());
    // Without the span, the conversation ends in the call.
    let (rows, report) = import(&lines(&[spans(&[chat])]));
    assert_eq!(rows[0]["messages"].as_array().map(Vec::len), Some(3));
    assert_eq!(
        count(&report.repaired, "no result before the next message"),
        Some((1, "t.jsonl:1"))
    );
}

#[test]
fn agent_spans_count_only_without_other_messages() {
    let agent = span(
        "agent",
        &[
            text("gen_ai.operation.name", "invoke_agent"),
            text("gen_ai.input.messages", &json!([question()]).to_string()),
            text("gen_ai.output.messages", &json!([answer()]).to_string()),
        ],
    );
    let (rows, _) = import(&lines(&[spans(slice::from_ref(&agent))]));
    assert_eq!(rows.len(), 1);
    let chat = chat_span("a", &json!([question()]), &json!([call()]));
    let (rows, _) = import(&lines(&[spans(&[agent, chat])]));
    assert_eq!(rows.len(), 1);
    assert_eq!(
        rows[0]["messages"][2]["tool_calls"],
        json!([weather_call(1, "Oslo")])
    );
}

#[test]
fn events_of_older_conventions_are_messages() {
    let event = |name: &str, attributes: &[Value]| json!({"name": name, "attributes": attributes});
    let calls = json!([{"id": "c9", "type": "function", "function": {"name": "weather",
        "arguments": "{\"city\": \"Oslo\"}"}}]);
    let mut chat = span("a", &[text("gen_ai.system", "openai")]);
    chat["events"] = json!([
        event("gen_ai.system.message", &[text("content", "Be brief.")]),
        event(
            "gen_ai.user.message",
            &[text("content", "Weather in Oslo?")]
        ),
        event(
            "gen_ai.assistant.message",
            &[text("tool_calls", &calls.to_string())]
        ),
        event(
            "gen_ai.tool.message",
            &[text("id", "c9"), text("content", "rain, 9 °C")]
        ),
        event(
            "gen_ai.choice",
            &[
                text("finish_reason", "stop"),
                json!({"key": "message", "value": {"kvlistValue": {"values": [
                    text("role", "assistant"), text("content", "Rain."), text("reasoning", "It rains."),
                ]}}}),
            ]
        ),
        event(
            "gen_ai.choice",
            &[text("message", "{\"content\": \"Wet.\"}")]
        ),
    ]);
    let (rows, report) = import(&lines(&[spans(&[chat])]));
    assert_eq!(rows[0]["messages"], expected()["messages"]);
    // The tools follow from the call.
    let derived = json!([{"type": "function", "function": {"name": "weather", "parameters":
        {"type": "object", "properties": {"city": {"type": "string"}}}}}]);
    assert_eq!(rows[0]["tools"], derived);
    assert_eq!(count(&report.left_out, "a choice"), Some((1, "t.jsonl:1")));
    assert_eq!(
        count(&report.repaired, "derived the tools"),
        Some((1, "t.jsonl:1"))
    );
}

#[test]
fn log_records_hold_messages_by_span() {
    let record = |span: &str, name: &str, body: &[Value]| {
        json!({"traceId": "t1", "spanId": span, "eventName": name,
            "body": {"kvlistValue": {"values": body}}})
    };
    let logs = json!({"resourceLogs": [{"scopeLogs": [{"logRecords": [
        record("a", "gen_ai.user.message", &[text("content", "One?")]),
        record("b", "gen_ai.user.message", &[text("content", "Two?")]),
        record("a", "gen_ai.choice", &[text("message", "{\"content\": \"1\"}")]),
        record("b", "gen_ai.choice", &[text("message", "{\"content\": \"2\"}")]),
    ]}]}]});
    let (rows, _) = import(&lines(&[logs]));
    let texts: Vec<&Value> = rows
        .iter()
        .map(|row| &row["messages"][1]["content"])
        .collect();
    assert_eq!(texts, ["1", "2"]);
    assert_eq!(rows[1]["messages"][0]["content"], "Two?");
}

#[test]
fn indexed_attributes_are_messages() {
    let arguments = r#"{"city": "Oslo"}"#;
    let openinference = [
        text("llm.input_messages.0.message.role", "system"),
        text("llm.input_messages.0.message.content", "Be brief."),
        text("llm.input_messages.1.message.role", "user"),
        text(
            "llm.input_messages.1.message.contents.0.message_content.type",
            "text",
        ),
        text(
            "llm.input_messages.1.message.contents.0.message_content.text",
            "Weather in Oslo?",
        ),
        text("llm.input_messages.2.message.role", "assistant"),
        text(
            "llm.input_messages.2.message.tool_calls.0.tool_call.id",
            "c9",
        ),
        text(
            "llm.input_messages.2.message.tool_calls.0.tool_call.function.name",
            "weather",
        ),
        text(
            "llm.input_messages.2.message.tool_calls.0.tool_call.function.arguments",
            arguments,
        ),
        // The tenth follows the ninth, not the first.
        text("llm.input_messages.10.message.role", "tool"),
        text("llm.input_messages.10.message.tool_call_id", "c9"),
        text("llm.input_messages.10.message.content", "rain, 9 °C"),
        text("llm.output_messages.0.message.role", "assistant"),
        text("llm.output_messages.0.message.content", "Rain."),
        text("llm.tools.0.tool.json_schema", &weather().to_string()),
    ];
    let parameters = weather()["function"]["parameters"].to_string();
    let openllmetry = [
        text("gen_ai.prompt.0.role", "system"),
        text("gen_ai.prompt.0.content", "Be brief."),
        text("gen_ai.prompt.1.role", "user"),
        text(
            "gen_ai.prompt.1.content",
            r#"[{"type": "text", "text": "Weather in Oslo?"}]"#,
        ),
        text("gen_ai.prompt.2.role", "assistant"),
        text("gen_ai.prompt.2.tool_calls.0.id", "c9"),
        text("gen_ai.prompt.2.tool_calls.0.name", "weather"),
        text("gen_ai.prompt.2.tool_calls.0.arguments", arguments),
        text("gen_ai.prompt.3.role", "tool"),
        text("gen_ai.prompt.3.tool_call_id", "c9"),
        text("gen_ai.prompt.3.content", "rain, 9 °C"),
        text("gen_ai.completion.0.role", "assistant"),
        text("gen_ai.completion.0.finish_reason", "stop"),
        text("gen_ai.completion.0.content", "Rain."),
        text("llm.request.functions.0.name", "weather"),
        text("llm.request.functions.0.description", "Now"),
        text("llm.request.functions.0.parameters", &parameters),
    ];
    let mut expected = expected();
    let answer = expected["messages"][4].as_object_mut().expect("an answer");
    answer.remove("reasoning_content");
    for attributes in [&openinference[..], &openllmetry[..]] {
        let (rows, report) = import(&lines(&[spans(&[span("a", attributes)])]));
        assert_eq!(rows.len(), 1, "{report:?}");
        assert_eq!(content(&rows[0]), expected);
    }
}

#[test]
fn evaluations_and_status_are_outcomes() {
    let score = |value: &Value| {
        json!({"name": "gen_ai.evaluation.result", "attributes": [
            text("gen_ai.evaluation.name", "quality"),
            {"key": "gen_ai.evaluation.score.value", "value": value},
        ]})
    };
    let scored = |id: &str, events: &Value, status: u8| {
        let mut chat = chat_span("a", &json!([question()]), &json!([answer()]));
        chat["traceId"] = id.into();
        chat["events"] = events.clone();
        chat["status"] = json!({"code": status});
        let other = format!("Weather in Oslo, {id}?");
        let text = serde_json::to_string(&chat)
            .expect("JSON")
            .replace("Weather in Oslo?", &other);
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    let file = lines(&[spans(&[
        scored(
            "mean",
            &json!([
                score(&json!({"doubleValue": 0.5})),
                score(&json!({"intValue": "1"}))
            ]),
            2,
        ),
        scored("failed", &json!([]), 2),
        scored("good", &json!([]), 1),
        scored("unknown", &json!([]), 0),
    ])]);
    let (rows, report) = import(&file);
    let weight = |row: &Value| row["messages"][2].get("weight").cloned();
    let outcome = |row: &Value| row["metadata"].get("outcome").cloned();
    let seen: Vec<_> = rows.iter().map(|row| (weight(row), outcome(row))).collect();
    let expected = [
        (Some(json!(0.75)), Some(json!(0.75))),
        (None, Some(json!(1.0))),
        (None, None),
    ];
    assert_eq!(seen, expected);
    assert_eq!(
        count(&report.dropped, "outcome is 0"),
        Some((1, "t.jsonl:1"))
    );
    let options = TraceOptions {
        min_outcome: Some(0.8),
        ..TraceOptions::default()
    };
    let (rows, report) = import_with(&[("t", file.as_bytes())], &options).expect("imported");
    assert_eq!(rows.len(), 1);
    assert_eq!(
        count(&report.dropped, "below --min-outcome"),
        Some((2, "t:1"))
    );
    assert_eq!(
        count(&report.dropped, "there is no outcome"),
        Some((1, "t:1"))
    );
}

#[test]
fn a_pointer_finds_the_outcome_in_the_attributes() {
    let mut chat = chat_span("a", &json!([question()]), &json!([answer()]));
    let attributes = chat["attributes"].as_array_mut().expect("a list");
    attributes.push(json!({"key": "app/score", "value": {"doubleValue": 0.25}}));
    let options = TraceOptions {
        outcome: Some("/attributes/app~1score".to_owned()),
        ..TraceOptions::default()
    };
    let file = lines(&[spans(&[chat])]);
    let (rows, _) = import_with(&[("t", file.as_bytes())], &options).expect("imported");
    assert_eq!(rows[0]["messages"][2]["weight"], 0.25);
    let wrong = TraceOptions {
        outcome: Some("score".to_owned()),
        ..TraceOptions::default()
    };
    let error = import_with(&[("t", file.as_bytes())], &wrong).expect_err("no pointer");
    assert!(error.to_string().contains("begin it with `/`"), "{error}");
}
