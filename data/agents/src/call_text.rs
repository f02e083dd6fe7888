//! A call as text, with the places of its argument values.
//!
//! The places are written down while the text is made. They are never searched for: a value may
//! stand in the API's name, in a thought before the call, or twice in the arguments.

use std::ops::Range;

use serde::Serialize;
use serde_json::{Map, Value};
use tooltune_rows::json::{self, Style};

/// A call as a model writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallText<'a> {
    /// `{"name": ..., "arguments": {...}}` as Python's `json.dumps(ensure_ascii=False)` writes it.
    pub text: String,
    /// The scalar values inside `arguments`, in the order of the text.
    pub value_spans: Vec<ValueSpan<'a>>,
}

/// A scalar value at any depth of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueSpan<'a> {
    /// The argument that the value belongs to.
    pub argument: &'a str,
    /// Its bytes: between the quotes of a text, the whole of a number, boolean or null. An empty
    /// text has no span.
    pub range: Range<usize>,
}

/// Writes a call.
pub fn render_call<'a>(name: &str, arguments: &'a Map<String, Value>) -> CallText<'a> {
    let mut text = format!("{{\"name\": {}, \"arguments\": {{", python(name));
    let mut value_spans = Vec::new();
    for (argument_idx, (argument, value)) in arguments.iter().enumerate() {
        if argument_idx > 0 {
            text.push_str(", ");
        }
        text.push_str(&python(argument));
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

fn python(text: &str) -> String {
    json::dumps(&Value::from(text), Style::Python)
}

/// A completion that ends with a call, and what of it is masked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MaskSpans {
    /// The whole completion.
    pub text: String,
    /// The masked pieces of the text, in order.
    pub masked_substrings: Vec<String>,
    /// Where they stand in Unicode characters, first and one past the last.
    pub char_spans: Vec<(usize, usize)>,
    /// Where they stand in bytes of UTF-8.
    pub byte_spans: Vec<(usize, usize)>,
}

/// Says what is masked of `prefix` followed by a call, when all argument values are.
///
/// # Source
///
/// GOAT, appendix H: the loss of argument values is set to zero. Quotes, names and punctuation
/// keep theirs, since they are the format that is to be learned.
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
    // Spans follow each other, so that each part of the text is counted once.
    let (mut counted, mut n_characters) = (0, 0);
    let mut characters_before = |byte: usize| {
        n_characters += text[counted..byte].chars().count();
        counted = byte;
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
    fn a_call_is_written_as_python_writes_it_with_every_scalar_located() {
        let arguments = object(json!({
            "q\"": "a\"é", "n": 545.0, "l": ["x", 2, {"k": null}], "e": "", "o": {}, "b": true,
        }));
        let call = render_call("T/A", &arguments);
        let whole = json!({"name": "T/A", "arguments": arguments});
        assert_eq!(call.text, json::dumps(&whole, Style::Python));
        let shown: Vec<(&str, &str)> = call
            .value_spans
            .iter()
            .map(|span| (span.argument, &call.text[span.range.clone()]))
            .collect();
        assert_eq!(
            shown,
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
    fn spans_count_characters_and_bytes_behind_the_prefix() {
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
