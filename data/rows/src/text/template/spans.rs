//! The vocabulary of places in a rendered conversation.

use serde::Serialize;

use crate::text::conversation::{Conversation, Role, ValueOrigin};

/// What a span of the rendered text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpanKind {
    /// All that the model writes in one turn, with the end-of-turn token and the template's text
    /// after it.
    AssistantTurn,
    /// An assistant turn that belongs to the row's completion.
    Completion,
    /// The text of an assistant message.
    AssistantContent,
    /// The name in a tool call.
    ToolCallName,
    /// A key at any depth of a tool call's arguments, without quotes.
    ToolCallArgumentKey,
    /// A scalar at any depth of a call's arguments, in the template's own format or in the text of
    /// a message: the characters between the quotes of a text, the whole literal otherwise. An
    /// empty text has no span.
    ToolCallArgumentValue,
    /// Such a value that the user gave; its bytes are a span of the kind above, too.
    FixedArgumentValue,
    /// Such a value that came from an earlier result; likewise.
    DerivedArgumentValue,
    /// The text of a system, user or tool message.
    PromptContent,
}

impl SpanKind {
    /// The kinds that `mask.weights` can name.
    pub const WEIGHTABLE: [Self; 8] = [
        Self::AssistantTurn,
        Self::AssistantContent,
        Self::Completion,
        Self::ToolCallName,
        Self::ToolCallArgumentKey,
        Self::ToolCallArgumentValue,
        Self::FixedArgumentValue,
        Self::DerivedArgumentValue,
    ];

    /// The kind of the argument values of one origin.
    pub(super) fn of_origin(origin: ValueOrigin) -> Self {
        match origin {
            ValueOrigin::Fixed => Self::FixedArgumentValue,
            ValueOrigin::Derived => Self::DerivedArgumentValue,
        }
    }

    /// The kind as configurations spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::AssistantTurn => "assistant",
            Self::AssistantContent => "assistant.content",
            Self::Completion => "completion",
            Self::ToolCallName => "tool_call.name",
            Self::ToolCallArgumentKey => "tool_call.arguments.key",
            Self::ToolCallArgumentValue => "tool_call.arguments.value",
            Self::FixedArgumentValue => "tool_call.arguments.value.fixed",
            Self::DerivedArgumentValue => "tool_call.arguments.value.derived",
            Self::PromptContent => "prompt.content",
        }
    }
}

/// A piece of the rendered text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// What it is.
    pub kind: SpanKind,
    /// The message it comes from, from 0.
    pub message: usize,
    /// First byte in the text.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// Which turns to locate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turns {
    /// Every assistant message that is learned.
    All,
    /// Every assistant message, also those that are not learned.
    WithUnlearned,
    /// The last assistant message.
    Last,
    /// The assistant messages of the completion.
    Completion,
}

impl Turns {
    /// The assistant messages that are chosen, learned or not.
    pub(crate) fn messages(self, conversation: &Conversation) -> Vec<usize> {
        let mut found: Vec<usize> = (0..conversation.messages.len())
            .filter(|&idx| conversation.messages[idx].role == Role::Assistant)
            .filter(|&idx| self != Self::Completion || idx >= conversation.completion_start)
            .collect();
        if self == Self::Last {
            found = found.pop().into_iter().collect();
        }
        found
    }

    /// Of the turns that are located and learned, the one whose prompt must be the beginning of the training
    /// text.
    pub(crate) fn strict<T: Copy>(self, located: &[T]) -> Option<T> {
        match self {
            Self::Completion => located.first().copied(),
            Self::All | Self::WithUnlearned | Self::Last => located.last().copied(),
        }
    }
}

/// What stands before the first token that is learned of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TurnBegin {
    /// The template's generation prompt.
    GenerationPrompt,
    /// The generation prompt with an empty thought, such as `<think>\n\n</think>\n\n`, which the
    /// template writes and the model does not.
    EmptyThought,
    /// The words that open the turn, without the thought that the generation prompt opens:
    /// templates drop the thoughts of earlier turns, and some those of every turn.
    DroppedThought,
    /// The words up to the template's generation tag.
    GenerationTag,
}

/// A turn that can be learned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Turn {
    pub(crate) message: usize,
    /// What its tokens weigh before `mask.weights`; 0 only where [`Turns::WithUnlearned`] are located.
    pub(crate) weight: f32,
    pub(crate) start: usize,
    /// Where the message's own text ends and the template's end-of-turn text begins.
    pub(crate) content_end: usize,
    pub(crate) end: usize,
    pub(crate) begins: TurnBegin,
    /// Whether the text before the turn, from its first byte, is what the template shows a model
    /// that is asked for the turn.
    pub(crate) is_prompt: bool,
}

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderedText {
    /// The training text, equal to [`ChatTemplate::render`](super::ChatTemplate::render) without a
    /// generation prompt, until `end_turns` appends to it.
    pub text: String,
    /// Spans in the order of their starts; turns only where they were asked for.
    pub spans: Vec<Span>,
    /// Kinds of which at least one span could not be located, because the template trims,
    /// measures, slices or compares the text; empty for ordinary templates.
    pub lost: Vec<SpanKind>,
    /// Chosen messages that are not learned, because the data switches them off.
    pub switched_off: Vec<usize>,
    /// Assistant messages, chosen or not, whose reasoning the template leaves out; none of them is
    /// learned.
    pub without_reasoning: Vec<usize>,
    pub(crate) turns: Vec<Turn>,
    /// What the template would write after the last message, if that is a located turn and another
    /// message followed.
    pub(crate) next_turn: Option<String>,
    /// The stop token that was appended to the text.
    pub(crate) appended: Option<String>,
}

impl RenderedText {
    /// Gives an end to the turns that end with the words that open the next one, as in GLM-4.x,
    /// where `<|user|>` and `<|observation|>` are stop tokens: the stop token belongs to the turn
    /// before it. After the last turn it is appended to the text.
    ///
    /// `stop_tokens` are the texts of the tokens that end generation. A turn that has one of its own
    /// stays as it is.
    pub(crate) fn end_turns(&mut self, stop_tokens: &[String]) {
        for turn in &mut self.turns {
            let own = self.text.get(turn.content_end..turn.end);
            if stop_tokens
                .iter()
                .any(|stop| own.is_some_and(|own| own.contains(stop)))
            {
                continue;
            }
            let is_last = turn.end == self.text.len();
            let after = if is_last {
                self.next_turn.as_deref()
            } else {
                self.text.get(turn.end..)
            };
            let opens = |stop: &&String| after.is_some_and(|after| after.starts_with(*stop));
            let Some(stop) = stop_tokens
                .iter()
                .filter(opens)
                .max_by_key(|stop| stop.len())
            else {
                continue;
            };
            if is_last {
                self.text.push_str(stop);
                self.appended = Some(stop.clone());
            }
            let whole = [SpanKind::AssistantTurn, SpanKind::Completion];
            for span in &mut self.spans {
                if span.message == turn.message && whole.contains(&span.kind) {
                    span.end += stop.len();
                }
            }
            turn.end += stop.len();
        }
    }
}
