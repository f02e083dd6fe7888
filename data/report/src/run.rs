//! Holds what a report shows of a run, in plain structures that whoever reads the files fills in.

use std::collections::BTreeMap;

use serde_json::Value;
use tooltune_rows::text::InspectedRow;

/// A run, as far as it is known; what is empty is said to be missing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReportRun {
    /// What to call it, such as the name of its folder.
    pub name: String,
    /// When it was made, as it is to be shown.
    pub date: Option<String>,
    /// The lines of `metrics.jsonl`: objects with `step`. Every other number is a curve.
    pub metrics: Vec<Value>,
    /// The lines of `timing.jsonl`: objects with `step`, `seconds` and `tokens` of that step, or
    /// `retriever_seconds` and `retriever_pairs`, and `peak_rss_bytes`.
    pub timing: Vec<Value>,
    /// The selected checkpoint.
    pub best: Option<BestCheckpoint>,
    /// Results of suites within the run, in the order in which they are to be compared.
    pub suites: Vec<SuiteResult>,
    /// Results of evaluations outside of the run, on rows of their own, the base first. Their labels are
    /// `base` and `best` where that is what they are of.
    pub evaluations: Vec<SuiteResult>,
    /// Training rows, token by token.
    pub mask_preview: Vec<PreviewRow>,
    /// Samples with their predictions: those of one result together, the worst first.
    pub samples: Vec<SampleView>,
    /// Texts that were generated and that nothing scores, with what the rows have in their place.
    pub texts: Vec<SampleView>,
    /// Every setting by its path, such as `lora.r`, with its value as text.
    pub settings: BTreeMap<String, String>,
    /// Rows that it learned from, where they could be counted.
    pub n_rows: Option<u64>,
    /// The text of `config.resolved.toml`.
    pub config_toml: String,
    /// The text of `run.lock.json`.
    pub lock_json: String,
}

/// What `BEST` says.
#[derive(Debug, Clone, PartialEq)]
pub struct BestCheckpoint {
    /// Optimizer steps behind the checkpoint.
    pub step: u64,
    /// The metric that selected it, such as `slot.mean`.
    pub metric: String,
    /// Its value.
    pub value: f64,
}

/// What an evaluation found for one suite, or for the loss.
#[derive(Debug, Clone, PartialEq)]
pub struct SuiteResult {
    /// Name of the suite, such as `slot`, or [`SuiteResult::LOSS`].
    pub suite: String,
    /// What was evaluated, such as `base` or `step 300`.
    pub label: String,
    /// Optimizer steps behind it, where it is known; 0 is the base.
    pub step: Option<u64>,
    /// Its `metrics.json`: an object of numbers, of estimates (`value` with `low` and `high`), of
    /// groups of both, and of further objects.
    pub metrics: Value,
}

impl SuiteResult {
    /// What stands in the place of a suite where the loss alone was measured.
    pub const LOSS: &'static str = "loss";

    /// Samples behind it, where it says so.
    pub fn n(&self) -> Option<u64> {
        let of_suite = self.metrics.get(&self.suite).and_then(|own| own.get("n"));
        let n = self.metrics.get("n").or(of_suite);
        n.or_else(|| self.metrics.get("n_loss_rows"))?.as_u64()
    }

    /// The name of its metric of that key, which is the one that it has everywhere.
    pub(crate) fn metric(&self, key: &str) -> String {
        match key {
            Self::LOSS => key.to_owned(),
            _ => format!("{}.{key}", self.suite),
        }
    }
}

/// Says what people call the metric of a name, such as `slot.exact_match_f`; none where the name
/// says it.
pub type MetricWords = fn(&str) -> Option<&'static str>;

/// A training row, token by token.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PreviewRow {
    /// Names the row.
    pub id: String,
    /// Its tokens, in order.
    pub tokens: Vec<PreviewToken>,
}

/// A token of a training row.
#[derive(Debug, Clone, PartialEq)]
pub struct PreviewToken {
    /// What it covers of the row's text.
    pub text: String,
    /// Weight as a target: 0 is masked, 1 is supervised, all else is supervised by that much.
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

/// A sample with what a model made of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SampleView {
    /// Name of the suite that it belongs to.
    pub suite: String,
    /// What was evaluated, such as `step 300`, as in [`SuiteResult::label`].
    pub result: String,
    /// Whether that is the untrained model, whose samples are shown beside others and not for
    /// themselves.
    pub is_base: bool,
    /// Unique in its suite and result; all predictions of a sample are shown together.
    pub id: String,
    /// What the model read.
    pub prompt: String,
    /// What the model wrote.
    pub prediction: String,
    /// What it should have written.
    pub gold: String,
    /// What it is ranked by among those of its suite and result, if by anything.
    pub rank: Option<SampleScoreView>,
    /// Its scores.
    pub scores: Vec<SampleScoreView>,
    /// Further remarks, such as a broken rule of the schema.
    pub notes: Vec<String>,
}

/// One score of a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleScoreView {
    /// Name of the metric.
    pub name: String,
    /// Its value.
    pub value: f64,
}
