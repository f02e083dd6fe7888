//! Reports on scored rows, whether they were scored now or read again.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answers::AnswerMetric;
use super::error::ToolQaError;
use super::report::{AnswerStatus, ScoredAnswer, ToolQaReport, ToolQaScore};
use super::rows::TaskType;
use crate::llm_judge::JudgeVerdict;

/// One scored row, as it is listed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolQaSample {
    /// The row.
    pub uid: String,
    /// The response that it is about.
    pub response_id: String,
    /// The endpoint of the response.
    pub endpoint: String,
    /// The template of the question.
    pub task: String,
    /// Type of the question.
    pub task_type: TaskType,
    /// Metric of the question.
    pub metric: AnswerMetric,
    /// The question.
    pub question: String,
    /// The right answer.
    pub gold_answer: String,
    /// The output as it was generated.
    pub model_output: Option<String>,
    /// Why the output ended, `stop` or `length`, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// Tokens of the output, where they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_tokens: Option<usize>,
    /// What the answer of a server has instead of a text, where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_text: Option<String>,
    /// The output, or what its code returned; null where there is no answer.
    pub answer: Value,
    /// Why there is no answer.
    pub failure: Option<String>,
    /// Its numbers.
    #[serde(flatten)]
    pub score: ToolQaScore,
}

/// A scored run.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolQaRun {
    /// Its numbers.
    pub report: ToolQaReport,
    /// Every row, in order.
    pub samples: Vec<ToolQaSample>,
}

impl ToolQaRun {
    /// Gathers samples, new ones or saved ones.
    ///
    /// # Errors
    ///
    /// - no sample has an answer or an output
    pub fn new(samples: Vec<ToolQaSample>) -> Result<Self, ToolQaError> {
        let scored: Vec<ScoredAnswer<'_>> = samples.iter().map(ToolQaSample::scored).collect();
        let report = ToolQaReport::new(&scored)?;
        Ok(Self { report, samples })
    }

    /// Adds what a judge said, and counts again.
    ///
    /// A verdict that could not be read counts as not approved. Without any a sample that has no
    /// answer does, too, and any other sample counts as not judged. Verdicts of other samples are passed over, so that those of a larger run serve too.
    ///
    /// # Errors
    ///
    /// - no sample has an answer or an output
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

    fn scored(&self) -> ScoredAnswer<'_> {
        ScoredAnswer {
            task_type: self.task_type.name(),
            endpoint: &self.endpoint,
            metric: self.metric,
            score: self.score,
        }
    }
}
