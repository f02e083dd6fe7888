//! API-Bank: what became of samples with recorded calls, answers, or both.
//!
//! A sample of level 3 has all its calls and an answer; a step of a dialogue has one call or one
//! reply. What a sample does not have is not counted. Rates are those of
//! [`api_bank_correctness`](super::api_bank_correctness) and
//! [`api_bank_sample_accuracy`](super::api_bank_sample_accuracy), as fractions with intervals.

use serde::{Deserialize, Serialize};
use tooltune_agents::Outcome;
use tooltune_rows::tools::GoldCall;

use super::GoatError;
use super::api_bank::{ApiBankCall, ApiBankSample};
use super::paths::correct_path;
use super::rouge::{rouge_l_apibank, rouge_l_plain};
use crate::bootstrap::{Estimate, cell, estimates, indicator, mean, ratio_estimate};

/// The numbers of one sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ApiBankScore {
    /// Calls attempted, those of `ToolSearcher` aside.
    pub n_pred: usize,
    /// Gold calls, those of `ToolSearcher` aside.
    pub n_gold: usize,
    /// Attempted calls that gave what a gold call gave.
    pub n_right: usize,
    /// Whether the gold names are a subsequence of the attempted ones; none without gold calls.
    #[serde(default)]
    pub correct_path: Option<bool>,
    /// Calls attempted less gold calls; none without gold calls.
    #[serde(default)]
    pub delta_len: Option<i64>,
    /// ROUGE-L of the answer as API-Bank computes it; none without a gold answer.
    pub rouge_l: Option<f64>,
    /// ROUGE-L of the answer as Google computes it; none without a gold answer.
    pub rouge_l_plain: Option<f64>,
    /// Whether the query was solved; none if nobody judged it.
    pub success: Option<bool>,
    /// Whether any completion could not be read, or the answer is too long to be compared.
    pub parse_error: bool,
}

impl ApiBankScore {
    /// Scores an outcome; an empty gold response is none.
    pub fn of(
        outcome: &Outcome,
        gold_calls: &[GoldCall],
        gold_response: &str,
        success: Option<bool>,
    ) -> Self {
        let pred = outcome.calls.iter().map(ApiBankCall::from).collect();
        let score = Self::of_answer(pred, &outcome.response, gold_calls, gold_response);
        Self {
            success,
            parse_error: score.parse_error || !outcome.failures.is_empty(),
            ..score
        }
    }

    /// Scores the gold as any answer is scored; whether it solves the query, only a judge says.
    pub fn of_gold(gold_calls: &[GoldCall], gold_response: &str) -> Self {
        let pred = gold_calls.iter().map(ApiBankCall::from).collect();
        Self::of_answer(pred, gold_response, gold_calls, gold_response)
    }

    /// Scores calls and an answer that could be read.
    fn of_answer(
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
        let mut rouge = |of: fn(&str, &str) -> Option<f64>| {
            (!gold_response.is_empty()).then(|| {
                let score = of(response, gold_response);
                is_too_long |= score.is_none();
                score.unwrap_or(0.0)
            })
        };
        let (rouge_l, rouge_l_plain) = (rouge(rouge_l_apibank), rouge(rouge_l_plain));
        Self {
            n_pred,
            n_gold,
            n_right,
            // Without gold calls there is no gold path, which is its only error.
            correct_path: correct_path(&path, &[gold_path]).ok(),
            delta_len: (n_gold > 0).then_some(delta_len),
            rouge_l,
            rouge_l_plain,
            success: None,
            parse_error: is_too_long,
        }
    }

    /// Whether the calls are all right and all made; none without gold calls.
    pub fn has_right_calls(&self) -> Option<bool> {
        let is_right = self.n_right == self.n_pred && self.n_right == self.n_gold;
        (self.n_gold > 0).then_some(is_right)
    }
}

/// The numbers of a run, each with its bootstrap 95 % interval (1,000 resamples, fixed seed).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApiBankReport {
    /// Number of samples.
    pub n: usize,
    /// Samples with gold calls.
    pub n_call_samples: usize,
    /// Samples with a gold answer.
    pub n_response_samples: usize,
    /// Right calls among the attempted ones of samples with gold calls; none without such samples.
    pub correctness: Option<Estimate>,
    /// Samples with gold calls whose calls are all right and all made; none without such samples.
    pub sample_accuracy: Option<Estimate>,
    /// Share of samples with gold calls whose path is correct; none without such samples.
    pub correct_path: Option<Estimate>,
    /// Mean number of calls beyond the gold's over the solved samples with gold calls; none if none
    /// is solved.
    pub delta_len: Option<Estimate>,
    /// Mean ROUGE-L of answers as API-Bank computes it.
    pub rouge_l: Option<Estimate>,
    /// Mean ROUGE-L of answers as Google computes it.
    pub rouge_l_plain: Option<Estimate>,
    /// Share of queries solved among those judged; none if none was.
    pub sr: Option<Estimate>,
    /// Samples that were judged.
    #[serde(default)]
    pub n_judged: usize,
    /// Share of samples with a completion that could not be read.
    pub parse_error_rate: Estimate,
}

impl ApiBankReport {
    /// Names that [`ApiBankReport::value`] knows.
    pub const NAMES: [&'static str; 8] = [
        "correctness",
        "sample_accuracy",
        "correct_path",
        "delta_len",
        "rouge_l",
        "rouge_l_plain",
        "sr",
        "parse_error_rate",
    ];

    /// The mean of a metric; none where no sample has it, or for another name.
    pub fn value(&self, name: &str) -> Option<Estimate> {
        match name {
            "correctness" => self.correctness,
            "sample_accuracy" => self.sample_accuracy,
            "correct_path" => self.correct_path,
            "delta_len" => self.delta_len,
            "rouge_l" => self.rouge_l,
            "rouge_l_plain" => self.rouge_l_plain,
            "sr" => self.sr,
            "parse_error_rate" => Some(self.parse_error_rate),
            _ => None,
        }
    }

    /// Gathers the scores of a run.
    ///
    /// # Errors
    ///
    /// - there is no score
    pub fn new(scores: &[ApiBankScore]) -> Result<Self, GoatError> {
        if scores.is_empty() {
            return Err(GoatError::NoSamples);
        }
        let with_calls = || scores.iter().filter(|score| score.n_gold > 0);
        let counts: Vec<(f64, f64)> = with_calls()
            .map(|score| (score.n_right as f64, score.n_pred as f64))
            .collect();
        let none_right = Estimate {
            value: 0.0,
            low: 0.0,
            high: 0.0,
        };
        // Without any call nothing is right, as in API-Bank.
        let correctness = ratio_estimate(&counts).unwrap_or(none_right);
        let right = with_calls().map(|score| score.has_right_calls().map(indicator));
        let paths = scores.iter().map(|score| score.correct_path.map(indicator));
        let solved = scores.iter().map(|score| {
            let is_solved = score.success == Some(true);
            score.delta_len.filter(|_| is_solved).map(|n| n as f64)
        });
        let parse_errors: Vec<[f64; 1]> =
            scores.iter().map(|s| [indicator(s.parse_error)]).collect();
        let [parse_error_rate] = estimates(&parse_errors);
        Ok(Self {
            n: scores.len(),
            n_call_samples: counts.len(),
            n_response_samples: scores.iter().filter(|s| s.rouge_l.is_some()).count(),
            correctness: (!counts.is_empty()).then_some(correctness),
            sample_accuracy: mean(right),
            correct_path: mean(paths),
            delta_len: mean(solved),
            rouge_l: mean(scores.iter().map(|score| score.rouge_l)),
            rouge_l_plain: mean(scores.iter().map(|score| score.rouge_l_plain)),
            sr: mean(scores.iter().map(|score| score.success.map(indicator))),
            n_judged: scores.iter().filter(|one| one.success.is_some()).count(),
            parse_error_rate,
        })
    }
}

/// Renders reports as a Markdown table in per cent, a line for each with its name; a number that
/// a run does not have is a dash.
pub fn api_bank_table(reports: &[(&str, &ApiBankReport)]) -> String {
    let mut table = "| apibank | n | judged | sr % | with gold calls | correct_path % | delta_len \
                     | correctness % | sample_accuracy % | with gold answer | rouge_l % \
                     | parse_error_rate % |\n\
                     |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for (name, report) in reports {
        let percent = |estimate: Option<Estimate>| cell(estimate, 100.0, "");
        let cells = [
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
            percent(Some(report.parse_error_rate)),
        ];
        table.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    table
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
    fn rates_are_those_of_the_benchmark() {
        let golds = [gold("tide", json!({"m": 2})), gold("berth", json!(4))];
        let outcomes = [
            outcome(&[("tide", json!({"m": 2.0})), ("berth", json!(4))], ""),
            outcome(&[("tide", json!(7)), ("ToolSearcher", json!(1))], ""),
            outcome(&[], ""),
        ];
        let scores = outcomes
            .each_ref()
            .map(|outcome| ApiBankScore::of(outcome, &golds, "", None));
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

    /// A ROUGE of letters and digits finds nothing in an answer without any.
    #[test]
    fn the_gold_has_a_ceiling_where_its_answer_has_no_words() {
        let golds = [
            gold("ToolSearcher", json!("x")),
            gold("tide", json!({"m": 2})),
        ];
        let ceilings = |response: &str| {
            let score = ApiBankScore::of_gold(&golds, response);
            let report = ApiBankReport::new(&[score]).expect("a score");
            crate::goat::APIBANK.ceilings(|name| report.value(name))
        };
        assert_eq!(ceilings("Low water is at six."), []);
        assert_eq!(ceilings(""), []);
        let found = ceilings("六点");
        let names: Vec<(&str, f64)> = found.iter().map(|one| (one.metric, one.value)).collect();
        assert_eq!(names, [("rouge_l_plain", 0.0)]);
    }

    #[test]
    fn paths_and_lengths_are_those_of_calls_without_the_searcher() {
        let golds = [
            gold("ToolSearcher", json!("x")),
            gold("tide", json!(1)),
            gold("berth", json!(2)),
        ];
        let score = |names: &[&str], success: Option<bool>| {
            let calls: Vec<(&str, Value)> = names.iter().map(|name| (*name, json!(0))).collect();
            ApiBankScore::of(&outcome(&calls, ""), &golds, "", success)
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
        let found = scores.map(|score| (score.correct_path, score.delta_len));
        let expected = [
            (Some(true), Some(2)),
            (Some(false), Some(0)),
            (Some(false), Some(-1)),
            (Some(true), Some(0)),
        ];
        assert_eq!(found, expected);
        let report = ApiBankReport::new(&scores).expect("scores");
        assert_eq!(report.value("correct_path").map(|e| e.value), Some(0.5));
        // Over the two solved samples: 2 and 0.
        assert_eq!(report.value("delta_len").map(|e| e.value), Some(1.0));
        let table = api_bank_table(&[("base", &report)]);
        let line = table.lines().nth(2).expect("a line");
        assert!(
            line.starts_with("| base | 4 | 3 | 66.7 ") && line.contains("| 4 | 50.0 ["),
            "{line}"
        );
        assert!(line.contains("| +1.00 ["), "{line}");
        let reply = ApiBankScore::of(&outcome(&[], ""), &[], "At six.", Some(true));
        assert_eq!((reply.correct_path, reply.delta_len), (None, None));
        assert_eq!(ApiBankReport::new(&[reply]).expect("one").delta_len, None);
    }

    #[test]
    fn what_a_sample_does_not_have_is_not_counted() {
        let reply = ApiBankScore::of(
            &outcome(&[], "Low water is at six."),
            &[],
            "Low water is at six.",
            None,
        );
        let call = ApiBankScore::of(
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
