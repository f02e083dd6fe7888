//! A rendered conversation with the places of its turns, contents and tool calls.
//!
//! The conversation is rendered a second time with marks around every piece; taking them out must
//! give the plain text byte for byte, else another way of marking is tried, and if none works the
//! turns are still found by comparing renderings, while spans inside them are reported as lost.
//! A turn begins where the generation prompt of the messages before it ends: that is what the
//! model is shown at inference, so the first learned token is the first that it must produce.

use super::marks::{self, End, FoundMark, MarkTable, Stripped};
use super::spans::{RenderedText, Span, SpanKind, Turn, Turns};
use super::values::{Arguments, Marking, MessageWriter, Place, Scope};
use super::{ChatTemplate, GenerationPrompt};
use crate::text::conversation::Conversation;
use crate::text::error::DataError;

/// Ways of marking, from the most telling to the most robust.
fn markings() -> impl Iterator<Item = Marking> {
    let arguments = [Arguments::KeysAndValues, Arguments::Nothing];
    let scopes = [Scope::EveryRole, Scope::NotTools, Scope::Assistant];
    let places = [Place::Around, Place::InsideWhiteSpace];
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
    /// - the text before a located turn is not what the template shows at inference; for the first
    ///   turn of the completion (or the last turn, for other choices) the whole prompt is compared,
    ///   for others the part after the message before
    /// - the template leaves out a part of a message whose turn is located
    /// - it leaves out the whole content of a system, user or tool message
    /// - it leaves out a call, the name of one or its arguments, in any message
    /// - it shows nothing of the conversation's tools or documents
    pub fn render_with_spans(
        &self,
        conversation: &Conversation,
        turns: Turns,
    ) -> Result<RenderedText, DataError> {
        let conversation = &*self.with_known_roles(conversation);
        let text = self.render(conversation, GenerationPrompt::Omit)?;
        let located = Located::new(self, conversation, text);
        let chosen = Chosen::new(self, conversation, &located.full.text, turns);
        let strict = turns.strict(&chosen.learned());
        let turns = chosen
            .located
            .iter()
            .map(|&(message, weight)| located.turn(message, weight, strict == Some(message)))
            .collect::<Result<Vec<Turn>, DataError>>()?;
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
        let weight = |message: &usize| match without_reasoning.contains(message) {
            true => 0.0,
            false => conversation.messages[*message].weight.unwrap_or(1.0),
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

/// The full rendering with its marks, and what is needed to render beginnings the same way.
struct Located<'a> {
    template: &'a ChatTemplate,
    conversation: &'a Conversation,
    /// `None` if no way of marking leaves the text as it is.
    marking: Option<Marking>,
    full: Stripped,
    table: MarkTable,
}

impl<'a> Located<'a> {
    fn new(template: &'a ChatTemplate, conversation: &'a Conversation, text: String) -> Self {
        let n_messages = conversation.messages.len();
        for marking in markings() {
            let mut writer = MessageWriter::marked(marking);
            let messages = writer.messages(&conversation.messages[..n_messages]);
            let marked = template.execute(conversation, messages, GenerationPrompt::Omit);
            let stripped = marked.ok().and_then(|marked| marks::strip(&marked));
            if let Some(full) = stripped.filter(|stripped| stripped.text == text) {
                return Self {
                    template,
                    conversation,
                    marking: Some(marking),
                    full,
                    table: writer.into_table(),
                };
            }
        }
        Self {
            template,
            conversation,
            marking: None,
            full: Stripped {
                text,
                ..Stripped::default()
            },
            table: MarkTable::default(),
        }
    }

    /// The first messages, rendered and marked as the whole is.
    fn beginning(
        &self,
        n_messages: usize,
        generation_prompt: GenerationPrompt,
    ) -> Result<Stripped, DataError> {
        let Some(marking) = self.marking else {
            let text =
                self.template
                    .render_prefix(self.conversation, n_messages, generation_prompt)?;
            return Ok(Stripped {
                text,
                ..Stripped::default()
            });
        };
        let messages =
            MessageWriter::marked(marking).messages(&self.conversation.messages[..n_messages]);
        let marked = self
            .template
            .execute(self.conversation, messages, generation_prompt)?;
        Ok(marks::strip(&marked).unwrap_or_default())
    }

    fn turn(&self, message: usize, weight: f32, is_strict: bool) -> Result<Turn, DataError> {
        self.must_be_rendered(message)?;
        let start = self.turn_start(message)?;
        if is_strict {
            let prompt =
                self.template
                    .render_prefix(self.conversation, message, GenerationPrompt::Add)?;
            if !self.full.text.starts_with(&prompt) || prompt.len() != start {
                return Err(DataError::PromptNotAPrefix { message });
            }
        }
        let content_end = self
            .marks_of(|owner| owner == message)
            .map(|mark| mark.at)
            .max()
            .unwrap_or(start)
            .max(start);
        Ok(Turn {
            message,
            weight,
            start,
            content_end,
            end: self.turn_end(message, content_end),
        })
    }

    fn turn_start(&self, message: usize) -> Result<usize, DataError> {
        let continued = self
            .beginning(message, GenerationPrompt::Add)
            .map(|prompt| self.after_same_text(&prompt));
        match continued {
            Ok(Some(start)) => Ok(start),
            Ok(None) => self
                .generated_around(message)
                .map(|(start, _)| start)
                .ok_or(DataError::PromptNotAPrefix { message }),
            Err(error) => self
                .generated_around(message)
                .map(|(start, _)| start)
                .ok_or(error),
        }
    }

    fn turn_end(&self, message: usize, content_end: usize) -> usize {
        if message + 1 == self.conversation.messages.len() {
            return self.full.text.len();
        }
        self.beginning(message + 1, GenerationPrompt::Omit)
            .ok()
            .and_then(|beginning| self.after_same_text(&beginning))
            .or_else(|| {
                self.marks_of(|owner| owner > message)
                    .map(|mark| mark.at)
                    .find(|&at| at >= content_end)
            })
            .filter(|&end| end >= content_end)
            .unwrap_or(self.full.text.len())
    }

    /// Where the full text has gone through what follows the last mark of `beginning`; `None` if
    /// it says something else there.
    fn after_same_text(&self, beginning: &Stripped) -> Option<usize> {
        let (from, tail) = match beginning.marks.last() {
            None => (0, beginning.text.as_str()),
            Some(last) => {
                let same = |mark: &&FoundMark| mark.number == last.number && mark.end == last.end;
                let from = self.full.marks.iter().rev().find(same)?.at;
                (from, &beginning.text[last.at..])
            }
        };
        self.full.text[from..]
            .starts_with(tail)
            .then_some(from + tail.len())
    }

    fn marks_of(&self, is_owner: impl Fn(usize) -> bool) -> impl Iterator<Item = &FoundMark> {
        self.full.marks.iter().filter(move |mark| {
            self.table
                .piece(mark.number)
                .is_some_and(|piece| is_owner(piece.message))
        })
    }

    /// Of which messages a mark stands in the text.
    fn messages_found(&self) -> Vec<bool> {
        let mut is_found = vec![false; self.conversation.messages.len()];
        for mark in &self.full.marks {
            if let Some(piece) = self.table.piece(mark.number) {
                is_found[piece.message] = true;
            }
        }
        is_found
    }

    fn generated_around(&self, message: usize) -> Option<(usize, usize)> {
        let at = self.marks_of(|owner| owner == message).next()?.at;
        self.full
            .generated
            .iter()
            .copied()
            .find(|&(start, end)| (start..=end).contains(&at))
    }

    fn must_be_rendered(&self, message: usize) -> Result<(), DataError> {
        match self.left_out(message).is_empty() {
            true => Ok(()),
            false => Err(DataError::MessageNotRendered { message }),
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
        let mut is_found = vec![false; self.table.pieces().len()];
        for mark in &self.full.marks {
            if let Some(found) = is_found.get_mut(mark.number) {
                *found = true;
            }
        }
        self.table
            .pieces()
            .iter()
            .zip(is_found)
            .filter(|(piece, is_found)| piece.message == message && !is_found)
            .map(|(piece, _)| piece.kind)
            .collect()
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
