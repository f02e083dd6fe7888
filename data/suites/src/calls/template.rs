//! Determines how a chat template writes calls by rendering a few calls and parsing the text.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use tooltune_template::{ChatTemplate, Conversation, GenerationPrompt, Message, Role, ToolCall};

use super::answer::WrittenCall;
use super::read::{CallDialect, read_calls};
use super::tools::ToolSet;

/// How a chat template writes calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateCalls {
    /// It writes them in this dialect, and they parse back unchanged.
    Read {
        /// The notation.
        dialect: CallDialect,
        /// The text of a turn with one call.
        written: String,
    },
    /// It does not render calls, or rejects turns with calls.
    Nothing,
    /// It writes them in a notation that does not parse back.
    Unread {
        /// The text of a turn with one call.
        written: String,
    },
}

const QUESTION: &str = "Probe the sound, please.";
const ANSWER: &str = "It is three fathoms deep.";
const TOOL: &str = "probe_depth";

impl TemplateCalls {
    /// Renders a turn with a call, and parses it.
    pub fn probe(template: &ChatTemplate) -> Self {
        let tools = [tool()];
        let call = WrittenCall {
            name: TOOL.to_owned(),
            arguments: arguments(),
        };
        let calls = std::slice::from_ref(&call);
        // Some templates require that turns with calls have no content, others that the content is
        // empty.
        let mut contents = [None, Some("")].into_iter();
        let Some(parsed) =
            contents.find_map(|content| render_turn(template, &tools, calls, content))
        else {
            return Self::Nothing;
        };
        let answer = read_calls(&parsed, &ToolSet::new(&tools));
        match answer.dialect {
            Some(dialect) if answer.calls == [call] && answer.malformed.is_empty() => Self::Read {
                dialect,
                written: parsed,
            },
            _ if parsed.contains(TOOL) => Self::Unread { written: parsed },
            _ => Self::Nothing,
        }
    }
}

fn tool() -> Value {
    json!({"type": "function", "function": {"name": TOOL, "description": "Measures a depth.",
        "parameters": {"type": "object", "properties": {
            "place": {"type": "string"},
            "fathoms": {"type": "integer"},
            "casts": {"type": "array", "items": {"type": "integer"}},
            "exact": {"type": "boolean"}}}}})
}

/// Values of several types; the string contains quotes, a tag and non-ASCII letters.
fn arguments() -> Map<String, Value> {
    let arguments = json!({"place": "the \"Øresund\" <b>", "fathoms": 3, "casts": [1, 2],
        "exact": true});
    arguments.as_object().cloned().unwrap_or_default()
}

/// The text of an assistant turn with these calls, without the end-of-turn marker; `None` if the
/// template rejects the turn.
pub(super) fn render_turn(
    template: &ChatTemplate,
    tools: &[Value],
    calls: &[WrittenCall],
    content: Option<&str>,
) -> Option<String> {
    let mut turn = Message::new(Role::Assistant, "");
    turn.content = content.map(str::to_owned);
    turn.tool_calls = calls
        .iter()
        .map(|call| ToolCall {
            // Mistral's templates require an id of nine letters or digits.
            id: Some("probe0001".to_owned()),
            name: call.name.clone(),
            arguments: call.arguments.clone(),
            derived: BTreeSet::default(),
        })
        .collect();
    let text = turn_text(template, tools, turn)?;
    let plain = turn_text(template, tools, Message::new(Role::Assistant, ANSWER))?;
    let (_, end) = plain.rsplit_once(ANSWER)?;
    Some(text.strip_suffix(end).unwrap_or(&text).to_owned())
}

/// The text after the prompt in a conversation that ends with this turn.
fn turn_text(template: &ChatTemplate, tools: &[Value], turn: Message) -> Option<String> {
    let conversation = Conversation {
        tools: Some(tools.to_vec()),
        ..Conversation::new(vec![Message::new(Role::User, QUESTION), turn])
    };
    let text = template
        .render(&conversation, GenerationPrompt::Omit)
        .ok()?;
    let prompt = template.render_prompt(&conversation).ok();
    let after_prompt = prompt.and_then(|prompt| text.strip_prefix(&prompt).map(str::to_owned));
    // Some templates write the opening reasoning marker in the prompt, but not in the history.
    after_prompt.or_else(|| {
        text.rsplit_once(QUESTION)
            .map(|(_, after_prompt)| after_prompt.to_owned())
    })
}
