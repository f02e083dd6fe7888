//! Reads conversations in several formats.

use serde_json::json;

use super::reading::file;
use super::*;

fn read(row: &Value, format: DataFormat) -> Result<Row, String> {
    let file = file(format!("{row}\n").as_bytes());
    let row = read_rows(file.path(), format).unwrap().next().unwrap();
    row.map_err(|error| error.fault().to_string())
}

#[test]
fn every_conversation_format_gives_the_same_conversation() {
    let messages =
        json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]);
    let theirs = json!([{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]);
    let tool = json!([{"name": "f", "description": "", "parameters": {}}]).to_string();
    let call = json!([{"name": "f", "arguments": {}}]).to_string();
    for (row, alone) in [
        (json!({"messages": messages}), DataFormat::Messages),
        (json!({"conversations": theirs}), DataFormat::ShareGpt),
        (json!({"messages": theirs}), DataFormat::ShareGpt),
        (
            json!({"instruction": "Hi", "input": "", "output": "Ho"}),
            DataFormat::Alpaca,
        ),
        (
            json!({"prompt": "Hi", "completion": "Ho"}),
            DataFormat::PromptCompletion,
        ),
        (
            json!({"query": "Hi", "tools": tool, "answers": call}),
            DataFormat::Xlam,
        ),
    ] {
        let read = |format| read(&row, format).map(|row| row.conversation);
        assert_eq!(read(DataFormat::Chat), read(alone), "{row}");
        assert!(read(DataFormat::Chat).is_ok(), "{row}");
    }
    let slot = json!({"input_text": "a", "json_schema": {}, "gold": {}});
    for (row, said) in [
        (
            slot,
            "the row has the format slot, but data.format or the rows before it have chat",
        ),
        (
            json!({"query": "Hi", "calls": []}),
            "the row has the format goat",
        ),
        (json!({"text": "Hi"}), "messages"),
    ] {
        let fault = read(&row, DataFormat::Chat).unwrap_err();
        assert!(fault.contains(said), "{row}: {fault}");
    }
    let chats = [
        DataFormat::Messages,
        DataFormat::ShareGpt,
        DataFormat::Alpaca,
    ];
    assert!(
        chats
            .iter()
            .all(|one| chats.iter().all(|other| one.mixes_with(*other)))
    );
    assert!(!DataFormat::Messages.mixes_with(DataFormat::PromptCompletion));
    assert!(!DataFormat::Slot.mixes_with(DataFormat::Slot));
}

/// ToolBench's rows have text for calls, and results from the speaker `function`.
#[test]
fn the_speaker_function_gives_a_tool_result() {
    let row = json!({"id": "Step 1: Tide?", "conversations": [
        {"from": "system", "value": "You are AutoGPT."},
        {"from": "user", "value": "Tide?"},
        {"from": "assistant", "value": "Thought: \nAction: tide_at\nAction Input: {}"},
        {"from": "function", "value": "{\"error\": \"\", \"response\": 3}"},
        {"from": "assistant", "value": "It is 3 m."},
    ]});
    let conversation = read(&row, DataFormat::ShareGpt).unwrap().conversation;
    let roles: Vec<&str> = conversation
        .messages
        .iter()
        .map(|message| message.role.as_str())
        .collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant"]);
    let result = conversation.messages[3].content.as_deref();
    assert_eq!(result, Some("{\"error\": \"\", \"response\": 3}"));
    let unknown = json!({"conversations": [{"from": "functions", "value": "x"}]});
    let fault = read(&unknown, DataFormat::ShareGpt).unwrap_err();
    assert!(fault.contains("tool, function, observation"), "{fault}");
}
