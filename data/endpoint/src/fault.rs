//! Classifies request faults: whether an evaluation can continue with other requests.

use crate::budgets::FAULTS_IN_A_ROW;
use serde_json::Value;
use tooltune_json as json;

use super::answer::CHAT_VALUES;
use super::error::EndpointError;

/// Which requests a fault affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultScope {
    /// Only this request, such as one that is too long for the model.
    Request,
    /// Possibly only this request; others may succeed.
    Perhaps,
    /// Every request: a wrong key, model or address.
    All,
}

/// The type of a request fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The prompt with the requested tokens exceeds the context length.
    Context,
    /// A content filter of the server refused.
    ContentFilter,
    /// The server does not know the model.
    Model,
    /// Another status.
    Status(u16),
    /// The connection failed.
    Connection,
    /// Timeout before the reply was complete.
    Timeout,
    /// The reply broke off.
    Broken,
    /// Replies without a choice.
    NoChoice,
    /// The reply is not a chat completion.
    NoCompletion,
    /// The reply is not UTF-8.
    NotUtf8,
}

impl FaultKind {
    /// The fault type of an error status and its message.
    pub(super) fn from_refusal(status: u16, body: &str) -> Self {
        if [401, 403, 429].contains(&status) {
            return Self::Status(status);
        }
        let (codes, message) = codes_and_message(body);
        let has_code =
            |expected: &[&str]| codes.iter().any(|code| expected.contains(&code.as_str()));
        let mentions = |expected: &[&str]| expected.iter().any(|phrase| message.contains(phrase));
        if status == 413 || has_code(&CONTEXT_CODES) || mentions(&CONTEXT_WORDS) {
            return Self::Context;
        }
        if has_code(&FILTER_CODES) {
            return Self::ContentFilter;
        }
        if has_code(&["model_not_found"]) || (message.contains("model") && mentions(&MODEL_WORDS)) {
            return Self::Model;
        }
        Self::Status(status)
    }

    /// A name of one or two words, by which faults are counted.
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

    /// Which requests it affects.
    pub fn scope(self) -> FaultScope {
        match self {
            Self::Context | Self::ContentFilter => FaultScope::Request,
            Self::Model | Self::Connection => FaultScope::All,
            Self::Status(300..=399 | 401 | 402 | 403 | 404 | 405 | 415 | 429) => FaultScope::All,
            Self::Status(_)
            | Self::Timeout
            | Self::Broken
            | Self::NoChoice
            | Self::NoCompletion
            | Self::NotUtf8 => FaultScope::Perhaps,
        }
    }
}

/// Error codes for a prompt that is too long: OpenAI's, llama.cpp's.
const CONTEXT_CODES: [&str; 3] = [
    "context_length_exceeded",
    "exceed_context_size_error",
    "string_above_max_length",
];

/// Messages about a prompt that is too long, in lower case. OpenAI, vLLM and llama-cpp-python use
/// the first, SGLang the second, llama.cpp the third, TGI the fourth.
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

/// Error codes of OpenAI's and Azure's filters.
const FILTER_CODES: [&str; 3] = [
    "content_filter",
    "content_policy_violation",
    "responsibleaipolicyviolation",
];

/// Messages about an absent model, in addition to the word `model`.
const MODEL_WORDS: [&str; 5] = [
    "does not exist",
    "not found",
    "no such model",
    "unknown model",
    "not loaded",
];

/// Every `code` and `type` of an error in lower case, and its whole text.
fn codes_and_message(body: &str) -> (Vec<String>, String) {
    let is_read = CHAT_VALUES.check(body.as_bytes()).is_ok();
    let error: Option<Value> = is_read.then(|| json::parse(body).ok()).flatten();
    let mut codes = Vec::new();
    for pointer in [
        "/error/code",
        "/error/type",
        "/error/innererror/code",
        "/code",
        "/type",
    ] {
        let code = error.as_ref().and_then(|error| error.pointer(pointer));
        codes.extend(code.and_then(Value::as_str).map(str::to_lowercase));
    }
    (codes, body.to_lowercase())
}

/// Counts failed requests and detects when the server is at fault rather than the requests.
///
/// Several consecutive faults that could concern only their own requests are treated as a server
/// fault. Continuing would fill an evaluation with empty replies; stopping costs only a restart of
/// the command.
#[derive(Debug, Default)]
pub struct Tolerance {
    n_answered: usize,
    n_in_a_row: usize,
}

impl Tolerance {
    /// Records a request with a reply.
    pub fn record_answer(&mut self) {
        self.n_answered += 1;
        self.n_in_a_row = 0;
    }

    /// Whether any request had a reply.
    pub fn has_answers(&self) -> bool {
        self.n_answered > 0
    }

    /// Whether the work can continue after this failed request.
    pub fn can_continue_after(&mut self, error: &EndpointError) -> bool {
        match error.scope() {
            FaultScope::Request => true,
            FaultScope::Perhaps => {
                self.n_in_a_row += 1;
                self.n_in_a_row < FAULTS_IN_A_ROW
            }
            FaultScope::All => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_length_errors_affect_only_their_request() {
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
            let kind = FaultKind::from_refusal(status, body);
            assert_eq!(kind, FaultKind::Context, "{body}");
            assert_eq!(kind.scope(), FaultScope::Request);
        }
        let filter = r#"{"error":{"code":"content_filter","message":"The response was filtered"}}"#;
        assert_eq!(
            FaultKind::from_refusal(400, filter),
            FaultKind::ContentFilter
        );
    }

    #[test]
    fn faults_of_key_model_and_address_affect_all_requests() {
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
            let kind = FaultKind::from_refusal(status, body);
            assert_eq!(kind.scope(), FaultScope::All, "{status} {body}");
        }
        for (status, body) in [
            (400, "top_k is not a field"),
            (422, ""),
            (500, "busy"),
            (503, ""),
        ] {
            let kind = FaultKind::from_refusal(status, body);
            assert_eq!(kind, FaultKind::Status(status));
            assert_eq!(kind.scope(), FaultScope::Perhaps, "{status} {body}");
        }
    }

    /// Invariant: A failed prompt costs one completion, and a failing server ends the evaluation.
    #[test]
    fn consecutive_faults_are_treated_as_server_faults() {
        let error = |kind| EndpointError::InvalidReply {
            url: String::new(),
            n_attempts: 1,
            reason: String::new(),
            advice: String::new(),
            kind,
        };
        let mut tolerance = Tolerance::default();
        for _ in 0..3 {
            for _ in 1..FAULTS_IN_A_ROW {
                assert!(tolerance.can_continue_after(&error(FaultKind::Timeout)));
                assert!(tolerance.can_continue_after(&error(FaultKind::Context)));
            }
            tolerance.record_answer();
        }
        for _ in 1..FAULTS_IN_A_ROW {
            assert!(tolerance.can_continue_after(&error(FaultKind::Status(500))));
        }
        assert!(!tolerance.can_continue_after(&error(FaultKind::Broken)));
        assert!(!Tolerance::default().can_continue_after(&error(FaultKind::Connection)));
    }
}
