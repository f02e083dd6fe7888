//! Finds the start of a turn, where supervision begins.
//!
//! At inference the model sees the generation prompt of the messages before the turn, so the first
//! supervised token is the first token after that prompt. Templates with thoughts write a different
//! text in training. They write an empty thought before an answer that has none. They write no
//! thought in earlier turns, although the prompt of these turns opens one. An empty thought belongs
//! to the template, not to the model. If the text leaves out the thought that the prompt opens, the
//! turn begins after the part that text and prompt share.

use std::cell::OnceCell;

use super::locate::MarkedRendering;
use super::marks::TextWithMarks;
use super::spans::TurnBegin;
use super::turn_error::TurnError;
use super::{GenerationPrompt, THINKING_SWITCHES, Thinking, thought};
use crate::error::TemplateError;
use crate::message_fields::REASONING;

/// The start of a turn.
pub(super) struct TurnStart {
    pub(super) at: usize,
    pub(super) begins: TurnBegin,
    pub(super) is_prompt: bool,
}

/// Compares the full text with the end of a separately rendered prefix.
pub(super) struct PrefixComparison<'t> {
    from: usize,
    n_same: usize,
    tail: &'t str,
}

impl<'t> PrefixComparison<'t> {
    pub(super) fn new(full: &str, from: usize, tail: &'t str) -> Self {
        let same = full[from..].chars().zip(tail.chars());
        Self {
            from,
            n_same: same
                .take_while(|(one, other)| one == other)
                .map(|(character, _)| character.len_utf8())
                .sum(),
            tail,
        }
    }

    /// Returns the end of the prefix in the full text, if the full text contains all of it.
    pub(super) fn end(&self) -> Option<usize> {
        (self.n_same == self.tail.len()).then_some(self.from + self.n_same)
    }

    /// Limits the common part to end at `limit`.
    fn limited_to(self, limit: Option<usize>) -> Self {
        let n_same = match limit {
            Some(limit) => self.n_same.min(limit.saturating_sub(self.from)),
            None => self.n_same,
        };
        Self { n_same, ..self }
    }

    /// Returns the position where the full text differs from the prefix, if the rest of the prefix
    /// only opens or closes a thought.
    fn end_before_thought(&self) -> Option<usize> {
        let is_frame = self.tail.get(self.n_same..).is_some_and(thought::is_frame);
        is_frame.then_some(self.from + self.n_same)
    }

    /// Whether the full text and the prefix are identical up to the end of the common part.
    fn is_same_from_start(&self, full: &str, beginning: &str) -> bool {
        let n_left = self.tail.len() - self.n_same;
        full.get(..self.from + self.n_same) == beginning.get(..beginning.len() - n_left)
    }
}

impl MarkedRendering<'_> {
    /// Finds the start of a turn.
    ///
    /// # Errors
    ///
    /// - the template refuses the messages before the turn with a generation prompt
    /// - the full text does not continue with the generation prompt, except for thoughts
    pub(super) fn turn_start(&self, message: usize) -> Result<TurnStart, TemplateError> {
        let prompt = |thinking| self.prompt(message, thinking);
        let full = &self.full.text;
        let has_switch = THINKING_SWITCHES
            .iter()
            .any(|name| self.template.source.contains(name));
        let continued = |prompt: &TextWithMarks| {
            let comparison = self.compare_after_last_mark(prompt)?;
            Some(TurnStart {
                at: comparison.end()?,
                begins: TurnBegin::GenerationPrompt,
                is_prompt: comparison.is_same_from_start(full, &prompt.text),
            })
        };
        let prompt_as_given = prompt(Thinking::AsGiven);
        let mut start = prompt_as_given.as_ref().ok().and_then(continued);
        if start.is_none() && has_switch {
            start = prompt(Thinking::On).ok().as_ref().and_then(continued);
        }
        if let (None, Ok(prompt_as_given)) = (&start, &prompt_as_given) {
            start = self.start_without_thought(message, prompt_as_given);
        }
        let off = OnceCell::new();
        let off = || off.get_or_init(|| prompt(Thinking::Off).ok()).as_ref();
        if has_switch && let Some(off) = self.start_without_thinking(message, off(), start.as_ref())
        {
            start = Some(off);
        }
        if let Some(start) = start {
            return Ok(self.skip_empty_thought(message, start, off));
        }
        match (self.generated_range(message), prompt_as_given) {
            (Some((at, _)), _) => Ok(TurnStart {
                at,
                begins: TurnBegin::GenerationTag,
                is_prompt: false,
            }),
            (None, Err(error)) => Err(error),
            (None, Ok(_)) => Err(TurnError::PromptNotAPrefix { message }.into()),
        }
    }

    /// Returns the end of the text that a prompt and the full text share, if the rest of the prompt
    /// opens a thought that the full text leaves out.
    fn start_without_thought(&self, message: usize, prompt: &TextWithMarks) -> Option<TurnStart> {
        let comparison = self.compare_after_last_mark(prompt)?;
        let limit = self.first_mark(message, comparison.from);
        let comparison = comparison.limited_to(limit);
        Some(TurnStart {
            at: comparison.end_before_thought()?,
            begins: TurnBegin::DroppedThought,
            is_prompt: comparison.is_same_from_start(&self.full.text, &prompt.text),
        })
    }

    /// Whether the text before a turn equals the prompt at inference if the thoughts of earlier
    /// turns are removed, which templates leave out once the answer exists.
    pub(super) fn is_prompt_without_thoughts(&self, message: usize) -> bool {
        let mut earlier_messages = self.conversation.messages[..message].to_vec();
        for earlier in &mut earlier_messages {
            earlier
                .extra
                .retain(|name, _| !REASONING.contains(&name.as_str()));
        }
        let prompt = self.render_with_marks(&earlier_messages, GenerationPrompt::Add);
        let Ok(prompt) = prompt else { return false };
        let Some(comparison) = self.compare_after_last_mark(&prompt) else {
            return false;
        };
        let limit = self.first_mark(message, comparison.from);
        let comparison = match comparison.end() {
            Some(_) => comparison,
            None => comparison.limited_to(limit),
        };
        comparison.end_before_thought().is_some()
            && comparison.is_same_from_start(&self.full.text, &prompt.text)
    }

    /// Returns the end of the prompt with thinking off, if the full text contains all of this
    /// prompt. The end must be after `other`, but not after the start of the message's own text.
    fn start_without_thinking(
        &self,
        message: usize,
        off: Option<&TextWithMarks>,
        other: Option<&TurnStart>,
    ) -> Option<TurnStart> {
        let off = off?;
        let comparison = self.compare_after_last_mark(off)?;
        let at = comparison.end()?;
        let limit = self.first_mark(message, comparison.from);
        if limit.is_some_and(|limit| at > limit) || other.is_some_and(|other| at <= other.at) {
            return None;
        }
        let full = &self.full.text;
        Some(TurnStart {
            at,
            begins: if thought::ends_empty(full, comparison.from..at) {
                TurnBegin::EmptyThought
            } else {
                TurnBegin::GenerationPrompt
            },
            is_prompt: full[..at] == off.text || other.is_some_and(|other| other.is_prompt),
        })
    }

    /// If an empty thought follows the start, moves the start after it, unless the thought belongs
    /// to the message's own text. Skips the same white space after it as the prompt with thinking
    /// off has, or all white space if that prompt has none.
    fn skip_empty_thought<'o>(
        &self,
        message: usize,
        start: TurnStart,
        off: impl FnOnce() -> Option<&'o TextWithMarks>,
    ) -> TurnStart {
        let Some(limit) = self.first_mark(message, start.at) else {
            return start;
        };
        let (before, after) = self.full.text.split_at(start.at);
        let Some(empty) = thought::empty_thought(before, after) else {
            return start;
        };
        let space = off()
            .and_then(|off| thought::space_after_closed_thought(&off.text))
            .filter(|space| after[empty.closed..].starts_with(space));
        let end = space.map_or(empty.end, |space| empty.closed + space.len());
        if start.at + end <= limit {
            TurnStart {
                at: start.at + end,
                begins: TurnBegin::EmptyThought,
                ..start
            }
        } else {
            start
        }
    }
}
