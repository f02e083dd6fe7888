//! What generates: prompts in, replies out, by a server or by a model here.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What is asked, with everything that its reply depends on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prompt {
    /// The user's turn.
    pub text: String,
    /// What the reply is to be valid under, where what generates can see to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// Tokens that the reply may have.
    pub max_tokens: usize,
    /// 0 for the likeliest text.
    pub temperature: f64,
    /// What a sampler begins with; it matters above temperature 0 only.
    pub seed: u64,
}

/// A text that came back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The text; empty where there was none.
    pub text: String,
    /// Why it ended, in the word of what generated it.
    pub finish_reason: String,
    /// Tokens of the prompt: as the server counts them, else as they were estimated.
    pub n_prompt_tokens: usize,
    /// Tokens of the reply, likewise.
    pub n_tokens: usize,
    /// What came in place of a text, such as `refusal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_text: Option<String>,
}

/// Why a prompt has no reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unanswered {
    /// In a word or two, by which faults are counted.
    pub kind: String,
    /// In full.
    pub message: String,
    /// Whether the prompt itself is at fault, so that asking again is in vain.
    #[serde(skip)]
    pub is_final: bool,
}

/// What became of a prompt, by its number.
#[derive(Debug)]
pub struct Came {
    /// Its place among the prompts.
    pub number: usize,
    /// The reply, or why there is none.
    pub result: Result<Reply, Unanswered>,
}

/// What cannot go on for any prompt, with what to check.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GeneratorFailure(pub String);

/// What is known of a model before it is asked.
pub trait ModelInfo {
    /// Everything about it that replies follow from, such as the name of its model.
    fn identity(&self) -> Map<String, Value>;

    /// Tokens of a text: by a tokenizer where there is one, else about as many.
    fn count_tokens(&self, text: &str) -> usize;
}

/// Writes replies.
pub trait Generator: ModelInfo {
    /// Asks all prompts, several at once where that helps.
    ///
    /// `take` is called in the caller's thread with each reply as soon as it is there, in any
    /// order, and with nothing several times a second; once it returns false, no prompt is begun.
    /// Every reply that came reaches `take`, also after that and before a failure.
    ///
    /// # Errors
    ///
    /// What is wrong for every prompt, such as a server that is not there.
    fn ask(
        &self,
        prompts: &[&Prompt],
        take: &mut dyn FnMut(Option<Came>) -> bool,
    ) -> Result<(), GeneratorFailure>;

    /// What there is to say of the replies, such as that another model answered.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// About the tokens of a text, where no tokenizer counts them: four bytes a token, as English has
/// with the vocabularies of today's models.
pub fn estimated_tokens(text: &str) -> usize {
    const BYTES_PER_TOKEN: usize = 4;
    text.len().div_ceil(BYTES_PER_TOKEN)
}
