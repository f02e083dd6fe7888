//! Aggregates scored answers, overall and by question type, endpoint and metric.
//!
//! Every number is a mean over samples, so larger groups have more weight. As in the published
//! evaluation, a sample with neither an answer nor a model output is excluded. A sample whose
//! prompt exceeded the context is wrong and counted separately.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answers::{AnswerMetric, contains, exact_match, number_strict};
use super::classifier::ClassifierReport;
use super::error::ToolQaError;
use super::rows::{AnswerFacts, TaskType};
use super::setting::Setting;
use crate::bootstrap::{Estimate, estimates, indicator, mean};
use crate::markdown::{markdown_table, percent};
use crate::named_metrics::named_estimates;

/// The outcome of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerStatus {
    /// The model answered, or its code returned a value.
    Answered,
    /// In a code setting, the output contains no code. Published results count this as a code
    /// error.
    NoCode,
    /// The code failed or was stopped.
    CodeError,
    /// The prompt exceeded the model's context.
    ContextExceeded,
    /// The output was cut off or is empty: the answer is wrong.
    Unfinished,
    /// There is neither an answer nor a model output.
    NoOutput,
}

/// The scores of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolQaScore {
    /// Outcome of the question.
    pub status: AnswerStatus,
    /// Right by the metric of the question.
    pub exact_match: bool,
    /// As `exact_match`, with [`number_strict`] instead of the published number match.
    pub exact_match_strict: bool,
    /// Right, or contains the gold answer.
    pub contains: bool,
    /// The judge's verdict; `None` if there was no judge.
    pub judged: Option<bool>,
}

impl ToolQaScore {
    /// Scores an answer; an answer that is not a string, such as null, is wrong by every metric.
    pub fn from_answer(
        metric: AnswerMetric,
        gold: &str,
        answer: &Value,
        status: AnswerStatus,
    ) -> Self {
        let is_right = |rule: &dyn Fn(&str) -> bool| answer.as_str().is_some_and(rule);
        let is_exact = is_right(&|pred| exact_match(metric, gold, pred));
        Self {
            status,
            exact_match: is_exact,
            exact_match_strict: match metric {
                AnswerMetric::ApproxNumberMatch => is_right(&|pred| number_strict(gold, pred)),
                _ => is_exact,
            },
            contains: is_right(&|pred| contains(metric, gold, pred)),
            judged: None,
        }
    }
}

/// The setting that a question was answered in, and the classifier's output that chose it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutedAs {
    /// The setting.
    pub setting: Setting,
    /// The classifier's output.
    pub classifier_output: String,
}

/// A score with its groups.
#[derive(Debug, Clone, Copy)]
pub struct ScoredAnswer<'a> {
    /// Type of the question, such as `FILTERING`.
    pub task_type: &'a str,
    /// The endpoint that returned the response.
    pub endpoint: &'a str,
    /// The metric of the question.
    pub metric: AnswerMetric,
    /// What is known about the answer.
    pub facts: AnswerFacts,
    /// How the setting was chosen, if by the type of the question.
    pub routed_as: Option<&'a RoutedAs>,
    /// The score.
    pub score: ToolQaScore,
}

/// The metrics of some samples, each rate with its bootstrap 95 % interval (1,000 resamples, fixed
/// seed).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ToolQaNumbers {
    /// Number of samples.
    pub n: usize,
    /// Fraction of right answers.
    pub exact_match: Estimate,
    /// Fraction of right answers, with numbers compared by [`number_strict`].
    pub exact_match_strict: Estimate,
    /// Fraction of answers that are right or contain the gold answer.
    pub contains: Estimate,
    /// Fraction of judged answers that the judge accepted; `None` if none was judged.
    pub judged: Option<Estimate>,
    /// Fraction of outputs without code in a code setting.
    pub parse_error_rate: Estimate,
    /// Number of outputs without code in a code setting.
    pub n_parse_errors: usize,
    /// Number of samples whose code failed or was stopped.
    pub n_code_errors: usize,
    /// Fraction of wrong answers (by `exact_match`) whose code is missing or failed. `None` if no
    /// answer is wrong. The published results count both as code errors (Figure 8).
    #[serde(default)]
    pub wrong_by_code_failure: Option<Estimate>,
    /// Number of samples whose prompt exceeded the context.
    pub n_context_exceeded: usize,
}

named_estimates!(
    ToolQaNumbers,
    |numbers| numbers,
    [
        exact_match,
        exact_match_strict,
        contains,
        judged,
        parse_error_rate
    ]
);

impl ToolQaNumbers {
    /// Aggregates at least one score.
    pub(super) fn new(scores: &[ToolQaScore]) -> Self {
        let is_unread = |score: &ToolQaScore| score.status == AnswerStatus::NoCode;
        let rows: Vec<[f64; 4]> = scores
            .iter()
            .map(|score| {
                [
                    indicator(score.exact_match),
                    indicator(score.exact_match_strict),
                    indicator(score.contains),
                    indicator(is_unread(score)),
                ]
            })
            .collect();
        let judged = scores.iter().map(|score| score.judged.map(indicator));
        let [exact_match, exact_match_strict, contains, parse_error_rate] = estimates(&rows);
        let n_of = |status| scores.iter().filter(|score| score.status == status).count();
        Self {
            n: scores.len(),
            exact_match,
            exact_match_strict,
            contains,
            judged: mean(judged),
            parse_error_rate,
            n_parse_errors: n_of(AnswerStatus::NoCode),
            n_code_errors: n_of(AnswerStatus::CodeError),
            wrong_by_code_failure: mean(scores.iter().map(|score| {
                let failed = matches!(score.status, AnswerStatus::NoCode | AnswerStatus::CodeError);
                (!score.exact_match).then(|| indicator(failed))
            })),
            n_context_exceeded: n_of(AnswerStatus::ContextExceeded),
        }
    }
}

/// The metrics of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolQaReport {
    /// Over all samples.
    #[serde(flatten)]
    pub overall: ToolQaNumbers,
    /// Number of samples with neither an answer nor an output; they are excluded from all metrics.
    pub n_without_output: usize,
    /// By question type.
    pub by_type: BTreeMap<String, ToolQaNumbers>,
    /// By endpoint.
    pub by_endpoint: BTreeMap<String, ToolQaNumbers>,
    /// By metric. For `approx_number_match`, `exact_match` is the published number match, and
    /// `exact_match_strict` is the strict number match.
    pub by_metric: BTreeMap<String, ToolQaNumbers>,
    /// By depth of the answer, for rows that state it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_depth: BTreeMap<String, ToolQaNumbers>,
    /// By the eighth of the list that contains the answer, for rows that state it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_position: BTreeMap<String, ToolQaNumbers>,
    /// By the size of the response in tokens, for rows that state it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_target_tokens: BTreeMap<String, ToolQaNumbers>,
    /// By setting, if it was chosen by the type of the question.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_setting: BTreeMap<String, ToolQaNumbers>,
    /// The classifier that chose the settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classifier: Option<ClassifierReport>,
}

impl ToolQaReport {
    /// Aggregates the scores of a run.
    ///
    /// # Errors
    ///
    /// No sample has an answer or an output.
    pub fn new(answers: &[ScoredAnswer<'_>]) -> Result<Self, ToolQaError> {
        let with_output: Vec<ScoredAnswer<'_>> = answers
            .iter()
            .filter(|answer| answer.score.status != AnswerStatus::NoOutput)
            .copied()
            .collect();
        if with_output.is_empty() {
            return Err(ToolQaError::NoSamples);
        }
        let scores: Vec<ToolQaScore> = with_output.iter().map(|answer| answer.score).collect();
        let by_number = |number: fn(&AnswerFacts) -> Option<usize>| {
            group_scores(&with_output, |answer| {
                Some(number(&answer.facts)?.to_string())
            })
        };
        Ok(Self {
            overall: ToolQaNumbers::new(&scores),
            n_without_output: answers.len() - with_output.len(),
            by_type: group_scores(&with_output, |answer| Some(answer.task_type.to_owned())),
            by_endpoint: group_scores(&with_output, |answer| Some(answer.endpoint.to_owned())),
            by_metric: group_scores(&with_output, |answer| Some(answer.metric.name().to_owned())),
            by_depth: by_number(|facts| facts.answer_depth),
            by_position: by_number(|facts| facts.answer_position),
            by_target_tokens: by_number(|facts| facts.target_tokens),
            by_setting: group_scores(&with_output, |answer| {
                Some(answer.routed_as?.setting.name().to_owned())
            }),
            classifier: classifier_report(answers)?,
        })
    }
}

/// The numbers of each group. Answers without a group are left out.
fn group_scores(
    answers: &[ScoredAnswer<'_>],
    group: impl Fn(&ScoredAnswer<'_>) -> Option<String>,
) -> BTreeMap<String, ToolQaNumbers> {
    let mut groups: BTreeMap<String, Vec<ToolQaScore>> = BTreeMap::new();
    for answer in answers {
        if let Some(name) = group(answer) {
            groups.entry(name).or_default().push(answer.score);
        }
    }
    let numbers = |(name, scores): (String, Vec<_>)| (name, ToolQaNumbers::new(&scores));
    groups.into_iter().map(numbers).collect()
}

/// Scores the classifier that chose the settings; `None` if none did.
fn classifier_report(
    answers: &[ScoredAnswer<'_>],
) -> Result<Option<ClassifierReport>, ToolQaError> {
    let types = TaskType::ALL.map(|task_type| (task_type.name(), task_type));
    let outputs = answers.iter().filter_map(|answer| {
        let (_, gold) = types.iter().find(|(name, _)| *name == answer.task_type)?;
        Some((*gold, answer.routed_as?.classifier_output.as_str()))
    });
    let outputs: Vec<(TaskType, &str)> = outputs.collect();
    (!outputs.is_empty())
        .then(|| ClassifierReport::new(&outputs))
        .transpose()
}

/// Formats a report as a Markdown table in per cent: a line over all samples, then one line per
/// type, endpoint and metric, and per depth, position, size and setting if they are known.
pub fn toolqa_table(report: &ToolQaReport) -> String {
    let headings = "toolqa | n | exact_match % | exact_match_strict % | contains % | judged % \
                    | no code | code errors | wrong by code failure % | context exceeded";
    let groups = [
        ("", &report.by_type),
        ("", &report.by_endpoint),
        ("", &report.by_metric),
        ("depth ", &report.by_depth),
        ("position ", &report.by_position),
        ("tokens ", &report.by_target_tokens),
        ("", &report.by_setting),
    ];
    let groups = groups.into_iter().flat_map(|(prefix, group)| {
        group
            .iter()
            .map(move |(name, numbers)| (format!("{prefix}{name}"), numbers))
    });
    let line = |(name, numbers): (String, &ToolQaNumbers)| {
        [
            name,
            numbers.n.to_string(),
            percent(numbers.exact_match),
            percent(numbers.exact_match_strict),
            percent(numbers.contains),
            percent(numbers.judged),
            numbers.n_parse_errors.to_string(),
            numbers.n_code_errors.to_string(),
            percent(numbers.wrong_by_code_failure),
            numbers.n_context_exceeded.to_string(),
        ]
    };
    let lines = std::iter::once(("all".to_owned(), &report.overall)).chain(groups);
    markdown_table(headings, lines.map(line))
}

#[cfg(test)]
mod tests;
