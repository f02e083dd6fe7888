//! Sums scored answers up: over all, by type of question, endpoint and metric.
//!
//! Every number is a mean over samples, so a group weighs as much as it has samples. A sample with
//! neither answer nor model output is in no denominator, as in the published evaluation; one whose
//! prompt did not fit into the context is wrong and counted apart.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answers::{AnswerMetric, contains, exact_match, number_strict};
use super::error::ToolQaError;
use crate::bootstrap::{Estimate, cell, estimates, indicator, mean};

/// What became of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerStatus {
    /// The model answered, or its code returned something.
    Answered,
    /// A setting for code, and no code in the output. Published results count it as a code error.
    NoCode,
    /// The code failed or was stopped.
    CodeError,
    /// The prompt was longer than the model's context.
    ContextExceeded,
    /// There is neither an answer nor a model output.
    NoOutput,
}

/// The numbers of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolQaScore {
    /// What became of the question.
    pub status: AnswerStatus,
    /// Right by the metric of the question.
    pub exact_match: bool,
    /// The same with [`number_strict`] in place of the published match of numbers.
    pub exact_match_strict: bool,
    /// Right, or holding the gold's text.
    pub contains: bool,
    /// What a judge said; none if nobody judged.
    pub judged: Option<bool>,
}

impl ToolQaScore {
    /// Scores an answer; one that is no text, null among them, is wrong by every metric.
    pub fn of(metric: AnswerMetric, gold: &str, answer: &Value, status: AnswerStatus) -> Self {
        let is_right = |rule: &dyn Fn(&str) -> bool| answer.as_str().is_some_and(rule);
        let exact = is_right(&|pred| exact_match(metric, gold, pred));
        Self {
            status,
            exact_match: exact,
            exact_match_strict: match metric {
                AnswerMetric::ApproxNumberMatch => is_right(&|pred| number_strict(gold, pred)),
                _ => exact,
            },
            contains: is_right(&|pred| contains(metric, gold, pred)),
            judged: None,
        }
    }
}

/// A score with the groups that it counts in.
#[derive(Debug, Clone, Copy)]
pub struct ScoredAnswer<'a> {
    /// Type of the question, such as `FILTERING`.
    pub task_type: &'a str,
    /// The endpoint that the response came from.
    pub endpoint: &'a str,
    /// The metric of the question.
    pub metric: AnswerMetric,
    /// The score.
    pub score: ToolQaScore,
}

/// The numbers of some samples, each share with its bootstrap 95 % interval (1,000 resamples, fixed
/// seed).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ToolQaNumbers {
    /// Number of samples.
    pub n: usize,
    /// Share that is right.
    pub exact_match: Estimate,
    /// Share that is right where numbers are held to [`number_strict`].
    pub exact_match_strict: Estimate,
    /// Share that is right or holds the gold's text.
    pub contains: Estimate,
    /// Share of the judged that the judge approved; none if none was judged.
    pub judged: Option<Estimate>,
    /// Share of outputs without code where code was asked for.
    pub parse_error_rate: Estimate,
    /// Outputs without code where code was asked for.
    pub n_parse_errors: usize,
    /// Samples whose code failed or was stopped.
    pub n_code_errors: usize,
    /// Samples whose prompt was longer than the context.
    pub n_context_exceeded: usize,
}

impl ToolQaNumbers {
    /// Names that [`ToolQaNumbers::value`] knows.
    pub const NAMES: [&'static str; 5] = [
        "exact_match",
        "exact_match_strict",
        "contains",
        "judged",
        "parse_error_rate",
    ];

    /// The numbers of at least one score.
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
            n_context_exceeded: n_of(AnswerStatus::ContextExceeded),
        }
    }

    /// The estimate of that name; none if the name is unknown or there is no such number.
    pub fn value(&self, name: &str) -> Option<Estimate> {
        match name {
            "exact_match" => Some(self.exact_match),
            "exact_match_strict" => Some(self.exact_match_strict),
            "contains" => Some(self.contains),
            "judged" => self.judged,
            "parse_error_rate" => Some(self.parse_error_rate),
            _ => None,
        }
    }
}

/// The numbers of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolQaReport {
    /// Over all samples.
    #[serde(flatten)]
    pub overall: ToolQaNumbers,
    /// Samples with neither answer nor output; they count nowhere else.
    pub n_without_output: usize,
    /// By type of question.
    pub by_type: BTreeMap<String, ToolQaNumbers>,
    /// By endpoint.
    pub by_endpoint: BTreeMap<String, ToolQaNumbers>,
    /// By metric: under `approx_number_match`, `exact_match` is the published match of numbers and
    /// `exact_match_strict` the strict one.
    pub by_metric: BTreeMap<String, ToolQaNumbers>,
}

impl ToolQaReport {
    /// Gathers the scores of a run.
    ///
    /// # Errors
    ///
    /// - no sample has an answer or an output
    pub fn new(answers: &[ScoredAnswer<'_>]) -> Result<Self, ToolQaError> {
        let counted: Vec<ScoredAnswer<'_>> = answers
            .iter()
            .filter(|answer| answer.score.status != AnswerStatus::NoOutput)
            .copied()
            .collect();
        if counted.is_empty() {
            return Err(ToolQaError::NoSamples);
        }
        let scores: Vec<ToolQaScore> = counted.iter().map(|answer| answer.score).collect();
        Ok(Self {
            overall: ToolQaNumbers::new(&scores),
            n_without_output: answers.len() - counted.len(),
            by_type: grouped(&counted, |answer| answer.task_type),
            by_endpoint: grouped(&counted, |answer| answer.endpoint),
            by_metric: grouped(&counted, |answer| answer.metric.name()),
        })
    }
}

fn grouped<'a>(
    answers: &[ScoredAnswer<'a>],
    group: impl Fn(&ScoredAnswer<'a>) -> &'a str,
) -> BTreeMap<String, ToolQaNumbers> {
    let mut groups: BTreeMap<&str, Vec<ToolQaScore>> = BTreeMap::new();
    for answer in answers {
        groups.entry(group(answer)).or_default().push(answer.score);
    }
    let numbers = |(name, scores): (&str, Vec<_>)| (name.to_owned(), ToolQaNumbers::new(&scores));
    groups.into_iter().map(numbers).collect()
}

/// Renders a report as a Markdown table, in per cent: a line over all samples, then one for each
/// type, endpoint and metric.
pub fn toolqa_table(report: &ToolQaReport) -> String {
    let mut table = "| toolqa | n | exact_match % | exact_match_strict % | contains % | judged % \
                     | no code | code errors | context exceeded |\n\
                     |---|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    let groups = [&report.by_type, &report.by_endpoint, &report.by_metric];
    let lines = groups
        .into_iter()
        .flatten()
        .map(|(name, numbers)| (name.as_str(), numbers));
    let percent = |estimate: Option<Estimate>| cell(estimate, 100.0, "");
    for (name, numbers) in std::iter::once(("all", &report.overall)).chain(lines) {
        let cells = [
            name.to_owned(),
            numbers.n.to_string(),
            percent(Some(numbers.exact_match)),
            percent(Some(numbers.exact_match_strict)),
            percent(Some(numbers.contains)),
            percent(numbers.judged),
            numbers.n_parse_errors.to_string(),
            numbers.n_code_errors.to_string(),
            numbers.n_context_exceeded.to_string(),
        ];
        table.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    table
}

#[cfg(test)]
mod tests;
