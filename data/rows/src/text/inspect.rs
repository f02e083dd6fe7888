//! What would be learned of one row, token by token, before any training.

use serde::Serialize;

use super::conversation::ValueOrigin;
use super::error::DataError;
use super::prepare::{PrepareOptions, read, row_weights};
use super::rows::Row;
use super::supervise::Supervisor;
use super::system::InspectedSystem;
use super::template::{ChatTemplate, RenderedText, SpanKind, TurnBegin};
use super::tokenizer::Tokenizer;

/// A token and how it is learned.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InspectedToken {
    /// Token id.
    pub id: u32,
    /// The piece of the row's text that the token covers. Tokens that share a character all show
    /// it.
    pub text: String,
    /// First byte in the row's text.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// Weight as a target; 0 is not learned.
    pub weight: f32,
    /// Whether it crosses the border of a learned or weighted span.
    pub straddles: bool,
}

/// An argument value of a call that the model is to make.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InspectedValue {
    /// The value as the row's text spells it.
    pub text: String,
    /// First byte in the row's text.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// Who gave it.
    pub origin: ValueOrigin,
    /// Whether no token that shares a byte with it is learned.
    pub is_masked: bool,
}

/// A turn that is learned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InspectedTurn {
    /// The assistant message, from 0.
    pub message: usize,
    /// First byte that is learned.
    pub start: usize,
    /// One past the stop token.
    pub end: usize,
    /// What stands before the first byte.
    pub begins: TurnBegin,
    /// Whether all of the text before it is what the template shows a model that is asked for the
    /// turn; templates drop thoughts of earlier turns once a later one is there.
    pub is_prompt: bool,
}

/// A row as the model reads it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InspectedRow {
    /// The row's id.
    pub id: String,
    /// The rendered text.
    pub text: String,
    /// Its tokens in order, those beyond `max_length` included.
    pub tokens: Vec<InspectedToken>,
    /// The argument values of the calls in its assistant messages, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub argument_values: Vec<InspectedValue>,
    /// Messages, from 0, that `mask.train_on` chooses and `train`, `weight` or `loss` switches off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub switched_off: Vec<usize>,
    /// Messages, from 0, that are not learned because the template leaves out their reasoning.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without_reasoning: Vec<usize>,
    /// The system message, and who gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<InspectedSystem>,
    /// Tokens that the tokenizer puts before plain texts and that the row does not begin with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_bos: Option<String>,
    /// The turns that are learned, in order.
    pub turns: Vec<InspectedTurn>,
    /// The stop token that the template does not write after the last turn, and training does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub appended: Option<String>,
    /// Tokens beyond `max_length`, which training would refuse, drop or cut.
    pub n_overflowing: usize,
    /// Names of the spans that the template hides, so that they can have no weight of their own.
    pub lost_spans: Vec<&'static str>,
}

impl InspectedRow {
    /// The text in as many pieces as there are tokens: several tokens may make one character, of which
    /// the first shows it and the others show nothing.
    pub fn pieces(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().scan(0, |shown, token| {
            let from = token.start.max(*shown);
            *shown = token.end.max(*shown);
            Some(self.text.get(from..token.end).unwrap_or_default())
        })
    }
}

/// Shows which tokens of a row are learned.
///
/// Length is reported, not judged: a row that [`tokenize_row`](super::tokenize_row) refuses for
/// its length can be inspected.
///
/// # Errors
///
/// As [`tokenize_row`](super::tokenize_row), without those about length and empty rows.
pub fn inspect_row(
    row: &Row,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    options: &PrepareOptions,
) -> Result<InspectedRow, DataError> {
    let work = || -> Result<InspectedRow, DataError> {
        let (rendered, encoded) = read(row, template, tokenizer, options)?;
        let supervisor = Supervisor {
            rendered: &rendered,
            encoded: &encoded,
            mask: &options.mask,
            stop_ids: &options.stop_ids,
            tokenizer,
        };
        let supervision = supervisor.supervise()?;
        let weights = row_weights(row, supervision.weights)?;
        let tokens = (0..encoded.ids.len())
            .map(|token| InspectedToken {
                id: encoded.ids[token],
                text: supervisor.token_text(token).to_owned(),
                start: encoded.offsets[token].0,
                end: encoded.offsets[token].1,
                weight: weights[token],
                straddles: supervision.straddling.contains(&token),
            })
            .collect::<Vec<_>>();
        let learned = rendered.turns.iter().filter(|turn| turn.weight > 0.0);
        let turns = learned.map(|turn| {
            supervisor.stop_token(turn).map(|stop| InspectedTurn {
                message: turn.message,
                start: turn.start,
                end: encoded.offsets[stop].1,
                begins: turn.begins,
                is_prompt: turn.is_prompt,
            })
        });
        let turns = turns.collect::<Result<Vec<_>, DataError>>()?;
        Ok(InspectedRow {
            id: row.id.clone(),
            argument_values: argument_values(&rendered, &tokens),
            switched_off: rendered.switched_off.clone(),
            without_reasoning: rendered.without_reasoning.clone(),
            system: InspectedSystem::of(&row.conversation, template),
            without_bos: {
                let before = &tokenizer.added().before;
                let lacks = !encoded.ids.starts_with(before);
                lacks.then(|| tokenizer.spelled(before))
            },
            turns,
            appended: rendered.appended.clone(),
            n_overflowing: tokens.len().saturating_sub(options.max_length),
            lost_spans: rendered.lost.iter().map(|kind| kind.name()).collect(),
            text: rendered.text.clone(),
            tokens,
        })
    };
    work().map_err(|error| error.at(&row.id))
}

fn argument_values(rendered: &RenderedText, tokens: &[InspectedToken]) -> Vec<InspectedValue> {
    let origin = |kind| match kind {
        SpanKind::FixedArgumentValue => Some(ValueOrigin::Fixed),
        SpanKind::DerivedArgumentValue => Some(ValueOrigin::Derived),
        _ => None,
    };
    rendered
        .spans
        .iter()
        .filter_map(|span| {
            // Tokens stand in the order of the text.
            let first = tokens.partition_point(|token| token.end <= span.start);
            Some(InspectedValue {
                text: rendered.text[span.start..span.end].to_owned(),
                start: span.start,
                end: span.end,
                origin: origin(span.kind)?,
                is_masked: tokens[first..]
                    .iter()
                    .take_while(|token| token.start < span.end)
                    .all(|token| token.weight == 0.0),
            })
        })
        .collect()
}
