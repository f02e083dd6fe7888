//! The SLOT suite: rows to prompts, completions and scores.
//!
//! Raw completions are kept beside the scores, so that scoring can be repeated without a model.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tooltune_data::benchmarks::slot::{
    DatasetScore, Metrics, RowScore, SentenceEncoder, SlotRow, score_dataset,
};
use tooltune_data::text::{Row, Specials, prompt_ids};

use super::generate::{Generation, GenerationOptions, GenerationProgress, generate};
use super::report_files::report_files;
use crate::base_model::BaseModel;
use crate::error::Error;
use crate::models::Decoder;

/// One completion as it was generated; a line of `predictions.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The row as `file:line`.
    pub id: String,
    /// The completion's text, without the stop token.
    pub prediction: String,
    /// `stop`, or `length` where `max_new_tokens` cut it.
    #[serde(default)]
    pub finish_reason: String,
    /// Tokens of the completion.
    #[serde(default)]
    pub n_tokens: usize,
}

/// What a model is worth on a set of rows.
#[derive(Debug, Clone)]
pub struct SlotEvaluation {
    /// Means with their intervals.
    pub score: DatasetScore,
    /// Scores of each row.
    pub rows: Vec<RowScore>,
    /// Completions in the order of the rows.
    pub predictions: Vec<Prediction>,
}

impl SlotEvaluation {
    /// Means by name: `slot.schema_accuracy` and so on.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        Metrics::<f64>::NAMES
            .iter()
            .zip(self.score.overall.columns())
            .map(|(name, estimate)| (format!("slot.{name}"), estimate.value))
            .collect()
    }

    /// `metrics.json`, and `predictions.jsonl` with a line of text and scores for each row.
    ///
    /// # Errors
    ///
    /// Never for scores that were computed here; serialisation has no other failure.
    pub fn files(&self) -> Result<BTreeMap<String, Vec<u8>>, Error> {
        let lines = self.predictions.iter().zip(&self.rows);
        let lines = lines.map(|(prediction, score)| ScoredPrediction { prediction, score });
        report_files(&self.score, lines)
    }
}

#[derive(Serialize)]
struct ScoredPrediction<'a> {
    #[serde(flatten)]
    prediction: &'a Prediction,
    score: &'a RowScore,
}

/// Generates and scores the completions of `rows`; `None` if `watch` ended it.
///
/// # Errors
///
/// A row that is no SLOT row or that the template refuses, a schema that cannot be used, or an
/// encoder that fails.
pub fn evaluate(
    decoder: &Decoder,
    base: &BaseModel,
    rows: &[Row],
    options: &GenerationOptions,
    encoder: &dyn SentenceEncoder,
    watch: &mut dyn FnMut(GenerationProgress) -> bool,
) -> Result<Option<SlotEvaluation>, Error> {
    let prompts = rows
        .iter()
        .map(|row| prompt_ids(row, &base.template, &base.tokenizer))
        .collect::<Result<Vec<_>, _>>()?;
    let Some(generations) = generate(decoder, &prompts, options, watch) else {
        return Ok(None);
    };
    let predictions = rows
        .iter()
        .zip(&generations)
        .map(|(row, generation)| prediction(base, row, generation))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Some(score(rows, predictions, encoder)?))
}

fn prediction(base: &BaseModel, row: &Row, generation: &Generation) -> Result<Prediction, Error> {
    Ok(Prediction {
        id: row.id.clone(),
        prediction: base.tokenizer.decode(&generation.ids, Specials::Skip)?,
        finish_reason: if generation.stopped { "stop" } else { "length" }.to_string(),
        n_tokens: generation.ids.len(),
    })
}

/// Scores completions that exist already, in the order of `rows`.
///
/// # Errors
///
/// A row that is no SLOT row, a number of predictions other than that of the rows, a schema that
/// cannot be used, or an encoder that fails.
pub fn score(
    rows: &[Row],
    predictions: Vec<Prediction>,
    encoder: &dyn SentenceEncoder,
) -> Result<SlotEvaluation, Error> {
    if rows.len() != predictions.len() {
        return Err(Error::Usage(format!(
            "{} predictions for {} rows; give one line for each row, in their order",
            predictions.len(),
            rows.len()
        )));
    }
    let slot_rows = rows
        .iter()
        .zip(&predictions)
        .map(|(row, prediction)| match &row.slot {
            Some(slot) => Ok(SlotRow {
                raw: &prediction.prediction,
                schema: &slot.json_schema,
                gold: &slot.gold,
            }),
            None => Err(Error::Usage(format!(
                "{}: the suite slot needs rows with input_text, json_schema and gold; \
                 set data.format = \"slot\"",
                row.id
            ))),
        })
        .collect::<Result<Vec<_>, _>>()?;
    let (score, row_scores) = score_dataset(&slot_rows, encoder)?;
    Ok(SlotEvaluation {
        score,
        rows: row_scores,
        predictions,
    })
}
