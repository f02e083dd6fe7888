//! A `Value` to the text that Python's `json.dumps` writes, keys in their own order.
//!
//! `serde_json`'s writer cannot serve: its separators have no blanks, it never escapes
//! non-ASCII text, and it lays floats out differently.

use std::ops::Range;

use serde::Serialize;
use serde_json::{Number, Value};

use super::float::python_float_repr;

/// One step from a value to a part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(untagged)]
pub enum PathStep {
    /// Into the field of an object.
    Key(String),
    /// Into the item of an array, from 0.
    Index(usize),
}

/// What stands at a place of a rendered text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The name of a field, between its quotes.
    Key,
    /// A scalar: what stands between the quotes of a text, the whole of any other; or the two
    /// brackets of an empty array or object.
    Value,
}

/// A key or a value without parts of its own, where it stands in the rendered text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedSpan {
    /// Where it is in the value; that of a key is the path of its field.
    pub path: Vec<PathStep>,
    /// What it is.
    pub part: Part,
    /// Its bytes; none for an empty text or key.
    pub range: Range<usize>,
}

/// Layout and escaping of [`dumps`]. Each variant names the Python call that writes the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// `json.dumps(v, ensure_ascii=False)`: separators `", "` and `": "`, text as it is.
    Python,
    /// `json.dumps(v)`: as [`Style::Python`], with `\uXXXX` for all that is not ASCII.
    PythonAscii,
    /// `json.dumps(v, ensure_ascii=False, separators=(",", ":"))`.
    Compact,
    /// `json.dumps(v, separators=(",", ":"))`.
    CompactAscii,
    /// `json.dumps(v, ensure_ascii=False, indent=n)`, with this many blanks a level.
    Indented(usize),
    /// `json.dumps(v, indent=n)`: as [`Style::Indented`], with `\uXXXX` for all that is not ASCII.
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

/// As [`dumps`], with the bytes of every scalar that is no key, in the order of the text: what
/// stands between the quotes of a text, and the whole of a number, boolean or null.
///
/// An empty text has none.
pub fn dumps_with_scalars(value: &Value, style: Style) -> (String, Vec<Range<usize>>) {
    let mut writer = Writer::new(style);
    writer.value(value, 0);
    (writer.text, writer.scalars)
}

/// As [`dumps`], with every key and every value without parts of its own, in the order of the text.
///
/// Unlike [`dumps_with_scalars`] it names each by its path, and lists keys, empty texts and empty
/// containers, too.
pub fn dumps_with_places(value: &Value, style: Style) -> (String, Vec<RenderedSpan>) {
    let mut writer = Writer {
        tracer: Some(Tracer::default()),
        ..Writer::new(style)
    };
    writer.value(value, 0);
    let places = writer.tracer.map(|tracer| tracer.places);
    (writer.text, places.unwrap_or_default())
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
    places: Vec<RenderedSpan>,
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

    fn enter(&mut self, step: impl FnOnce() -> PathStep) {
        if let Some(tracer) = &mut self.tracer {
            tracer.path.push(step());
        }
    }

    fn leave(&mut self) {
        if let Some(tracer) = &mut self.tracer {
            tracer.path.pop();
        }
    }

    fn trace(&mut self, part: Part, range: Range<usize>) {
        if let Some(tracer) = &mut self.tracer {
            tracer.places.push(RenderedSpan {
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
            Value::String(_) => self.trace(Part::Value, start + 1..end - 1),
            _ => self.trace(Part::Value, start..end),
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
                    self.before_item(item_idx, level + 1);
                    self.enter(|| PathStep::Index(item_idx));
                    self.value(item, level + 1);
                    self.leave();
                }
                self.close(']', level);
            }
            Value::Object(fields) => {
                self.text.push('{');
                for (field_idx, (key, field)) in fields.iter().enumerate() {
                    self.before_item(field_idx, level + 1);
                    self.enter(|| PathStep::Key(key.clone()));
                    let start = self.text.len();
                    self.string(key);
                    self.trace(Part::Key, start + 1..self.text.len() - 1);
                    self.text.push_str(self.style.separators().1);
                    self.value(field, level + 1);
                    self.leave();
                }
                self.close('}', level);
            }
        }
    }

    fn before_item(&mut self, item_idx: usize, level: usize) {
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
    use crate::json::parse;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn each_style_writes_what_its_python_call_writes() {
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
    fn indentation_breaks_lines_as_python_does() {
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
        let (text, places) = dumps_with_places(&value, Style::Python);
        assert_eq!(text, dumps(&value, Style::Python));
        let shown: Vec<(String, Part, &str)> = places
            .into_iter()
            .map(|place| {
                let path = serde_json::to_string(&place.path).expect("a path is JSON");
                (path, place.part, &text[place.range])
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
            shown,
            expected.map(|(path, part, piece)| (path.to_owned(), part, piece))
        );
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            prop::num::f64::NORMAL.prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((any::<String>(), inner), 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    /// The scalars of a value in order, without empty texts.
    fn scalars_of(value: &Value) -> Vec<Value> {
        match value {
            Value::Array(items) => items.iter().flat_map(scalars_of).collect(),
            Value::Object(fields) => fields.values().flat_map(scalars_of).collect(),
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
                prop_assert_eq!(located, scalars_of(&value));
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
