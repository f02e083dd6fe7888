//! Measures the loss of evaluation rows, row by row.

use burn::tensor::Device;
use serde::Serialize;
use serde_json::{Map, Value};
use tooltune_rows::text::Prepared;

use crate::config::{Config, Suite};
use crate::error::Error;
use crate::eval::generator::LocalGenerator;
use crate::eval::in_loop::prepared_rows;
use crate::eval::loss;
use crate::models::Decoder;
use crate::rows::{ReadingReport, eval_rows};
use tooltune_terminal::{GenerationProgress, count_noun};

/// The loss over all rows, and the loss of each row.
pub(in crate::commands) struct MeasuredLoss {
    loss: f64,
    n_tokens: usize,
    pub(in crate::commands) lines: Vec<LossLine>,
}

/// A line of `losses.jsonl`.
#[derive(Serialize)]
pub(in crate::commands) struct LossLine {
    id: String,
    /// The weighted mean over the supervised tokens of the row, or `None` without supervised
    /// tokens.
    loss: Option<f64>,
    n_learned_tokens: usize,
}

impl MeasuredLoss {
    /// The fields for `metrics.json`.
    pub(in crate::commands) fn fields(&self) -> Map<String, Value> {
        let values = [
            ("loss", Value::from(self.loss)),
            ("n_loss_rows", Value::from(self.lines.len())),
            ("n_learned_tokens", Value::from(self.n_tokens)),
        ];
        values
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    /// Formats the loss as a line for the terminal.
    pub(in crate::commands) fn line(&self) -> String {
        format!(
            "{:<32} {:.4}  ({}, {} supervised tokens)",
            "loss",
            self.loss,
            count_noun(self.lines.len(), "row"),
            self.n_tokens
        )
    }
}

/// Measures the loss of examples; `None` if `watch` stopped the work.
///
/// # Errors
///
/// An example has no tokens or invalid weights.
pub(in crate::commands) fn measured_loss(
    decoder: &Decoder,
    prepared: &Prepared,
    watch: &mut dyn FnMut(GenerationProgress) -> bool,
) -> Result<Option<MeasuredLoss>, Error> {
    let examples = &prepared.examples;
    let Some(losses) = loss::losses(decoder, examples, None, watch)? else {
        return Ok(None);
    };
    let lines = examples
        .iter()
        .zip(&losses)
        .map(|(example, loss)| LossLine {
            id: example.id.clone(),
            loss: (loss.weight > 0.0).then(|| loss.sum / loss.weight),
            n_learned_tokens: example
                .loss_weights
                .iter()
                .filter(|&&weight| weight > 0.0)
                .count(),
        });
    let lines: Vec<LossLine> = lines.collect();
    Ok(Some(MeasuredLoss {
        loss: loss::mean(&losses),
        n_tokens: lines.iter().map(|line| line.n_learned_tokens).sum(),
        lines,
    }))
}

/// Measures the loss of a suite's rows. Returns `None` if the suite has no rows. If its rows are
/// not training examples, logs a warning and returns `None`.
///
/// # Errors
///
/// Rows cannot be read, or as for [`measured_loss`].
pub(in crate::commands) fn suite_loss(
    suite: Suite,
    config: &Config,
    model: LocalGenerator<'_>,
    device: &Device,
    watch: &mut dyn FnMut(GenerationProgress) -> bool,
) -> Result<Option<MeasuredLoss>, Error> {
    if suite.needs().rows.is_none() {
        return Ok(None);
    }
    let rows = eval_rows(config, device, &mut ReadingReport::default())?;
    match prepared_rows(config, model.base, &rows) {
        Ok(prepared) => measured_loss(model.decoder, &prepared, watch)?
            .map(Some)
            .ok_or(Error::Stopped),
        Err(error) => {
            tracing::warn!("data.eval: cannot measure the loss: {error}");
            Ok(None)
        }
    }
}
