//! Character spans and token offsets in, one loss weight per token out.
//!
//! A token belongs to a span when they share at least one byte. A token that also reaches out of
//! the span straddles its border; `mask.straddle` says which side's weight it takes.

use std::collections::BTreeSet;

use super::error::DataError;
use super::mask::{MaskConfig, Straddle, TrainOn};
use super::template::{RenderedText, Span, SpanKind, Turn};
use super::tokenizer::{Encoded, Tokenizer};
use crate::faults::excerpt;

/// Loss weights of a row.
#[derive(Debug)]
pub(super) struct Supervision {
    /// Weight of each token as a target, unshifted.
    pub(super) weights: Vec<f32>,
    /// Tokens that cross the border of a learned or weighted span, in order.
    pub(super) straddling: BTreeSet<usize>,
    /// Spans of each kind that [`MaskConfig::checked_weights`] names, in its order.
    pub(super) n_spans: Vec<usize>,
}

/// Everything about a row that weights are made from.
pub(super) struct Supervisor<'a> {
    pub(super) rendered: &'a RenderedText,
    pub(super) encoded: &'a Encoded,
    pub(super) mask: &'a MaskConfig,
    pub(super) stop_ids: &'a [u32],
    pub(super) tokenizer: &'a Tokenizer,
}

/// A token that shares a byte with a span.
struct Touching {
    token: usize,
    is_inside: bool,
}

impl Supervisor<'_> {
    /// # Errors
    ///
    /// - a located turn has no stop token after its content, or that token has weight 0
    /// - a located turn has a stop token before the end of its content
    /// - `mask.weights` names an unknown span, or one that was lost in rendering
    /// - a token straddles a border and `mask.straddle` is `error`
    pub(super) fn supervise(&self) -> Result<Supervision, DataError> {
        let span_weights = self.mask.checked_weights()?;
        let learned = self.rendered.turns.iter().filter(|turn| turn.weight > 0.0);
        let ends = learned
            .clone()
            .map(|turn| Ok((turn, self.stop_token(turn)?)))
            .collect::<Result<Vec<(&Turn, usize)>, DataError>>()?;
        for turn in learned {
            self.must_not_stop_inside(turn)?;
        }
        let mut supervision = self.learned_turns(&ends)?;
        for (kind, weight) in span_weights {
            if self.rendered.lost.contains(&kind) {
                return Err(DataError::SpanLost { span: kind.name() });
            }
            let mut n_spans = 0;
            for span in self.rendered.spans.iter().filter(|span| span.kind == kind) {
                let weight = weight * self.turn_weight(span.message);
                self.reweigh(span, weight, &mut supervision)?;
                n_spans += 1;
            }
            supervision.n_spans.push(n_spans);
        }
        match ends
            .into_iter()
            .find(|&(_, stop)| supervision.weights[stop] <= 0.0)
        {
            Some((turn, _)) => Err(self.end_not_trained(turn)),
            None => Ok(supervision),
        }
    }

    /// The turn's weight, 1 where the data says nothing, for everything from the start of each turn
    /// to its stop token.
    fn learned_turns(&self, ends: &[(&Turn, usize)]) -> Result<Supervision, DataError> {
        let n_tokens = self.encoded.ids.len();
        let mut supervision = Supervision {
            weights: vec![0.0; n_tokens],
            straddling: BTreeSet::new(),
            n_spans: Vec::new(),
        };
        if self.mask.train_on == TrainOn::All {
            supervision.weights.fill(1.0);
            for turn in self.rendered.turns.iter().filter(|turn| turn.weight != 1.0) {
                let stop = self.stop_token(turn).ok();
                let end = stop.map_or(turn.end, |stop| self.encoded.offsets[stop].1);
                self.weigh_turn(turn, end, &mut supervision)?;
            }
            return Ok(supervision);
        }
        for &(turn, stop) in ends {
            self.weigh_turn(turn, self.encoded.offsets[stop].1, &mut supervision)?;
        }
        Ok(supervision)
    }

    fn weigh_turn(
        &self,
        turn: &Turn,
        end: usize,
        supervision: &mut Supervision,
    ) -> Result<(), DataError> {
        for touching in self.touching(turn.start, end) {
            self.weigh(&touching, SpanKind::AssistantTurn, turn.weight, supervision)?;
        }
        Ok(())
    }

    fn turn_weight(&self, message: usize) -> f32 {
        let mut turns = self.rendered.turns.iter();
        let turn = turns.find(|turn| turn.message == message);
        turn.map_or(1.0, |turn| turn.weight)
    }

    /// Changes the weight of a span's tokens where they are learned at all.
    fn reweigh(
        &self,
        span: &Span,
        weight: f32,
        supervision: &mut Supervision,
    ) -> Result<(), DataError> {
        for touching in self.touching(span.start, span.end) {
            if supervision.weights[touching.token] > 0.0 {
                self.weigh(&touching, span.kind, weight, supervision)?;
            }
        }
        Ok(())
    }

    fn weigh(
        &self,
        touching: &Touching,
        kind: SpanKind,
        weight: f32,
        supervision: &mut Supervision,
    ) -> Result<(), DataError> {
        let token = touching.token;
        let outside = supervision.weights[token];
        if !touching.is_inside {
            supervision.straddling.insert(token);
        }
        supervision.weights[token] = match (touching.is_inside, self.mask.straddle) {
            (true, _) => weight,
            (false, Straddle::Mask) => weight.min(outside),
            (false, Straddle::Train) => weight.max(outside),
            (false, Straddle::Error) => {
                return Err(DataError::Straddles {
                    token: self.token_text(token).to_owned(),
                    span: kind.name(),
                });
            }
        };
        Ok(())
    }

    fn touching(&self, start: usize, end: usize) -> impl Iterator<Item = Touching> {
        let offsets = &self.encoded.offsets;
        let first = offsets.partition_point(|&(from, to)| from < start && to <= start);
        offsets[first..]
            .iter()
            .enumerate()
            .take_while(move |&(_, &(from, _))| from < end)
            .map(move |(idx, &(from, to))| Touching {
                token: first + idx,
                is_inside: from >= start && to <= end,
            })
    }

    /// The first stop token after the turn's own text.
    pub(super) fn stop_token(&self, turn: &Turn) -> Result<usize, DataError> {
        let offsets = &self.encoded.offsets;
        let first = offsets.partition_point(|&(from, _)| from < turn.content_end);
        (first..offsets.len())
            .take_while(|&token| offsets[token].1 <= turn.end)
            .find(|&token| self.stop_ids.contains(&self.encoded.ids[token]))
            .ok_or_else(|| self.end_not_trained(turn))
    }

    /// Refuses a stop token in what the model is to write: generation ends at the first one, and
    /// what follows would be learned and never written.
    fn must_not_stop_inside(&self, turn: &Turn) -> Result<(), DataError> {
        let inside = self.touching(turn.start, turn.content_end);
        let mut tokens = inside.map(|touching| touching.token);
        let Some(stop) = tokens.find(|&token| self.stop_ids.contains(&self.encoded.ids[token]))
        else {
            return Ok(());
        };
        let (start, _) = self.encoded.offsets[stop];
        Err(DataError::StopTokenInside {
            message: turn.message,
            token: self.token_text(stop).to_owned(),
            before: last_words(
                self.rendered
                    .text
                    .get(turn.start..start)
                    .unwrap_or_default(),
            ),
        })
    }

    fn end_not_trained(&self, turn: &Turn) -> DataError {
        let name = |id: &u32| {
            self.tokenizer
                .id_to_token(*id)
                .unwrap_or_else(|| format!("id {id}"))
        };
        DataError::EndOfTurnNotTrained {
            message: turn.message,
            after: excerpt(&self.rendered.text[turn.content_end..turn.end]),
            stop_tokens: self
                .stop_ids
                .iter()
                .map(name)
                .collect::<Vec<_>>()
                .join(", "),
        }
    }

    /// The piece of the text that a token covers.
    pub(super) fn token_text(&self, token: usize) -> &str {
        let (start, end) = self.encoded.offsets[token];
        self.rendered.text.get(start..end).unwrap_or_default()
    }
}

/// The end of a text that may be as long as a row.
fn last_words(text: &str) -> String {
    const N_CHARACTERS: usize = 40;
    match text.char_indices().rev().nth(N_CHARACTERS) {
        None => text.to_owned(),
        Some((at, character)) => format!("…{}", &text[at + character.len_utf8()..]),
    }
}
