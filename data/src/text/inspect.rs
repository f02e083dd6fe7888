//! What would be learned of one row, token by token, before any training.

use serde::Serialize;

use super::error::DataError;
use super::prepare::{PrepareOptions, read};
use super::rows::Row;
use super::supervise::Supervisor;
use super::template::ChatTemplate;
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

/// A row as the model reads it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InspectedRow {
    /// The row's id.
    pub id: String,
    /// The rendered text.
    pub text: String,
    /// Its tokens in order, those beyond `max_length` included.
    pub tokens: Vec<InspectedToken>,
    /// Tokens beyond `max_length`, which training would refuse, drop or cut.
    pub n_overflowing: usize,
    /// Names of the spans that the template hides, so that they can have no weight of their own.
    pub lost_spans: Vec<&'static str>,
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
        let tokens = (0..encoded.ids.len())
            .map(|token| InspectedToken {
                id: encoded.ids[token],
                text: supervisor.token_text(token).to_owned(),
                start: encoded.offsets[token].0,
                end: encoded.offsets[token].1,
                weight: supervision.weights[token],
                straddles: supervision.straddling.contains(&token),
            })
            .collect::<Vec<_>>();
        Ok(InspectedRow {
            id: row.id.clone(),
            n_overflowing: tokens.len().saturating_sub(options.max_length),
            lost_spans: rendered.lost.iter().map(|kind| kind.name()).collect(),
            text: rendered.text.clone(),
            tokens,
        })
    };
    work().map_err(|error| error.at(&row.id))
}
