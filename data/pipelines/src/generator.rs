//! Generators answer prompts, through a server or with a local model.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A prompt and everything else that its reply depends on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prompt {
    /// The user message.
    pub text: String,
    /// JSON Schema of the reply, for generators that can enforce it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// Maximum number of tokens of the reply.
    pub max_tokens: usize,
    /// Sampling temperature; 0 selects greedy decoding.
    pub temperature: f64,
    /// Seed of the sampler; it only matters above temperature 0.
    pub seed: u64,
}

/// A generated reply.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The text; empty if there is none.
    pub text: String,
    /// The generator's finish reason.
    pub finish_reason: String,
    /// Prompt tokens as counted by the server, otherwise an estimate.
    pub n_prompt_tokens: usize,
    /// Reply tokens as counted by the server, otherwise an estimate.
    pub n_tokens: usize,
    /// The kind of content that the model returned instead of text, such as `refusal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_text: Option<String>,
}

/// Why a prompt has no reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unanswered {
    /// Short name of the error, for counting.
    pub kind: String,
    /// The complete message.
    pub message: String,
    /// Whether the prompt itself causes the error, so that repeating it is useless.
    #[serde(skip)]
    pub is_final: bool,
}

/// The result of a prompt.
#[derive(Debug)]
pub struct PromptResult {
    /// Index of the prompt.
    pub number: usize,
    /// The reply, or why there is none.
    pub result: Result<Reply, Unanswered>,
}

/// An error that affects all prompts, with what to check.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GeneratorFailure(pub String);

/// Properties of a model that are known before a request.
pub trait ModelInfo {
    /// Everything about the model that replies depend on, such as its name.
    fn identity(&self) -> Map<String, Value>;

    /// Number of tokens of a text, counted by a tokenizer if there is one, otherwise estimated.
    fn count_tokens(&self, text: &str) -> usize;
}

/// Generates replies.
pub trait Generator: ModelInfo {
    /// Sends all prompts, several at once if that is faster.
    ///
    /// `take` is called in the caller's thread with each reply as soon as it arrives, in any order,
    /// and several times per second without a reply. Once it returns false, no further prompt is
    /// started. Replies that still arrive are passed to `take`, and also replies that arrive before
    /// an error.
    ///
    /// # Errors
    ///
    /// An error that affects every prompt, such as an unreachable server.
    fn ask(
        &self,
        prompts: &[&Prompt],
        take: &mut dyn FnMut(Option<PromptResult>) -> bool,
    ) -> Result<(), GeneratorFailure>;

    /// Remarks about the replies, for example that another model answered.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Estimates the number of tokens of a text without a tokenizer: four bytes per token, which is
/// typical for English.
pub fn estimated_tokens(text: &str) -> usize {
    const BYTES_PER_TOKEN: usize = 4;
    text.len().div_ceil(BYTES_PER_TOKEN)
}
