//! A rendered conversation with the places of its turns, contents and tool calls.
//!
//! The conversation is rendered a second time with marks around every piece; taking them out must
//! give the plain text byte for byte, else another way of marking is tried, and if none works the
//! turns are still found by comparing renderings, while spans inside them are reported as lost.
//! Where a turn begins stands in `turn_start`.

use std::collections::HashSet;

use minijinja::Value;

use super::budget::{self, RowRenderings};
use super::marks::{self, End, FoundMark, FoundMarks, MarkTable, Stripped};
use super::spans::{RenderedText, Span, SpanKind, Turn, Turns};
use super::thought::{self, Kept};
use super::turn_error::TurnError;
use super::turn_start::Followed;
use super::values::{Arguments, MarkPosition, Marking, MessageWriter, Scope, given};
use super::{ChatTemplate, GenerationPrompt, Thinking};
use crate::text::conversation::{Conversation, Message, Role};
use crate::text::error::DataError;

/// Ways of marking, from the most telling to the most robust.
fn markings() -> impl Iterator<Item = Marking> {
    let arguments = [Arguments::KeysAndValues, Arguments::Nothing];
    let scopes = [Scope::EveryRole, Scope::NotTools, Scope::Assistant];
    let places = [MarkPosition::Around, MarkPosition::InsideWhiteSpace];
    arguments.into_iter().flat_map(move |arguments| {
        scopes.into_iter().flat_map(move |scope| {
            places.into_iter().map(move |place| Marking {
                scope,
                place,
                arguments,
            })
        })
    })
}

impl ChatTemplate {
    /// Renders a conversation for training and locates the pieces of it.
    ///
    /// # Errors
    ///
    /// - as [`ChatTemplate::render`]
    /// - two assistant messages follow each other
    /// - a located turn does not begin as the template's generation prompt does, thoughts aside; for
    ///   the first turn of the completion (or the last turn, for other choices) the whole prompt is
    ///   compared, for others the part after the message before
    /// - the template leaves out a thought in the content of a located turn, or adds another one
    /// - the template leaves out a part of a message whose turn is located
    /// - it leaves out the whole content of a system, user or tool message
    /// - it leaves out a call, the name of one or its arguments, in any message
    /// - it shows nothing of the conversation's tools or documents
    /// - finding the turns takes more renderings than a row may have (docs/limits.md)
    pub fn render_with_spans(
        &self,
        conversation: &Conversation,
        turns: Turns,
    ) -> Result<RenderedText, DataError> {
        must_take_turns(conversation)?;
        let conversation = &*self.with_known_roles(conversation);
        let _renderings = RowRenderings::begin();
        let rendered = self.rendered_with_spans(conversation, turns);
        // A rendering that did not begin counts as one that the template refuses.
        if budget::row_is_spent() {
            Err(TurnError::TooManyRenderings.into())
        } else {
            rendered
        }
    }

    fn rendered_with_spans(
        &self,
        conversation: &Conversation,
        turns: Turns,
    ) -> Result<RenderedText, DataError> {
        let text = self.render(conversation, GenerationPrompt::Omit)?;
        let located = Located::new(self, conversation, text);
        let chosen = Chosen::new(self, conversation, &located.full.text, turns);
        let strict = turns.strict(&chosen.learned());
        let turns = chosen
            .located
            .iter()
            .map(|&(message, weight)| located.turn(message, weight, strict == Some(message)))
            .collect::<Result<Vec<Turn>, DataError>>()?;
        let next_turn = located.next_turn(turns.last());
        self.must_render_lists(conversation, &located.full.text)?;
        let is_found = located.messages_found();
        self.must_render_prompt_messages(conversation, &located.full.text, &is_found)?;
        let has_calls = |message| located.has_all_calls(message);
        self.must_render_calls(conversation, &located.full.text, has_calls)?;
        let (mut spans, lost) = located.pieces();
        for turn in &turns {
            let span = |kind| Span {
                kind,
                message: turn.message,
                start: turn.start,
                end: turn.end,
            };
            spans.push(span(SpanKind::AssistantTurn));
            if turn.message >= conversation.completion_start {
                spans.push(span(SpanKind::Completion));
            }
        }
        spans.sort_by_key(|span| (span.start, span.end));
        Ok(RenderedText {
            text: located.full.text,
            spans,
            lost,
            switched_off: chosen.switched_off,
            without_reasoning: chosen.without_reasoning,
            turns,
            next_turn,
            appended: None,
        })
    }
}

/// The turns that are located, and those that are not learned.
struct Chosen {
    /// Messages with the weight of their turn.
    located: Vec<(usize, f32)>,
    switched_off: Vec<usize>,
    without_reasoning: Vec<usize>,
}

impl Chosen {
    fn new(template: &ChatTemplate, conversation: &Conversation, text: &str, turns: Turns) -> Self {
        let without_reasoning = template.without_reasoning(conversation, text);
        let messages = turns.messages(conversation);
        let weight = |message: &usize| {
            if without_reasoning.contains(message) {
                0.0
            } else {
                conversation.messages[*message].weight.unwrap_or(1.0)
            }
        };
        Self {
            located: messages
                .iter()
                .map(|message| (*message, weight(message)))
                .filter(|&(_, weight)| weight > 0.0 || turns == Turns::WithUnlearned)
                .collect(),
            switched_off: messages
                .iter()
                .copied()
                .filter(|&message| conversation.messages[message].is_switched_off())
                .collect(),
            without_reasoning,
        }
    }

    fn learned(&self) -> Vec<usize> {
        let learned = self.located.iter().filter(|(_, weight)| *weight > 0.0);
        learned.map(|&(message, _)| message).collect()
    }
}

/// Refuses two assistant messages in a row: what the first one ends with would be learned as the end
/// of the turn, and the model would never write the second.
fn must_take_turns(conversation: &Conversation) -> Result<(), DataError> {
    let is_assistant = |message: &Message| message.role == Role::Assistant;
    let mut pairs = conversation.messages.windows(2);
    match pairs.position(|pair| pair.iter().all(is_assistant)) {
        Some(message) => Err(TurnError::TwoAssistants { message }.into()),
        None => Ok(()),
    }
}

/// The full rendering with its marks, and what is needed to render beginnings the same way.
pub(super) struct Located<'a> {
    pub(super) template: &'a ChatTemplate,
    pub(super) conversation: &'a Conversation,
    /// `None` if no way of marking leaves the text as it is.
    marking: Option<Marking>,
    /// All messages as the template sees them; a beginning takes the first ones.
    values: Vec<Value>,
    pub(super) full: Stripped,
    table: MarkTable,
    found: FoundMarks,
}

impl<'a> Located<'a> {
    pub(super) fn new(
        template: &'a ChatTemplate,
        conversation: &'a Conversation,
        text: String,
    ) -> Self {
        let n_messages = conversation.messages.len();
        for marking in markings() {
            let mut writer = MessageWriter::marked(marking);
            let values = writer.values(&conversation.messages);
            let messages = given(Some(marking), values.clone());
            let marked = template.execute(conversation, messages, GenerationPrompt::Omit);
            let is_too_much =
                |error: &DataError| matches!(error.fault(), DataError::TemplateBudget(_));
            // Another way of marking would take as long.
            if marked.as_ref().is_err_and(is_too_much) {
                break;
            }
            let stripped = marked.ok().and_then(|marked| marks::strip(&marked));
            if let Some(full) = stripped.filter(|stripped| stripped.text == text) {
                let table = writer.into_table();
                return Self {
                    template,
                    conversation,
                    marking: Some(marking),
                    values,
                    found: FoundMarks::new(&full, &table, n_messages),
                    full,
                    table,
                };
            }
        }
        let full = Stripped {
            text,
            ..Stripped::default()
        };
        let table = MarkTable::default();
        Self {
            template,
            conversation,
            marking: None,
            values: MessageWriter::plain().values(&conversation.messages),
            found: FoundMarks::new(&full, &table, n_messages),
            full,
            table,
        }
    }

    /// The first messages, rendered and marked as the whole is.
    fn beginning(&self, n_messages: usize) -> Result<Stripped, DataError> {
        let values = self.values[..n_messages].to_vec();
        self.executed(values, GenerationPrompt::Omit, Thinking::AsGiven)
    }

    /// The messages before one, with the words that open the next turn, rendered and marked as the
    /// whole is.
    pub(super) fn prompt(&self, message: usize, thinking: Thinking) -> Result<Stripped, DataError> {
        let values = self.values[..message].to_vec();
        self.executed(values, GenerationPrompt::Add, thinking)
    }

    /// Other messages, rendered and marked as the whole is.
    pub(super) fn marked(
        &self,
        messages: &[Message],
        generation_prompt: GenerationPrompt,
    ) -> Result<Stripped, DataError> {
        let mut writer = match self.marking {
            Some(marking) => MessageWriter::marked(marking),
            None => MessageWriter::plain(),
        };
        let values = writer.values(messages);
        self.executed(values, generation_prompt, Thinking::AsGiven)
    }

    fn executed(
        &self,
        values: Vec<Value>,
        generation_prompt: GenerationPrompt,
        thinking: Thinking,
    ) -> Result<Stripped, DataError> {
        let marked = self.template.execute_thinking(
            self.conversation,
            given(self.marking, values),
            generation_prompt,
            thinking,
        )?;
        Ok(marks::strip(&marked).unwrap_or_default())
    }

    fn turn(&self, message: usize, weight: f32, is_strict: bool) -> Result<Turn, DataError> {
        self.must_be_rendered(message)?;
        let start = self.turn_start(message)?;
        if is_strict && !start.is_prompt && !self.is_prompt_without_thoughts(message) {
            return Err(TurnError::PromptNotAPrefix { message }.into());
        }
        let content_end = self.content_end(message, start.at);
        if weight > 0.0 {
            self.must_keep_thoughts(message)?;
        }
        Ok(Turn {
            message,
            weight,
            start: start.at,
            content_end,
            end: self.turn_end(message, content_end),
            begins: start.begins,
            is_prompt: start.is_prompt,
        })
    }

    /// Where the last piece of a message ends that has not been there before: templates repeat the
    /// name of a call in its result.
    fn content_end(&self, message: usize, start: usize) -> usize {
        let mut seen: HashSet<(usize, End)> = HashSet::new();
        let mut end = start;
        for mark in self.marks_of(message) {
            if mark.at >= start && seen.insert((mark.number, mark.end)) {
                end = end.max(mark.at);
            }
        }
        end
    }

    fn turn_end(&self, message: usize, content_end: usize) -> usize {
        if message + 1 == self.conversation.messages.len() {
            return self.full.text.len();
        }
        self.beginning(message + 1)
            .ok()
            .and_then(|beginning| self.follow(&beginning)?.end())
            .or_else(|| {
                let marks = &self.full.marks;
                let first = marks.partition_point(|mark| mark.at < content_end);
                let later = |mark: &&FoundMark| self.owner(mark).is_some_and(|o| o > message);
                marks[first..].iter().find(later).map(|mark| mark.at)
            })
            .filter(|&end| end >= content_end)
            .unwrap_or(self.full.text.len())
    }

    /// What the template writes after the conversation if another message follows: the result of a
    /// tool after calls, words of the user after an answer.
    fn next_turn(&self, last: Option<&Turn>) -> Option<String> {
        let n_messages = self.conversation.messages.len();
        let turn = last.filter(|turn| turn.message + 1 == n_messages)?;
        let after = self.full.text.get(turn.content_end..)?;
        let calls = &self.conversation.messages[turn.message].tool_calls;
        let next = match calls.last() {
            None => Message::new(Role::User, "0"),
            Some(call) => {
                let mut result = Message::new(Role::Tool, "0");
                let id = call.id.as_deref().map(|id| ("tool_call_id", id));
                for (field, text) in id.into_iter().chain([("name", call.name.as_str())]) {
                    result.extra.insert(field.to_owned(), text.into());
                }
                result
            }
        };
        let mut messages = self.conversation.messages.clone();
        messages.push(next);
        let longer = self.marked(&messages, GenerationPrompt::Omit).ok()?;
        let is_own = |mark: &&FoundMark| {
            let piece = self.table.piece(mark.number);
            piece.is_some_and(|piece| piece.message == turn.message)
        };
        let at = match self.marking {
            Some(_) => longer.marks.iter().rev().find(is_own)?.at,
            None => turn.content_end,
        };
        let next = longer.text.get(at..)?.strip_prefix(after)?;
        Some(next.to_owned())
    }

    /// Follows the full text through what stands after the last mark of `beginning`; `None` if the
    /// full text has no such mark.
    pub(super) fn follow<'t>(&self, beginning: &'t Stripped) -> Option<Followed<'t>> {
        let (from, tail) = match beginning.marks.last() {
            None => (0, beginning.text.as_str()),
            Some(last) => {
                let from = *self.found.last.get(&(last.number, last.end))?;
                (from, &beginning.text[last.at..])
            }
        };
        Some(Followed::new(&self.full.text, from, tail))
    }

    /// Where the first piece of a message stands at or after a place.
    pub(super) fn first_mark(&self, message: usize, from: usize) -> Option<usize> {
        let mut places = self.marks_of(message).iter().map(|mark| mark.at);
        places.find(|&at| at >= from)
    }

    /// The marks of a message, in the order of the text.
    fn marks_of(&self, message: usize) -> &[FoundMark] {
        &self.found.by_message[message]
    }

    /// The message that a mark belongs to.
    fn owner(&self, mark: &FoundMark) -> Option<usize> {
        self.table.piece(mark.number).map(|piece| piece.message)
    }

    /// Of which messages a mark stands in the text.
    fn messages_found(&self) -> Vec<bool> {
        let marks = self.found.by_message.iter();
        marks.map(|marks| !marks.is_empty()).collect()
    }

    pub(super) fn generated_around(&self, message: usize) -> Option<(usize, usize)> {
        let at = self.marks_of(message).first()?.at;
        self.full
            .generated
            .iter()
            .copied()
            .find(|&(start, end)| (start..=end).contains(&at))
    }

    /// Refuses a thought in the text of a message that the template leaves out, or writes a second
    /// one before.
    fn must_keep_thoughts(&self, message: usize) -> Result<(), DataError> {
        let content = self.conversation.messages[message].content.as_deref();
        // Most have none, and what stands before a message takes a rendering to find.
        let content = content.filter(|content| thought::is_written_by(content));
        let is_content = |mark: &&FoundMark| {
            let piece = self.table.piece(mark.number);
            piece.is_some_and(|piece| piece.kind == SpanKind::AssistantContent)
        };
        let end = match self.marking {
            Some(_) => {
                let marks = self.marks_of(message).iter().filter(is_content);
                marks.map(|mark| mark.at).max()
            }
            None => Some(self.full.text.len()),
        };
        let (Some(content), Some(end)) = (content, end) else {
            return Ok(());
        };
        let before = self.beginning(message).ok();
        let start = before
            .as_ref()
            .and_then(|before| self.follow(before)?.end())
            .or_else(|| {
                let marks = &self.full.marks;
                let behind = marks.partition_point(|mark| mark.at <= end);
                let earlier = |mark: &&FoundMark| self.owner(mark).is_some_and(|o| o < message);
                let last = marks[..behind].iter().rev().find(earlier);
                last.map(|mark| mark.at)
            });
        let rendered = self.full.text.get(start.unwrap_or(0)..end);
        match thought::kept(content, rendered.unwrap_or_default()) {
            Kept::AsGiven => Ok(()),
            Kept::LeftOut(tag) => Err(TurnError::ThoughtLeftOut { message, tag }.into()),
            Kept::Twice(tag) => Err(TurnError::ThoughtTwice { message, tag }.into()),
        }
    }

    fn must_be_rendered(&self, message: usize) -> Result<(), DataError> {
        if self.left_out(message).is_empty() {
            Ok(())
        } else {
            Err(DataError::MessageNotRendered { message })
        }
    }

    /// Whether every part of a message's calls was marked and found.
    fn has_all_calls(&self, message: usize) -> bool {
        let calls = &self.conversation.messages[message].tool_calls;
        let is_marked = match self.marking.map(|marking| marking.arguments) {
            Some(Arguments::KeysAndValues) => true,
            Some(Arguments::Nothing) => calls.iter().all(|call| call.arguments.is_empty()),
            None => false,
        };
        let is_content = |kind: &SpanKind| *kind == SpanKind::AssistantContent;
        is_marked && self.left_out(message).iter().all(is_content)
    }

    /// Kinds of the marked pieces of a message of which no mark stands in the text.
    fn left_out(&self, message: usize) -> Vec<SpanKind> {
        self.found.left_out(&self.table, message).collect()
    }

    /// The pairs of marks as spans, and the kinds of which a span is missing.
    fn pieces(&self) -> (Vec<Span>, Vec<SpanKind>) {
        let mut spans = Vec::new();
        let mut opened: Vec<Option<usize>> = vec![None; self.table.pieces().len()];
        let mut lost = match self.marking.map(|marking| marking.arguments) {
            Some(Arguments::KeysAndValues) => Vec::new(),
            Some(Arguments::Nothing) => ARGUMENT_KINDS.to_vec(),
            None => PIECE_KINDS.to_vec(),
        };
        for mark in &self.full.marks {
            let Some(piece) = self.table.piece(mark.number) else {
                continue;
            };
            match (mark.end, opened[mark.number].take()) {
                (End::Open, None) => opened[mark.number] = Some(mark.at),
                (End::Close, Some(start)) => {
                    spans.extend(with_general(piece.kind).map(|kind| Span {
                        kind,
                        message: piece.message,
                        start,
                        end: mark.at,
                    }));
                    if piece.kind == SpanKind::AssistantContent {
                        match self.content_values(piece.message, start, mark.at) {
                            Some(values) => spans.extend(values),
                            None => lost.extend(VALUE_KINDS),
                        }
                    }
                }
                (End::Open, Some(_)) | (End::Close, None) => lost.extend(with_general(piece.kind)),
            }
        }
        let unclosed = opened
            .iter()
            .enumerate()
            .filter(|(_, start)| start.is_some());
        for piece in unclosed.filter_map(|(number, _)| self.table.piece(number)) {
            lost.extend(with_general(piece.kind));
            if piece.kind == SpanKind::AssistantContent {
                lost.extend(VALUE_KINDS);
            }
        }
        lost.sort_unstable_by_key(|kind| kind.name());
        lost.dedup();
        (spans, lost)
    }

    /// The argument values in a message's text, of which `start..end` is the rendering; `None` if
    /// the template changed that text, so that they could be anywhere.
    fn content_values(&self, message: usize, start: usize, end: usize) -> Option<Vec<Span>> {
        let message_values = &self.conversation.messages[message].content_values;
        if message_values.is_empty() {
            return Some(Vec::new());
        }
        let content = self.conversation.messages[message].content.as_deref()?;
        let rendered = &self.full.text[start..end];
        // Marks stand around all of the content, or inside its outer white space.
        let n_before = match content == rendered {
            true => 0,
            false if content.trim() == rendered => content.len() - content.trim_start().len(),
            false => return None,
        };
        let mut spans = Vec::new();
        for value in message_values {
            let from = start + value.range.start.checked_sub(n_before)?;
            let to = start + value.range.end.checked_sub(n_before)?;
            let is_inside = from < to && to <= end && self.full.text.is_char_boundary(from);
            if !is_inside || !self.full.text.is_char_boundary(to) {
                return None;
            }
            spans.extend(
                with_general(SpanKind::of_origin(value.origin)).map(|kind| Span {
                    kind,
                    message,
                    start: from,
                    end: to,
                }),
            );
        }
        Some(spans)
    }
}

/// A kind, and the more general kind that the same bytes are.
fn with_general(kind: SpanKind) -> impl Iterator<Item = SpanKind> {
    let general = match kind {
        SpanKind::FixedArgumentValue | SpanKind::DerivedArgumentValue => {
            Some(SpanKind::ToolCallArgumentValue)
        }
        _ => None,
    };
    general.into_iter().chain([kind])
}

const VALUE_KINDS: [SpanKind; 3] = [
    SpanKind::ToolCallArgumentValue,
    SpanKind::FixedArgumentValue,
    SpanKind::DerivedArgumentValue,
];

const ARGUMENT_KINDS: [SpanKind; 4] = [
    SpanKind::ToolCallArgumentKey,
    SpanKind::ToolCallArgumentValue,
    SpanKind::FixedArgumentValue,
    SpanKind::DerivedArgumentValue,
];

const PIECE_KINDS: [SpanKind; 7] = [
    SpanKind::AssistantContent,
    SpanKind::ToolCallName,
    SpanKind::ToolCallArgumentKey,
    SpanKind::ToolCallArgumentValue,
    SpanKind::FixedArgumentValue,
    SpanKind::DerivedArgumentValue,
    SpanKind::PromptContent,
];
