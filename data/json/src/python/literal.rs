//! Parses Python literals: scalars, strings, lists, tuples, and dictionaries with string keys.

use num_bigint::BigInt;

use super::value::{PyDict, PyValue};
use crate::MAX_LEVELS;

/// The Python literal at the start of `text`, and the rest of it. JSON's `true`, `false` and `null`
/// are also read.
pub fn leading_literal(text: &str) -> Option<(PyValue, &str)> {
    let mut reader = LiteralReader { rest: text };
    let value = reader.parse_literal(0)?;
    Some((value, reader.rest))
}

/// Parses a single Python literal.
pub fn python_literal(text: &str) -> Option<PyValue> {
    let (value, rest) = leading_literal(text)?;
    rest.trim_start().is_empty().then_some(value)
}

/// Reads literals and the text between them.
#[derive(Debug)]
pub struct LiteralReader<'t> {
    /// The text that is not read yet.
    pub rest: &'t str,
}

impl<'t> LiteralReader<'t> {
    /// Skips whitespace.
    pub fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Whether only whitespace remains.
    pub fn is_at_end(&mut self) -> bool {
        self.skip_blanks();
        self.rest.is_empty()
    }

    /// Skips whitespace and then `mark`, if it follows.
    pub fn accept(&mut self, mark: &str) -> bool {
        self.skip_blanks();
        let after = self.rest.strip_prefix(mark);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    /// Skips whitespace and reads the characters that are parts of a word.
    pub fn take_word(&mut self, is_part: impl Fn(char) -> bool) -> &'t str {
        self.skip_blanks();
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    /// Parses a literal that is nested `level` levels deep; `None` if there is none.
    pub fn parse_literal(&mut self, level: usize) -> Option<PyValue> {
        if level > MAX_LEVELS {
            return None;
        }
        self.skip_blanks();
        match self.rest.chars().next()? {
            '[' => self
                .parse_items(level, "[", "]")
                .map(|(items, _)| PyValue::List(items)),
            '(' => match self.parse_items(level, "(", ")")? {
                (mut one, false) if one.len() == 1 => one.pop(),
                (items, _) => Some(PyValue::Tuple(items)),
            },
            '{' => self.parse_dict(level),
            '"' | '\'' => self.parse_string().map(PyValue::Text),
            _ => self.parse_scalar(),
        }
    }

    /// Parses items between two delimiters; also returns whether a comma follows the last item.
    fn parse_items(
        &mut self,
        level: usize,
        open: &str,
        close: &str,
    ) -> Option<(Vec<PyValue>, bool)> {
        let mut items = Vec::new();
        self.accept(open);
        loop {
            if self.accept(close) {
                return Some((items, true));
            }
            items.push(self.parse_literal(level + 1)?);
            if self.accept(close) {
                return Some((items, false));
            }
            if !self.accept(",") {
                return None;
            }
        }
    }

    fn parse_dict(&mut self, level: usize) -> Option<PyValue> {
        let mut fields = PyDict::new();
        self.accept("{");
        loop {
            if self.accept("}") {
                return Some(PyValue::Dict(fields));
            }
            self.skip_blanks();
            let key = self.parse_string()?;
            if !self.accept(":") {
                return None;
            }
            let value = self.parse_literal(level + 1)?;
            fields.insert(key, value);
            if !self.accept(",") {
                return self.accept("}").then_some(PyValue::Dict(fields));
            }
        }
    }

    fn parse_scalar(&mut self) -> Option<PyValue> {
        let is_negative = self.accept("-");
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
        let mut word = self.take_word(is_part).to_owned();
        if word.ends_with(['e', 'E']) && word.starts_with(|c: char| c.is_ascii_digit()) {
            let sign = ["-", "+"].into_iter().find(|sign| self.accept(sign))?;
            word = format!("{word}{sign}{}", self.take_word(|c| c.is_ascii_digit()));
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

    fn parse_string(&mut self) -> Option<String> {
        let quote = self
            .rest
            .chars()
            .next()
            .filter(|c| matches!(c, '"' | '\''))?;
        let mut text = String::new();
        let mut offset = quote.len_utf8();
        let mut characters = self.rest[offset..].char_indices();
        while let Some((position, character)) = characters.next() {
            match character {
                _ if character == quote => {
                    self.rest = &self.rest[offset + position + 1..];
                    return Some(text);
                }
                '\n' => return None,
                '\\' => {
                    let end = self.rest.len() - characters.as_str().len();
                    let n_bytes = parse_escape(&self.rest[end..], &mut text)?;
                    characters = self.rest[end + n_bytes..].char_indices();
                    // Offsets are relative to the start of the literal.
                    offset = end + n_bytes;
                }
                other => text.push(other),
            }
        }
        None
    }
}

/// Appends the character of an escape sequence and returns the length of the sequence; `None` if
/// the literal is invalid in Python. As in Python, the backslash of an unknown sequence is kept.
fn parse_escape(after: &str, text: &mut String) -> Option<usize> {
    let first = after.chars().next()?;
    let hexadecimal = |digits: usize| {
        let digits = after.get(1..=digits)?;
        let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_number.then(|| u32::from_str_radix(digits, 16).ok())?
    };
    let known = match first {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'a' => '\u{7}',
        'b' => '\u{8}',
        'v' => '\u{b}',
        'f' => '\u{c}',
        '\\' | '\'' | '"' => first,
        '\n' => return Some(1),
        'x' => {
            text.push(char::from_u32(hexadecimal(2)?)?);
            return Some(3);
        }
        'U' => {
            text.push(char::from_u32(hexadecimal(8)?)?);
            return Some(9);
        }
        'u' => {
            let unit = hexadecimal(4)?;
            if let Some(character) = char::from_u32(unit) {
                text.push(character);
                return Some(5);
            }
            // JSON writes a character above 16 bits as two escapes.
            let low = after.get(5..11)?.strip_prefix("\\u")?;
            let low = u32::from_str_radix(low, 16).ok()?;
            let is_pair = (0xd800..0xdc00).contains(&unit) && (0xdc00..0xe000).contains(&low);
            let pair = is_pair.then(|| 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00))?;
            text.push(char::from_u32(pair)?);
            return Some(11);
        }
        other => {
            text.extend(['\\', other]);
            return Some(other.len_utf8());
        }
    };
    text.push(known);
    Some(1)
}
