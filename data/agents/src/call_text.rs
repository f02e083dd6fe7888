//! Renders a call as text, with the spans of its argument values.
//!
//! Spans are recorded while the text is written instead of searched for, because a value may also
//! occur in the API name, in a thought before the call, or twice in the arguments.

use std::ops::Range;

use serde::Serialize;
use serde_json::{Map, Value};
use tooltune_json as json;
use tooltune_json::Style;

/// A call as a model writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallText<'a> {
    /// `{"name": ..., "arguments": {...}}` as written by Python's `json.dumps(ensure_ascii=False)`.
    pub text: String,
    /// The scalar values inside `arguments`, in text order.
    pub value_spans: Vec<ValueSpan<'a>>,
}

/// A scalar value at any depth of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueSpan<'a> {
    /// Name of the argument.
    pub argument: &'a str,
    /// Byte range: the content between the quotes of a string, or a whole number, boolean or null.
    /// Empty strings have no span.
    pub range: Range<usize>,
}

/// Renders a call.
pub fn render_call<'a>(name: &str, arguments: &'a Map<String, Value>) -> CallText<'a> {
    let mut text = format!("{{\"name\": {}, \"arguments\": {{", python_string(name));
    let mut value_spans = Vec::new();
    for (argument_idx, (argument, value)) in arguments.iter().enumerate() {
        if argument_idx > 0 {
            text.push_str(", ");
        }
        text.push_str(&python_string(argument));
        text.push_str(": ");
        let (value, scalars) = json::dumps_with_scalars(value, Style::Python);
        value_spans.extend(scalars.into_iter().map(|scalar| ValueSpan {
            argument,
            range: text.len() + scalar.start..text.len() + scalar.end,
        }));
        text.push_str(&value);
    }
    text.push_str("}}");
    CallText { text, value_spans }
}

fn python_string(text: &str) -> String {
    json::dumps(&Value::from(text), Style::Python)
}

/// A completion that ends with a call, and its masked parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MaskSpans {
    /// The whole completion.
    pub text: String,
    /// The masked substrings, in order.
    pub masked_substrings: Vec<String>,
    /// Their positions in Unicode characters, start and end (exclusive).
    pub char_spans: Vec<(usize, usize)>,
    /// Their positions in bytes of UTF-8.
    pub byte_spans: Vec<(usize, usize)>,
}

/// The masked parts of `prefix` followed by a call, when all argument values are masked.
///
/// # Source
///
/// GOAT, appendix H: the loss of argument values is set to zero. Quotes, names and punctuation keep
/// their loss, because the model must learn the format.
pub fn mask_spans(name: &str, arguments: &Map<String, Value>, prefix: &str) -> MaskSpans {
    let call = render_call(name, arguments);
    let text = format!("{prefix}{}", call.text);
    let byte_spans: Vec<(usize, usize)> = call
        .value_spans
        .iter()
        .map(|span| {
            (
                prefix.len() + span.range.start,
                prefix.len() + span.range.end,
            )
        })
        .collect();
    // Spans are in order, so each part of the text is counted once.
    let (mut counted_chars, mut n_characters) = (0, 0);
    let mut characters_before = |byte: usize| {
        n_characters += text[counted_chars..byte].chars().count();
        counted_chars = byte;
        n_characters
    };
    let char_spans = byte_spans
        .iter()
        .map(|&(start, end)| (characters_before(start), characters_before(end)))
        .collect();
    MaskSpans {
        masked_substrings: byte_spans
            .iter()
            .map(|&(start, end)| text[start..end].to_owned())
            .collect(),
        char_spans,
        byte_spans,
        text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(fields) => fields,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_call_is_rendered_like_python_with_a_span_per_scalar() {
        let arguments = object(json!({
            "q\"": "a\"é", "n": 545.0, "l": ["x", 2, {"k": null}], "e": "", "o": {}, "b": true,
        }));
        let call = render_call("T/A", &arguments);
        let call_value = json!({"name": "T/A", "arguments": arguments});
        assert_eq!(call.text, json::dumps(&call_value, Style::Python));
        let scalar_spans: Vec<(&str, &str)> = call
            .value_spans
            .iter()
            .map(|span| (span.argument, &call.text[span.range.clone()]))
            .collect();
        assert_eq!(
            scalar_spans,
            [
                ("q\"", "a\\\"é"),
                ("n", "545.0"),
                ("l", "x"),
                ("l", "2"),
                ("l", "null"),
                ("b", "true"),
            ]
        );
        assert_eq!(
            render_call("A", &Map::new()).text,
            "{\"name\": \"A\", \"arguments\": {}}"
        );
    }

    #[test]
    fn spans_are_offset_by_the_prefix_in_characters_and_bytes() {
        let arguments = object(json!({"q": "x", "l": [], "m": ["é", 3]}));
        let prefix = "Thought: \"arguments\": é\nAction: ";
        let spans = mask_spans("T/A", &arguments, prefix);
        assert_eq!(
            spans.text,
            format!(
                "{prefix}{{\"name\": \"T/A\", \"arguments\": {{\"q\": \"x\", \"l\": [], \"m\": [\"é\", 3]}}}}"
            )
        );
        assert_eq!(spans.masked_substrings, ["x", "é", "3"]);
        assert_eq!(spans.char_spans, [(68, 69), (88, 89), (92, 93)]);
        assert_eq!(spans.byte_spans, [(69, 70), (89, 91), (94, 95)]);
    }
}
