//! API-Bank: scores of samples with recorded calls, answers, or both.
//!
//! A level-3 sample has all its calls and an answer; a dialogue step has one call or one reply.
//! Missing parts are not scored. The rates are the same as in
//! [`api_bank_correctness`](super::api_bank_correctness) and
//! [`api_bank_sample_accuracy`](super::api_bank_sample_accuracy), as fractions with intervals.

use serde::{Deserialize, Serialize};
use tooltune_agents::Outcome;
use tooltune_apis::GoldCall;

use super::api_bank::{ApiBankCall, ApiBankSample};
use super::paths::correct_path;
use super::report::JudgedMeans;
use super::rouge::{rouge_l_apibank, rouge_l_plain};
use super::{GoatError, is_answered};
use crate::bootstrap::{Estimate, cell, estimates, indicator, mean, ratio_estimate};
use crate::markdown::{markdown_table, percent};
use crate::named_metrics::named_estimates;

/// The scores of one sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ApiBankScore {
    /// Number of attempted calls, without `ToolSearcher`.
    pub n_pred: usize,
    /// Number of gold calls, without `ToolSearcher`.
    pub n_gold: usize,
    /// Number of attempted calls with the result of a gold call.
    pub n_right: usize,
    /// Whether the gold names are a subsequence of the predicted names; `None` without gold calls.
    #[serde(default)]
    pub correct_path: Option<bool>,
    /// Number of attempted calls minus gold calls; `None` without gold calls.
    #[serde(default)]
    pub delta_len: Option<i64>,
    /// ROUGE-L of the answer as API-Bank computes it; `None` without a gold answer.
    pub rouge_l: Option<f64>,
    /// ROUGE-L of the answer as Google computes it; `None` without a gold answer.
    pub rouge_l_plain: Option<f64>,
    /// Whether the query was solved; `None` if it was not judged.
    pub success: Option<bool>,
    /// Whether a completion could not be parsed, or the answer is too long to compare.
    pub parse_error: bool,
}

impl ApiBankScore {
    /// Scores an outcome; an empty gold response counts as missing.
    pub fn from_outcome(
        outcome: &Outcome,
        gold_calls: &[GoldCall],
        gold_response: &str,
        success: Option<bool>,
    ) -> Self {
        let pred = outcome.calls.iter().map(ApiBankCall::from).collect();
        let score = Self::from_answer(pred, &outcome.response, gold_calls, gold_response);
        Self {
            success: success.map(|is_solved| is_solved && is_answered(outcome)),
            parse_error: score.parse_error || !outcome.failures.is_empty(),
            ..score
        }
    }

    /// Scores the gold answer like any other answer. Only a judge can decide whether it solves the
    /// query.
    pub fn from_gold(gold_calls: &[GoldCall], gold_response: &str) -> Self {
        let pred = gold_calls.iter().map(ApiBankCall::from).collect();
        Self::from_answer(pred, gold_response, gold_calls, gold_response)
    }

    /// Scores parsed calls and a parsed answer.
    fn from_answer(
        pred: Vec<ApiBankCall>,
        response: &str,
        gold_calls: &[GoldCall],
        gold_response: &str,
    ) -> Self {
        let gold = gold_calls.iter().map(ApiBankCall::from).collect();
        let sample = ApiBankSample { pred, gold };
        let (n_pred, n_gold, n_right) = sample.counts();
        let (path, gold_path) = sample.names();
        let delta_len = n_pred as i64 - n_gold as i64;
        let mut is_too_long = false;
        let mut rouge = |rouge_score: fn(&str, &str) -> Option<f64>| {
            (!gold_response.is_empty()).then(|| {
                let score = rouge_score(response, gold_response);
                is_too_long |= score.is_none();
                score.unwrap_or(0.0)
            })
        };
        let (rouge_l, rouge_l_plain) = (rouge(rouge_l_apibank), rouge(rouge_l_plain));
        Self {
            n_pred,
            n_gold,
            n_right,
            // The only error is a missing gold path.
            correct_path: correct_path(&path, &[gold_path]).ok(),
            delta_len: (n_gold > 0).then_some(delta_len),
            rouge_l,
            rouge_l_plain,
            success: None,
            parse_error: is_too_long,
        }
    }

    /// Whether exactly the gold calls were made; `None` without gold calls.
    pub fn has_right_calls(&self) -> Option<bool> {
        let is_right = self.n_right == self.n_pred && self.n_right == self.n_gold;
        (self.n_gold > 0).then_some(is_right)
    }
}

/// The metrics of a run, each with its bootstrap 95 % interval (1,000 resamples, fixed seed).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApiBankReport {
    /// Number of samples.
    pub n: usize,
    /// Number of samples with gold calls.
    pub n_call_samples: usize,
    /// Number of samples with a gold answer.
    pub n_response_samples: usize,
    /// Precision of the attempted calls over samples with gold calls; `None` without such samples.
    pub correctness: Option<Estimate>,
    /// Fraction of samples with gold calls that make exactly these calls; `None` without such
    /// samples.
    pub sample_accuracy: Option<Estimate>,
    /// Fraction of samples with gold calls whose path is correct; `None` without such samples.
    pub correct_path: Option<Estimate>,
    /// Mean number of calls in addition to the gold calls, over solved samples with gold calls;
    /// `None` if none is solved.
    pub delta_len: Option<Estimate>,
    /// Mean ROUGE-L of answers as API-Bank computes it.
    pub rouge_l: Option<Estimate>,
    /// Mean ROUGE-L of answers as Google computes it.
    pub rouge_l_plain: Option<Estimate>,
    /// Fraction of solved queries among the judged queries; `None` if none was judged.
    pub sr: Option<Estimate>,
    /// Number of judged samples.
    #[serde(default)]
    pub n_judged: usize,
    /// Fraction of samples with an unparsable completion.
    pub parse_error_rate: Estimate,
}

named_estimates!(
    ApiBankReport,
    |report| report,
    [
        correctness,
        sample_accuracy,
        correct_path,
        delta_len,
        rouge_l,
        rouge_l_plain,
        sr,
        parse_error_rate
    ]
);

impl ApiBankReport {
    /// Aggregates the scores of a run.
    ///
    /// # Errors
    ///
    /// There are no scores.
    pub fn new(scores: &[ApiBankScore]) -> Result<Self, GoatError> {
        if scores.is_empty() {
            return Err(GoatError::NoSamples);
        }
        let with_calls = || scores.iter().filter(|score| score.n_gold > 0);
        let counts: Vec<(f64, f64)> = with_calls()
            .map(|score| (score.n_right as f64, score.n_pred as f64))
            .collect();
        // Without calls the correctness is 0, as in API-Bank.
        let none_right = || ratio_estimate(&vec![(0.0, 1.0); counts.len()]);
        let correctness = ratio_estimate(&counts).or_else(none_right);
        let right = with_calls().map(|score| score.has_right_calls().map(indicator));
        let paths = scores.iter().map(|score| score.correct_path.map(indicator));
        let judged = JudgedMeans::new(scores.iter().map(|score| (score.success, score.delta_len)));
        let parse_errors: Vec<[f64; 1]> =
            scores.iter().map(|s| [indicator(s.parse_error)]).collect();
        let [parse_error_rate] = estimates(&parse_errors);
        Ok(Self {
            n: scores.len(),
            n_call_samples: counts.len(),
            n_response_samples: scores.iter().filter(|s| s.rouge_l.is_some()).count(),
            correctness,
            sample_accuracy: mean(right),
            correct_path: mean(paths),
            delta_len: judged.delta_len,
            rouge_l: mean(scores.iter().map(|score| score.rouge_l)),
            rouge_l_plain: mean(scores.iter().map(|score| score.rouge_l_plain)),
            sr: judged.sr,
            n_judged: judged.n,
            parse_error_rate,
        })
    }
}

/// Formats reports as a Markdown table in per cent, one named line per report; missing values are
/// dashes.
pub fn api_bank_table(reports: &[(&str, &ApiBankReport)]) -> String {
    let headings = "apibank | n | judged | sr % | with gold calls | correct_path % | delta_len \
                    | correctness % | sample_accuracy % | with gold answer | rouge_l % \
                    | parse_error_rate %";
    let line = |(name, report): &(&str, &ApiBankReport)| {
        [
            (*name).to_owned(),
            report.n.to_string(),
            report.n_judged.to_string(),
            percent(report.sr),
            report.n_call_samples.to_string(),
            percent(report.correct_path),
            cell(report.delta_len, 1.0, "+"),
            percent(report.correctness),
            percent(report.sample_accuracy),
            report.n_response_samples.to_string(),
            percent(report.rouge_l),
            percent(report.parse_error_rate),
        ]
    };
    markdown_table(headings, reports.iter().map(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goat::{api_bank_correctness, api_bank_sample_accuracy};
    use serde_json::{Value, json};

    fn gold(name: &str, output: Value) -> GoldCall {
        GoldCall {
            name: name.to_owned(),
            arguments: None,
            output,
            exception: None,
            check_input: false,
        }
    }

    fn outcome(calls: &[(&str, Value)], response: &str) -> Outcome {
        let calls: Vec<_> = calls
            .iter()
            .map(|(name, output)| {
                json!({"name": name, "arguments": {}, "output": output, "exception": null})
            })
            .collect();
        serde_json::from_value(json!({
            "method": "global", "path": [], "calls": calls, "response": response,
            "retrievals": [], "end": "answered",
        }))
        .expect("an outcome")
    }

    #[test]
    fn rates_equal_the_benchmarks() {
        let golds = [gold("tide", json!({"m": 2})), gold("berth", json!(4))];
        let outcomes = [
            outcome(&[("tide", json!({"m": 2.0})), ("berth", json!(4))], ""),
            outcome(&[("tide", json!(7)), ("ToolSearcher", json!(1))], ""),
            outcome(&[], ""),
        ];
        let scores = outcomes
            .each_ref()
            .map(|outcome| ApiBankScore::from_outcome(outcome, &golds, "", None));
        let report = ApiBankReport::new(&scores).expect("scores");
        let samples = outcomes.each_ref().map(|outcome| ApiBankSample {
            pred: outcome.calls.iter().map(ApiBankCall::from).collect(),
            gold: golds.iter().map(ApiBankCall::from).collect(),
        });
        let is_near = |estimate: Option<Estimate>, percent: f64| {
            estimate.is_some_and(|e| (100.0 * e.value - percent).abs() < 1e-9)
        };
        let correctness = api_bank_correctness(&samples);
        assert!(correctness > 60.0 && is_near(report.correctness, correctness));
        let accuracy = api_bank_sample_accuracy(&samples);
        assert!(accuracy > 30.0 && is_near(report.sample_accuracy, accuracy));
        assert_eq!((report.n_call_samples, report.n_response_samples), (3, 0));
        assert_eq!(report.rouge_l, None);
    }

    /// ROUGE compares only letters and digits, so an answer that contains neither scores 0.
    #[test]
    fn the_gold_score_is_below_one_if_its_answer_has_no_words() {
        let golds = [
            gold("ToolSearcher", json!("x")),
            gold("tide", json!({"m": 2})),
        ];
        let ceilings = |response: &str| {
            let score = ApiBankScore::from_gold(&golds, response);
            let report = ApiBankReport::new(&[score]).expect("a score");
            crate::goat::APIBANK.ceilings(|name| report.value(name))
        };
        assert_eq!(ceilings("Low water is at six."), []);
        assert_eq!(ceilings(""), []);
        let gold_ceilings = ceilings("六点");
        let names: Vec<(&str, f64)> = gold_ceilings
            .iter()
            .map(|one| (one.metric, one.value))
            .collect();
        assert_eq!(names, [("rouge_l_plain", 0.0)]);
    }

    #[test]
    fn paths_and_lengths_ignore_calls_of_the_searcher() {
        let golds = [
            gold("ToolSearcher", json!("x")),
            gold("tide", json!(1)),
            gold("berth", json!(2)),
        ];
        let score = |names: &[&str], success: Option<bool>| {
            let calls: Vec<(&str, Value)> = names.iter().map(|name| (*name, json!(0))).collect();
            ApiBankScore::from_outcome(&outcome(&calls, "At six."), &golds, "", success)
        };
        let scores = [
            score(
                &["ToolSearcher", "tide", "pilot", "tide", "berth"],
                Some(true),
            ),
            score(&["berth", "tide"], Some(true)),
            score(&["tide"], Some(false)),
            score(&["tide", "berth"], None),
        ];
        let path_scores = scores.map(|score| (score.correct_path, score.delta_len));
        let expected = [
            (Some(true), Some(2)),
            (Some(false), Some(0)),
            (Some(false), Some(-1)),
            (Some(true), Some(0)),
        ];
        assert_eq!(path_scores, expected);
        let report = ApiBankReport::new(&scores).expect("scores");
        assert_eq!(report.value("correct_path").map(|e| e.value), Some(0.5));
        // The two solved samples have 2 and 0 additional calls.
        assert_eq!(report.value("delta_len").map(|e| e.value), Some(1.0));
        let table = api_bank_table(&[("base", &report)]);
        let line = table.lines().nth(2).expect("a line");
        assert!(
            line.starts_with("| base | 4 | 3 | 66.7 ") && line.contains("| 4 | 50.0 ["),
            "{line}"
        );
        assert!(line.contains("| +1.00 ["), "{line}");
        let reply = ApiBankScore::from_outcome(&outcome(&[], ""), &[], "At six.", Some(true));
        assert_eq!((reply.correct_path, reply.delta_len), (None, None));
        assert_eq!(ApiBankReport::new(&[reply]).expect("one").delta_len, None);
    }

    #[test]
    fn missing_parts_of_a_sample_are_not_counted() {
        let reply = ApiBankScore::from_outcome(
            &outcome(&[], "Low water is at six."),
            &[],
            "Low water is at six.",
            None,
        );
        let call = ApiBankScore::from_outcome(
            &outcome(&[], ""),
            &[gold("tide", json!(1))],
            "",
            Some(false),
        );
        let report = ApiBankReport::new(&[reply, call]).expect("scores");
        assert_eq!(report.correctness.map(|e| e.value), Some(0.0));
        assert_eq!(report.sample_accuracy.map(|e| e.value), Some(0.0));
        assert_eq!(report.rouge_l_plain.map(|e| e.value), Some(1.0));
        assert_eq!(report.sr.map(|e| e.value), Some(0.0));
        let replies = ApiBankReport::new(&[reply]).expect("a score");
        assert_eq!((replies.correctness, replies.sr), (None, None));
        let table = api_bank_table(&[("base", &replies)]);
        assert!(
            table.contains("| base | 1 | 0 | - | 0 | - | - | - | - | 1 | 100.0"),
            "{table}"
        );
        assert_eq!(ApiBankReport::new(&[]), Err(GoatError::NoSamples));
    }
}
