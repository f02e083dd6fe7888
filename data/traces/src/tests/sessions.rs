//! Sessions of Claude Code, Codex and LangChain.

use serde_json::{Value, json};

use super::{content, count, import, lines, weather_call, weather_result};

/// A line of a session of Claude Code.
fn line(uuid: &str, parent: Option<&str>, kind: &str, message: Value) -> Value {
    json!({"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s", "isSidechain": false,
        "cwd": "/srv/app", "version": "2.0.74", "message": message})
}

fn user(uuid: &str, parent: Option<&str>, text: &str) -> Value {
    line(
        uuid,
        parent,
        "user",
        json!({"role": "user", "content": text}),
    )
}

/// A block of the answer `id`.
fn block(uuid: &str, parent: &str, id: &str, block: Value) -> Value {
    let message =
        json!({"id": id, "type": "message", "role": "assistant", "model": "c", "content": [block]});
    line(uuid, Some(parent), "assistant", message)
}

fn tool_use(id: &str, city: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": "weather", "input": {"city": city}})
}

fn tool_result(uuid: &str, parent: &str, id: &str, text: &str) -> Value {
    let block = json!({"type": "tool_result", "tool_use_id": id, "content": text});
    line(
        uuid,
        Some(parent),
        "user",
        json!({"role": "user", "content": [block]}),
    )
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// The parallel calls as they are stored: the first result is not on the path to the answer.
fn session() -> Vec<Value> {
    vec![
        json!({"type": "summary", "summary": "Weather", "leafUuid": "z"}),
        json!({"type": "file-history-snapshot", "messageId": "m", "snapshot": {}}),
        user("u1", None, "Weather?"),
        block(
            "a1",
            "u1",
            "msg_1",
            json!({"type": "thinking", "thinking": "Two cities."}),
        ),
        block("a2", "a1", "msg_1", text("I look.")),
        block("a3", "a2", "msg_1", tool_use("x", "Oslo")),
        block("a4", "a3", "msg_1", tool_use("y", "Bergen")),
        tool_result("r1", "a3", "x", "rain"),
        tool_result("r2", "a4", "y", "sun"),
        block("a5", "r2", "msg_2", text("Rain and sun.")),
    ]
}

fn expected() -> Value {
    json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "reasoning_content": "Two cities.", "content": "I look.",
            "tool_calls": [weather_call(1, "Oslo"), weather_call(2, "Bergen")]},
        weather_result(2, "sun"),
        weather_result(1, "rain"),
        {"role": "assistant", "content": "Rain and sun."},
    ])
}

#[test]
fn a_session_of_claude_code_is_a_path_through_its_tree() {
    let (rows, report) = import(&lines(&session()));
    assert_eq!(rows.len(), 1, "{report:?}");
    assert_eq!(rows[0]["messages"], expected());
    assert_eq!(rows[0]["metadata"]["source"], "claude-code");
    let derived = json!([{"type": "function", "function": {"name": "weather", "parameters":
        {"type": "object", "properties": {"city": {"type": "string"}}}}}]);
    assert_eq!(rows[0]["tools"], derived);
    assert_eq!(
        count(&report.left_out, "without messages"),
        Some((2, "t.jsonl:1"))
    );
}

#[test]
fn edited_messages_and_sidechains_are_conversations_of_their_own() {
    let mut all = session();
    // The user edits the first message, and a subagent works.
    all.push(user("v1", None, "Weather in Rome?"));
    all.push(block("v2", "v1", "msg_3", text("Sun.")));
    let mut side = [
        user("s1", None, "Find files."),
        block("s2", "s1", "msg_4", text("None.")),
    ];
    for line in &mut side {
        line["isSidechain"] = true.into();
    }
    all.extend(side);
    // Two continuations of the same answer; one is an error that the program shows.
    all.push(user("c1", Some("a5"), "Thanks."));
    let mut error = block("c2", "c1", "msg_5", text("API Error: 529"));
    error["isApiErrorMessage"] = true.into();
    all.push(error);
    all.push(user("d1", Some("a5"), "And Rome?"));
    all.push(block("d2", "d1", "msg_6", text("Sun.")));
    let (rows, report) = import(&lines(&all));
    let last: Vec<&Value> = rows
        .iter()
        .map(|row| {
            row["messages"]
                .as_array()
                .expect("a list")
                .last()
                .expect("an answer")
        })
        .collect();
    let texts: Vec<&Value> = last.iter().map(|message| &message["content"]).collect();
    assert_eq!(texts, ["Sun.", "None.", "Sun."]);
    let lengths: Vec<usize> = rows
        .iter()
        .map(|row| row["messages"].as_array().map_or(0, Vec::len))
        .collect();
    assert_eq!(lengths, [2, 2, 7]);
    assert_eq!(report.n_beginnings, 1);
    assert_eq!(
        count(&report.repaired, "removed the messages after"),
        Some((1, "t.jsonl:16"))
    );
}

#[test]
fn a_rollout_of_codex_joins_the_items_of_an_answer() {
    let item = |payload: Value| json!({"timestamp": "2026-01-01T00:00:00Z", "type": "response_item", "payload": payload});
    let message = |role: &str, kind: &str, text: &str| {
        item(json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]}))
    };
    let items = [
        message("developer", "input_text", "Sandboxed."),
        message("user", "input_text", "List files."),
        item(
            json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "Use ls."}], "encrypted_content": "g"}),
        ),
        message("assistant", "output_text", "I list."),
        item(
            json!({"type": "function_call", "name": "shell", "arguments": "{\"command\": [\"ls\"]}", "call_id": "c1"}),
        ),
        item(
            json!({"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin", "call_id": "c2", "status": "completed"}),
        ),
        item(json!({"type": "function_call_output", "call_id": "c1", "output": "a.txt"})),
        item(
            json!({"type": "custom_tool_call_output", "call_id": "c2", "output": {"content": "ok", "success": true}}),
        ),
        item(json!({"type": "ghost_snapshot", "ghost_commit": {}})),
        message("assistant", "output_text", "Done."),
    ];
    let meta = json!({"type": "session_meta", "payload": {"id": "s", "base_instructions": {"text": "You are Codex."}}});
    let event =
        json!({"type": "event_msg", "payload": {"type": "agent_message", "message": "Done."}});
    let mut all = vec![meta];
    all.extend(items.iter().cloned());
    all.push(event);
    let expected = json!([
        {"role": "system", "content": "You are Codex."},
        {"role": "developer", "content": "Sandboxed."},
        {"role": "user", "content": "List files."},
        {"role": "assistant", "reasoning_content": "Use ls.", "content": "I list.", "tool_calls": [
            {"id": "call00001", "type": "function", "function": {"name": "shell", "arguments": {"command": ["ls"]}}},
            {"id": "call00002", "type": "function", "function": {"name": "apply_patch", "arguments": {"input": "*** Begin"}}}]},
        {"role": "tool", "content": "a.txt", "tool_call_id": "call00001", "name": "shell"},
        {"role": "tool", "content": "ok", "tool_call_id": "call00002", "name": "apply_patch"},
        {"role": "assistant", "content": "Done."},
    ]);
    let (rows, report) = import(&lines(&all));
    assert_eq!(rows.len(), 1, "{report:?}");
    assert_eq!(rows[0]["messages"], expected);
    assert_eq!(
        count(&report.left_out, "ghost_snapshot"),
        Some((1, "t.jsonl:10"))
    );
    // The oldest files have the payloads as lines.
    let bare: Vec<Value> = items.iter().map(|item| item["payload"].clone()).collect();
    let (rows, _) = import(&lines(&bare));
    assert_eq!(
        rows[0]["messages"].as_array().map(|all| &all[..]),
        expected.as_array().map(|all| &all[1..])
    );
    // A compaction replaces the history.
    all.push(json!({"type": "compacted", "payload": {"message": "", "replacement_history": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "So far: listed."}]}]}}));
    all.push(message("assistant", "output_text", "I continue."));
    let (rows, report) = import(&lines(&all));
    assert_eq!(rows.len(), 2, "{report:?}");
    assert_eq!(
        rows[1]["messages"],
        json!([
            {"role": "system", "content": "You are Codex."},
            {"role": "user", "content": "So far: listed."},
            {"role": "assistant", "content": "I continue."},
        ])
    );
}

#[test]
fn message_lists_of_langchain_are_read_in_every_form() {
    let calls =
        json!([{"name": "weather", "args": {"city": "Oslo"}, "id": "x", "type": "tool_call"}]);
    let fields = [
        ("human", "HumanMessage", json!({"content": "Weather?"})),
        (
            "ai",
            "AIMessage",
            json!({"content": [{"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "x", "name": "weather", "input": {"city": "Oslo"}}],
            "tool_calls": calls, "invalid_tool_calls": []}),
        ),
        (
            "tool",
            "ToolMessage",
            json!({"content": "rain", "tool_call_id": "x", "id": "9", "name": "weather"}),
        ),
        (
            "ai",
            "AIMessage",
            json!({"content": "Rain.", "tool_calls": []}),
        ),
    ];
    let dumped: Vec<Value> = fields
        .iter()
        .map(|(kind, _, fields)| {
            let mut message = fields.clone();
            message["type"] = (*kind).into();
            message
        })
        .collect();
    let nested: Vec<Value> = fields
        .iter()
        .map(|(kind, _, fields)| json!({"type": kind, "data": fields}))
        .collect();
    let constructed: Vec<Value> = fields.iter().map(|(_, class, fields)| {
        json!({"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", class], "kwargs": fields})
    }).collect();
    let expected = json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [weather_call(1, "Oslo")]},
        weather_result(1, "rain"),
        {"role": "assistant", "content": "Rain."},
    ]);
    for messages in [dumped, nested, constructed] {
        for file in [
            json!(messages).to_string(),
            lines(&messages),
            lines(&[json!({"messages": messages})]),
            lines(&[json!({"values": {"messages": messages}, "next": []})]),
        ] {
            let (rows, report) = import(&file);
            assert_eq!(rows.len(), 1, "{file} {report:?}");
            assert_eq!(content(&rows[0])["messages"], expected, "{file}");
            assert_eq!(rows[0]["metadata"]["source"], "langchain");
        }
    }
    let failed = json!({"messages": [{"type": "human", "content": "Hi"},
        {"type": "ai", "content": "", "invalid_tool_calls": [{"name": "weather", "args": "{", "id": "x"}]}]});
    let (_, report) = import(&lines(&[failed]));
    assert_eq!(
        count(&report.dropped, "arguments of a call"),
        Some((1, "t.jsonl:1"))
    );
}
