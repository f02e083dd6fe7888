//! Lists and objects that stand in a text, in JSON or as Python prints them.
//!
//! API-Bank records `"['John', 'Jane']"` where a model may write `["John", "Jane"]`: both mean
//! the list.

use serde_json::{Map, Number, Value};
use tooltune_rows::json::{self, MAX_LEVELS};

/// The list or object that a text holds, if it holds one and nothing else.
pub fn container_literal(text: &str) -> Option<Value> {
    let text = text.trim();
    if !text.starts_with(['[', '{']) {
        return None;
    }
    json::parse(text).ok().or_else(|| python(text))
}

fn python(text: &str) -> Option<Value> {
    let (value, rest) = leading_literal(text)?;
    rest.trim_start().is_empty().then_some(value)
}

/// The literal of Python that a text begins with, and what is behind it.
pub fn leading_literal(text: &str) -> Option<(Value, &str)> {
    let mut reader = Reader { rest: text };
    let value = reader.value(0)?;
    Some((value, reader.rest))
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn value(&mut self, level: usize) -> Option<Value> {
        if level > MAX_LEVELS {
            return None;
        }
        self.rest = self.rest.trim_start();
        match self.rest.chars().next()? {
            '[' => self.list(level),
            '{' => self.object(level),
            quote @ ('\'' | '"') => self.text(quote).map(Value::from),
            _ => self.word(),
        }
    }

    fn take(&mut self, wanted: char) -> bool {
        self.rest = self.rest.trim_start();
        let after = self.rest.strip_prefix(wanted);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn list(&mut self, level: usize) -> Option<Value> {
        let mut items = Vec::new();
        self.take('[');
        while !self.take(']') {
            if !items.is_empty() && !self.take(',') {
                return None;
            }
            // Python allows a comma behind the last one.
            if !items.is_empty() && self.take(']') {
                break;
            }
            items.push(self.value(level + 1)?);
        }
        Some(Value::Array(items))
    }

    fn object(&mut self, level: usize) -> Option<Value> {
        let mut members = Map::new();
        self.take('{');
        while !self.take('}') {
            if !members.is_empty() && !self.take(',') {
                return None;
            }
            if !members.is_empty() && self.take('}') {
                break;
            }
            self.rest = self.rest.trim_start();
            let quote = self
                .rest
                .chars()
                .next()
                .filter(|c| matches!(c, '\'' | '"'))?;
            let key = self.text(quote)?;
            if !self.take(':') {
                return None;
            }
            members.insert(key, self.value(level + 1)?);
        }
        Some(Value::Object(members))
    }

    /// A quoted text; of the escapes those that Python prints, and none of octal numbers or names.
    fn text(&mut self, quote: char) -> Option<String> {
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

    fn word(&mut self) -> Option<Value> {
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
    fn lists_and_objects_are_read_in_both_spellings() {
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
    fn what_is_no_container_stays_a_text() {
        let deep = "[".repeat(100_000);
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
            &deep,
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
