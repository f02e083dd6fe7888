//! Parses lists and objects in strings, in JSON or Python notation.
//!
//! API-Bank records `"['John', 'Jane']"` where a model may write the list `["John", "Jane"]`.

use serde_json::{Map, Number, Value};
use tooltune_json as json;
use tooltune_json::MAX_LEVELS;

/// The list or object in a string, if the string contains nothing else.
pub fn container_literal(text: &str) -> Option<Value> {
    let text = text.trim();
    if !text.starts_with(['[', '{']) {
        return None;
    }
    json::parse(text).ok().or_else(|| parse_python(text))
}

fn parse_python(text: &str) -> Option<Value> {
    let (value, remaining) = leading_literal(text)?;
    remaining.trim_start().is_empty().then_some(value)
}

/// The Python literal at the start of `text`, and the rest of it.
pub fn leading_literal(text: &str) -> Option<(Value, &str)> {
    let mut reader = Reader { rest: text };
    let value = reader.parse_value(0)?;
    Some((value, reader.rest))
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn parse_value(&mut self, level: usize) -> Option<Value> {
        if level > MAX_LEVELS {
            return None;
        }
        self.rest = self.rest.trim_start();
        match self.rest.chars().next()? {
            '[' => self.parse_list(level),
            '{' => self.parse_object(level),
            quote @ ('\'' | '"') => self.parse_string(quote).map(Value::from),
            _ => self.parse_word(),
        }
    }

    fn accept(&mut self, expected: char) -> bool {
        self.rest = self.rest.trim_start();
        let remaining = self.rest.strip_prefix(expected);
        self.rest = remaining.unwrap_or(self.rest);
        remaining.is_some()
    }

    fn parse_list(&mut self, level: usize) -> Option<Value> {
        let mut items = Vec::new();
        self.accept('[');
        while !self.accept(']') {
            if !items.is_empty() && !self.accept(',') {
                return None;
            }
            // Python allows a trailing comma.
            if !items.is_empty() && self.accept(']') {
                break;
            }
            items.push(self.parse_value(level + 1)?);
        }
        Some(Value::Array(items))
    }

    fn parse_object(&mut self, level: usize) -> Option<Value> {
        let mut members = Map::new();
        self.accept('{');
        while !self.accept('}') {
            if !members.is_empty() && !self.accept(',') {
                return None;
            }
            if !members.is_empty() && self.accept('}') {
                break;
            }
            self.rest = self.rest.trim_start();
            let quote = self
                .rest
                .chars()
                .next()
                .filter(|c| matches!(c, '\'' | '"'))?;
            let key = self.parse_string(quote)?;
            if !self.accept(':') {
                return None;
            }
            members.insert(key, self.parse_value(level + 1)?);
        }
        Some(Value::Object(members))
    }

    /// A quoted string, with the escapes that Python prints (no octal or named ones).
    fn parse_string(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        let mut characters = self.rest.char_indices().skip(1);
        while let Some((at, character)) = characters.next() {
            match character {
                '\\' => {
                    let escape = characters.next()?.1;
                    let n_digits = match escape {
                        'x' => 2,
                        'u' => 4,
                        'U' => 8,
                        _ => 0,
                    };
                    text.push(match escape {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        plain @ ('\\' | '\'' | '"') => plain,
                        _ if n_digits > 0 => {
                            let digits = characters.by_ref().take(n_digits);
                            let digits: String = digits.map(|(_, digit)| digit).collect();
                            char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?
                        }
                        _ => return None,
                    });
                }
                end if end == quote => {
                    self.rest = &self.rest[at + quote.len_utf8()..];
                    return Some(text);
                }
                plain => text.push(plain),
            }
        }
        None
    }

    fn parse_word(&mut self) -> Option<Value> {
        let end = self
            .rest
            .find([',', ']', '}', ':'])
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word.trim_end() {
            "True" | "true" => Some(Value::Bool(true)),
            "False" | "false" => Some(Value::Bool(false)),
            "None" | "null" => Some(Value::Null),
            number => number.parse::<Number>().ok().map(Value::Number),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_and_objects_are_parsed_as_json_and_as_python() {
        for (text, expected) in [
            (r#"["a", 1]"#, json!(["a", 1])),
            (
                " ['a', \"it's\", 1.5, True, None] ",
                json!(["a", "it's", 1.5, true, null]),
            ),
            (
                "[{'name': 'heart_rate', 'value': '80'}, {}]",
                json!([{"name": "heart_rate", "value": "80"}, {}]),
            ),
            (r"['it\'s', 'a\\b']", json!(["it's", "a\\b"])),
            (r"['a\r\x41\u00e9\U0001f600']", json!(["a\rAé😀"])),
            ("{'a': [1, 2,],}", json!({"a": [1, 2]})),
            ("[]", json!([])),
        ] {
            assert_eq!(container_literal(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn a_text_without_a_container_stays_a_text() {
        let nested = "[".repeat(100_000);
        for text in [
            "",
            "a",
            "12",
            "['a'",
            "['a' 'b']",
            "[a]",
            "{1: 2}",
            "['a'] b",
            "[,]",
            &nested,
        ] {
            assert_eq!(
                container_literal(text),
                None,
                "{}",
                &text[..text.len().min(20)]
            );
        }
    }
}
