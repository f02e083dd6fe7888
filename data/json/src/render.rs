//! Renders a `Value` as Python's `json.dumps` does, and keeps the key order.
//!
//! `serde_json`'s writer does not fit: its separators have no spaces, it never escapes non-ASCII
//! text, and it formats floats differently.

use std::ops::Range;

use serde::Serialize;
use serde_json::{Number, Value};

use super::float::python_float_repr;

/// One step of a path into a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(untagged)]
pub enum PathStep {
    /// A field of an object.
    Key(String),
    /// An item of an array, from 0.
    Index(usize),
}

/// The kind of a located piece of rendered text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The name of a field, without its quotes.
    Key,
    /// A scalar: a string without its quotes, or a whole literal. Also the two brackets of an empty
    /// array or object.
    Value,
}

/// A key or a leaf value, with its location in the rendered text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedSpan {
    /// Path into the value; a key has the path of its field.
    pub path: Vec<PathStep>,
    /// Whether it is a key or a value.
    pub part: Part,
    /// Byte range; empty for an empty string or key.
    pub range: Range<usize>,
}

/// Layout and escaping of [`dumps`]. Each variant names the equivalent Python call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// `json.dumps(v, ensure_ascii=False)`: separators `", "` and `": "`, non-ASCII unescaped.
    Python,
    /// `json.dumps(v)`: like [`Style::Python`], with `\uXXXX` for non-ASCII characters.
    PythonAscii,
    /// `json.dumps(v, ensure_ascii=False, separators=(",", ":"))`.
    Compact,
    /// `json.dumps(v, separators=(",", ":"))`.
    CompactAscii,
    /// `json.dumps(v, ensure_ascii=False, indent=n)`, with this many spaces per level.
    Indented(usize),
    /// `json.dumps(v, indent=n)`: like [`Style::Indented`], with `\uXXXX` for non-ASCII characters.
    IndentedAscii(usize),
}

impl Style {
    fn separators(self) -> (&'static str, &'static str) {
        match self {
            Self::Python | Self::PythonAscii => (", ", ": "),
            Self::Compact | Self::CompactAscii => (",", ":"),
            Self::Indented(_) | Self::IndentedAscii(_) => (",", ": "),
        }
    }

    fn is_ascii(self) -> bool {
        matches!(
            self,
            Self::PythonAscii | Self::CompactAscii | Self::IndentedAscii(_)
        )
    }
}

/// Renders a value as Python's `json.dumps` does, byte for byte.
///
/// A float keeps its fraction (`1887.0`), integers have none, and keys keep their order.
///
/// # Source
///
/// CPython `json/encoder.py`: the escape tables and the separators of `indent`.
pub fn dumps(value: &Value, style: Style) -> String {
    dumps_with_scalars(value, style).0
}

/// Like [`dumps`], and also returns the byte range of every scalar value in text order: strings
/// without their quotes, numbers, booleans and nulls as a whole.
///
/// Empty strings have no range.
pub fn dumps_with_scalars(value: &Value, style: Style) -> (String, Vec<Range<usize>>) {
    let mut writer = Writer::new(style);
    writer.value(value, 0);
    (writer.text, writer.scalars)
}

/// Like [`dumps`], and also returns every key and every leaf value in text order.
///
/// Unlike [`dumps_with_scalars`], it returns the path of each key and value, and includes keys,
/// empty strings and empty containers.
pub fn dumps_with_places(value: &Value, style: Style) -> (String, Vec<RenderedSpan>) {
    let mut writer = Writer {
        tracer: Some(Tracer::default()),
        ..Writer::new(style)
    };
    writer.value(value, 0);
    let spans = writer.tracer.map(|tracer| tracer.spans);
    (writer.text, spans.unwrap_or_default())
}

struct Writer {
    style: Style,
    text: String,
    scalars: Vec<Range<usize>>,
    tracer: Option<Tracer>,
}

#[derive(Default)]
struct Tracer {
    path: Vec<PathStep>,
    spans: Vec<RenderedSpan>,
}

impl Writer {
    fn new(style: Style) -> Self {
        Self {
            style,
            text: String::new(),
            scalars: Vec::new(),
            tracer: None,
        }
    }

    fn push_step(&mut self, step: impl FnOnce() -> PathStep) {
        if let Some(tracer) = &mut self.tracer {
            tracer.path.push(step());
        }
    }

    fn pop_step(&mut self) {
        if let Some(tracer) = &mut self.tracer {
            tracer.path.pop();
        }
    }

    fn push_span(&mut self, part: Part, range: Range<usize>) {
        if let Some(tracer) = &mut self.tracer {
            tracer.spans.push(RenderedSpan {
                path: tracer.path.clone(),
                part,
                range,
            });
        }
    }

    fn value(&mut self, value: &Value, level: usize) {
        let start = self.text.len();
        self.any_value(value, level);
        let end = self.text.len();
        match value {
            Value::Array(items) if !items.is_empty() => {}
            Value::Object(fields) if !fields.is_empty() => {}
            Value::String(_) => self.push_span(Part::Value, start + 1..end - 1),
            _ => self.push_span(Part::Value, start..end),
        }
        match value {
            Value::Array(_) | Value::Object(_) => {}
            Value::String(text) if text.is_empty() => {}
            Value::String(_) => self.scalars.push(start + 1..end - 1),
            Value::Null | Value::Bool(_) | Value::Number(_) => self.scalars.push(start..end),
        }
    }

    fn any_value(&mut self, value: &Value, level: usize) {
        match value {
            Value::Null => self.text.push_str("null"),
            Value::Bool(true) => self.text.push_str("true"),
            Value::Bool(false) => self.text.push_str("false"),
            Value::Number(number) => self.number(number),
            Value::String(text) => self.string(text),
            Value::Array(items) if items.is_empty() => self.text.push_str("[]"),
            Value::Object(fields) if fields.is_empty() => self.text.push_str("{}"),
            Value::Array(items) => {
                self.text.push('[');
                for (item_idx, item) in items.iter().enumerate() {
                    self.write_separator(item_idx, level + 1);
                    self.push_step(|| PathStep::Index(item_idx));
                    self.value(item, level + 1);
                    self.pop_step();
                }
                self.close(']', level);
            }
            Value::Object(fields) => {
                self.text.push('{');
                for (field_idx, (key, field)) in fields.iter().enumerate() {
                    self.write_separator(field_idx, level + 1);
                    self.push_step(|| PathStep::Key(key.clone()));
                    let start = self.text.len();
                    self.string(key);
                    self.push_span(Part::Key, start + 1..self.text.len() - 1);
                    self.text.push_str(self.style.separators().1);
                    self.value(field, level + 1);
                    self.pop_step();
                }
                self.close('}', level);
            }
        }
    }

    fn write_separator(&mut self, item_idx: usize, level: usize) {
        if item_idx > 0 {
            self.text.push_str(self.style.separators().0);
        }
        self.line_break(level);
    }

    fn close(&mut self, bracket: char, level: usize) {
        self.line_break(level);
        self.text.push(bracket);
    }

    fn line_break(&mut self, level: usize) {
        if let Style::Indented(width) | Style::IndentedAscii(width) = self.style {
            self.text.push('\n');
            self.text.extend(std::iter::repeat_n(' ', width * level));
        }
    }

    fn number(&mut self, number: &Number) {
        match number.as_f64() {
            Some(float) if number.is_f64() => self.text.push_str(&python_float_repr(float)),
            _ => self.text.push_str(&number.to_string()),
        }
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for character in text.chars() {
            self.character(character);
        }
        self.text.push('"');
    }

    fn character(&mut self, character: char) {
        match character {
            '"' => self.text.push_str("\\\""),
            '\\' => self.text.push_str("\\\\"),
            '\n' => self.text.push_str("\\n"),
            '\r' => self.text.push_str("\\r"),
            '\t' => self.text.push_str("\\t"),
            '\u{8}' => self.text.push_str("\\b"),
            '\u{c}' => self.text.push_str("\\f"),
            '\0'..='\u{1f}' => self.escape(character),
            ' '..='~' => self.text.push(character),
            _ if self.style.is_ascii() => self.escape(character),
            _ => self.text.push(character),
        }
    }

    fn escape(&mut self, character: char) {
        for unit in character.encode_utf16(&mut [0; 2]) {
            self.text.push_str(&format!("\\u{unit:04x}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::any_json::any_json;
    use crate::parse;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn each_style_matches_its_python_call() {
        let value = json!({"b": [1, 2.0, {}], "a": {"é😀": "\u{7f}\"\\\n\u{1}"}, "c": []});
        let rows = [
            (
                Style::Python,
                "{\"b\": [1, 2.0, {}], \"a\": {\"é😀\": \"\u{7f}\\\"\\\\\\n\\u0001\"}, \"c\": []}",
            ),
            (
                Style::PythonAscii,
                "{\"b\": [1, 2.0, {}], \"a\": {\"\\u00e9\\ud83d\\ude00\": \
                 \"\\u007f\\\"\\\\\\n\\u0001\"}, \"c\": []}",
            ),
            (
                Style::Compact,
                "{\"b\":[1,2.0,{}],\"a\":{\"é😀\":\"\u{7f}\\\"\\\\\\n\\u0001\"},\"c\":[]}",
            ),
            (
                Style::CompactAscii,
                "{\"b\":[1,2.0,{}],\"a\":{\"\\u00e9\\ud83d\\ude00\":\
                 \"\\u007f\\\"\\\\\\n\\u0001\"},\"c\":[]}",
            ),
        ];
        for (style, expected) in rows {
            assert_eq!(dumps(&value, style), expected);
        }
    }

    #[test]
    fn indentation_matches_python() {
        let value = json!({"a": [1, {"b": null}], "c": {}});
        let expected =
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": null\n    }\n  ],\n  \"c\": {}\n}";
        assert_eq!(dumps(&value, Style::Indented(2)), expected);
        assert_eq!(dumps(&value, Style::IndentedAscii(2)), expected);
        let text = dumps(&json!(["é"]), Style::IndentedAscii(1));
        assert_eq!(text, "[\n \"\\u00e9\"\n]");
    }

    #[test]
    fn integers_have_no_fraction_and_floats_keep_theirs() {
        let value = parse("[1887, 1887.0, 1e22, -7, 18446744073709551615]").expect("valid JSON");
        assert_eq!(
            dumps(&value, Style::Python),
            "[1887, 1887.0, 1e+22, -7, 18446744073709551615]"
        );
    }

    #[test]
    fn scalars_are_located_inside_their_quotes_and_keys_are_not() {
        let value = json!({"k": "a\"é", "l": [1, {"m": null}, ""], "o": {}, "t": true});
        let (text, scalars) = dumps_with_scalars(&value, Style::Python);
        assert_eq!(text, dumps(&value, Style::Python));
        let pieces: Vec<&str> = scalars.into_iter().map(|range| &text[range]).collect();
        assert_eq!(pieces, ["a\\\"é", "1", "null", "true"]);
    }

    #[test]
    fn keys_empty_texts_and_empty_containers_are_located_with_their_paths() {
        let value = json!({"k\"": "", "l": [[], {"m": 1.5}], "o": {}});
        let (text, spans) = dumps_with_places(&value, Style::Python);
        assert_eq!(text, dumps(&value, Style::Python));
        let rendered: Vec<(String, Part, &str)> = spans
            .into_iter()
            .map(|span| {
                let path = serde_json::to_string(&span.path).expect("a path is JSON");
                (path, span.part, &text[span.range])
            })
            .collect();
        let expected = [
            (r#"["k\""]"#, Part::Key, "k\\\""),
            (r#"["k\""]"#, Part::Value, ""),
            (r#"["l"]"#, Part::Key, "l"),
            (r#"["l",0]"#, Part::Value, "[]"),
            (r#"["l",1,"m"]"#, Part::Key, "m"),
            (r#"["l",1,"m"]"#, Part::Value, "1.5"),
            (r#"["o"]"#, Part::Key, "o"),
            (r#"["o"]"#, Part::Value, "{}"),
        ];
        assert_eq!(
            rendered,
            expected.map(|(path, part, piece)| (path.to_owned(), part, piece))
        );
    }

    /// Returns the scalars of a value in order, without empty strings.
    fn collect_scalars(value: &Value) -> Vec<Value> {
        match value {
            Value::Array(items) => items.iter().flat_map(collect_scalars).collect(),
            Value::Object(fields) => fields.values().flat_map(collect_scalars).collect(),
            Value::String(text) if text.is_empty() => Vec::new(),
            scalar => vec![scalar.clone()],
        }
    }

    proptest! {
        #[test]
        fn every_scalar_is_located_in_order(value in any_json()) {
            for style in [Style::Python, Style::CompactAscii, Style::Indented(2)] {
                let (text, ranges) = dumps_with_scalars(&value, style);
                let located: Vec<Value> = ranges
                    .into_iter()
                    .map(|range| if text[..range.start].ends_with('"') { parse(&text[range.start - 1..=range.end]) } else { parse(&text[range]) })
                    .collect::<Result<_, _>>()
                    .unwrap();
                prop_assert_eq!(located, collect_scalars(&value));
            }
        }

        #[test]
        fn every_style_reads_back_to_the_same_value(value in any_json()) {
            let styles = [
                Style::Python, Style::PythonAscii, Style::Compact, Style::CompactAscii,
                Style::Indented(3), Style::IndentedAscii(4),
            ];
            for style in styles {
                prop_assert_eq!(parse(&dumps(&value, style)), Ok(value.clone()));
            }
        }
    }
}
