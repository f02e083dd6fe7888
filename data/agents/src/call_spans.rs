//! Renders a list of calls as text, with the spans of names, labels, argument keys and values.
//!
//! This is the format of plans whose calls refer to each other by label (`$var_1.result$`). Spans
//! are recorded while the text is written. References to earlier calls are distinguished from other
//! values, because the two can have different loss weights.

use std::ops::Range;

use crate::budgets::CALL_PLACE_BYTES;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_json as json;
use tooltune_json::{Part, PathStep, Style};

/// Size of a path step without its key, in bytes.
const STEP_BYTES: usize = 32;

/// The kind of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallPart {
    /// Name of a call.
    Name,
    /// Label by which later calls refer to the result.
    Label,
    /// Name of an argument, or a key inside one.
    Key,
    /// A scalar in an argument, or an empty container.
    Value,
    /// A scalar that refers to the result of an earlier call.
    Reference,
}

/// A span of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSpan {
    /// The kind.
    pub kind: CallPart,
    /// Index of the call, followed by the keys and indices inside its arguments.
    pub path: Vec<PathStep>,
    /// Byte range; for a string, the content between the quotes, which may be empty.
    pub bytes: Range<usize>,
    /// Range in Unicode code points.
    pub chars: Range<usize>,
}

/// A list of calls as a model writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallsText {
    /// The list as written by Python's `json.dumps(ensure_ascii=False)`, with keys in their
    /// original order.
    pub text: String,
    /// The spans, in text order.
    pub spans: Vec<CallSpan>,
}

/// The paths to the parts of the calls are too long in total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the paths to the parts of the calls take more than {CALL_PLACE_BYTES} bytes (CALL_PLACE_BYTES in \
     docs/limits.md); shorten the keys that contain many values, or split the calls"
)]
pub struct PathsTooLong;

/// Renders calls, which are objects with `name`, `arguments` and an optional `label`.
///
/// Other fields are written without a span.
///
/// # Errors
///
/// The paths to the parts of the calls take more than [`CALL_PLACE_BYTES`].
pub fn render_calls(calls: &[Value]) -> Result<CallsText, PathsTooLong> {
    let list = Value::from(calls);
    let mut n_remaining = CALL_PLACE_BYTES;
    check_path_length(&list, 0, &mut n_remaining)?;
    let (text, places) = json::dumps_with_places(&list, Style::Python);
    let mut chars = CharCounter::default();
    let mut spans = Vec::new();
    for place in places {
        let Some((kind, path)) = call_part(&list, place.part, &place.path) else {
            continue;
        };
        let start = chars.count_up_to(&text, place.range.start);
        let end = chars.count_up_to(&text, place.range.end);
        spans.push(CallSpan {
            kind,
            path,
            bytes: place.range,
            chars: start..end,
        });
    }
    Ok(CallsText { text, spans })
}

/// Subtracts the lengths of the paths in a value from `n_remaining`; the value's own path has `n_bytes`.
fn check_path_length(
    value: &Value,
    n_bytes: usize,
    n_remaining: &mut usize,
) -> Result<(), PathsTooLong> {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, field) in fields {
                let n_bytes_below = n_bytes + STEP_BYTES + key.len();
                subtract(n_bytes_below, n_remaining)?;
                check_path_length(field, n_bytes_below, n_remaining)?;
            }
            Ok(())
        }
        Value::Array(items) if !items.is_empty() => items
            .iter()
            .try_for_each(|item| check_path_length(item, n_bytes + STEP_BYTES, n_remaining)),
        _ => subtract(n_bytes, n_remaining),
    }
}

fn subtract(n_bytes: usize, n_remaining: &mut usize) -> Result<(), PathsTooLong> {
    *n_remaining = n_remaining.checked_sub(n_bytes).ok_or(PathsTooLong)?;
    Ok(())
}

/// For each token, given as a range of code points, whether it overlaps a non-empty span of one of
/// the kinds.
pub fn tokens_within(spans: &[CallSpan], tokens: &[Range<usize>], kinds: &[CallPart]) -> Vec<bool> {
    let has_kind = |span: &&CallSpan| kinds.contains(&span.kind) && !span.chars.is_empty();
    let mut spans: Vec<&CallSpan> = spans.iter().filter(has_kind).collect();
    spans.sort_unstable_by_key(|span| span.chars.start);
    // Spans do not overlap, so the first span that ends after the token's start is also the first
    // one to start.
    let overlaps_span = |token: &Range<usize>| {
        let first_span = spans.partition_point(|span| span.chars.end <= token.start);
        let overlaps = |span: &&CallSpan| token.start.max(span.chars.start) < token.end;
        spans.get(first_span).is_some_and(overlaps)
    };
    tokens.iter().map(overlaps_span).collect()
}

/// Whether an argument refers to the result of an earlier call: `$var_1.result$`,
/// `$var1.output_0$`, with or without the closing `$`.
pub fn is_call_reference(text: &str) -> bool {
    let Some(label) = text.strip_prefix("$var") else {
        return false;
    };
    let label = label.strip_prefix('_').unwrap_or(label);
    let after_number = label.trim_start_matches(|c: char| c.is_ascii_digit());
    let output = after_number.strip_suffix('$').unwrap_or(after_number);
    let names_output = output
        .strip_prefix('.')
        .is_some_and(|output| !output.is_empty() && !output.contains(['$', ' ']));
    after_number.len() < label.len() && names_output
}

fn call_part(calls: &Value, part: Part, path: &[PathStep]) -> Option<(CallPart, Vec<PathStep>)> {
    let (call, later_steps) = path.split_first()?;
    let (PathStep::Key(field), inner_path) = later_steps.split_first()? else {
        return None;
    };
    let part_of_call = |kind| Some((kind, vec![call.clone()]));
    match (field.as_str(), inner_path, part) {
        ("name", [], Part::Value) => part_of_call(CallPart::Name),
        ("label", [], Part::Value) => part_of_call(CallPart::Label),
        ("arguments", [_, ..], part) => {
            let refers = || value_at(calls, path)?.as_str().map(is_call_reference);
            let kind = match part {
                Part::Key => CallPart::Key,
                Part::Value if refers() == Some(true) => CallPart::Reference,
                Part::Value => CallPart::Value,
            };
            let steps = std::iter::once(call).chain(inner_path);
            Some((kind, steps.cloned().collect()))
        }
        _ => None,
    }
}

fn value_at<'v>(value: &'v Value, path: &[PathStep]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, step| match step {
        PathStep::Key(key) => value.get(key),
        PathStep::Index(index) => value.get(index),
    })
}

/// Counts the code points before a byte; byte offsets must increase.
#[derive(Default)]
struct CharCounter {
    byte: usize,
    chars: usize,
}

impl CharCounter {
    fn count_up_to(&mut self, text: &str, byte: usize) -> usize {
        self.chars += text.get(self.byte..byte).unwrap_or("").chars().count();
        self.byte = byte;
        self.chars
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call_parts(calls: &CallsText) -> Vec<(CallPart, String, String)> {
        let text_at = |range: &Range<usize>| -> String {
            let chars = calls.text.chars();
            chars.skip(range.start).take(range.len()).collect()
        };
        let show = |span: &CallSpan| {
            let source = &calls.text[span.bytes.clone()];
            assert_eq!(source, text_at(&span.chars));
            let path = serde_json::to_string(&span.path).expect("a path is JSON");
            (span.kind, path, source.to_owned())
        };
        calls.spans.iter().map(show).collect()
    }

    #[test]
    fn every_part_of_a_call_has_a_path_and_a_span() {
        let calls = [
            json!({"name": "ärea", "arguments": {"é": {"w": 2.0, "e": ""}}, "label": "$var1"}),
            json!({"name": "g", "arguments": {"x": ["$var1.output_0$", null, []]}, "note": "n"}),
        ];
        let rendered = render_calls(&calls).expect("short");
        assert_eq!(rendered.text, json::dumps(&json!(calls), Style::Python));
        let expected = [
            (CallPart::Name, "[0]", "ärea"),
            (CallPart::Key, r#"[0,"é"]"#, "é"),
            (CallPart::Key, r#"[0,"é","w"]"#, "w"),
            (CallPart::Value, r#"[0,"é","w"]"#, "2.0"),
            (CallPart::Key, r#"[0,"é","e"]"#, "e"),
            (CallPart::Value, r#"[0,"é","e"]"#, ""),
            (CallPart::Label, "[0]", "$var1"),
            (CallPart::Name, "[1]", "g"),
            (CallPart::Key, r#"[1,"x"]"#, "x"),
            (CallPart::Reference, r#"[1,"x",0]"#, "$var1.output_0$"),
            (CallPart::Value, r#"[1,"x",1]"#, "null"),
            (CallPart::Value, r#"[1,"x",2]"#, "[]"),
        ];
        let expected =
            expected.map(|(kind, path, source)| (kind, path.to_owned(), source.to_owned()));
        assert_eq!(call_parts(&rendered), expected);
    }

    #[test]
    fn a_token_is_in_a_span_if_they_share_a_character() {
        let rendered =
            render_calls(&[json!({"name": "f", "arguments": {"a": "", "b": 12}})]).expect("short");
        let value = rendered.text.find("12").expect("written");
        let tokens = [
            0..value,
            value - 1..value + 1,
            value + 1..value + 2,
            value + 2..value + 4,
            value..value,
        ];
        let is_in_span = tokens_within(&rendered.spans, &tokens, &[CallPart::Value]);
        assert_eq!(is_in_span, [false, true, true, false, false]);
        assert_eq!(tokens_within(&rendered.spans, &tokens, &[]), [false; 5]);
    }

    #[test]
    fn a_call_reference_has_a_label_and_an_output_name() {
        for text in [
            "$var_1.result$",
            "$var12.output_0$",
            "$var1.a.b[0].c",
            "$var_3.x$",
        ] {
            assert!(is_call_reference(text), "{text}");
        }
        for text in [
            "",
            "$",
            "$var",
            "$var_1",
            "$var1$",
            "$var.x$",
            "var1.x",
            "$variable.x$",
            "$var1.$",
            "$var1. x$",
            "$var_1.a$ and $var_2.b$",
        ] {
            assert!(!is_call_reference(text), "{text}");
        }
    }

    #[test]
    fn calls_with_other_fields_are_rendered_without_spans() {
        let rendered = render_calls(&[json!("f(1)"), json!({"name": {"n": 1}, "arguments": {}})])
            .expect("short");
        assert_eq!(
            rendered.text,
            "[\"f(1)\", {\"name\": {\"n\": 1}, \"arguments\": {}}]"
        );
        assert_eq!(rendered.spans, []);
    }
}
