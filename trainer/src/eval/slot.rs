//! The SLOT suite: rows to prompts, completions and scores.
//!
//! Raw completions are kept beside the scores, so that scoring can be repeated without a model.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_agents::flat::NestedCompletion;
use tooltune_rows::text::Row;
use tooltune_suites::slot::{
    DatasetScore, Metrics, RowScore, SentenceEncoder, SlotRow, score_dataset, slot_means,
};

use super::by_file::{ByFile, SampleFiles};
use super::flat_forms::{FlatCounts, FlatForms, Unflattened};
use super::generate::GenerationProgress;
use super::generator::{Completion, GenerationRequest, Generator, PromptText, TextConstraint};
use super::journal::Journal;
use super::report_files::{json_lines, report_files};
use crate::error::Error;

/// One completion as it was generated; a line of `predictions.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The row as `file:line`.
    pub id: String,
    /// The completion's text, without the stop token.
    pub prediction: String,
    /// `stop`, `length` where `max_new_tokens` cut it, or as [`Completion::finish_reason`] says.
    #[serde(default)]
    pub finish_reason: String,
    /// Tokens of the completion.
    #[serde(default)]
    pub n_tokens: usize,
    /// As [`Completion::without_text`] says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_text: Option<String>,
    /// As [`Completion::error`] says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl From<Prediction> for Completion {
    fn from(saved: Prediction) -> Self {
        Self {
            text: saved.prediction,
            finish_reason: saved.finish_reason,
            n_tokens: saved.n_tokens,
            without_text: saved.without_text,
            error: saved.error,
        }
    }
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
    /// Where schemas were enforced, the rows whose schema was not.
    pub unsupported: Option<Vec<Unsupported>>,
    /// Where schemas were flat, what was scored in place of the completions.
    pub unflattened: Option<Unflattened>,
    /// The means of each file, where the rows come from several.
    pub by_file: Option<ByFile>,
}

impl SlotEvaluation {
    /// Means by name: `slot.schema_accuracy` and so on, and `slot.malformed_rate` where schemas
    /// were flat.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        let columns = self.score.overall.columns();
        let means = Metrics::<f64>::NAMES.iter().zip(columns);
        let mut metrics: BTreeMap<String, f64> = means
            .map(|(name, estimate)| (format!("slot.{name}"), estimate.value))
            .collect();
        let flat = self.unflattened.as_ref();
        if let Some(rate) = flat.and_then(|flat| flat.predictions.malformed_rate()) {
            metrics.insert("slot.malformed_rate".to_string(), rate);
        }
        metrics
    }

    /// `metrics.json`, `predictions.jsonl` with a line of text and scores for each row,
    /// `unsupported_schemas.jsonl` where schemas were enforced, and `nested_schemas.jsonl` with
    /// those that stayed so where schemas were flat.
    ///
    /// # Errors
    ///
    /// Never for scores that were computed here; serialisation has no other failure.
    pub fn files(&self) -> Result<BTreeMap<String, Vec<u8>>, Error> {
        let flat = self.unflattened.as_ref();
        let lines = self.predictions.iter().zip(&self.rows).enumerate();
        let lines = lines.map(|(i, (prediction, score))| ScoredPrediction {
            prediction,
            scored: flat.and_then(|flat| flat.completions.get(i)),
            score,
        });
        let report = Report {
            score: &self.score,
            by_file: self.by_file.as_ref(),
            flat: flat.map(Unflattened::counts),
        };
        let mut files = report_files(&report, lines)?;
        if let Some(flat) = flat {
            let name = "nested_schemas.jsonl".to_string();
            files.insert(name, json_lines(&flat.schemas.kept_schemas)?);
        }
        if let Some(unsupported) = &self.unsupported {
            let name = "unsupported_schemas.jsonl".to_string();
            files.insert(name, json_lines(unsupported)?);
        }
        Ok(files)
    }
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    score: &'a DatasetScore,
    #[serde(flatten)]
    by_file: Option<&'a ByFile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flat: Option<FlatCounts<'a>>,
}

#[derive(Serialize)]
struct ScoredPrediction<'a> {
    #[serde(flatten)]
    prediction: &'a Prediction,
    /// What was scored in its place, where schemas were flat.
    #[serde(skip_serializing_if = "Option::is_none")]
    scored: Option<&'a NestedCompletion>,
    score: &'a RowScore,
}

/// A row whose schema is not enforced, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unsupported {
    /// The row.
    pub id: String,
    /// What the schema asks for that is not enforced.
    pub reason: String,
}

/// What the texts of rows keep to.
#[derive(Debug, Default)]
pub struct Constraints {
    /// For each row, or none at all where nothing is enforced.
    by_row: Vec<Option<TextConstraint>>,
    /// The rows that are generated freely.
    pub unsupported: Vec<Unsupported>,
}

impl Constraints {
    /// Compiles the schemas of `rows`, in the forms that they are shown in, for `generator`.
    ///
    /// # Errors
    ///
    /// A tokenizer that cannot be constrained, or a row that is no SLOT row.
    pub fn compile(
        (rows, forms): (&[Row], &FlatForms),
        generator: &Generator<'_>,
    ) -> Result<Self, Error> {
        let schemas = forms.enforced_schemas(rows)?;
        let schemas: Vec<&Value> = schemas.iter().collect();
        let mut constraints = Self::default();
        for (row, compiled) in rows
            .iter()
            .zip(generator.constrainer()?.constraints(&schemas))
        {
            match compiled {
                Ok(constraint) => constraints.by_row.push(Some(constraint)),
                Err(reason) => {
                    constraints.by_row.push(None);
                    let id = row.id.clone();
                    constraints.unsupported.push(Unsupported { id, reason });
                }
            }
        }
        Ok(constraints)
    }

    /// Says before anything is generated which of `n` rows are generated freely.
    pub fn warn(&self, n: usize) {
        if let Some(first) = self.unsupported.first() {
            tracing::warn!(
                "{} of {n} rows are generated freely, because their schema is not enforced, such as \
                 {}: {}",
                self.unsupported.len(),
                first.id,
                first.reason
            );
        }
    }
}

/// Generates and scores the completions of `rows`; `None` if `watch` ended it.
///
/// # Errors
///
/// A row without a schema and gold, a prompt that the template refuses, a server that does not
/// answer, or an encoder that fails.
pub fn evaluate(
    generator: &Generator<'_>,
    (rows, forms, constraints): (&[Row], &FlatForms, &Constraints),
    max_new_tokens: usize,
    journal: Option<&mut Journal>,
    encoder: &dyn SentenceEncoder,
    watch: &mut dyn FnMut(GenerationProgress) -> bool,
) -> Result<Option<SlotEvaluation>, Error> {
    let prompts = prompts(rows, constraints, max_new_tokens);
    let Some(texts) = generator.write(&prompts, journal, watch)? else {
        return Ok(None);
    };
    let predictions = rows.iter().zip(texts).map(|(row, written)| Prediction {
        id: row.id.clone(),
        prediction: written.text,
        finish_reason: written.finish_reason,
        n_tokens: written.n_tokens,
        without_text: written.without_text,
        error: written.error,
    });
    let mut evaluation = score((rows, forms), predictions.collect(), encoder)?;
    if !constraints.by_row.is_empty() {
        evaluation.unsupported = Some(constraints.unsupported.clone());
    }
    Ok(Some(evaluation))
}

/// What is to be written after each row.
pub fn prompts<'a>(
    rows: &'a [Row],
    constraints: &'a Constraints,
    max_new_tokens: usize,
) -> Vec<GenerationRequest<'a>> {
    let prompted = |(i, row): (usize, &'a Row)| GenerationRequest {
        id: &row.id,
        text: PromptText::Chat(&row.conversation),
        max_new_tokens,
        constraint: constraints.by_row.get(i).and_then(Option::as_ref),
    };
    rows.iter().enumerate().map(prompted).collect()
}

pub(super) fn slot_fields(row: &Row) -> Result<&tooltune_rows::text::SlotRow, Error> {
    row.slot.as_ref().ok_or_else(|| {
        Error::Usage(format!(
            "{}: the suite slot needs rows with input_text, json_schema and gold; \
             set data.format = \"slot\"",
            row.id
        ))
    })
}

/// Scores completions that exist already, in the order of `rows`; flat ones in the nested form.
///
/// # Errors
///
/// A row that is no SLOT row, a number of predictions other than that of the rows, a schema that
/// cannot be used, or an encoder that fails.
pub fn score(
    (rows, forms): (&[Row], &FlatForms),
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
    let unflattened = forms.unflattened(&predictions);
    let scored: Vec<&str> = match &unflattened {
        Some(flat) => flat
            .completions
            .iter()
            .map(|one| one.text.as_str())
            .collect(),
        None => predictions
            .iter()
            .map(|one| one.prediction.as_str())
            .collect(),
    };
    let slot_rows = rows
        .iter()
        .zip(scored)
        .map(|(row, raw)| {
            let slot = slot_fields(row)?;
            Ok(SlotRow {
                raw,
                schema: &slot.json_schema,
                gold: &slot.gold,
            })
        })
        .collect::<Result<Vec<_>, Error>>()?;
    let (score, row_scores) = score_dataset(&slot_rows, encoder)?;
    let names = Metrics::<f64>::NAMES;
    let by_file = SampleFiles::of_rows(rows).measured(names, |range| {
        let means = slot_means(&row_scores[range]);
        Ok(means
            .map(|means| means.columns())
            .map_or([None; 7], |columns| columns.map(Some)))
    })?;
    Ok(SlotEvaluation {
        score,
        by_file,
        rows: row_scores,
        predictions,
        unsupported: None,
        unflattened,
    })
}
