//! What a configuration says of trajectories and of the loops that are trained on them.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tooltune_rows::text::DataError;
use tooltune_rows::tools::OUTPUT_LIMIT;

use super::method::{ExampleKind, Method};
use crate::truncation::ShapeOptions;

/// How trajectories become training examples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoatOptions {
    /// The prompting method that is trained.
    #[serde(default = "global")]
    pub method: Method,
    /// The file of API documents.
    pub documents: PathBuf,
    /// Which documents stand beside the gold ones.
    #[serde(default)]
    pub distractors: Distractors,
    /// Documents in a prompt; more only where more are gold.
    #[serde(default = "n_documents")]
    pub n_documents: usize,
    /// Characters of a call's result in a prompt; what is longer is cut. The query never is.
    #[serde(default = "output_limit")]
    pub output_limit: usize,
    /// How a result is shortened before that; not at all by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncate: Option<ShapeOptions>,
    /// How much each kind of example counts.
    #[serde(default)]
    pub weights: KindWeights,
    /// How far loops go that are evaluated.
    #[serde(default)]
    pub limits: LoopLimits,
}

/// Which documents stand beside the gold ones in a training prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Distractors {
    /// Any of the others, each as likely.
    #[default]
    Random,
    /// Those that the retriever ranks highest, as at inference.
    Retriever,
}

/// Weights by kind of example; 0 leaves the kind out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KindWeights {
    /// Of plans.
    pub plan: f32,
    /// Of calls.
    pub call: f32,
    /// Of thoughts with calls, and of the answers of such loops.
    pub step: f32,
    /// Of sub-queries.
    pub decompose: f32,
    /// Of answers.
    #[serde(rename = "final")]
    pub answer: f32,
}

impl Default for KindWeights {
    fn default() -> Self {
        Self {
            plan: 1.0,
            call: 1.0,
            step: 1.0,
            decompose: 1.0,
            answer: 1.0,
        }
    }
}

impl KindWeights {
    /// The weight of one kind.
    pub fn of(&self, kind: ExampleKind) -> f32 {
        match kind {
            ExampleKind::Plan => self.plan,
            ExampleKind::Call => self.call,
            ExampleKind::Step => self.step,
            ExampleKind::Decompose => self.decompose,
            ExampleKind::Final => self.answer,
        }
    }
}

fn global() -> Method {
    Method::Global
}

fn n_documents() -> usize {
    5
}

fn output_limit() -> usize {
    OUTPUT_LIMIT
}

impl GoatOptions {
    /// The options that a configuration has which says nothing of the rest.
    pub fn new(method: Method, documents: impl Into<PathBuf>) -> Self {
        Self {
            method,
            documents: documents.into(),
            distractors: Distractors::default(),
            n_documents: n_documents(),
            output_limit: output_limit(),
            truncate: None,
            weights: KindWeights::default(),
            limits: LoopLimits::default(),
        }
    }

    /// Checks counts and weights.
    ///
    /// # Errors
    ///
    /// - a prompt could show no document, or nothing of a result
    /// - a weight is negative, infinite or not a number
    /// - every kind of example of the method weighs 0
    pub fn validate(&self) -> Result<(), DataError> {
        let refused = |field: &str, reason: &'static str| {
            Err(DataError::GoatOptions {
                field: field.to_owned(),
                reason,
            })
        };
        if self.n_documents == 0 {
            return refused("n_documents", "is 0; give at least 1, 5 as in the paper");
        }
        if self.output_limit < 40 {
            return refused(
                "output_limit",
                "leaves nothing of a result; give at least 40",
            );
        }
        for kind in ALL_KINDS {
            let weight = self.weights.of(kind);
            if !weight.is_finite() || weight < 0.0 {
                return refused(
                    &format!("weights.{}", kind.as_str()),
                    "must be a number of at least 0",
                );
            }
        }
        let kinds: &[ExampleKind] = match self.method {
            Method::Global => &[ExampleKind::Plan, ExampleKind::Call, ExampleKind::Final],
            Method::React => &[ExampleKind::Step],
            Method::GlobalId | Method::ReactId => &[
                ExampleKind::Decompose,
                ExampleKind::Call,
                ExampleKind::Final,
            ],
        };
        if kinds.iter().all(|&kind| self.weights.of(kind) == 0.0) {
            return refused(
                "weights",
                "leave no kind of example of this method to learn",
            );
        }
        Ok(())
    }

    /// The limits of a loop that shows what these options train on.
    pub fn limits(&self) -> AgentLimits {
        let LoopLimits {
            max_calls,
            max_steps,
            plan_tokens,
            call_tokens,
            answer_tokens,
        } = self.limits;
        AgentLimits {
            n_documents: self.n_documents,
            output_limit: self.output_limit,
            truncate: self.truncate.clone(),
            max_calls,
            max_steps,
            plan_tokens,
            call_tokens,
            answer_tokens,
        }
    }
}

const ALL_KINDS: [ExampleKind; 5] = [
    ExampleKind::Plan,
    ExampleKind::Call,
    ExampleKind::Step,
    ExampleKind::Decompose,
    ExampleKind::Final,
];

/// How far agents go that are evaluated; no part of what is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LoopLimits {
    /// Calls of a plan that are made.
    #[schemars(range(min = 1))]
    pub max_calls: usize,
    /// Steps, or sub-queries, of a loop without a plan; GOAT's number.
    #[schemars(range(min = 1))]
    pub max_steps: usize,
    /// Tokens of a plan or of sub-queries.
    #[schemars(range(min = 1))]
    pub plan_tokens: usize,
    /// Tokens of a call.
    #[schemars(range(min = 1))]
    pub call_tokens: usize,
    /// Tokens of an answer, and of a step, which may be one.
    #[schemars(range(min = 1))]
    pub answer_tokens: usize,
}

impl Default for LoopLimits {
    fn default() -> Self {
        Self {
            max_calls: 10,
            max_steps: 10,
            plan_tokens: 256,
            call_tokens: 256,
            answer_tokens: 384,
        }
    }
}

/// What a loop may use.
///
/// `n_documents`, `output_limit` and `truncate` shape the prompts and must be those of the training.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentLimits {
    /// Documents that are retrieved for a prompt.
    pub n_documents: usize,
    /// Characters of a call's result in a prompt.
    pub output_limit: usize,
    /// How a result is shortened before that.
    pub truncate: Option<ShapeOptions>,
    /// Calls of a plan that are made.
    pub max_calls: usize,
    /// Steps, or sub-queries, of a loop without a plan.
    pub max_steps: usize,
    /// Tokens of a plan or of sub-queries.
    pub plan_tokens: usize,
    /// Tokens of a call.
    pub call_tokens: usize,
    /// Tokens of an answer.
    pub answer_tokens: usize,
}

impl Default for AgentLimits {
    fn default() -> Self {
        GoatOptions::new(Method::Global, "").limits()
    }
}

impl AgentLimits {
    /// Tokens that a text of this kind may have.
    pub fn max_new_tokens(&self, kind: ExampleKind) -> usize {
        match kind {
            ExampleKind::Plan | ExampleKind::Decompose => self.plan_tokens,
            ExampleKind::Call => self.call_tokens,
            ExampleKind::Step => self.call_tokens.max(self.answer_tokens),
            ExampleKind::Final => self.answer_tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_need_only_the_documents_and_refuse_what_they_do_not_know() {
        let read: GoatOptions = serde_json::from_value(json!({"documents": "a.jsonl"})).unwrap();
        assert_eq!(read, GoatOptions::new(Method::Global, "a.jsonl"));
        assert_eq!((read.n_documents, read.output_limit), (5, 1200));
        let all = json!({
            "method": "react-id", "documents": "a", "distractors": "retriever", "n_documents": 3,
            "output_limit": 500, "truncate": {"filter": "data", "prune": {"max_items": 3,
            "max_depth": 2, "scalars": "keep"}}, "weights": {"final": 0.5, "plan": 1.0, "call": 2.0, "step": 1.0,
            "decompose": 1.0}, "limits": {"max_calls": 3, "max_steps": 4, "plan_tokens": 5,
            "call_tokens": 6, "answer_tokens": 7},
        });
        let read: GoatOptions = serde_json::from_value(all.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), all);
        assert_eq!(
            (read.limits().n_documents, read.limits().output_limit),
            (3, 500)
        );
        assert_eq!(read.limits().truncate, read.truncate);
        let tokens = |kind| read.limits().max_new_tokens(kind);
        assert_eq!((read.limits().max_calls, read.limits().max_steps), (3, 4));
        assert_eq!(
            (
                tokens(ExampleKind::Plan),
                tokens(ExampleKind::Call),
                tokens(ExampleKind::Step)
            ),
            (5, 6, 7)
        );
        for wrong in [json!({}), json!({"documents": "a", "methd": "global"})] {
            assert!(serde_json::from_value::<GoatOptions>(wrong).is_err());
        }
    }

    #[test]
    fn options_that_leave_nothing_to_learn_are_an_error() {
        let good = || GoatOptions::new(Method::React, "a");
        assert!(good().validate().is_ok());
        let fault = |change: fn(&mut GoatOptions)| {
            let mut options = good();
            change(&mut options);
            options.validate().unwrap_err().to_string()
        };
        assert!(fault(|o| o.n_documents = 0).contains("goat.n_documents"));
        assert!(fault(|o| o.output_limit = 3).contains("goat.output_limit"));
        assert!(fault(|o| o.weights.answer = f32::NAN).contains("goat.weights.final"));
        assert!(fault(|o| o.weights.step = 0.0).contains("leave no kind"));
    }
}
