//! Renders a conversation and locates its turns, contents and tool calls.
//!
//! The conversation is rendered a second time with marks around every piece. Without the marks,
//! this rendering must equal the plain text byte for byte; otherwise the next marking is tried. If
//! no marking works, turns are still found by comparing renderings, but spans inside them are
//! reported as lost. `turn_start` determines where a turn begins.

use std::collections::HashSet;

use minijinja::Value;

use super::budget::{self, RowRenderings};
use super::marks::{self, End, Mark, MarkIndex, MarkTable, TextWithMarks};
use super::spans::{RenderedText, Span, SpanKind, Turn, Turns};
use super::thought::{self, ThoughtComparison};
use super::turn_error::TurnError;
use super::turn_start::PrefixComparison;
use super::values::{Arguments, MarkPosition, Marking, MessageWriter, Scope, message_values};
use super::{ChatTemplate, GenerationPrompt, Thinking};
use crate::conversation::{Conversation, Message, Role};
use crate::error::TemplateError;

/// Markings, from the most detailed to the most robust.
fn markings() -> impl Iterator<Item = Marking> {
    let arguments = [Arguments::KeysAndValues, Arguments::Nothing];
    let scopes = [Scope::EveryRole, Scope::NotTools, Scope::Assistant];
    let positions = [MarkPosition::Around, MarkPosition::InsideWhiteSpace];
    arguments.into_iter().flat_map(move |arguments| {
        scopes.into_iter().flat_map(move |scope| {
            positions.into_iter().map(move |position| Marking {
                scope,
                position,
                arguments,
            })
        })
    })
}

impl ChatTemplate {
    /// Renders a conversation for training and locates its pieces.
    ///
    /// # Errors
    ///
    /// - as [`ChatTemplate::render`]
    /// - two assistant messages follow each other
    /// - a located turn does not begin with the template's generation prompt, apart from thoughts.
    ///   For the first turn of the completion, the whole prompt is compared; if `turns` selects
    ///   other turns, the same applies to the last of them. For all other turns, only the part
    ///   after the previous message is compared
    /// - the template leaves out a thought in the content of a located turn, or adds a thought
    /// - the template leaves out a part of a message whose turn is located
    /// - it leaves out the whole content of a system, user or tool message
    /// - it leaves out a call, or a call's name or arguments, in any message
    /// - it renders none of the conversation's tools or documents
    /// - finding the turns exceeds the work limit of a row (docs/limits.md)
    pub fn render_with_spans(
        &self,
        conversation: &Conversation,
        turns: Turns,
    ) -> Result<RenderedText, TemplateError> {
        check_alternating_roles(conversation)?;
        let conversation = &*self.with_known_roles(conversation);
        let _renderings = RowRenderings::start();
        let rendered = self.render_and_locate(conversation, turns);
        // A rendering refused by the work limit looks like a rendering refused by the template.
        if budget::is_row_budget_spent() {
            Err(TurnError::TooManyRenderings.into())
        } else {
            rendered
        }
    }

    fn render_and_locate(
        &self,
        conversation: &Conversation,
        turns: Turns,
    ) -> Result<RenderedText, TemplateError> {
        let text = self.render(conversation, GenerationPrompt::Omit)?;
        let located = MarkedRendering::new(self, conversation, text);
        let chosen = SelectedTurns::new(self, conversation, &located.full.text, turns);
        let strict = turns.strict_turn(&chosen.supervised_messages());
        let turns = chosen
            .located
            .iter()
            .map(|&(message, weight)| located.locate_turn(message, weight, strict == Some(message)))
            .collect::<Result<Vec<Turn>, TemplateError>>()?;
        let next_turn = located.next_turn(turns.last());
        self.check_lists_rendered(conversation, &located.full.text)?;
        let is_found = located.found_messages();
        self.check_prompt_messages_rendered(conversation, &located.full.text, &is_found)?;
        let has_calls = |message| located.has_all_calls(message);
        self.check_calls_rendered(conversation, &located.full.text, has_calls)?;
        let (mut spans, lost) = located.locate_pieces();
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

/// The turns to locate, and those excluded from training.
struct SelectedTurns {
    /// Message indices with the weight of their turn.
    located: Vec<(usize, f32)>,
    switched_off: Vec<usize>,
    without_reasoning: Vec<usize>,
}

impl SelectedTurns {
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
                .filter(|&(_, weight)| weight > 0.0 || turns == Turns::WithUntrained)
                .collect(),
            switched_off: messages
                .iter()
                .copied()
                .filter(|&message| conversation.messages[message].is_switched_off())
                .collect(),
            without_reasoning,
        }
    }

    fn supervised_messages(&self) -> Vec<usize> {
        let trained = self.located.iter().filter(|(_, weight)| *weight > 0.0);
        trained.map(|&(message, _)| message).collect()
    }
}

/// Rejects two consecutive assistant messages. The end of the first message would be trained on as
/// the end of the turn, and the model would never write the second.
fn check_alternating_roles(conversation: &Conversation) -> Result<(), TemplateError> {
    let is_assistant = |message: &Message| message.role == Role::Assistant;
    let mut pairs = conversation.messages.windows(2);
    match pairs.position(|pair| pair.iter().all(is_assistant)) {
        Some(message) => Err(TurnError::TwoAssistants { message }.into()),
        None => Ok(()),
    }
}

/// The full rendering with its marks, and the data for rendering prefixes in the same way.
pub(super) struct MarkedRendering<'a> {
    pub(super) template: &'a ChatTemplate,
    pub(super) conversation: &'a Conversation,
    /// `None` if every marking changes the text.
    marking: Option<Marking>,
    /// All messages as template values; a prefix uses the first ones.
    values: Vec<Value>,
    pub(super) full: TextWithMarks,
    table: MarkTable,
    found: MarkIndex,
}

impl<'a> MarkedRendering<'a> {
    pub(super) fn new(
        template: &'a ChatTemplate,
        conversation: &'a Conversation,
        text: String,
    ) -> Self {
        let n_messages = conversation.messages.len();
        for marking in markings() {
            let mut writer = MessageWriter::with_marks(marking);
            let values = writer.values(&conversation.messages);
            let messages = message_values(Some(marking), values.clone());
            let marked_text = template.execute(conversation, messages, GenerationPrompt::Omit);
            let is_too_much =
                |error: &TemplateError| matches!(error.fault(), TemplateError::TemplateBudget(_));
            // Another marking would also exceed the limit.
            if marked_text.as_ref().is_err_and(is_too_much) {
                break;
            }
            let stripped = marked_text
                .ok()
                .and_then(|marked_text| marks::strip(&marked_text));
            if let Some(full) = stripped.filter(|stripped| stripped.text == text) {
                let table = writer.into_table();
                return Self {
                    template,
                    conversation,
                    marking: Some(marking),
                    values,
                    found: MarkIndex::new(&full, &table, n_messages),
                    full,
                    table,
                };
            }
        }
        let full = TextWithMarks {
            text,
            ..TextWithMarks::default()
        };
        let table = MarkTable::default();
        Self {
            template,
            conversation,
            marking: None,
            values: MessageWriter::without_marks().values(&conversation.messages),
            found: MarkIndex::new(&full, &table, n_messages),
            full,
            table,
        }
    }

    /// Renders the first `n_messages` messages, with the marks of the full rendering.
    fn render_first(&self, n_messages: usize) -> Result<TextWithMarks, TemplateError> {
        let values = self.values[..n_messages].to_vec();
        self.render_values(values, GenerationPrompt::Omit, Thinking::AsGiven)
    }

    /// Renders the messages before `message` and the generation prompt, with the marks of the full
    /// rendering.
    pub(super) fn prompt(
        &self,
        message: usize,
        thinking: Thinking,
    ) -> Result<TextWithMarks, TemplateError> {
        let values = self.values[..message].to_vec();
        self.render_values(values, GenerationPrompt::Add, thinking)
    }

    /// Renders other messages, with the marks of the full rendering.
    pub(super) fn render_with_marks(
        &self,
        messages: &[Message],
        generation_prompt: GenerationPrompt,
    ) -> Result<TextWithMarks, TemplateError> {
        let mut writer = match self.marking {
            Some(marking) => MessageWriter::with_marks(marking),
            None => MessageWriter::without_marks(),
        };
        let values = writer.values(messages);
        self.render_values(values, generation_prompt, Thinking::AsGiven)
    }

    fn render_values(
        &self,
        values: Vec<Value>,
        generation_prompt: GenerationPrompt,
        thinking: Thinking,
    ) -> Result<TextWithMarks, TemplateError> {
        let marked_text = self.template.execute_thinking(
            self.conversation,
            message_values(self.marking, values),
            generation_prompt,
            thinking,
        )?;
        Ok(marks::strip(&marked_text).unwrap_or_default())
    }

    fn locate_turn(
        &self,
        message: usize,
        weight: f32,
        is_strict: bool,
    ) -> Result<Turn, TemplateError> {
        self.check_rendered(message)?;
        let start = self.turn_start(message)?;
        if is_strict && !start.is_prompt && !self.is_prompt_without_thoughts(message) {
            return Err(TurnError::PromptNotAPrefix { message }.into());
        }
        let content_end = self.content_end(message, start.at);
        if weight > 0.0 {
            self.check_thoughts(message)?;
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

    /// Returns the end of a message's content. Only the first occurrence of each piece is used,
    /// because templates repeat the name of a call in its result.
    fn content_end(&self, message: usize, start: usize) -> usize {
        let mut seen_marks: HashSet<(usize, End)> = HashSet::new();
        let mut end = start;
        for mark in self.message_marks(message) {
            if mark.at >= start && seen_marks.insert((mark.number, mark.end)) {
                end = end.max(mark.at);
            }
        }
        end
    }

    fn turn_end(&self, message: usize, content_end: usize) -> usize {
        if message + 1 == self.conversation.messages.len() {
            return self.full.text.len();
        }
        self.render_first(message + 1)
            .ok()
            .and_then(|beginning| self.compare_after_last_mark(&beginning)?.end())
            .or_else(|| {
                let marks = &self.full.marks;
                let first = marks.partition_point(|mark| mark.at < content_end);
                let later = |mark: &&Mark| self.message_of_mark(mark).is_some_and(|o| o > message);
                marks[first..].iter().find(later).map(|mark| mark.at)
            })
            .filter(|&end| end >= content_end)
            .unwrap_or(self.full.text.len())
    }

    /// Returns the text that the template writes after the conversation if another message follows.
    /// This message is a tool result after calls, and a user message after an answer.
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
        let longer = self
            .render_with_marks(&messages, GenerationPrompt::Omit)
            .ok()?;
        let is_own = |mark: &&Mark| {
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

    /// Compares the end of `beginning`, from its last mark, with the full text from the same mark.
    /// `None` if the full text lacks that mark.
    pub(super) fn compare_after_last_mark<'t>(
        &self,
        beginning: &'t TextWithMarks,
    ) -> Option<PrefixComparison<'t>> {
        let (from, tail) = match beginning.marks.last() {
            None => (0, beginning.text.as_str()),
            Some(last) => {
                let from = *self.found.last.get(&(last.number, last.end))?;
                (from, &beginning.text[last.at..])
            }
        };
        Some(PrefixComparison::new(&self.full.text, from, tail))
    }

    /// Returns the start of the first piece of a message at or after a position.
    pub(super) fn first_mark(&self, message: usize, from: usize) -> Option<usize> {
        let mut positions = self.message_marks(message).iter().map(|mark| mark.at);
        positions.find(|&at| at >= from)
    }

    /// Returns the marks of a message in text order.
    fn message_marks(&self, message: usize) -> &[Mark] {
        &self.found.by_message[message]
    }

    /// Returns the message that a mark belongs to.
    fn message_of_mark(&self, mark: &Mark) -> Option<usize> {
        self.table.piece(mark.number).map(|piece| piece.message)
    }

    /// Returns for each message whether any of its marks is in the text.
    fn found_messages(&self) -> Vec<bool> {
        let marks = self.found.by_message.iter();
        marks.map(|marks| !marks.is_empty()).collect()
    }

    pub(super) fn generated_range(&self, message: usize) -> Option<(usize, usize)> {
        let at = self.message_marks(message).first()?.at;
        self.full
            .generated
            .iter()
            .copied()
            .find(|&(start, end)| (start..=end).contains(&at))
    }

    /// Rejects a thought in the text of a message if the template leaves it out, or writes another
    /// thought before it.
    fn check_thoughts(&self, message: usize) -> Result<(), TemplateError> {
        let content = self.conversation.messages[message].content.as_deref();
        // Most messages have no thought, and finding the text before one requires a rendering.
        let content = content.filter(|content| thought::has_thought_tags(content));
        let is_content = |mark: &&Mark| {
            let piece = self.table.piece(mark.number);
            piece.is_some_and(|piece| piece.kind == SpanKind::AssistantContent)
        };
        let end = match self.marking {
            Some(_) => {
                let marks = self.message_marks(message).iter().filter(is_content);
                marks.map(|mark| mark.at).max()
            }
            None => Some(self.full.text.len()),
        };
        let (Some(content), Some(end)) = (content, end) else {
            return Ok(());
        };
        let prefix = self.render_first(message).ok();
        let start = prefix
            .as_ref()
            .and_then(|prefix| self.compare_after_last_mark(prefix)?.end())
            .or_else(|| {
                let marks = &self.full.marks;
                let n_marks_before_end = marks.partition_point(|mark| mark.at <= end);
                let earlier =
                    |mark: &&Mark| self.message_of_mark(mark).is_some_and(|o| o < message);
                let last = marks[..n_marks_before_end].iter().rev().find(earlier);
                last.map(|mark| mark.at)
            });
        let rendered = self.full.text.get(start.unwrap_or(0)..end);
        match thought::compare_thoughts(content, rendered.unwrap_or_default()) {
            ThoughtComparison::Same => Ok(()),
            ThoughtComparison::LeftOut(tag) => {
                Err(TurnError::ThoughtLeftOut { message, tag }.into())
            }
            ThoughtComparison::Added(tag) => Err(TurnError::ThoughtTwice { message, tag }.into()),
        }
    }

    fn check_rendered(&self, message: usize) -> Result<(), TemplateError> {
        if self.unmarked_kinds(message).is_empty() {
            Ok(())
        } else {
            Err(TemplateError::MessageNotRendered { message })
        }
    }

    /// Whether the marks of every part of a message's calls were found.
    fn has_all_calls(&self, message: usize) -> bool {
        let calls = &self.conversation.messages[message].tool_calls;
        let is_marked = match self.marking.map(|marking| marking.arguments) {
            Some(Arguments::KeysAndValues) => true,
            Some(Arguments::Nothing) => calls.iter().all(|call| call.arguments.is_empty()),
            None => false,
        };
        let is_content = |kind: &SpanKind| *kind == SpanKind::AssistantContent;
        is_marked && self.unmarked_kinds(message).iter().all(is_content)
    }

    /// Returns the kinds of those marked pieces of a message that have no mark in the text.
    fn unmarked_kinds(&self, message: usize) -> Vec<SpanKind> {
        self.found.unmarked_kinds(&self.table, message).collect()
    }

    /// Converts pairs of marks to spans, and returns the kinds with a missing span.
    fn locate_pieces(&self) -> (Vec<Span>, Vec<SpanKind>) {
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

    /// Returns the argument values in a message's text, which is rendered at `start..end`. `None`
    /// if the template changed that text, because the positions of the values are then unknown.
    fn content_values(&self, message: usize, start: usize, end: usize) -> Option<Vec<Span>> {
        let message_values = &self.conversation.messages[message].content_values;
        if message_values.is_empty() {
            return Some(Vec::new());
        }
        let content = self.conversation.messages[message].content.as_deref()?;
        let rendered = &self.full.text[start..end];
        // The marks surround the whole content, or the content without its outer white space.
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
                with_general(SpanKind::from_origin(value.origin)).map(|kind| Span {
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

/// Returns a kind, and then the more general kind that covers the same bytes.
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
