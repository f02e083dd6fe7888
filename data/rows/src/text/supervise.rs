//! Computes one loss weight per token from character spans and token offsets.
//!
//! A token belongs to a span if they share at least one byte. A token that also extends beyond the
//! span straddles its boundary; `mask.straddle` selects the weight that it gets.

use std::collections::BTreeSet;

use tooltune_json::faults::excerpt;
use tooltune_template::{RenderedText, Span, SpanKind, Turn, built_in_templates_for};

use super::error::DataError;
use super::mask::{MaskConfig, Straddle, TrainOn};
use super::prepare::PrepareOptions;
use super::tokenizer::{Encoded, Tokenizer};

/// Loss weights of a row.
#[derive(Debug)]
pub(super) struct Supervision {
    /// Weight of each token as a target, unshifted.
    pub(super) weights: Vec<f32>,
    /// Tokens that cross the boundary of a supervised or weighted span, in order.
    pub(super) straddling: BTreeSet<usize>,
    /// Number of spans of each kind, in the order of [`MaskConfig::resolve_weights`].
    pub(super) n_spans: Vec<usize>,
}

/// The inputs for the weights of a row.
pub(super) struct Supervisor<'a> {
    rendered: &'a RenderedText,
    encoded: &'a Encoded,
    mask: &'a MaskConfig,
    stop_ids: &'a [u32],
    tokenizer: &'a Tokenizer,
}

/// A token that shares a byte with a span.
struct OverlappingToken {
    token: usize,
    is_inside: bool,
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(
        rendered: &'a RenderedText,
        encoded: &'a Encoded,
        tokenizer: &'a Tokenizer,
        options: &'a PrepareOptions,
    ) -> Self {
        Self {
            rendered,
            encoded,
            mask: &options.mask,
            stop_ids: &options.stop_ids,
            tokenizer,
        }
    }

    /// Computes the weights of a row's tokens.
    ///
    /// # Errors
    ///
    /// - a located turn has no stop token after its content, or that token has weight 0
    /// - a located turn has a stop token before the end of its content
    /// - `mask.weights` names an unknown span, or one that was lost in rendering
    /// - a token straddles a boundary and `mask.straddle` is `error`
    pub(super) fn supervise(&self) -> Result<Supervision, DataError> {
        let span_weights = self.mask.resolve_weights()?;
        let supervised = self.rendered.turns.iter().filter(|turn| turn.weight > 0.0);
        let ends = supervised
            .clone()
            .map(|turn| Ok((turn, self.stop_token(turn)?)))
            .collect::<Result<Vec<(&Turn, usize)>, DataError>>()?;
        for turn in supervised {
            self.check_no_inner_stop_token(turn)?;
        }
        let mut supervision = self.supervise_turns(&ends)?;
        for (kind, weight) in span_weights {
            if self.rendered.lost.contains(&kind) {
                return Err(DataError::SpanLost { span: kind.name() });
            }
            let mut n_spans = 0;
            for span in self.rendered.spans.iter().filter(|span| span.kind == kind) {
                let weight = weight * self.turn_weight(span.message);
                self.set_span_weight(span, weight, &mut supervision)?;
                n_spans += 1;
            }
            supervision.n_spans.push(n_spans);
        }
        match ends
            .into_iter()
            .find(|&(_, stop)| supervision.weights[stop] <= 0.0)
        {
            Some((turn, _)) => Err(self.unsupervised_end_error(turn)),
            None => Ok(supervision),
        }
    }

    /// Sets the weight of the tokens of each turn, from its start to its stop token, to the weight
    /// of its message.
    fn supervise_turns(&self, ends: &[(&Turn, usize)]) -> Result<Supervision, DataError> {
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
        for touching in self.overlapping_tokens(turn.start, end) {
            self.set_token_weight(&touching, SpanKind::AssistantTurn, turn.weight, supervision)?;
        }
        Ok(())
    }

    fn turn_weight(&self, message: usize) -> f32 {
        let mut turns = self.rendered.turns.iter();
        let turn = turns.find(|turn| turn.message == message);
        turn.map_or(1.0, |turn| turn.weight)
    }

    /// Changes the weights of a span's tokens, if they are supervised.
    fn set_span_weight(
        &self,
        span: &Span,
        weight: f32,
        supervision: &mut Supervision,
    ) -> Result<(), DataError> {
        for touching in self.overlapping_tokens(span.start, span.end) {
            if supervision.weights[touching.token] > 0.0 {
                self.set_token_weight(&touching, span.kind, weight, supervision)?;
            }
        }
        Ok(())
    }

    fn set_token_weight(
        &self,
        touching: &OverlappingToken,
        kind: SpanKind,
        weight: f32,
        supervision: &mut Supervision,
    ) -> Result<(), DataError> {
        let token = touching.token;
        let current_weight = supervision.weights[token];
        if !touching.is_inside {
            supervision.straddling.insert(token);
        }
        supervision.weights[token] = match (touching.is_inside, self.mask.straddle) {
            (true, _) => weight,
            (false, Straddle::Mask) => weight.min(current_weight),
            (false, Straddle::Train) => weight.max(current_weight),
            (false, Straddle::Error) => {
                return Err(DataError::Straddles {
                    token: self.token_text(token).to_owned(),
                    span: kind.name(),
                });
            }
        };
        Ok(())
    }

    fn overlapping_tokens(
        &self,
        start: usize,
        end: usize,
    ) -> impl Iterator<Item = OverlappingToken> {
        let offsets = &self.encoded.offsets;
        let first = offsets.partition_point(|&(from, to)| from < start && to <= start);
        offsets[first..]
            .iter()
            .enumerate()
            .take_while(move |&(_, &(from, _))| from < end)
            .map(move |(idx, &(from, to))| OverlappingToken {
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
            .ok_or_else(|| self.unsupervised_end_error(turn))
    }

    /// Rejects a stop token inside the answer: generation ends there, so the rest would be trained
    /// on but never generated.
    fn check_no_inner_stop_token(&self, turn: &Turn) -> Result<(), DataError> {
        let inside = self.overlapping_tokens(turn.start, turn.content_end);
        let mut tokens = inside.map(|touching| touching.token);
        let Some(stop) = tokens.find(|&token| self.stop_ids.contains(&self.encoded.ids[token]))
        else {
            return Ok(());
        };
        let (start, _) = self.encoded.offsets[stop];
        Err(DataError::StopTokenInside {
            message: turn.message,
            token: self.token_text(stop).to_owned(),
            before: text_end(
                self.rendered
                    .text
                    .get(turn.start..start)
                    .unwrap_or_default(),
            ),
        })
    }

    fn unsupervised_end_error(&self, turn: &Turn) -> DataError {
        let name = |id: &u32| {
            self.tokenizer
                .id_to_token(*id)
                .unwrap_or_else(|| format!("id {id}"))
        };
        let after = &self.rendered.text[turn.content_end..turn.end];
        let stop_tokens: Vec<String> = self.stop_ids.iter().map(name).collect();
        // If the template writes a stop token, the error is that the token has weight 0, and
        // another template would not help.
        let is_written = stop_tokens.iter().any(|token| after.contains(token));
        let built_in = match is_written {
            true => Vec::new(),
            false => built_in_templates_for(
                |token| self.tokenizer.token_to_id(token).is_some(),
                |token| stop_tokens.iter().any(|stop| stop == token),
            ),
        };
        DataError::EndOfTurnNotTrained {
            message: turn.message,
            after: excerpt(after),
            stop_tokens: stop_tokens.join(", "),
            built_in,
        }
    }

    /// The part of the text that a token covers.
    pub(super) fn token_text(&self, token: usize) -> &str {
        let (start, end) = self.encoded.offsets[token];
        self.rendered.text.get(start..end).unwrap_or_default()
    }
}

/// The end of a string, which may be as long as a row.
fn text_end(text: &str) -> String {
    const N_CHARACTERS: usize = 40;
    match text.char_indices().rev().nth(N_CHARACTERS) {
        None => text.to_owned(),
        Some((at, character)) => format!("…{}", &text[at + character.len_utf8()..]),
    }
}
