//! What a server's answer holds: a text or none, why it ended, and its tokens.

use serde_json::Value;
use tooltune_rows::json;

use crate::http::excerpt;

/// One answer of a server of chat completions.
///
/// An answer without a text is an answer, too: reasoning may have used up the tokens, a filter or
/// the model may have refused. Its text is then empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChatAnswer {
    /// The text; empty where the server gave none.
    pub text: String,
    /// Why there is no text, where the server gave none.
    pub without_text: Option<WithoutText>,
    /// Why the text ended, in the server's word: `stop`, `length`, `content_filter`,
    /// `tool_calls`; empty where the server does not say.
    pub finish_reason: String,
    /// Tokens that the server counted (`usage.completion_tokens`), those of reasoning among them;
    /// 0 where it does not say.
    pub n_tokens: usize,
    /// Tokens of the prompt that the server counted (`usage.prompt_tokens`); 0 where it does not say.
    pub n_prompt_tokens: usize,
    /// The model that the server says has answered; empty where it does not say.
    pub model: String,
    /// The calls of tools that the server has read, as the protocol writes them.
    pub tool_calls: Vec<Value>,
}

/// What an answer has where its text should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithoutText {
    /// A `refusal`.
    Refusal,
    /// Reasoning alone, as `reasoning_content` or `reasoning`.
    Reasoning,
    /// Calls of tools alone.
    ToolCalls,
    /// Nothing.
    Nothing,
}

impl WithoutText {
    /// `refusal`, `reasoning`, `tool_calls` or `nothing`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Refusal => "refusal",
            Self::Reasoning => "reasoning",
            Self::ToolCalls => "tool_calls",
            Self::Nothing => "nothing",
        }
    }
}

/// Why a body is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The protocol with an empty list of choices, as servers send for a fault of the moment.
    NoChoice(String),
    /// Not the protocol.
    Other(String),
}

/// Reads the body of an answer.
///
/// # Errors
///
/// - it is not the protocol's JSON, or has no message; the reason has its first characters
pub(super) fn read(body: &str) -> Result<ChatAnswer, NoAnswer> {
    let other = |reason: String| Err(NoAnswer::Other(reason));
    if body.trim().is_empty() {
        return other("with an empty body".to_owned());
    }
    let said = excerpt(body);
    let value: Value = match json::parse(body) {
        Ok(value) => value,
        // A server that sends events though none were asked for.
        Err(_) if is_event_stream(body) => {
            return other(format!(
                "with a stream of events, which was not asked for: {said}"
            ));
        }
        Err(_) if body.trim_start().starts_with('<') => {
            return other(format!("with a page of HTML: {said}"));
        }
        Err(error) => return other(format!("with what is not JSON ({error}): {said}")),
    };
    let choices = value.get("choices").and_then(Value::as_array);
    if choices.is_some_and(Vec::is_empty) {
        return Err(NoAnswer::NoChoice(format!(
            "an answer without choices[0]: {said}"
        )));
    }
    let choice = choices.and_then(|choices| choices.first());
    let message = choice.and_then(|choice| choice.get("message"));
    let Some(message) = message.filter(|message| message.is_object()) else {
        return other(format!("without choices[0].message: {said}"));
    };
    let Some(text) = text_of(message) else {
        return other(format!(
            "with choices[0].message.content that is neither a text nor a list of parts: {said}"
        ));
    };
    let finish_reason = choice.and_then(|choice| choice.get("finish_reason")?.as_str());
    let counted = |place: &str| {
        let n_tokens = value.pointer(place).and_then(Value::as_u64).unwrap_or(0);
        usize::try_from(n_tokens).unwrap_or(usize::MAX)
    };
    Ok(ChatAnswer {
        without_text: if text.is_empty() {
            without_text(message)
        } else {
            None
        },
        tool_calls: tool_calls(message),
        text,
        model: text_at(&value, "model"),
        finish_reason: finish_reason.unwrap_or_default().to_owned(),
        n_tokens: counted("/usage/completion_tokens"),
        n_prompt_tokens: counted("/usage/prompt_tokens"),
    })
}

/// Whether a body is what `"stream": true` asks for.
fn is_event_stream(body: &str) -> bool {
    let body = body.trim_start();
    ["data:", "event:", ":"]
        .iter()
        .any(|field| body.starts_with(field))
}

fn text_at(value: &Value, key: &str) -> String {
    let text = value.get(key).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

fn tool_calls(message: &Value) -> Vec<Value> {
    let calls = message.get("tool_calls").and_then(Value::as_array);
    calls.cloned().unwrap_or_default()
}

/// The text of a message, empty where it has none; nothing where its content is of another type.
fn text_of(message: &Value) -> Option<String> {
    match message.get("content") {
        None | Some(Value::Null) => Some(String::new()),
        Some(Value::String(text)) => Some(text.clone()),
        // Parts, as those of requests: texts come in order, parts of another kind are no text.
        Some(Value::Array(parts)) => {
            let mut text = String::new();
            for part in parts {
                match part {
                    Value::String(part) => text.push_str(part),
                    Value::Object(part) => {
                        text.push_str(part.get("text").and_then(Value::as_str).unwrap_or_default());
                    }
                    _ => return None,
                }
            }
            Some(text)
        }
        Some(_) => None,
    }
}

/// What a message without a text has; nothing where its content is the empty text and no more.
fn without_text(message: &Value) -> Option<WithoutText> {
    let says = |key: &str| match message.get(key) {
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(_)) => true,
        _ => false,
    };
    let parts = message.get("content").and_then(Value::as_array);
    let has_part = |kind: &str| {
        let of_kind = |part: &Value| part.get("type").and_then(Value::as_str) == Some(kind);
        parts.is_some_and(|parts| parts.iter().any(of_kind))
    };
    if says("refusal") || has_part("refusal") {
        Some(WithoutText::Refusal)
    } else if says("tool_calls") || says("function_call") {
        Some(WithoutText::ToolCalls)
    } else if says("reasoning_content") || says("reasoning") || has_part("thinking") {
        Some(WithoutText::Reasoning)
    } else if message.get("content").is_some_and(Value::is_string) {
        None
    } else {
        Some(WithoutText::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answered(message: Value, finish_reason: Value) -> ChatAnswer {
        let body = json!({
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14},
        });
        read(&body.to_string()).expect("an answer")
    }

    #[test]
    fn an_answer_keeps_its_text_its_end_and_its_tokens() {
        let answer = answered(json!({"content": "yes"}), json!("length"));
        let expected = ChatAnswer {
            tool_calls: Vec::new(),
            text: "yes".to_owned(),
            without_text: None,
            finish_reason: "length".to_owned(),
            n_tokens: 9,
            n_prompt_tokens: 5,
            model: String::new(),
        };
        assert_eq!(answer, expected);
        let parts =
            json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]});
        assert_eq!(answered(parts, json!("stop")).text, "ab");
        let bare = read(&json!({"choices": [{"message": {"content": "x"}}]}).to_string());
        let bare = bare.expect("an answer");
        assert_eq!((bare.finish_reason.as_str(), bare.n_tokens), ("", 0));
    }

    #[test]
    fn an_answer_without_a_text_is_empty_and_says_what_it_has() {
        for (message, expected) in [
            (json!({"content": null}), Some(WithoutText::Nothing)),
            (json!({}), Some(WithoutText::Nothing)),
            (json!({"content": []}), Some(WithoutText::Nothing)),
            (json!({"content": ""}), None),
            (
                json!({"content": null, "refusal": "I cannot"}),
                Some(WithoutText::Refusal),
            ),
            (
                json!({"content": [{"type": "refusal", "refusal": "I cannot"}]}),
                Some(WithoutText::Refusal),
            ),
            (
                json!({"content": null, "reasoning_content": "Let me"}),
                Some(WithoutText::Reasoning),
            ),
            (
                json!({"content": "", "reasoning": "Let me"}),
                Some(WithoutText::Reasoning),
            ),
            (
                json!({"content": null, "tool_calls": [{"id": "a"}]}),
                Some(WithoutText::ToolCalls),
            ),
            (
                json!({"content": null, "tool_calls": []}),
                Some(WithoutText::Nothing),
            ),
        ] {
            let answer = answered(message.clone(), json!("length"));
            assert_eq!(answer.text, "", "{message}");
            assert_eq!(answer.without_text, expected, "{message}");
            assert_eq!(answer.finish_reason, "length");
        }
        let whole = answered(json!({"content": "x", "reasoning": "y"}), Value::Null);
        assert_eq!(
            (whole.without_text, whole.finish_reason.as_str()),
            (None, "")
        );
    }

    #[test]
    fn what_is_no_answer_has_a_reason() {
        for (body, expected) in [
            ("", "an empty body"),
            (
                "<!doctype html><p>Sign in",
                "a page of HTML: <!doctype html><p>Sign in",
            ),
            ("{\"choices\": [{\"mess", "what is not JSON"),
            (
                "data: {\"choices\": [{\"delta\": {}}]}\n\ndata: [DONE]\n\n",
                "a stream of events, which was not asked for: data:",
            ),
            ("[]", "without choices[0].message: []"),
            ("{\"error\": {\"message\": \"quota\"}}", "\"quota\""),
            ("{\"choices\": [{}]}", "without choices[0].message"),
            (
                "{\"choices\": [{\"message\": null}]}",
                "without choices[0].message",
            ),
            (
                "{\"choices\": [{\"message\": {\"content\": 3}}]}",
                "neither a text nor a list of parts",
            ),
        ] {
            let Err(NoAnswer::Other(reason)) = read(body) else {
                panic!("{body} is read");
            };
            assert!(reason.contains(expected), "{reason}");
        }
        let empty = read("{\"choices\": []}");
        assert!(matches!(empty, Err(NoAnswer::NoChoice(reason)) if reason.contains("choices[0]")));
    }
}
