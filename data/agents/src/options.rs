//! Options for training on trajectories, and for the agent loops that use the trained model.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tooltune_apis::OUTPUT_LIMIT;
use tooltune_rows::text::DataError;

use super::method::{ExampleKind, Method};
use crate::truncation::ShapeOptions;

/// How trajectories become training examples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoatOptions {
    /// The prompting method to train.
    #[serde(default = "default_method")]
    pub method: Method,
    /// File of API documents.
    pub documents: PathBuf,
    /// Which documents are shown in addition to the gold ones.
    #[serde(default)]
    pub distractors: Distractors,
    /// Number of documents per prompt; it is exceeded only if there are more gold documents.
    #[serde(default = "n_documents")]
    pub n_documents: usize,
    /// Maximum number of characters of a call's result in a prompt. The query is never cut.
    #[serde(default = "output_limit")]
    pub output_limit: usize,
    /// How a result is shortened before `output_limit` applies; off by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncate: Option<ShapeOptions>,
    /// Weight of each kind of example.
    #[serde(default)]
    pub weights: KindWeights,
    /// Limits of evaluated loops.
    #[serde(default)]
    pub limits: LoopLimits,
}

/// Which documents are shown in addition to the gold ones in a training prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Distractors {
    /// Uniformly drawn from the other documents.
    #[default]
    Random,
    /// The highest-ranked documents of the retriever, as at inference.
    Retriever,
}

/// Weights by kind of example; 0 omits the kind.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KindWeights {
    /// Weight of plans.
    pub plan: f32,
    /// Weight of calls.
    pub call: f32,
    /// Weight of steps: a thought with its call, or a final answer after such steps.
    pub step: f32,
    /// Weight of sub-queries.
    pub decompose: f32,
    /// Weight of answers.
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
    pub fn for_kind(&self, kind: ExampleKind) -> f32 {
        match kind {
            ExampleKind::Plan => self.plan,
            ExampleKind::Call => self.call,
            ExampleKind::Step => self.step,
            ExampleKind::Decompose => self.decompose,
            ExampleKind::Final => self.answer,
        }
    }
}

fn default_method() -> Method {
    Method::Global
}

fn n_documents() -> usize {
    5
}

fn output_limit() -> usize {
    OUTPUT_LIMIT
}

impl GoatOptions {
    /// Default options for a method and a document file.
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
    /// - a prompt could not show any document, or any part of a result
    /// - a weight is negative, infinite or not a number
    /// - every kind of example of the method has weight 0
    pub fn validate(&self) -> Result<(), DataError> {
        let refusal = |field: &str, reason: &'static str| {
            Err(DataError::GoatOptions {
                field: field.to_owned(),
                reason,
            })
        };
        if self.n_documents == 0 {
            return refusal("n_documents", "is 0; set it to at least 1 (5 in the paper)");
        }
        if self.output_limit < 40 {
            return refusal(
                "output_limit",
                "is too small to show a result; set it to at least 40",
            );
        }
        for kind in ALL_KINDS {
            let weight = self.weights.for_kind(kind);
            if !weight.is_finite() || weight < 0.0 {
                return refusal(
                    &format!("weights.{}", kind.as_str()),
                    "must be a non-negative number",
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
        if kinds.iter().all(|&kind| self.weights.for_kind(kind) == 0.0) {
            return refusal(
                "weights",
                "are 0 for every kind of example of this method; set at least one above 0",
            );
        }
        Ok(())
    }

    /// The limits of a loop whose prompts equal the training prompts of these options.
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

/// Limits of evaluated agents; they do not affect training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LoopLimits {
    /// Maximum number of calls in a plan.
    #[schemars(range(min = 1))]
    pub max_calls: usize,
    /// Maximum number of steps or sub-queries in a loop without a plan; the default is GOAT's.
    #[schemars(range(min = 1))]
    pub max_steps: usize,
    /// Maximum number of tokens of a plan or a list of sub-queries.
    #[schemars(range(min = 1))]
    pub plan_tokens: usize,
    /// Maximum number of tokens of a call.
    #[schemars(range(min = 1))]
    pub call_tokens: usize,
    /// Maximum number of tokens of an answer or a step.
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

/// Limits of a loop.
///
/// `n_documents`, `output_limit` and `truncate` affect the prompts and must be equal to the
/// training values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentLimits {
    /// Number of documents retrieved for a prompt.
    pub n_documents: usize,
    /// Maximum number of characters of a call's result in a prompt.
    pub output_limit: usize,
    /// How a result is shortened before `output_limit` applies.
    pub truncate: Option<ShapeOptions>,
    /// Maximum number of calls in a plan.
    pub max_calls: usize,
    /// Maximum number of steps or sub-queries of a loop without a plan.
    pub max_steps: usize,
    /// Maximum number of tokens of a plan or a list of sub-queries.
    pub plan_tokens: usize,
    /// Maximum number of tokens of a call.
    pub call_tokens: usize,
    /// Maximum number of tokens of an answer.
    pub answer_tokens: usize,
}

impl Default for AgentLimits {
    fn default() -> Self {
        GoatOptions::new(Method::Global, "").limits()
    }
}

impl AgentLimits {
    /// Maximum number of tokens of a text of this kind.
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
    fn options_require_only_documents_and_refuse_unknown_fields() {
        let options: GoatOptions = serde_json::from_value(json!({"documents": "a.jsonl"})).unwrap();
        assert_eq!(options, GoatOptions::new(Method::Global, "a.jsonl"));
        assert_eq!((options.n_documents, options.output_limit), (5, 1200));
        let all_fields = json!({
            "method": "react-id", "documents": "a", "distractors": "retriever", "n_documents": 3,
            "output_limit": 500, "truncate": {"filter": "data", "prune": {"max_items": 3,
            "max_depth": 2, "scalars": "keep"}}, "weights": {"final": 0.5, "plan": 1.0, "call": 2.0, "step": 1.0,
            "decompose": 1.0}, "limits": {"max_calls": 3, "max_steps": 4, "plan_tokens": 5,
            "call_tokens": 6, "answer_tokens": 7},
        });
        let options: GoatOptions = serde_json::from_value(all_fields.clone()).unwrap();
        assert_eq!(serde_json::to_value(&options).unwrap(), all_fields);
        assert_eq!(
            (options.limits().n_documents, options.limits().output_limit),
            (3, 500)
        );
        assert_eq!(options.limits().truncate, options.truncate);
        let tokens = |kind| options.limits().max_new_tokens(kind);
        assert_eq!(
            (options.limits().max_calls, options.limits().max_steps),
            (3, 4)
        );
        assert_eq!(
            (
                tokens(ExampleKind::Plan),
                tokens(ExampleKind::Call),
                tokens(ExampleKind::Step)
            ),
            (5, 6, 7)
        );
        for invalid in [json!({}), json!({"documents": "a", "methd": "global"})] {
            assert!(serde_json::from_value::<GoatOptions>(invalid).is_err());
        }
    }

    #[test]
    fn options_without_any_example_kind_are_an_error() {
        let valid = || GoatOptions::new(Method::React, "a");
        assert!(valid().validate().is_ok());
        let error_text = |change: fn(&mut GoatOptions)| {
            let mut options = valid();
            change(&mut options);
            options.validate().unwrap_err().to_string()
        };
        assert!(error_text(|o| o.n_documents = 0).contains("goat.n_documents"));
        assert!(error_text(|o| o.output_limit = 3).contains("goat.output_limit"));
        assert!(error_text(|o| o.weights.answer = f32::NAN).contains("goat.weights.final"));
        assert!(error_text(|o| o.weights.step = 0.0).contains("are 0 for every kind"));
    }
}
