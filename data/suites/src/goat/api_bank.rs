//! API-Bank's two accuracies, from executed calls.
//!
//! A predicted call is right if it returned the same output and exception as a gold call with the
//! same name. Each gold call matches at most one predicted call. Arguments are not compared,
//! because different arguments with the same effect are right. Gold calls with `check_input` are an
//! exception, because some APIs return the same value ("success") for all calls. `ToolSearcher`,
//! the benchmark's own retriever, is ignored.
//!
//! Correctness is the precision of calls over the whole data set. Sample accuracy is the fraction
//! of samples without errors. The published table that GOAT is compared with mixes the two.

use tooltune_agents::AttemptedCall;
use tooltune_apis::GoldCall;
use tooltune_json::ExactJson;

use super::invocations::{ArgumentEquality, Arguments, args_equal};

/// The call that searches for APIs, which is not part of the task.
pub(super) const SEARCHER: &str = "ToolSearcher";

/// An executed call.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiBankCall {
    /// Name of the API.
    pub name: String,
    /// The returned value.
    pub output: ExactJson,
    /// The raised exception, or null.
    pub exception: ExactJson,
    /// The arguments.
    pub arguments: Arguments,
    /// For gold calls: whether a matching call must have the same arguments.
    pub check_input: bool,
}

impl ApiBankCall {
    /// Whether this predicted call matches a gold call.
    fn matches_gold(&self, gold: &Self) -> bool {
        let has_arguments = || {
            args_equal(
                &self.arguments,
                &gold.arguments,
                ArgumentEquality::Normalized,
            )
        };
        self.name == gold.name
            && self.output == gold.output
            && self.exception == gold.exception
            && (!gold.check_input || has_arguments())
    }
}

impl From<&AttemptedCall> for ApiBankCall {
    fn from(call: &AttemptedCall) -> Self {
        let exception = call.exception.clone().map(ExactJson::Text);
        Self {
            name: call.name.clone().unwrap_or_default(),
            output: ExactJson::from(&call.output),
            exception: exception.unwrap_or(ExactJson::Null),
            arguments: Arguments::from(call),
            check_input: false,
        }
    }
}

impl From<&GoldCall> for ApiBankCall {
    fn from(call: &GoldCall) -> Self {
        let exception = call.exception.clone().map(ExactJson::Text);
        Self {
            name: call.name.clone(),
            output: ExactJson::from(&call.output),
            exception: exception.unwrap_or(ExactJson::Null),
            arguments: Arguments::from(&call.arguments.clone().unwrap_or_default()),
            check_input: call.check_input,
        }
    }
}

/// The calls of a task.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ApiBankSample {
    /// The predicted calls.
    pub pred: Vec<ApiBankCall>,
    /// The gold calls.
    pub gold: Vec<ApiBankCall>,
}

/// Counts for the calls of one or several samples.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    n_pred: usize,
    n_gold: usize,
    n_right: usize,
}

impl ApiBankSample {
    /// Number of predicted, gold and right calls.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let tally = self.tally();
        (tally.n_pred, tally.n_gold, tally.n_right)
    }

    /// Names of the predicted and of the gold calls, in order.
    pub(super) fn names(&self) -> (Vec<&str>, Vec<&str>) {
        let names = |calls| -> Vec<&str> {
            without_searches(calls)
                .map(|call| call.name.as_str())
                .collect()
        };
        (names(&self.pred), names(&self.gold))
    }

    fn tally(&self) -> Tally {
        let pred: Vec<&ApiBankCall> = without_searches(&self.pred).collect();
        let mut unmatched: Vec<&ApiBankCall> = without_searches(&self.gold).collect();
        let n_gold = unmatched.len();
        // Match the gold calls that compare arguments first, so that the other gold calls remain
        // for the other predicted calls.
        unmatched.sort_by_key(|gold| !gold.check_input);
        for call in &pred {
            if let Some(gold_idx) = unmatched.iter().position(|gold| call.matches_gold(gold)) {
                unmatched.remove(gold_idx);
            }
        }
        Tally {
            n_pred: pred.len(),
            n_gold,
            n_right: n_gold - unmatched.len(),
        }
    }
}

/// The calls, without calls of `ToolSearcher`.
fn without_searches(calls: &[ApiBankCall]) -> impl Iterator<Item = &ApiBankCall> {
    calls.iter().filter(|call| call.name != SEARCHER)
}

/// Percentage of right calls among the predicted calls of all samples; 0 without calls.
///
/// # Source
///
/// Li et al. 2023 (API-Bank), section 4: correctness; `lv3_evaluator.py`, "Accuracy".
pub fn api_bank_correctness(samples: &[ApiBankSample]) -> f64 {
    let (n_right, n_pred) = samples
        .iter()
        .map(ApiBankSample::tally)
        .fold((0, 0), |sum, counts| {
            (sum.0 + counts.n_right, sum.1 + counts.n_pred)
        });
    if n_pred == 0 {
        return 0.0;
    }
    100.0 * n_right as f64 / n_pred as f64
}

/// Percentage of samples in which every predicted call is right and every gold call is made; 0 if
/// there are no samples.
///
/// # Source
///
/// API-Bank, `lv3_evaluator.py`, "Sample Accuracy": one wrong call makes the sample wrong.
pub fn api_bank_sample_accuracy(samples: &[ApiBankSample]) -> f64 {
    if samples.is_empty() {
        return 0.0;
    }
    let is_right = |sample: &&ApiBankSample| {
        let tally = sample.tally();
        tally.n_right == tally.n_pred && tally.n_right == tally.n_gold
    };
    100.0 * samples.iter().filter(is_right).count() as f64 / samples.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn call(name: &str, output: Value) -> ApiBankCall {
        ApiBankCall {
            name: name.to_owned(),
            output: ExactJson::from(&output),
            exception: ExactJson::Null,
            arguments: Arguments::Unparsed,
            check_input: false,
        }
    }

    fn sample(pred: &[ApiBankCall], gold: &[ApiBankCall]) -> ApiBankSample {
        ApiBankSample {
            pred: pred.to_vec(),
            gold: gold.to_vec(),
        }
    }

    #[test]
    fn a_gold_call_matches_at_most_one_predicted_call() {
        let (tide, berth) = (call("tide", json!({"m": 2.0})), call("berth", json!(4)));
        let tide_with_integer = call("tide", json!({"m": 2}));
        let gold = [tide.clone(), berth.clone()];
        assert_eq!(
            api_bank_correctness(&[sample(
                &[tide_with_integer.clone(), tide_with_integer],
                &gold
            )]),
            50.0
        );
        let renamed = call("pilot", json!(4));
        assert_eq!(
            api_bank_correctness(&[sample(&[tide.clone(), renamed], &gold)]),
            50.0
        );
        let raised = ApiBankCall {
            exception: ExactJson::Text("closed".to_owned()),
            ..berth
        };
        assert_eq!(
            api_bank_correctness(&[sample(&[raised, tide], &gold)]),
            50.0
        );
    }

    #[test]
    fn arguments_are_compared_only_if_the_gold_call_requires_it() {
        let message_call = |to: Value, check_input: bool| ApiBankCall {
            arguments: Arguments::from(&ExactJson::from(&json!({"to": to, "copy": null}))),
            check_input,
            ..call("mail", json!("success"))
        };
        let correctness = |pred: &[Value], gold: &[(Value, bool)]| {
            let pred: Vec<_> = pred
                .iter()
                .map(|to| message_call(to.clone(), false))
                .collect();
            let gold: Vec<_> = gold
                .iter()
                .map(|(to, c)| message_call(to.clone(), *c))
                .collect();
            api_bank_correctness(&[sample(&pred, &gold)])
        };
        let (a, one) = (json!("a"), json!(1));
        assert_eq!(correctness(&[json!("b")], &[(a.clone(), false)]), 100.0);
        assert_eq!(correctness(&[json!("b")], &[(a.clone(), true)]), 0.0);
        assert_eq!(correctness(&[json!(" 1 ")], &[(one.clone(), true)]), 100.0);
        // One predicted call matches only the gold call without `check_input`. The other predicted
        // call must not use that gold call, in any order.
        for pred in [[json!("b"), one.clone()], [one.clone(), json!("b")]] {
            let gold = [(a.clone(), false), (one.clone(), true)];
            assert_eq!(correctness(&pred, &gold), 100.0);
        }
    }

    #[test]
    fn correctness_is_averaged_over_calls_and_accuracy_over_samples() {
        let (tide, berth) = (call("tide", json!(1)), call("berth", json!(2)));
        let one_call = std::slice::from_ref(&tide);
        let samples = [
            sample(
                &[tide.clone(), berth.clone()],
                &[berth.clone(), tide.clone()],
            ),
            sample(one_call, &[tide.clone(), berth.clone()]),
            sample(&[tide.clone(), berth.clone()], one_call),
            sample(&[], one_call),
        ];
        assert_eq!(api_bank_correctness(&samples), 80.0);
        assert_eq!(api_bank_sample_accuracy(&samples), 25.0);
    }

    #[test]
    fn searcher_calls_do_not_count_and_no_calls_score_zero() {
        let searched = [call("ToolSearcher", json!("x"))];
        assert_eq!(api_bank_correctness(&[sample(&searched, &[])]), 0.0);
        assert_eq!(api_bank_sample_accuracy(&[sample(&searched, &[])]), 100.0);
        assert_eq!(
            (api_bank_correctness(&[]), api_bank_sample_accuracy(&[])),
            (0.0, 0.0)
        );
    }
}
