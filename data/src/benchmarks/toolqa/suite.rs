//! Rows and what a model made of them to scored samples and a report.
//!
//! Generation is elsewhere and its outputs are kept, so that scoring can be repeated. Code is run
//! here, through a [`CodeRunner`], some samples at once.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answers::AnswerMetric;
use super::code::{CODE_EXECUTION_ERROR, CodeFailure, CodeRule, CodeRunner, extract_code};
use super::error::ToolQaError;
use super::report::{AnswerStatus, ScoredAnswer, ToolQaReport, ToolQaScore};
use super::rows::{TaskType, ToolQaRow, nothing, only_once};
use super::setting::Setting;
use crate::benchmarks::llm_judge::JudgeVerdict;
use crate::endpoint::in_parallel;
use crate::tools::{Fields, JsonLines, ToolsError};

/// What a model made of one row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolQaPrediction {
    /// The row.
    pub uid: String,
    /// The output as it was generated; null if there is none.
    pub model_output: Option<String>,
    /// Whether there is none because the prompt was longer than the context: the answer is wrong.
    #[serde(default)]
    pub context_exceeded: bool,
}

/// Reads `{"uid", "model_output", "context_exceeded"?}` lines, gzip-compressed or not.
///
/// # Errors
///
/// - the file cannot be read, or holds no line
/// - a line is not JSON or no object, lacks a field, or misspells one
/// - two lines have one `uid`
pub fn read_predictions(path: &Path) -> Result<Vec<ToolQaPrediction>, ToolQaError> {
    let mut places = HashMap::new();
    let mut predictions = Vec::new();
    for line in JsonLines::open(path)? {
        let (place, value) = line?;
        let prediction = prediction(&value).map_err(|error| error.at(&place))?;
        only_once(&mut places, "uid", &prediction.uid, place)?;
        predictions.push(prediction);
    }
    match predictions.is_empty() {
        true => Err(nothing(path, "predictions")),
        false => Ok(predictions),
    }
}

fn prediction(value: &Value) -> Result<ToolQaPrediction, ToolsError> {
    let fields = Fields::new(
        value,
        "",
        "a line has uid and model_output, which may be null",
    )?;
    fields.no_misspelling_of(&["uid", "model_output", "context_exceeded"])?;
    if fields.raw("model_output").is_none() {
        return Err(fields.missing("model_output"));
    }
    Ok(ToolQaPrediction {
        uid: fields.text("uid")?.to_owned(),
        model_output: fields.optional_text("model_output")?.map(str::to_owned),
        context_exceeded: fields.flag("context_exceeded")?,
    })
}

/// How predictions are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoreOptions {
    /// The setting that they were made in: whether outputs are answers or code.
    pub setting: Setting,
    /// Which function of an output is called.
    pub code_rule: CodeRule,
    /// Samples whose code runs at once, 1 to 64.
    pub concurrency: usize,
}

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
    /// Without a verdict a sample that has no answer counts as not approved, and any other as not
    /// judged. Verdicts of other samples are passed over, so that those of a larger run serve too.
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
                Some(verdict) => *verdict,
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

    fn new(row: &ToolQaRow, output: Option<&str>, attempt: Attempt) -> Self {
        let Attempt {
            answer,
            status,
            failure,
        } = attempt;
        Self {
            uid: row.uid.clone(),
            response_id: row.response.response_id.clone(),
            endpoint: row.response.endpoint.clone(),
            task: row.task.clone(),
            task_type: row.task_type,
            metric: row.metric,
            question: row.question.clone(),
            gold_answer: row.gold_answer.clone(),
            model_output: output.map(str::to_owned),
            score: ToolQaScore::of(row.metric, &row.gold_answer, &answer, status),
            answer,
            failure,
        }
    }
}

/// Scores what a model made of rows; `runner` is needed in settings for code.
///
/// `watch` is called in the caller's thread with the number of scored rows, at least ten times a
/// second, and may end the work by returning `false`.
///
/// # Errors
///
/// - a row has no prediction, a prediction belongs to no row, or no prediction has an output
/// - the setting is one for code and there is no runner, or the runner cannot run code
/// - `watch` ended the work
pub fn score_predictions(
    rows: &[ToolQaRow],
    predictions: &[ToolQaPrediction],
    options: &ScoreOptions,
    runner: Option<&dyn CodeRunner>,
    watch: &mut dyn FnMut(usize) -> bool,
) -> Result<ToolQaRun, ToolQaError> {
    let pairs = paired(rows, predictions)?;
    let reader = match (options.setting.is_code(), runner) {
        (false, _) => OutputReader::Answers,
        (true, Some(runner)) => OutputReader::Code(runner, options.code_rule),
        (true, None) => {
            let setting = options.setting.name();
            return Err(ToolQaError::NoRunner { setting });
        }
    };
    let mut is_broken = false;
    let results = in_parallel(
        &pairs,
        options.concurrency,
        &mut |watched| {
            is_broken |= watched.latest.is_some_and(Result::is_err);
            watch(watched.n_done) && !is_broken
        },
        |(row, prediction), _| reader.sample(row, prediction),
    );
    let n_done = results.iter().flatten().count();
    let samples: Vec<ToolQaSample> = results.into_iter().flatten().collect::<Result<_, _>>()?;
    if n_done < rows.len() {
        let n = rows.len();
        return Err(ToolQaError::Stopped { n_done, n });
    }
    ToolQaRun::new(samples)
}

type Pair<'a> = (&'a ToolQaRow, &'a ToolQaPrediction);

/// Each row with its prediction, in the order of the rows.
fn paired<'a>(
    rows: &'a [ToolQaRow],
    predictions: &'a [ToolQaPrediction],
) -> Result<Vec<Pair<'a>>, ToolQaError> {
    let mut by_uid: HashMap<&str, &ToolQaPrediction> = HashMap::new();
    let mut places = HashMap::new();
    for (idx, prediction) in predictions.iter().enumerate() {
        let place = format!("prediction {}", idx + 1);
        only_once(&mut places, "uid", &prediction.uid, place)?;
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
    let known: HashSet<&str> = rows.iter().map(|row| row.uid.as_str()).collect();
    let stray = predictions
        .iter()
        .find(|one| !known.contains(one.uid.as_str()));
    match stray {
        Some(prediction) => Err(ToolQaError::UnknownUid {
            uid: prediction.uid.clone(),
        }),
        None => Ok(pairs),
    }
}

/// How an output becomes an answer.
enum OutputReader<'r> {
    /// It is one.
    Answers,
    /// Its code returns it.
    Code(&'r dyn CodeRunner, CodeRule),
}

/// What an output came to.
struct Attempt {
    answer: Value,
    status: AnswerStatus,
    failure: Option<String>,
}

impl Attempt {
    fn answered(answer: Value) -> Self {
        Self {
            answer,
            status: AnswerStatus::Answered,
            failure: None,
        }
    }

    fn failed(status: AnswerStatus, failure: impl Into<String>) -> Self {
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
        let output = prediction.model_output.as_deref();
        let attempt = match output {
            _ if prediction.context_exceeded => {
                Attempt::failed(AnswerStatus::ContextExceeded, "context length exceeded")
            }
            None => Attempt::failed(AnswerStatus::NoOutput, "no model output"),
            Some(output) => self.attempt(row, output)?,
        };
        Ok(ToolQaSample::new(row, output, attempt))
    }

    fn attempt(&self, row: &ToolQaRow, output: &str) -> Result<Attempt, ToolQaError> {
        let (runner, rule) = match self {
            Self::Answers => return Ok(Attempt::answered(Value::from(output))),
            Self::Code(runner, rule) => (runner, *rule),
        };
        let Some(code) = extract_code(output, rule) else {
            let failure = "no Python code in the output";
            return Ok(Attempt::failed(AnswerStatus::NoCode, failure));
        };
        match runner.run(&code, &row.response.response) {
            // The published evaluation knows a failure by this text, whoever returns it.
            Ok(Value::String(text)) if text == CODE_EXECUTION_ERROR => {
                Ok(Attempt::failed(AnswerStatus::CodeError, text))
            }
            Ok(answer) => Ok(Attempt::answered(answer)),
            Err(CodeFailure::Unavailable { reason }) => Err(ToolQaError::Runner {
                uid: row.uid.clone(),
                reason,
            }),
            Err(failure) => Ok(Attempt::failed(
                AnswerStatus::CodeError,
                failure.to_string(),
            )),
        }
    }
}

#[cfg(test)]
mod tests;
