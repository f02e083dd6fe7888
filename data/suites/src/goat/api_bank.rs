//! API-Bank's two accuracies from executed calls.
//!
//! A predicted call is right if what it returned, output and exception, is what a gold call of the
//! same name returned; each gold call answers for one predicted call. Arguments are not compared,
//! because two spellings with the same effect are both right, unless the gold call says
//! `check_input`: what an API returns need not tell its calls apart ("success"). `ToolSearcher`,
//! the benchmark's own retriever, is left out.
//! Correctness is the precision of calls over the whole data set, sample accuracy the share of
//! samples without a fault; the table that GOAT compares with mixes the two.

use tooltune_agents::AttemptedCall;
use tooltune_rows::json::ExactJson;
use tooltune_rows::tools::GoldCall;

use super::invocations::{ArgumentEquality, Arguments, args_equal};

/// The call that looks for APIs and is no call of the task.
const SEARCHER: &str = "ToolSearcher";

/// One executed call.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiBankCall {
    /// Name of the API.
    pub name: String,
    /// What it returned.
    pub output: ExactJson,
    /// What it raised, or null.
    pub exception: ExactJson,
    /// What it was called with.
    pub arguments: Arguments,
    /// Of a gold call: whether a right call has its arguments, too.
    pub check_input: bool,
}

impl ApiBankCall {
    /// Whether this call, which a model made, is the gold call.
    fn is(&self, gold: &Self) -> bool {
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

/// The calls of one task.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ApiBankSample {
    /// The model's calls.
    pub pred: Vec<ApiBankCall>,
    /// The gold calls.
    pub gold: Vec<ApiBankCall>,
}

/// How the calls of a sample, or of several, compare.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    n_pred: usize,
    n_gold: usize,
    n_right: usize,
}

impl ApiBankSample {
    /// Predicted, gold and right calls.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let tally = self.tally();
        (tally.n_pred, tally.n_gold, tally.n_right)
    }

    /// Names of the predicted calls and of the gold calls, in order.
    pub(super) fn names(&self) -> (Vec<&str>, Vec<&str>) {
        let names =
            |calls| -> Vec<&str> { of_task(calls).map(|call| call.name.as_str()).collect() };
        (names(&self.pred), names(&self.gold))
    }

    fn tally(&self) -> Tally {
        let pred: Vec<&ApiBankCall> = of_task(&self.pred).collect();
        let mut open: Vec<&ApiBankCall> = of_task(&self.gold).collect();
        let n_gold = open.len();
        // Gold calls that any arguments satisfy are left to the calls that nothing else takes.
        open.sort_by_key(|gold| !gold.check_input);
        for call in &pred {
            if let Some(gold_idx) = open.iter().position(|gold| call.is(gold)) {
                open.remove(gold_idx);
            }
        }
        Tally {
            n_pred: pred.len(),
            n_gold,
            n_right: n_gold - open.len(),
        }
    }
}

/// The calls that count.
fn of_task(calls: &[ApiBankCall]) -> impl Iterator<Item = &ApiBankCall> {
    calls.iter().filter(|call| call.name != SEARCHER)
}

/// Right calls among the predicted ones of all samples, in per cent; 0 without any call.
///
/// # Source
///
/// Li et al. 2023 (API-Bank), section 4: correctness; `lv3_evaluator.py`, "Accuracy".
pub fn api_bank_correctness(samples: &[ApiBankSample]) -> f64 {
    let (n_right, n_pred) = samples
        .iter()
        .map(ApiBankSample::tally)
        .fold((0, 0), |sum, one| (sum.0 + one.n_right, sum.1 + one.n_pred));
    if n_pred == 0 {
        return 0.0;
    }
    100.0 * n_right as f64 / n_pred as f64
}

/// Samples of which every predicted call is right and every gold call is made, in per cent; 0
/// without samples.
///
/// # Source
///
/// API-Bank, `lv3_evaluator.py`, "Sample Accuracy": one wrong call spoils its sample.
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
    fn a_gold_call_answers_for_one_call_of_its_name() {
        let (tide, berth) = (call("tide", json!({"m": 2.0})), call("berth", json!(4)));
        let same = call("tide", json!({"m": 2}));
        let gold = [tide.clone(), berth.clone()];
        assert_eq!(
            api_bank_correctness(&[sample(&[same.clone(), same], &gold)]),
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
    fn arguments_count_where_the_gold_call_says_so() {
        let sent = |to: Value, check_input: bool| ApiBankCall {
            arguments: Arguments::from(&ExactJson::from(&json!({"to": to, "copy": null}))),
            check_input,
            ..call("mail", json!("success"))
        };
        let correctness = |pred: &[Value], gold: &[(Value, bool)]| {
            let pred: Vec<_> = pred.iter().map(|to| sent(to.clone(), false)).collect();
            let gold: Vec<_> = gold.iter().map(|(to, c)| sent(to.clone(), *c)).collect();
            api_bank_correctness(&[sample(&pred, &gold)])
        };
        let (a, one) = (json!("a"), json!(1));
        assert_eq!(correctness(&[json!("b")], &[(a.clone(), false)]), 100.0);
        assert_eq!(correctness(&[json!("b")], &[(a.clone(), true)]), 0.0);
        assert_eq!(correctness(&[json!(" 1 ")], &[(one.clone(), true)]), 100.0);
        // The call that only the free gold takes finds it free, whatever the order.
        for pred in [[json!("b"), one.clone()], [one.clone(), json!("b")]] {
            let gold = [(a.clone(), false), (one.clone(), true)];
            assert_eq!(correctness(&pred, &gold), 100.0);
        }
    }

    #[test]
    fn correctness_is_over_calls_and_accuracy_over_samples() {
        let (tide, berth) = (call("tide", json!(1)), call("berth", json!(2)));
        let one = std::slice::from_ref(&tide);
        let samples = [
            sample(
                &[tide.clone(), berth.clone()],
                &[berth.clone(), tide.clone()],
            ),
            sample(one, &[tide.clone(), berth.clone()]),
            sample(&[tide.clone(), berth.clone()], one),
            sample(&[], one),
        ];
        assert_eq!(api_bank_correctness(&samples), 80.0);
        assert_eq!(api_bank_sample_accuracy(&samples), 25.0);
    }

    #[test]
    fn the_searcher_does_not_count_and_nothing_is_zero() {
        let searched = [call("ToolSearcher", json!("x"))];
        assert_eq!(api_bank_correctness(&[sample(&searched, &[])]), 0.0);
        assert_eq!(api_bank_sample_accuracy(&[sample(&searched, &[])]), 100.0);
        assert_eq!(
            (api_bank_correctness(&[]), api_bank_sample_accuracy(&[])),
            (0.0, 0.0)
        );
    }
}
