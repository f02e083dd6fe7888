//! Detects whether a chat template renders tools, which a `TEMPLATE` cannot.

use serde_json::{Map, json};
use tooltune_template::{ChatTemplate, Conversation, GenerationPrompt, Message, Role, ToolCall};

/// A tool name that no template contains.
const TOOL: &str = "zq6tool";

/// Whether the template renders the tools of a conversation, or the tool calls in messages.
pub(super) fn renders_tools(template: &ChatTemplate) -> bool {
    let question = Message::new(Role::User, "Zq1asked");
    let tool = json!({"type": "function", "function": {
        "name": TOOL,
        "description": "Zq7described",
        "parameters": {"type": "object", "properties": {}},
    }});
    let with_tools = Conversation {
        tools: Some(vec![tool]),
        ..Conversation::new(vec![question.clone()])
    };
    let call = Message {
        content: Some(String::new()),
        tool_calls: vec![ToolCall {
            id: Some("zq8callid".to_owned()),
            name: TOOL.to_owned(),
            arguments: Map::new(),
            derived: Default::default(),
        }],
        ..Message::new(Role::Assistant, "")
    };
    let with_call = Conversation::new(vec![question, call]);
    // A template that refuses tools does not render them.
    let names_tool = |conversation: &Conversation, generation_prompt| {
        let text = template.render(conversation, generation_prompt);
        text.is_ok_and(|text| text.contains(TOOL))
    };
    names_tool(&with_tools, GenerationPrompt::Add) || names_tool(&with_call, GenerationPrompt::Omit)
}
