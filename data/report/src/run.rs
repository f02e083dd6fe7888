//! Plain data structures for the contents of a report; the caller fills them from the run's files.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use tooltune_rows::text::InspectedRow;

/// The known data of a run. The page shows empty fields as missing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReportRun {
    /// Name shown for the run, such as the name of its folder.
    pub name: String,
    /// Creation date, formatted for display.
    pub date: Option<String>,
    /// Lines of `metrics.jsonl`: objects with `step`. Every other number is a curve.
    pub metrics: Vec<Value>,
    /// Lines of `timing.jsonl`: objects with `step`, the step's `seconds` and `tokens` (or
    /// `retriever_seconds` and `retriever_pairs`), and `peak_rss_bytes`.
    pub timing: Vec<Value>,
    /// The selected checkpoint.
    pub best: Option<BestCheckpoint>,
    /// Results of suites within the run, in display order.
    pub suites: Vec<SuiteResult>,
    /// Results of separate evaluations on other rows; the base comes first. The labels are `base`
    /// and `best` for these checkpoints.
    pub evaluations: Vec<SuiteResult>,
    /// Descriptions of the separate evaluations.
    pub origins: Vec<OriginLine>,
    /// Whether the run trains only a retriever, so that no model generates text.
    pub is_retriever_only: bool,
    /// Training rows, token by token.
    pub mask_preview: Vec<PreviewRow>,
    /// Samples with their predictions, grouped by result, worst first.
    pub samples: Vec<SampleView>,
    /// Generated texts without scores, with the expected texts of their rows.
    pub texts: Vec<SampleView>,
    /// All settings by path, such as `lora.r`, with their values as text.
    pub settings: BTreeMap<String, String>,
    /// Number of training rows, if known.
    pub n_rows: Option<u64>,
    /// Contents of `config.resolved.toml`.
    pub config_toml: String,
    /// Contents of `run.lock.json`.
    pub lock_json: String,
}

/// Description of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OriginLine {
    /// As in [`SuiteResult::label`].
    pub label: String,
    /// A short description of the model, checkpoint or server, and of the rows.
    pub text: String,
}

/// Contents of the `BEST` file.
#[derive(Debug, Clone, PartialEq)]
pub struct BestCheckpoint {
    /// Optimizer step of the checkpoint.
    pub step: u64,
    /// The metric that selected it, such as `slot.mean`.
    pub metric: String,
    /// Value of the metric.
    pub value: f64,
}

/// An evaluation's result for one suite, or for the loss.
#[derive(Debug, Clone, PartialEq)]
pub struct SuiteResult {
    /// Name of the suite, such as `slot`, or [`SuiteResult::LOSS`].
    pub suite: String,
    /// The evaluated model, such as `base` or `step 300`.
    pub label: String,
    /// Optimizer step of the evaluated checkpoint, if known; 0 is the base.
    pub step: Option<u64>,
    /// Contents of `metrics.json`: an object of numbers, estimates (`value` with `low` and `high`),
    /// groups of both, and nested objects.
    pub metrics: Value,
}

impl SuiteResult {
    /// Suite name of results that contain only the loss.
    pub const LOSS: &'static str = "loss";

    /// Number of samples, if the metrics contain it.
    pub fn n_samples(&self) -> Option<u64> {
        let suite_results = self
            .metrics
            .get(&self.suite)
            .and_then(|suite_metrics| suite_metrics.get("n"));
        let n = self.metrics.get("n").or(suite_results);
        n.or_else(|| self.metrics.get("n_loss_rows"))?.as_u64()
    }

    /// Full name of the metric under a key.
    pub(crate) fn metric(&self, key: &str) -> String {
        match key {
            Self::LOSS => key.to_owned(),
            _ => format!("{}.{key}", self.suite),
        }
    }
}

/// Facts about metrics, looked up by full name such as `slot.exact_match_f`.
#[derive(Debug, Clone, Copy)]
pub struct MetricFacts {
    /// Returns the plain-language name, or `None` if the identifier is clear enough.
    pub plain_name: fn(&str) -> Option<&'static str>,
    /// Returns whether higher values are better; `None` if neither direction is.
    pub greater_is_better: fn(&str) -> Option<bool>,
}

impl MetricFacts {
    /// Marks the values that are better than all others. If all values are equal, or the better
    /// direction is unknown, no value is marked.
    pub(crate) fn best(&self, metric: &str, values: &[Option<f64>]) -> Vec<bool> {
        let known_values = || values.iter().flatten().copied();
        let (Some(lowest), Some(highest)) = (
            known_values().reduce(f64::min),
            known_values().reduce(f64::max),
        ) else {
            return vec![false; values.len()];
        };
        let best = match (self.greater_is_better)(metric) {
            Some(true) if lowest < highest => highest,
            Some(false) if lowest < highest => lowest,
            _ => return vec![false; values.len()],
        };
        values.iter().map(|value| *value == Some(best)).collect()
    }
}

/// A training row, token by token.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PreviewRow {
    /// Name of the row.
    pub id: String,
    /// The tokens, in order.
    pub tokens: Vec<PreviewToken>,
}

/// A token of a training row.
#[derive(Debug, Clone, PartialEq)]
pub struct PreviewToken {
    /// Text of the token.
    pub text: String,
    /// Loss weight: 0 is masked, 1 is supervised, other values are weighted supervision.
    pub weight: f32,
}

impl From<&InspectedRow> for PreviewRow {
    fn from(row: &InspectedRow) -> Self {
        let token = |(token, text): (&tooltune_rows::text::InspectedToken, &str)| PreviewToken {
            text: text.to_owned(),
            weight: token.weight,
        };
        Self {
            id: row.id.clone(),
            tokens: row.tokens.iter().zip(row.pieces()).map(token).collect(),
        }
    }
}

/// A sample with a model's prediction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SampleView {
    /// Name of the suite.
    pub suite: String,
    /// The evaluated model, as in [`SuiteResult::label`].
    pub result: String,
    /// Whether the model is untrained. Its predictions are shown only next to predictions of other
    /// models.
    pub is_base: bool,
    /// Unique in its suite and result; all predictions for a sample are shown together.
    pub id: String,
    /// The model input.
    pub prompt: String,
    /// The model output.
    pub prediction: String,
    /// The expected output.
    pub gold: String,
    /// The score that ranks the sample within its suite and result, if there is one.
    pub rank: Option<SampleScoreView>,
    /// All scores of the sample.
    pub scores: Vec<SampleScoreView>,
    /// Additional notes, such as a broken schema rule.
    pub notes: Vec<String>,
}

/// One score of a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleScoreView {
    /// Name of the metric.
    pub name: String,
    /// Value of the metric.
    pub value: f64,
}
