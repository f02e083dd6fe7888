//! Reports on scored rows, whether they were just scored or loaded from a file.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answers::AnswerMetric;
use super::error::ToolQaError;
use super::report::{AnswerStatus, RoutedAs, ScoredAnswer, ToolQaReport, ToolQaScore};
use super::rows::{AnswerFacts, TaskType};
use crate::llm_judge::JudgeVerdict;

/// A scored row, in the format of result files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolQaSample {
    /// Id of the row.
    #[serde(rename = "id", alias = "uid")]
    pub uid: String,
    /// Id of the response.
    pub response_id: String,
    /// The endpoint of the response.
    pub endpoint: String,
    /// The template of the question.
    pub task: String,
    /// Type of the question.
    pub task_type: TaskType,
    /// Metric of the question.
    pub metric: AnswerMetric,
    /// What is known about the answer.
    #[serde(flatten)]
    pub facts: AnswerFacts,
    /// The setting of the prompt and how it was chosen, if by the type of the question.
    #[serde(flatten)]
    pub routed_as: Option<RoutedAs>,
    /// The question.
    pub question: String,
    /// The gold answer.
    pub gold_answer: String,
    /// The output as generated.
    #[serde(rename = "prediction", alias = "model_output")]
    pub model_output: Option<String>,
    /// The finish reason, `stop` or `length`, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// Number of output tokens, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_tokens: Option<usize>,
    /// The content that a server returned instead of text, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_text: Option<String>,
    /// The output, or the result of its code; null if there is no answer.
    pub answer: Value,
    /// Why there is no answer; `None` if there is one.
    pub failure: Option<String>,
    /// The scores.
    #[serde(flatten)]
    pub score: ToolQaScore,
}

/// A scored run.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolQaRun {
    /// The metrics.
    pub report: ToolQaReport,
    /// All rows, in order.
    pub samples: Vec<ToolQaSample>,
}

impl ToolQaRun {
    /// Aggregates new or loaded samples.
    ///
    /// # Errors
    ///
    /// No sample has an answer or an output.
    pub fn new(samples: Vec<ToolQaSample>) -> Result<Self, ToolQaError> {
        let scored: Vec<ScoredAnswer<'_>> =
            samples.iter().map(ToolQaSample::scored_answer).collect();
        let report = ToolQaReport::new(&scored)?;
        Ok(Self { report, samples })
    }

    /// Adds the judge's verdicts and aggregates again.
    ///
    /// An unparsable verdict counts as rejected. A sample without a verdict counts as rejected if
    /// it has no answer, and otherwise as not judged. Verdicts on other samples are ignored, so the
    /// verdicts of a larger run can be used.
    ///
    /// # Errors
    ///
    /// No sample has an answer or an output.
    pub fn with_verdicts(mut self, verdicts: &[JudgeVerdict]) -> Result<Self, ToolQaError> {
        let by_uid: HashMap<&str, Option<bool>> = verdicts
            .iter()
            .map(|judged| (judged.id.as_str(), judged.verdict))
            .collect();
        for sample in &mut self.samples {
            sample.score.judged = match by_uid.get(sample.uid.as_str()) {
                Some(verdict) => Some(*verdict == Some(true)),
                None => (!sample.has_answer()).then_some(false),
            };
        }
        Self::new(self.samples)
    }
}

impl ToolQaSample {
    /// Whether there is an answer, right or wrong.
    pub fn has_answer(&self) -> bool {
        self.score.status == AnswerStatus::Answered && !self.answer.is_null()
    }

    fn scored_answer(&self) -> ScoredAnswer<'_> {
        ScoredAnswer {
            task_type: self.task_type.name(),
            endpoint: &self.endpoint,
            metric: self.metric,
            facts: self.facts,
            routed_as: self.routed_as.as_ref(),
            score: self.score,
        }
    }
}
