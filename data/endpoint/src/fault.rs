//! What the fault of one request says of the others: whether an evaluation can continue without it.

use serde_json::Value;
use tooltune_rows::budgets::FAULTS_IN_A_ROW;
use tooltune_rows::json;

use super::error::EndpointError;

/// Whom a fault concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concern {
    /// The request alone, such as one that is too long for the model.
    Request,
    /// Perhaps the request alone: others may fare better.
    Perhaps,
    /// Every request: a key, a model or an address that is wrong.
    All,
}

/// What is wrong with a request that has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Its prompt, with the tokens that it asks for, is too long for the model.
    Context,
    /// A filter of the server took offence.
    ContentFilter,
    /// The server does not know the model.
    Model,
    /// Another status.
    Status(u16),
    /// No connection stands.
    Connection,
    /// No whole answer in time.
    Timeout,
    /// The answer broke off.
    Broken,
    /// Answers without a choice.
    NoChoice,
    /// The answer is no chat completion.
    NoCompletion,
    /// The answer is not UTF-8.
    NotUtf8,
}

impl FaultKind {
    /// The kind of a status that is no success, by what the server says with it.
    pub(super) fn of_refusal(status: u16, body: &str) -> Self {
        if [401, 403, 429].contains(&status) {
            return Self::Status(status);
        }
        let (codes, message) = codes_and_message(body);
        let has_code = |known: &[&str]| codes.iter().any(|code| known.contains(&code.as_str()));
        let says = |known: &[&str]| known.iter().any(|words| message.contains(words));
        if status == 413 || has_code(&CONTEXT_CODES) || says(&CONTEXT_WORDS) {
            return Self::Context;
        }
        if has_code(&FILTER_CODES) {
            return Self::ContentFilter;
        }
        if has_code(&["model_not_found"]) || (message.contains("model") && says(&MODEL_WORDS)) {
            return Self::Model;
        }
        Self::Status(status)
    }

    /// One or two words, by which faults are counted.
    pub fn name(self) -> String {
        let name = match self {
            Self::Context => "context",
            Self::ContentFilter => "content_filter",
            Self::Model => "no such model",
            Self::Status(status) => return format!("status {status}"),
            Self::Connection => "no connection",
            Self::Timeout => "timeout",
            Self::Broken => "answer broken off",
            Self::NoChoice => "no choices",
            Self::NoCompletion => "no chat completion",
            Self::NotUtf8 => "not UTF-8",
        };
        name.to_owned()
    }

    /// Whom it concerns.
    pub fn concern(self) -> Concern {
        match self {
            Self::Context | Self::ContentFilter => Concern::Request,
            Self::Model | Self::Connection => Concern::All,
            Self::Status(300..=399 | 401 | 402 | 403 | 404 | 405 | 415 | 429) => Concern::All,
            Self::Status(_)
            | Self::Timeout
            | Self::Broken
            | Self::NoChoice
            | Self::NoCompletion
            | Self::NotUtf8 => Concern::Perhaps,
        }
    }
}

/// The codes by which servers name a prompt that is too long: OpenAI's, llama.cpp's.
const CONTEXT_CODES: [&str; 3] = [
    "context_length_exceeded",
    "exceed_context_size_error",
    "string_above_max_length",
];

/// Their words for it, in lower case: OpenAI, vLLM and llama-cpp-python say the first, SGLang the
/// second, llama.cpp the third, TGI the fourth.
const CONTEXT_WORDS: [&str; 8] = [
    "maximum context length",
    "model's context length",
    "available context size",
    "`inputs` tokens + `max_new_tokens` must be",
    "context window",
    "context length exceeded",
    "prompt is too long",
    "input is too long",
];

/// The codes of OpenAI's and Azure's filters.
const FILTER_CODES: [&str; 3] = [
    "content_filter",
    "content_policy_violation",
    "responsibleaipolicyviolation",
];

/// What is said of a model that is not there, beside the word `model`.
const MODEL_WORDS: [&str; 5] = [
    "does not exist",
    "not found",
    "no such model",
    "unknown model",
    "not loaded",
];

/// Every `code` and `type` of an error in lower case, and all of its text.
fn codes_and_message(body: &str) -> (Vec<String>, String) {
    let error: Option<Value> = json::parse(body).ok();
    let mut codes = Vec::new();
    for place in [
        "/error/code",
        "/error/type",
        "/error/innererror/code",
        "/code",
        "/type",
    ] {
        let code = error.as_ref().and_then(|error| error.pointer(place));
        codes.extend(code.and_then(Value::as_str).map(str::to_lowercase));
    }
    (codes, body.to_lowercase())
}

/// Follows requests, some of which have no answer, and says when the fault is not theirs.
///
/// The decision to question: of faults that may be a request's own, some in a row are taken for the
/// server's. What is lost by continuing is an evaluation full of empty answers; what is lost by
/// ending is a command that is given again.
#[derive(Debug, Default)]
pub struct Tolerance {
    n_answered: usize,
    n_in_a_row: usize,
}

impl Tolerance {
    /// A request has its answer.
    pub fn answered(&mut self) {
        self.n_answered += 1;
        self.n_in_a_row = 0;
    }

    /// Whether any request has had its answer.
    pub fn has_answers(&self) -> bool {
        self.n_answered > 0
    }

    /// Whether the work can continue without the answer of a request.
    pub fn goes_on_after(&mut self, error: &EndpointError) -> bool {
        match error.concern() {
            Concern::Request => true,
            Concern::Perhaps => {
                self.n_in_a_row += 1;
                self.n_in_a_row < FAULTS_IN_A_ROW
            }
            Concern::All => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_say_of_a_long_prompt_concerns_its_request_alone() {
        for (status, body) in [
            (
                400,
                r#"{"error":{"message":"This model's maximum context length is 4096 tokens. However, you requested 9000 tokens","type":"invalid_request_error","code":"context_length_exceeded"}}"#,
            ),
            (
                400,
                r#"{"object":"error","message":"The input (9000 tokens) is longer than the model's context length (4096 tokens).","code":400}"#,
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error"}}"#,
            ),
            (
                422,
                r#"{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096"}"#,
            ),
            (
                500,
                "Requested tokens exceed context window of 2048, the maximum context length",
            ),
            (413, ""),
        ] {
            let kind = FaultKind::of_refusal(status, body);
            assert_eq!(kind, FaultKind::Context, "{body}");
            assert_eq!(kind.concern(), Concern::Request);
        }
        let filter = r#"{"error":{"code":"content_filter","message":"The response was filtered"}}"#;
        assert_eq!(FaultKind::of_refusal(400, filter), FaultKind::ContentFilter);
    }

    #[test]
    fn what_is_wrong_for_every_request_concerns_all() {
        for (status, body) in [
            (401, "This model's maximum context length"),
            (403, ""),
            (404, ""),
            (301, ""),
            (429, r#"{"error":{"code":"insufficient_quota"}}"#),
            (
                400,
                r#"{"error":{"message":"The model `x` does not exist"}}"#,
            ),
            (400, r#"{"error":{"message":"no such model"}}"#),
            (500, r#"{"error":{"code":"model_not_found"}}"#),
        ] {
            let kind = FaultKind::of_refusal(status, body);
            assert_eq!(kind.concern(), Concern::All, "{status} {body}");
        }
        for (status, body) in [
            (400, "top_k is no field"),
            (422, ""),
            (500, "busy"),
            (503, ""),
        ] {
            let kind = FaultKind::of_refusal(status, body);
            assert_eq!(kind, FaultKind::Status(status));
            assert_eq!(kind.concern(), Concern::Perhaps, "{status} {body}");
        }
    }

    #[test]
    fn faults_in_a_row_are_the_servers() {
        let error = |kind| EndpointError::NoAnswer {
            url: String::new(),
            n_attempts: 1,
            reason: String::new(),
            advice: String::new(),
            kind,
        };
        let mut tolerance = Tolerance::default();
        for _ in 0..3 {
            for _ in 1..FAULTS_IN_A_ROW {
                assert!(tolerance.goes_on_after(&error(FaultKind::Timeout)));
                assert!(tolerance.goes_on_after(&error(FaultKind::Context)));
            }
            tolerance.answered();
        }
        for _ in 1..FAULTS_IN_A_ROW {
            assert!(tolerance.goes_on_after(&error(FaultKind::Status(500))));
        }
        assert!(!tolerance.goes_on_after(&error(FaultKind::Broken)));
        assert!(!Tolerance::default().goes_on_after(&error(FaultKind::Connection)));
    }
}
