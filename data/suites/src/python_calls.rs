//! Parses `[name(argument=value, ..), ..]`, as Python writes calls, and finds the text behind thoughts.
//!
//! Values are Python's literals; anything else makes the text unreadable.

use num_bigint::BigInt;
use tooltune_rows::json::MAX_LEVELS;
use tooltune_rows::python::{PyDict, PyValue};

/// The text behind its thoughts: all up to the last `</think>` is one, and an opened `<think>` with
/// all after it.
pub(crate) fn without_thoughts(completion: &str) -> &str {
    let text = completion
        .rsplit_once("</think>")
        .map_or(completion, |(_, after)| after);
    text.split_once("<think>")
        .map_or(text, |(before, _)| before)
}

/// What becomes of arguments by position, which have no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Positional {
    /// They are passed over, as in the published reader of ToolACE.
    Dropped,
    /// They make the text unreadable.
    Refused,
}

/// Reads a list of calls, brackets around it or not.
pub(crate) fn python_calls(text: &str, positional: Positional) -> Option<Vec<PyValue>> {
    let mut reader = Reader {
        rest: text,
        positional,
    };
    let is_list = reader.take("[");
    let mut calls = Vec::new();
    while !(is_list && reader.take("]")) {
        if !is_list && reader.is_at_end() {
            break;
        }
        if !calls.is_empty() && !reader.take(",") {
            return None;
        }
        if !calls.is_empty() && is_list && reader.take("]") {
            break;
        }
        calls.push(reader.call()?);
    }
    reader.is_at_end().then_some(calls)
}

struct Reader<'t> {
    rest: &'t str,
    positional: Positional,
}

impl<'t> Reader<'t> {
    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn is_at_end(&mut self) -> bool {
        self.skip_blanks();
        self.rest.is_empty()
    }

    fn take(&mut self, mark: &str) -> bool {
        self.skip_blanks();
        let after = self.rest.strip_prefix(mark);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn word(&mut self, is_part: impl Fn(char) -> bool) -> &'t str {
        self.skip_blanks();
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn call(&mut self) -> Option<PyValue> {
        let name = self.word(|c| c.is_alphanumeric() || matches!(c, '_' | '.'));
        let starts_well = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
        if !starts_well || !self.take("(") {
            return None;
        }
        let mut arguments = PyDict::new();
        let mut is_first = true;
        while !self.take(")") {
            if !is_first && !self.take(",") {
                return None;
            }
            if !is_first && self.take(")") {
                break;
            }
            is_first = false;
            if let Some(keyword) = self.keyword() {
                let value = self.literal(0)?;
                arguments.insert(keyword.to_owned(), value);
            } else if self.positional == Positional::Dropped {
                self.literal(0)?;
            } else {
                return None;
            }
        }
        let fields = [
            ("name".to_owned(), PyValue::Text(name.to_owned())),
            ("arguments".to_owned(), PyValue::Dict(arguments)),
        ];
        Some(PyValue::Dict(PyDict::from_iter(fields)))
    }

    /// A name and the sign after it; nothing is taken where there is none.
    fn keyword(&mut self) -> Option<&'t str> {
        self.skip_blanks();
        let before = self.rest;
        let name = self.word(|c| c.is_alphanumeric() || c == '_');
        let is_keyword = !name.is_empty() && self.take("=");
        if !is_keyword {
            self.rest = before;
        }
        is_keyword.then_some(name)
    }

    fn literal(&mut self, level: usize) -> Option<PyValue> {
        if level > MAX_LEVELS {
            return None;
        }
        self.skip_blanks();
        match self.rest.chars().next()? {
            '[' => self
                .items(level, "[", "]")
                .map(|(all, _)| PyValue::List(all)),
            '(' => match self.items(level, "(", ")")? {
                (mut one, false) if one.len() == 1 => one.pop(),
                (all, _) => Some(PyValue::Tuple(all)),
            },
            '{' => self.dict(level),
            '"' | '\'' => self.text().map(PyValue::Text),
            _ => self.scalar(),
        }
    }

    /// Items between two marks, and whether a comma stands after the last.
    fn items(&mut self, level: usize, open: &str, close: &str) -> Option<(Vec<PyValue>, bool)> {
        let mut items = Vec::new();
        self.take(open);
        loop {
            if self.take(close) {
                return Some((items, true));
            }
            items.push(self.literal(level + 1)?);
            if self.take(close) {
                return Some((items, false));
            }
            if !self.take(",") {
                return None;
            }
        }
    }

    fn dict(&mut self, level: usize) -> Option<PyValue> {
        let mut fields = PyDict::new();
        self.take("{");
        loop {
            if self.take("}") {
                return Some(PyValue::Dict(fields));
            }
            self.skip_blanks();
            let key = self.text()?;
            if !self.take(":") {
                return None;
            }
            let value = self.literal(level + 1)?;
            fields.insert(key, value);
            if !self.take(",") {
                return self.take("}").then_some(PyValue::Dict(fields));
            }
        }
    }

    fn scalar(&mut self) -> Option<PyValue> {
        let is_negative = self.take("-");
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
        let mut word = self.word(is_part).to_owned();
        if word.ends_with(['e', 'E']) && word.starts_with(|c: char| c.is_ascii_digit()) {
            let sign = ["-", "+"].into_iter().find(|sign| self.take(sign))?;
            word = format!("{word}{sign}{}", self.word(|c| c.is_ascii_digit()));
        }
        let signed = |word: &str| {
            if is_negative {
                format!("-{word}")
            } else {
                word.to_owned()
            }
        };
        let is_number = word.starts_with(|c: char| c.is_ascii_digit() || c == '.');
        match word.as_str() {
            "True" | "true" if !is_negative => Some(PyValue::Bool(true)),
            "False" | "false" if !is_negative => Some(PyValue::Bool(false)),
            "None" | "null" if !is_negative => Some(PyValue::None),
            _ if !is_number => None,
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                signed(digits).parse::<BigInt>().ok().map(PyValue::Int)
            }
            other => signed(other).parse().ok().map(PyValue::Float),
        }
    }

    fn text(&mut self) -> Option<String> {
        let quote = self
            .rest
            .chars()
            .next()
            .filter(|c| matches!(c, '"' | '\''))?;
        let mut text = String::new();
        let mut characters = self.rest.char_indices().skip(1);
        while let Some((at, character)) = characters.next() {
            match character {
                _ if character == quote => {
                    self.rest = &self.rest[at + 1..];
                    return Some(text);
                }
                '\n' => return None,
                '\\' => match characters.next()?.1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    same @ ('\\' | '\'' | '"') => text.push(same),
                    other => text.extend(['\\', other]),
                },
                other => text.push(other),
            }
        }
        None
    }
}
