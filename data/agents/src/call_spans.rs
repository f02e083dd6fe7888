//! A list of calls as text, with the places of names, labels, argument keys and values.
//!
//! This is the form of plans whose calls refer to one another by label (`$var_1.result$`). The
//! places are written down while the text is made, and a value that refers to an earlier call is
//! told from one that the model must copy or find, because the two are learned differently.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_rows::budgets::CALL_PLACE_BYTES;
use tooltune_rows::json::{self, Part, PathStep, Style};

/// Bytes of a step of a way beside its key.
const STEP_BYTES: usize = 32;

/// What a piece of the text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallPart {
    /// The name of a call.
    Name,
    /// The label by which later calls refer to its result.
    Label,
    /// The name of an argument, or a key within one.
    Key,
    /// A scalar of an argument, or an empty container.
    Value,
    /// A scalar that refers to the result of an earlier call.
    Reference,
}

/// A piece of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSpan {
    /// What it is.
    pub kind: CallPart,
    /// The position of the call, then the keys and positions within its arguments.
    pub path: Vec<PathStep>,
    /// Its bytes; for a text what stands between the quotes, which may be nothing.
    pub bytes: Range<usize>,
    /// Its Unicode code points.
    pub chars: Range<usize>,
}

/// A list of calls as a model writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallsText {
    /// The list as Python's `json.dumps(ensure_ascii=False)` writes it, keys in their own order.
    pub text: String,
    /// The spans of its calls in the order of the text.
    pub spans: Vec<CallSpan>,
}

/// Calls whose parts have ways that are too long, all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the ways to the parts of the calls take more than {CALL_PLACE_BYTES} bytes (CALL_PLACE_BYTES in \
     docs/limits.md); shorten the keys that stand above many values, or split the calls"
)]
pub struct LongPlaces;

/// Writes calls, objects with `name`, `arguments` and perhaps a `label`.
///
/// Other fields are written and have no spans.
///
/// # Errors
///
/// - the ways to the parts of the calls take more than [`CALL_PLACE_BYTES`]
pub fn render_calls(calls: &[Value]) -> Result<CallsText, LongPlaces> {
    let list = Value::from(calls);
    let mut n_left = CALL_PLACE_BYTES;
    must_have_short_places(&list, 0, &mut n_left)?;
    let (text, places) = json::dumps_with_places(&list, Style::Python);
    let mut chars = CharCount::default();
    let mut spans = Vec::new();
    for place in places {
        let Some((kind, path)) = call_part(&list, place.part, &place.path) else {
            continue;
        };
        let start = chars.up_to(&text, place.range.start);
        let end = chars.up_to(&text, place.range.end);
        spans.push(CallSpan {
            kind,
            path,
            bytes: place.range,
            chars: start..end,
        });
    }
    Ok(CallsText { text, spans })
}

/// Counts the ways to all keys and values of a value that `n_bytes` lead to.
fn must_have_short_places(
    value: &Value,
    n_bytes: usize,
    n_left: &mut usize,
) -> Result<(), LongPlaces> {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, field) in fields {
                let below = n_bytes + STEP_BYTES + key.len();
                take(below, n_left)?;
                must_have_short_places(field, below, n_left)?;
            }
            Ok(())
        }
        Value::Array(items) if !items.is_empty() => items
            .iter()
            .try_for_each(|item| must_have_short_places(item, n_bytes + STEP_BYTES, n_left)),
        _ => take(n_bytes, n_left),
    }
}

fn take(n_bytes: usize, n_left: &mut usize) -> Result<(), LongPlaces> {
    *n_left = n_left.checked_sub(n_bytes).ok_or(LongPlaces)?;
    Ok(())
}

/// For each token, as a range of code points, whether it shares a character with a span of one of
/// the kinds. An empty span shares none.
pub fn tokens_within(spans: &[CallSpan], tokens: &[Range<usize>], kinds: &[CallPart]) -> Vec<bool> {
    let wanted = |span: &&CallSpan| kinds.contains(&span.kind) && !span.chars.is_empty();
    let mut spans: Vec<&CallSpan> = spans.iter().filter(wanted).collect();
    spans.sort_unstable_by_key(|span| span.chars.start);
    // Spans do not overlap: of those that end behind the token's start, the first begins first.
    let is_within = |token: &Range<usize>| {
        let first = spans.partition_point(|span| span.chars.end <= token.start);
        let meets = |span: &&CallSpan| token.start.max(span.chars.start) < token.end;
        spans.get(first).is_some_and(meets)
    };
    tokens.iter().map(is_within).collect()
}

/// Whether an argument refers to the result of an earlier call: `$var_1.result$`,
/// `$var1.output_0$`, with or without the last `$`.
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
    let (call, rest) = path.split_first()?;
    let (PathStep::Key(field), within) = rest.split_first()? else {
        return None;
    };
    let of_call = |kind| Some((kind, vec![call.clone()]));
    match (field.as_str(), within, part) {
        ("name", [], Part::Value) => of_call(CallPart::Name),
        ("label", [], Part::Value) => of_call(CallPart::Label),
        ("arguments", [_, ..], part) => {
            let refers = || value_at(calls, path)?.as_str().map(is_call_reference);
            let kind = match part {
                Part::Key => CallPart::Key,
                Part::Value if refers() == Some(true) => CallPart::Reference,
                Part::Value => CallPart::Value,
            };
            let steps = std::iter::once(call).chain(within);
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

/// Code points before a byte, counted once for bytes that only grow.
#[derive(Default)]
struct CharCount {
    byte: usize,
    chars: usize,
}

impl CharCount {
    fn up_to(&mut self, text: &str, byte: usize) -> usize {
        self.chars += text.get(self.byte..byte).unwrap_or("").chars().count();
        self.byte = byte;
        self.chars
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(calls: &CallsText) -> Vec<(CallPart, String, String)> {
        let of_chars = |range: &Range<usize>| -> String {
            let chars = calls.text.chars();
            chars.skip(range.start).take(range.len()).collect()
        };
        let show = |span: &CallSpan| {
            let piece = &calls.text[span.bytes.clone()];
            assert_eq!(piece, of_chars(&span.chars));
            let path = serde_json::to_string(&span.path).expect("a path is JSON");
            (span.kind, path, piece.to_owned())
        };
        calls.spans.iter().map(show).collect()
    }

    #[test]
    fn every_part_of_a_call_is_named_and_located() {
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
            expected.map(|(kind, path, piece)| (kind, path.to_owned(), piece.to_owned()));
        assert_eq!(shown(&rendered), expected);
    }

    #[test]
    fn a_token_counts_if_it_shares_a_character_with_a_span() {
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
        let within = tokens_within(&rendered.spans, &tokens, &[CallPart::Value]);
        assert_eq!(within, [false, true, true, false, false]);
        assert_eq!(tokens_within(&rendered.spans, &tokens, &[]), [false; 5]);
    }

    #[test]
    fn a_reference_has_a_label_and_names_an_output() {
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
    fn calls_of_another_shape_are_written_without_spans() {
        let rendered = render_calls(&[json!("f(1)"), json!({"name": {"n": 1}, "arguments": {}})])
            .expect("short");
        assert_eq!(
            rendered.text,
            "[\"f(1)\", {\"name\": {\"n\": 1}, \"arguments\": {}}]"
        );
        assert_eq!(rendered.spans, []);
    }
}
