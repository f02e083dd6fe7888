//! Shows the loss weight of each token of a row before training.

use serde::Serialize;
use tooltune_template::conversation::ValueOrigin;
use tooltune_template::{ChatTemplate, RenderedText, SpanKind, TurnBegin};

use super::error::DataError;
use super::prepare::{PrepareOptions, read, row_weights};
use super::rows::Row;
use super::supervise::Supervisor;
use super::system::InspectedSystem;
use super::tokenizer::Tokenizer;

/// A token with its loss weight.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InspectedToken {
    /// Id of the token.
    pub id: u32,
    /// The part of the row's text that the token covers. Tokens that share a character all contain
    /// it.
    pub text: String,
    /// First byte in the row's text.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// Weight as a target; 0 is not supervised.
    pub weight: f32,
    /// Whether the token crosses the boundary of a supervised or weighted span.
    pub straddles: bool,
}

/// An argument value of a call in an assistant message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InspectedValue {
    /// The value as written in the row's text.
    pub text: String,
    /// First byte in the row's text.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// Origin of the value.
    pub origin: ValueOrigin,
    /// Whether no token that shares a byte with the value is supervised.
    pub is_masked: bool,
}

/// A supervised turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InspectedTurn {
    /// Index of the assistant message.
    pub message: usize,
    /// Byte offset of the first supervised byte.
    pub start: usize,
    /// One past the stop token.
    pub end: usize,
    /// Kind of template text before the first supervised byte.
    pub begins: TurnBegin,
    /// Whether the text before the turn equals the prompt that the template renders for that turn.
    /// It can differ, because templates drop the reasoning of earlier turns once a later one
    /// exists.
    pub is_prompt: bool,
}

/// A row as seen by the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InspectedRow {
    /// Id of the row.
    pub id: String,
    /// The rendered text of the row.
    pub text: String,
    /// All tokens in order, including those after `max_length`.
    pub tokens: Vec<InspectedToken>,
    /// Argument values of the calls in assistant messages, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub argument_values: Vec<InspectedValue>,
    /// Indices of messages that `mask.train_on` selects but `train`, `weight` or `loss` excludes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub switched_off: Vec<usize>,
    /// Indices of messages that are excluded because the template drops their reasoning.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without_reasoning: Vec<usize>,
    /// The system message with its origin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<InspectedSystem>,
    /// Tokens that the tokenizer adds before plain text and that the row does not start with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_bos: Option<String>,
    /// Supervised turns, in order.
    pub turns: Vec<InspectedTurn>,
    /// The stop token that training appends because the template does not write it after the last
    /// turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub appended: Option<String>,
    /// Number of tokens beyond `max_length`. If it is not 0, training rejects, drops or truncates
    /// the row.
    pub n_overflowing: usize,
    /// Names of the spans that the template hides; they cannot have their own weight.
    pub lost_spans: Vec<&'static str>,
}

impl InspectedRow {
    /// The text split into one piece per token. If several tokens make one character, the first
    /// contains it and the others are empty.
    pub fn pieces(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().scan(0, |end_of_shown, token| {
            let from = token.start.max(*end_of_shown);
            *end_of_shown = token.end.max(*end_of_shown);
            Some(self.text.get(from..token.end).unwrap_or_default())
        })
    }
}

/// Shows which tokens of a row are supervised.
///
/// Rows that are too long for [`tokenize_row`](super::tokenize_row) can be inspected.
///
/// # Errors
///
/// As [`tokenize_row`](super::tokenize_row), except for the errors about length and empty rows.
pub fn inspect_row(
    row: &Row,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    options: &PrepareOptions,
) -> Result<InspectedRow, DataError> {
    let work = || -> Result<InspectedRow, DataError> {
        let (rendered, encoded) = read(row, template, tokenizer, options)?;
        let supervisor = Supervisor::new(&rendered, &encoded, tokenizer, options);
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
        let supervised = rendered.turns.iter().filter(|turn| turn.weight > 0.0);
        let turns = supervised.map(|turn| {
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
            system: InspectedSystem::new(&row.conversation, template),
            without_bos: {
                let prefix = &tokenizer.added_tokens().before;
                let lacks = !encoded.ids.starts_with(prefix);
                lacks.then(|| tokenizer.spell_tokens(prefix))
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
            // Tokens are in text order.
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
