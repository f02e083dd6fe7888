//! Spans and turns of a rendered conversation.

use serde::Serialize;

use crate::conversation::{Conversation, Role, ValueOrigin};

/// The kind of a span of the rendered text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpanKind {
    /// The whole output of the model in one turn, with the end-of-turn token and the template's
    /// text after it.
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
    /// a message. The span of a string excludes its quotes; any other literal is covered whole. An
    /// empty string has no span.
    ToolCallArgumentValue,
    /// An argument value that the user gave. The same bytes also have an argument value span.
    FixedArgumentValue,
    /// An argument value from an earlier result. The same bytes also have an argument value span.
    DerivedArgumentValue,
    /// The text of a system, user or tool message.
    PromptContent,
}

impl SpanKind {
    /// The kinds that are valid in `mask.weights`.
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

    /// Returns the kind of argument values of one origin.
    pub(super) fn from_origin(origin: ValueOrigin) -> Self {
        match origin {
            ValueOrigin::Fixed => Self::FixedArgumentValue,
            ValueOrigin::Derived => Self::DerivedArgumentValue,
        }
    }

    /// The name of the kind in configurations.
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
    /// What the span covers.
    pub kind: SpanKind,
    /// Index of its message, from 0.
    pub message: usize,
    /// First byte in the text.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// The turns to locate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turns {
    /// Every assistant message that is trained on.
    All,
    /// Every assistant message, including those excluded from training.
    WithUntrained,
    /// The last assistant message.
    Last,
    /// The assistant messages of the completion.
    Completion,
}

impl Turns {
    /// Returns the selected assistant messages, whether or not they are trained on.
    pub fn messages(self, conversation: &Conversation) -> Vec<usize> {
        let mut found: Vec<usize> = (0..conversation.messages.len())
            .filter(|&idx| conversation.messages[idx].role == Role::Assistant)
            .filter(|&idx| self != Self::Completion || idx >= conversation.completion_start)
            .collect();
        if self == Self::Last {
            found = found.pop().into_iter().collect();
        }
        found
    }

    /// Returns the trained turn among the located turns whose prompt must be a prefix of the
    /// training text.
    pub fn strict_turn<T: Copy>(self, located: &[T]) -> Option<T> {
        match self {
            Self::Completion => located.first().copied(),
            Self::All | Self::WithUntrained | Self::Last => located.last().copied(),
        }
    }
}

/// The text before the first supervised token of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TurnBegin {
    /// The template's generation prompt.
    GenerationPrompt,
    /// The generation prompt with an empty thought, such as `<think>\n\n</think>\n\n`, which the
    /// template writes and the model does not.
    EmptyThought,
    /// The turn's opening text without the thought that the generation prompt opens. Templates drop
    /// the thoughts of earlier turns, and some drop the thoughts of every turn.
    DroppedThought,
    /// The text up to the template's generation tag.
    GenerationTag,
}

/// A turn that can be trained on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Turn {
    /// Index of the message, from 0.
    pub message: usize,
    /// Weight of the turn's tokens before `mask.weights`; 0 only with [`Turns::WithUntrained`].
    pub weight: f32,
    /// First byte of the turn.
    pub start: usize,
    /// End of the message's own text and start of the template's end-of-turn text.
    pub content_end: usize,
    /// One past the last byte of the turn.
    pub end: usize,
    /// How the turn begins.
    pub begins: TurnBegin,
    /// Whether the text before the turn, from its first byte, equals the prompt that the model sees
    /// for this turn at inference.
    pub is_prompt: bool,
}

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderedText {
    /// The training text, equal to [`ChatTemplate::render`](super::ChatTemplate::render) without a
    /// generation prompt, until `end_turns` appends to it.
    pub text: String,
    /// Spans in the order of their starts; turns are included only if requested.
    pub spans: Vec<Span>,
    /// Kinds with at least one span that could not be located, because the template trims,
    /// measures, slices or compares the text; empty for ordinary templates.
    pub lost: Vec<SpanKind>,
    /// Selected messages that the data excludes from training.
    pub switched_off: Vec<usize>,
    /// Assistant messages, selected or not, whose reasoning the template leaves out; none of them
    /// is trained on.
    pub without_reasoning: Vec<usize>,
    /// The turns of the assistant.
    pub turns: Vec<Turn>,
    /// The text that the template would write after the last message if another message followed;
    /// present only if the last message is a located turn.
    pub next_turn: Option<String>,
    /// The stop token appended to the text.
    pub appended: Option<String>,
}

impl RenderedText {
    /// If a turn has no end-of-turn token, extends it by the start of the next turn. In GLM-4.x,
    /// for example, `<|user|>` and `<|observation|>` are stop tokens; such a token then belongs to
    /// the turn before it. After the last turn, the token is appended to the text.
    ///
    /// `stop_tokens` are the strings of the tokens that end generation. A turn whose end already
    /// contains such a token does not change.
    pub fn end_turns(&mut self, stop_tokens: &[String]) {
        for turn in &mut self.turns {
            let end_text = self.text.get(turn.content_end..turn.end);
            if stop_tokens
                .iter()
                .any(|stop| end_text.is_some_and(|end_text| end_text.contains(stop)))
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
            let turn_kinds = [SpanKind::AssistantTurn, SpanKind::Completion];
            for span in &mut self.spans {
                if span.message == turn.message && turn_kinds.contains(&span.kind) {
                    span.end += stop.len();
                }
            }
            turn.end += stop.len();
        }
    }
}
