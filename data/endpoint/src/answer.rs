//! Parses a chat completion: its text, finish reason and token counts.

use serde_json::Value;
use tooltune_json as json;
use tooltune_json::ValueBudget;

use crate::http::excerpt;

/// Characters kept of a name or reason in a reply. Model names have about 60.
const MAX_WORD_CHARACTERS: usize = 256;

/// Maximum JSON values of a reply; a reply with tool calls has about a hundred.
pub(super) const CHAT_VALUES: ValueBudget = ValueBudget::new("CHAT_VALUES", 250_000);

/// One chat completion from a server.
///
/// A reply without text is also valid: reasoning may have used all tokens, or a filter or the model
/// may have refused. The text is then empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChatAnswer {
    /// The text; empty if the server returned none.
    pub text: String,
    /// What the reply contains instead, if the server returned no text.
    pub without_text: Option<WithoutText>,
    /// Why the text ended, as reported by the server: `stop`, `length`, `content_filter`,
    /// `tool_calls`; empty if absent.
    pub finish_reason: String,
    /// Completion tokens counted by the server (`usage.completion_tokens`), including reasoning; 0
    /// if absent.
    pub n_tokens: usize,
    /// Prompt tokens counted by the server (`usage.prompt_tokens`); 0 if absent.
    pub n_prompt_tokens: usize,
    /// The model that the server reports; empty if absent.
    pub model: String,
    /// The tool calls parsed by the server, in the protocol's format.
    pub tool_calls: Vec<Value>,
}

/// What a reply contains instead of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithoutText {
    /// A `refusal`.
    Refusal,
    /// Only reasoning, as `reasoning_content` or `reasoning`.
    Reasoning,
    /// Only tool calls.
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

/// Why a body is not a chat completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InvalidReply {
    /// A valid reply with an empty list of choices, which servers send for temporary faults.
    NoChoice(String),
    /// Any other violation of the protocol.
    Other(String),
}

/// Parses the body of a reply.
///
/// # Errors
///
/// The body is not the protocol's JSON, or has no message. The reason contains its first
/// characters.
pub(super) fn parse_completion(body: &str) -> Result<ChatAnswer, InvalidReply> {
    let other = |reason: String| Err(InvalidReply::Other(reason));
    if body.trim().is_empty() {
        return other("with an empty body".to_owned());
    }
    let body_excerpt = excerpt(body);
    if let Err(error) = CHAT_VALUES.check(body.as_bytes()) {
        return other(format!(
            "with too many JSON values ({error}): {body_excerpt}"
        ));
    }
    let value: Value = match json::parse(body) {
        Ok(value) => value,
        // The server streams although the request did not ask for it.
        Err(_) if is_event_stream(body) => {
            return other(format!(
                "with an event stream, which was not requested: {body_excerpt}"
            ));
        }
        Err(_) if body.trim_start().starts_with('<') => {
            return other(format!("with an HTML page: {body_excerpt}"));
        }
        Err(error) => return other(format!("with invalid JSON ({error}): {body_excerpt}")),
    };
    let choices = value.get("choices").and_then(Value::as_array);
    if choices.is_some_and(Vec::is_empty) {
        return Err(InvalidReply::NoChoice(format!(
            "an answer without choices[0]: {body_excerpt}"
        )));
    }
    let choice = choices.and_then(|choices| choices.first());
    let message = choice.and_then(|choice| choice.get("message"));
    let Some(message) = message.filter(|message| message.is_object()) else {
        return other(format!("without choices[0].message: {body_excerpt}"));
    };
    let Some(text) = message_text(message) else {
        return other(format!(
            "with choices[0].message.content that is neither a string nor a list of parts: {body_excerpt}"
        ));
    };
    let finish_reason = choice.and_then(|choice| choice.get("finish_reason")?.as_str());
    let tokens_at = |pointer: &str| value.pointer(pointer).map_or(0, token_count);
    Ok(ChatAnswer {
        without_text: if text.is_empty() {
            no_text_reason(message)
        } else {
            None
        },
        tool_calls: tool_calls(message),
        text,
        model: text_at(&value, "model"),
        finish_reason: truncate_excerpt(finish_reason.unwrap_or_default()).to_owned(),
        n_tokens: tokens_at("/usage/completion_tokens"),
        n_prompt_tokens: tokens_at("/usage/prompt_tokens"),
    })
}

/// Whether a body has the format of `"stream": true`.
fn is_event_stream(body: &str) -> bool {
    let body = body.trim_start();
    ["data:", "event:", ":"]
        .iter()
        .any(|field| body.starts_with(field))
}

fn text_at(value: &Value, key: &str) -> String {
    let text = value.get(key).and_then(Value::as_str);
    truncate_excerpt(text.unwrap_or_default()).to_owned()
}

/// The beginning of a string from a server, which may have any length.
pub(crate) fn truncate_excerpt(text: &str) -> &str {
    let end = text.char_indices().nth(MAX_WORD_CHARACTERS);
    end.map_or(text, |(end, _)| &text[..end])
}

/// A token count; 0 if the value is not a number. Some servers write integers as floats.
fn token_count(value: &Value) -> usize {
    let integer = value.as_f64().filter(|n| *n >= 0.0 && n.fract() == 0.0);
    // Out-of-range floats saturate.
    value.as_u64().map_or_else(
        || integer.unwrap_or(0.0) as usize,
        |n| usize::try_from(n).unwrap_or(usize::MAX),
    )
}

fn tool_calls(message: &Value) -> Vec<Value> {
    let calls = message.get("tool_calls").and_then(Value::as_array);
    calls.cloned().unwrap_or_default()
}

/// The text of a message, empty if it has none; `None` if its content has a different type.
fn message_text(message: &Value) -> Option<String> {
    match message.get("content") {
        None | Some(Value::Null) => Some(String::new()),
        Some(Value::String(text)) => Some(text.clone()),
        // A list of parts as in requests: text parts are concatenated, other parts are skipped.
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

/// What a message without text contains instead; `None` if its content is the empty string.
fn no_text_reason(message: &Value) -> Option<WithoutText> {
    let has_content = |key: &str| match message.get(key) {
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(_)) => true,
        _ => false,
    };
    let parts = message.get("content").and_then(Value::as_array);
    let has_part = |kind: &str| {
        let has_kind = |part: &Value| part.get("type").and_then(Value::as_str) == Some(kind);
        parts.is_some_and(|parts| parts.iter().any(has_kind))
    };
    if has_content("refusal") || has_part("refusal") {
        Some(WithoutText::Refusal)
    } else if has_content("tool_calls") || has_content("function_call") {
        Some(WithoutText::ToolCalls)
    } else if has_content("reasoning_content") || has_content("reasoning") || has_part("thinking") {
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

    fn record_answer(message: Value, finish_reason: Value) -> ChatAnswer {
        let body = json!({
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14},
        });
        parse_completion(&body.to_string()).expect("an answer")
    }

    #[test]
    fn an_answer_has_text_finish_reason_and_token_counts() {
        let answer = record_answer(json!({"content": "yes"}), json!("length"));
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
        assert_eq!(record_answer(parts, json!("stop")).text, "ab");
        let only_content =
            parse_completion(&json!({"choices": [{"message": {"content": "x"}}]}).to_string());
        let only_content = only_content.expect("an answer");
        assert_eq!(
            (only_content.finish_reason.as_str(), only_content.n_tokens),
            ("", 0)
        );
    }

    #[test]
    fn other_fields_of_a_reply_are_bounded() {
        let usage = |tokens: Value| {
            let body = json!({"choices": [{"message": {"content": "x"}}],
                "usage": {"completion_tokens": tokens}});
            parse_completion(&body.to_string())
                .expect("an answer")
                .n_tokens
        };
        for (tokens, expected) in [
            (json!(7), 7),
            (json!(7.0), 7),
            (json!(7.5), 0),
            (json!(-5), 0),
            (json!(null), 0),
            (json!("7"), 0),
            (json!(u64::MAX), usize::MAX),
            (json!(1e300), usize::MAX),
        ] {
            assert_eq!(usage(tokens.clone()), expected, "{tokens}");
        }
        let long = "m".repeat(1 << 20);
        let body = json!({"model": long, "choices": [{
            "message": {"content": "x"}, "finish_reason": long}]});
        let answer = parse_completion(&body.to_string()).expect("an answer");
        assert_eq!((answer.model.len(), answer.finish_reason.len()), (256, 256));
        let many_values = format!(
            "{{\"choices\": [{}0]}}",
            "0,".repeat(CHAT_VALUES.max_values())
        );
        let Err(InvalidReply::Other(reason)) = parse_completion(&many_values) else {
            panic!("an answer of many values is read");
        };
        assert!(reason.contains("more than 250000 values"), "{reason}");
    }

    #[test]
    fn a_reply_without_text_reports_its_other_contents() {
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
            let answer = record_answer(message.clone(), json!("length"));
            assert_eq!(answer.text, "", "{message}");
            assert_eq!(answer.without_text, expected, "{message}");
            assert_eq!(answer.finish_reason, "length");
        }
        let complete_message =
            record_answer(json!({"content": "x", "reasoning": "y"}), Value::Null);
        assert_eq!(
            (
                complete_message.without_text,
                complete_message.finish_reason.as_str()
            ),
            (None, "")
        );
    }

    #[test]
    fn invalid_replies_have_a_reason() {
        for (body, expected) in [
            ("", "an empty body"),
            (
                "<!doctype html><p>Sign in",
                "an HTML page: <!doctype html><p>Sign in",
            ),
            ("{\"choices\": [{\"mess", "invalid JSON"),
            (
                "data: {\"choices\": [{\"delta\": {}}]}\n\ndata: [DONE]\n\n",
                "an event stream, which was not requested: data:",
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
                "neither a string nor a list of parts",
            ),
        ] {
            let Err(InvalidReply::Other(reason)) = parse_completion(body) else {
                panic!("{body} is read");
            };
            assert!(reason.contains(expected), "{reason}");
        }
        let empty = parse_completion("{\"choices\": []}");
        assert!(
            matches!(empty, Err(InvalidReply::NoChoice(reason)) if reason.contains("choices[0]"))
        );
    }
}
