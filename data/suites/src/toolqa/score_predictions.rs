//! Scores predictions for rows.
//!
//! Predictions are generated elsewhere and saved, so that scoring can be repeated. Code is run
//! here, through a [`CodeRunner`], for several samples at once.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use tooltune_endpoint::in_parallel;

use super::code::{CODE_EXECUTION_ERROR, CodeFailure, CodeRule, CodeRunner, extract_code};
use super::error::ToolQaError;
use super::predictions::ToolQaPrediction;
use super::report::{AnswerStatus, RoutedAs, ToolQaNumbers, ToolQaScore};
use super::rows::ToolQaRow;
use super::run::{ToolQaRun, ToolQaSample};
use super::setting::Setting;
use crate::is_cut;
use crate::row_suite::require_unique;

/// Options for scoring predictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoreOptions {
    /// The setting of the predictions, which determines whether outputs are answers or code. `None` if
    /// each prediction has its own.
    pub setting: Option<Setting>,
    /// The rule that selects the function of an output.
    pub code_rule: CodeRule,
    /// Number of samples whose code runs concurrently, 1 to 64.
    pub concurrency: usize,
}

/// Scores the predictions for rows; `runner` is required in code settings.
///
/// `watch` is called in the caller's thread with the number of scored rows, at least ten times per
/// second. It stops the work by returning `false`.
///
/// # Errors
///
/// - a row has no prediction, a prediction has no row, or no prediction has an output
/// - the setting needs code and there is no runner, or the runner cannot run code
/// - a prediction has no setting, and `options` has none
/// - `watch` stopped the work
pub fn score_predictions(
    rows: &[ToolQaRow],
    predictions: &[ToolQaPrediction],
    options: &ScoreOptions,
    runner: Option<&dyn CodeRunner>,
    watch: &mut dyn FnMut(usize) -> bool,
) -> Result<ToolQaRun, ToolQaError> {
    let pairs = pair_predictions(rows, predictions)?;
    let reader = |prediction: &ToolQaPrediction| {
        let setting = prediction.setting.or(options.setting);
        let setting = setting.ok_or_else(|| ToolQaError::NoSetting {
            uid: prediction.uid.clone(),
        })?;
        match (setting.is_code(), runner) {
            (false, _) => Ok(OutputReader::Answers),
            (true, Some(runner)) => Ok(OutputReader::Code(runner, options.code_rule)),
            (true, None) => Err(ToolQaError::NoRunner {
                setting: setting.name(),
            }),
        }
    };
    for (_, prediction) in &pairs {
        reader(prediction)?;
    }
    let (mut is_broken, mut is_ended) = (false, false);
    let results = in_parallel(
        &pairs,
        options.concurrency,
        &mut |event| {
            is_broken |= event.latest.is_some_and(Result::is_err);
            is_ended |= !watch(event.n_done);
            !is_ended && !is_broken
        },
        |(row, prediction), _| reader(prediction)?.sample(row, prediction),
    );
    let n_done = results.iter().flatten().count();
    // Code that was running when the work was stopped has no answer. This is not an error of the
    // code.
    if is_ended && results.iter().flatten().any(Result::is_err) {
        let n = rows.len();
        return Err(ToolQaError::Stopped { n_done, n });
    }
    let samples: Vec<ToolQaSample> = results.into_iter().flatten().collect::<Result<_, _>>()?;
    if n_done < rows.len() {
        let n = rows.len();
        return Err(ToolQaError::Stopped { n_done, n });
    }
    ToolQaRun::new(samples)
}

type Pair<'a> = (&'a ToolQaRow, &'a ToolQaPrediction);

/// Pairs each row with its prediction. The pairs are in row order.
fn pair_predictions<'a>(
    rows: &'a [ToolQaRow],
    predictions: &'a [ToolQaPrediction],
) -> Result<Vec<Pair<'a>>, ToolQaError> {
    let mut by_uid: HashMap<&str, &ToolQaPrediction> = HashMap::new();
    let mut first_locations = HashMap::new();
    for (idx, prediction) in predictions.iter().enumerate() {
        let location = format!("prediction {}", idx + 1);
        require_unique(&mut first_locations, "uid", &prediction.uid, location)?;
        by_uid.insert(&prediction.uid, prediction);
    }
    let prediction_of = |row: &'a ToolQaRow| by_uid.get(row.uid.as_str()).copied();
    let pairs = rows
        .iter()
        .filter_map(|row| Some((row, prediction_of(row)?)));
    let pairs: Vec<Pair<'a>> = pairs.collect();
    if let Some(row) = rows.iter().find(|row| prediction_of(row).is_none()) {
        return Err(ToolQaError::MissingPredictions {
            uid: row.uid.clone(),
            n_missing: rows.len() - pairs.len(),
            n: rows.len(),
        });
    }
    let known_uids: HashSet<&str> = rows.iter().map(|row| row.uid.as_str()).collect();
    let stray = predictions
        .iter()
        .find(|unmatched| !known_uids.contains(unmatched.uid.as_str()));
    match stray {
        Some(prediction) => Err(ToolQaError::UnknownUid {
            uid: prediction.uid.clone(),
        }),
        None => Ok(pairs),
    }
}

/// The metrics of the gold answers if they are scored as predictions, without a judge; `None`
/// without rows.
pub fn gold_numbers(rows: &[ToolQaRow]) -> Option<ToolQaNumbers> {
    let score = |row: &ToolQaRow| {
        let answer = Value::from(row.gold_answer.as_str());
        ToolQaScore::from_answer(
            row.metric,
            &row.gold_answer,
            &answer,
            AnswerStatus::Answered,
        )
    };
    let scores: Vec<ToolQaScore> = rows.iter().map(score).collect();
    (!scores.is_empty()).then(|| ToolQaNumbers::new(&scores))
}

/// How an output is converted to an answer.
enum OutputReader<'r> {
    /// The output is the answer.
    Answers,
    /// The output's code returns the answer.
    Code(&'r dyn CodeRunner, CodeRule),
}

/// The answer from one output, with its status and failure.
struct Attempt {
    answer: Value,
    status: AnswerStatus,
    failure: Option<String>,
}

impl Attempt {
    fn with_answer(answer: Value) -> Self {
        Self {
            answer,
            status: AnswerStatus::Answered,
            failure: None,
        }
    }

    fn with_failure(status: AnswerStatus, failure: impl Into<String>) -> Self {
        Self {
            answer: Value::Null,
            status,
            failure: Some(failure.into()),
        }
    }
}

impl OutputReader<'_> {
    fn sample(
        &self,
        row: &ToolQaRow,
        prediction: &ToolQaPrediction,
    ) -> Result<ToolQaSample, ToolQaError> {
        let attempt = match prediction.model_output.as_deref() {
            _ if prediction.context_exceeded => {
                Attempt::with_failure(AnswerStatus::ContextExceeded, "context length exceeded")
            }
            None => Attempt::with_failure(AnswerStatus::NoOutput, "no model output"),
            Some(_) if prediction.finish_reason.as_deref().is_some_and(is_cut) => {
                let reason = "the output was cut off";
                Attempt::with_failure(AnswerStatus::Unfinished, reason)
            }
            Some(output) if output.trim().is_empty() && matches!(self, Self::Answers) => {
                Attempt::with_failure(AnswerStatus::Unfinished, "the output is empty")
            }
            Some(output) => self.attempt(row, output)?,
        };
        Ok(sample(row, prediction, attempt))
    }

    fn attempt(&self, row: &ToolQaRow, output: &str) -> Result<Attempt, ToolQaError> {
        let (runner, rule) = match self {
            Self::Answers => return Ok(Attempt::with_answer(Value::from(output))),
            Self::Code(runner, rule) => (runner, *rule),
        };
        let Some(code) = extract_code(output, rule) else {
            let failure = "no Python code in the output";
            return Ok(Attempt::with_failure(AnswerStatus::NoCode, failure));
        };
        match runner.run(&code, &row.response.response) {
            // The published evaluation identifies a failure by this string, even if code returns
            // it.
            Ok(Value::String(text)) if text == CODE_EXECUTION_ERROR => {
                Ok(Attempt::with_failure(AnswerStatus::CodeError, text))
            }
            Ok(answer) => Ok(Attempt::with_answer(answer)),
            Err(CodeFailure::Unavailable { reason }) => Err(ToolQaError::Runner {
                uid: row.uid.clone(),
                reason,
            }),
            Err(failure) => Ok(Attempt::with_failure(
                AnswerStatus::CodeError,
                failure.to_string(),
            )),
        }
    }
}

fn sample(row: &ToolQaRow, prediction: &ToolQaPrediction, attempt: Attempt) -> ToolQaSample {
    let Attempt {
        answer,
        status,
        failure,
    } = attempt;
    ToolQaSample {
        uid: row.uid.clone(),
        response_id: row.response.response_id.clone(),
        endpoint: row.response.endpoint.clone(),
        task: row.task.clone(),
        task_type: row.task_type,
        metric: row.metric,
        facts: row.facts,
        routed_as: prediction.setting.map(|setting| RoutedAs {
            setting,
            classifier_output: prediction.classifier_output.clone().unwrap_or_default(),
        }),
        question: row.question.clone(),
        gold_answer: row.gold_answer.clone(),
        model_output: prediction.model_output.clone(),
        finish_reason: prediction.finish_reason.clone(),
        n_tokens: prediction.n_tokens,
        without_text: prediction.without_text.clone(),
        score: ToolQaScore::from_answer(row.metric, &row.gold_answer, &answer, status),
        answer,
        failure,
    }
}

#[cfg(test)]
mod tests;
