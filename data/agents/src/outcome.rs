//! What a loop did, as it is kept beside the predictions and scored.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::method::{ExampleKind, Method};

/// The end of a loop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The prompting method.
    pub method: Method,
    /// The names that were planned, of the method that plans names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plan: Vec<String>,
    /// The sub-queries, of the methods that decompose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sub_queries: Vec<String>,
    /// The names of the calls in order, failed ones too; a call without a name is not in it.
    pub path: Vec<String>,
    /// All calls that were attempted, in order.
    pub calls: Vec<AttemptedCall>,
    /// The final answer; empty where the loop ended without one.
    pub response: String,
    /// What was retrieved, in order.
    pub retrievals: Vec<Retrieval>,
    /// Texts of the model that could not be used, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// Why the loop ended.
    pub end: EndReason,
    /// How each text of the model ended, in order, where that is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub texts: Vec<TextEnd>,
}

/// How a text of the model ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextEnd {
    /// `stop`, `length`, or another word of whoever wrote it; empty where it is not known.
    pub finish_reason: String,
    /// Its tokens; 0 where they are not known.
    pub n_tokens: usize,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptedCall {
    /// The API's name, where the model wrote or planned one.
    pub name: Option<String>,
    /// The arguments; absent where they could not be read.
    pub arguments: Option<Map<String, Value>>,
    /// What the model wrote, where no call could be read from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<String>,
    /// What the API returned; null where it was not called.
    pub output: Value,
    /// Why the call failed, if it did.
    pub exception: Option<String>,
}

/// One question to the retriever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retrieval {
    /// The query or sub-query.
    pub text: String,
    /// The names of the APIs that were shown, in order.
    pub documents: Vec<String>,
}

/// A text that could not be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What it should have been.
    pub kind: ExampleKind,
    /// What is wrong with it.
    pub reason: String,
    /// The text, at most 500 characters of it.
    pub text: String,
}

/// Why a loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndReason {
    /// The model gave its answer.
    Answered,
    /// The steps were used up.
    StepLimit,
    /// The caller's time was used up.
    Deadline,
}
