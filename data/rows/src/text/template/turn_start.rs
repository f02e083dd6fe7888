//! Where a turn begins, which is where learning begins.
//!
//! A model is shown the generation prompt of the messages before the turn, so the first learned
//! token is the first after that prompt. Templates with thoughts write other texts in training: an
//! empty thought before an answer that has none, and no thought at all in earlier turns, while their
//! prompt opens one. An empty thought is the template's, not the model's; where the text leaves out
//! what the prompt opens, the turn begins behind the words that both share.
//! The decision to question: what is asked of a row is its text up to here, not the prompt that the
//! template would render (`asked`).

use std::cell::OnceCell;

use super::locate::Located;
use super::marks::Stripped;
use super::spans::TurnBegin;
use super::turn_error::TurnError;
use super::{GenerationPrompt, THINKING_SWITCHES, Thinking, thought};
use crate::text::error::DataError;
use crate::text::message_fields::REASONING;

/// The beginning of a turn.
pub(super) struct TurnStart {
    pub(super) at: usize,
    pub(super) begins: TurnBegin,
    pub(super) is_prompt: bool,
}

/// The full text beside the end of a beginning of it that was rendered alone.
pub(super) struct Followed<'t> {
    from: usize,
    n_same: usize,
    tail: &'t str,
}

impl<'t> Followed<'t> {
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

    /// One past the beginning, if the full text goes through all of it.
    pub(super) fn end(&self) -> Option<usize> {
        (self.n_same == self.tail.len()).then_some(self.from + self.n_same)
    }

    /// The same beginning up to `limit` at the latest.
    fn until(self, limit: Option<usize>) -> Self {
        let n_same = match limit {
            Some(limit) => self.n_same.min(limit.saturating_sub(self.from)),
            None => self.n_same,
        };
        Self { n_same, ..self }
    }

    /// Where the full text leaves the beginning, if nothing of that follows but the frame of a
    /// thought.
    fn end_before_thought(&self) -> Option<usize> {
        let is_frame = self.tail.get(self.n_same..).is_some_and(thought::is_frame);
        is_frame.then_some(self.from + self.n_same)
    }

    /// Whether all of the full text up to here is all of the beginning up to here.
    fn is_same_from_start(&self, full: &str, beginning: &str) -> bool {
        let n_left = self.tail.len() - self.n_same;
        full.get(..self.from + self.n_same) == beginning.get(..beginning.len() - n_left)
    }
}

impl Located<'_> {
    /// # Errors
    ///
    /// - the template refuses the messages before the turn with a generation prompt
    /// - the full text does not continue as the generation prompt does, thoughts aside
    pub(super) fn turn_start(&self, message: usize) -> Result<TurnStart, DataError> {
        let prompt = |thinking| self.prompt(message, thinking);
        let full = &self.full.text;
        let has_switch = THINKING_SWITCHES
            .iter()
            .any(|name| self.template.source.contains(name));
        let continued = |prompt: &Stripped| {
            let followed = self.follow(prompt)?;
            Some(TurnStart {
                at: followed.end()?,
                begins: TurnBegin::GenerationPrompt,
                is_prompt: followed.is_same_from_start(full, &prompt.text),
            })
        };
        let given = prompt(Thinking::AsGiven);
        let mut start = given.as_ref().ok().and_then(continued);
        if start.is_none() && has_switch {
            start = prompt(Thinking::On).ok().as_ref().and_then(continued);
        }
        if let (None, Ok(given)) = (&start, &given) {
            start = self.start_without_thought(message, given);
        }
        let off = OnceCell::new();
        let off = || off.get_or_init(|| prompt(Thinking::Off).ok()).as_ref();
        if has_switch && let Some(off) = self.start_without_thinking(message, off(), start.as_ref())
        {
            start = Some(off);
        }
        if let Some(start) = start {
            return Ok(self.behind_empty_thought(message, start, off));
        }
        match (self.generated_around(message), given) {
            (Some((at, _)), _) => Ok(TurnStart {
                at,
                begins: TurnBegin::GenerationTag,
                is_prompt: false,
            }),
            (None, Err(error)) => Err(error),
            (None, Ok(_)) => Err(TurnError::PromptNotAPrefix { message }.into()),
        }
    }

    /// The start behind what a prompt and the full text share, if the prompt then opens a thought
    /// that the text leaves out.
    fn start_without_thought(&self, message: usize, prompt: &Stripped) -> Option<TurnStart> {
        let followed = self.follow(prompt)?;
        let limit = self.first_mark(message, followed.from);
        let followed = followed.until(limit);
        Some(TurnStart {
            at: followed.end_before_thought()?,
            begins: TurnBegin::DroppedThought,
            is_prompt: followed.is_same_from_start(&self.full.text, &prompt.text),
        })
    }

    /// Whether the text before a turn is what the template shows at inference once the thoughts of
    /// earlier turns are gone, which templates leave out when the answer is there.
    pub(super) fn is_prompt_without_thoughts(&self, message: usize) -> bool {
        let mut before = self.conversation.messages[..message].to_vec();
        for earlier in &mut before {
            earlier
                .extra
                .retain(|name, _| !REASONING.contains(&name.as_str()));
        }
        let prompt = self.marked(&before, GenerationPrompt::Add);
        let Ok(prompt) = prompt else { return false };
        let Some(followed) = self.follow(&prompt) else {
            return false;
        };
        let limit = self.first_mark(message, followed.from);
        let followed = match followed.end() {
            Some(_) => followed,
            None => followed.until(limit),
        };
        followed.end_before_thought().is_some()
            && followed.is_same_from_start(&self.full.text, &prompt.text)
    }

    /// The start by the prompt with thinking off, if the full text continues as that does, further
    /// than `other` and no further than the message's own text.
    fn start_without_thinking(
        &self,
        message: usize,
        off: Option<&Stripped>,
        other: Option<&TurnStart>,
    ) -> Option<TurnStart> {
        let off = off?;
        let followed = self.follow(off)?;
        let at = followed.end()?;
        let limit = self.first_mark(message, followed.from);
        if limit.is_some_and(|limit| at > limit) || other.is_some_and(|other| at <= other.at) {
            return None;
        }
        let full = &self.full.text;
        Some(TurnStart {
            at,
            begins: if thought::ends_empty(full, followed.from..at) {
                TurnBegin::EmptyThought
            } else {
                TurnBegin::GenerationPrompt
            },
            is_prompt: full[..at] == off.text || other.is_some_and(|other| other.is_prompt),
        })
    }

    /// Moves a start behind an empty thought that stands there, if it is no part of the message's own
    /// text: with as much white space as the prompt has with thinking off, or all of it.
    fn behind_empty_thought<'o>(
        &self,
        message: usize,
        start: TurnStart,
        off: impl FnOnce() -> Option<&'o Stripped>,
    ) -> TurnStart {
        let Some(limit) = self.first_mark(message, start.at) else {
            return start;
        };
        let (before, after) = self.full.text.split_at(start.at);
        let Some(empty) = thought::empty_thought(before, after) else {
            return start;
        };
        let space = off()
            .and_then(|off| thought::space_behind_closed(&off.text))
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
