//! Reads JSON as Python's `json.loads` does, and writes it as `json.dumps` does.
//!
//! Python accepts more than RFC 8259: `NaN`, `Infinity`, floats beyond the range, which become
//! infinities, and escapes of lone surrogates. It still rejects single quotes, comments and
//! trailing commas.

use num_bigint::BigInt;
use serde_json::Value;

use super::value::{PyDict, PyValue};
use crate::{MAX_LEVELS, Style, python_float_repr};

/// Digits of the longest integer that Python reads (`sys.get_int_max_str_digits`).
const MAX_DIGITS: usize = 4300;

/// The reason that a string is not a JSON value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {byte}: {reason}")]
pub struct PythonJsonError {
    /// Offset of the error in the text, from 0.
    pub byte: usize,
    /// Description of the error.
    pub reason: &'static str,
}

/// Reads a string with one value, with optional white space around it.
///
/// # Errors
///
/// - the text is not JSON as Python reads it, or something follows the value
/// - it nests deeper than [`MAX_LEVELS`], or an integer has more than 4,300 digits
pub fn loads(text: &str) -> Result<PyValue, PythonJsonError> {
    let start = text.len() - text.trim_start_matches(is_blank).len();
    let (value, end) = loads_prefix(text, start)?;
    match text[end..].trim_start_matches(is_blank) {
        "" => Ok(value),
        _ => Err(fault(end, "something follows the value")),
    }
}

/// Reads the value that begins at byte `start`, and returns it with its end position.
///
/// # Errors
///
/// - as [`loads`]; text after the value is not an error
pub fn loads_prefix(text: &str, start: usize) -> Result<(PyValue, usize), PythonJsonError> {
    let mut reader = Reader { text, at: start };
    let value = reader.value(0)?;
    Ok((value, reader.at))
}

fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r')
}

fn fault(byte: usize, reason: &'static str) -> PythonJsonError {
    PythonJsonError { byte, reason }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Reader<'t> {
    fn remaining(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn fault<T>(&self, reason: &'static str) -> Result<T, PythonJsonError> {
        Err(fault(self.at, reason))
    }

    fn skip_blanks(&mut self) {
        let rest = self.remaining();
        self.at += rest.len() - rest.trim_start_matches(is_blank).len();
    }

    fn consume(&mut self, word: &str) -> bool {
        let is_next = self.remaining().starts_with(word);
        self.at += if is_next { word.len() } else { 0 };
        is_next
    }

    fn value(&mut self, level: usize) -> Result<PyValue, PythonJsonError> {
        if level > MAX_LEVELS {
            return self.fault("too many levels");
        }
        match self.remaining().chars().next() {
            Some('{') => self.dict(level),
            Some('[') => self.list(level),
            Some('"') => self.string().map(PyValue::Text),
            Some('0'..='9' | '-') => self.number(),
            _ => self.parse_literal(),
        }
    }

    fn parse_literal(&mut self) -> Result<PyValue, PythonJsonError> {
        let words = [
            ("null", PyValue::None),
            ("true", PyValue::Bool(true)),
            ("false", PyValue::Bool(false)),
            ("NaN", PyValue::Float(f64::NAN)),
            ("Infinity", PyValue::Float(f64::INFINITY)),
        ];
        for (word, value) in words {
            if self.consume(word) {
                return Ok(value);
            }
        }
        self.fault("a value was expected")
    }

    fn number(&mut self) -> Result<PyValue, PythonJsonError> {
        if self.consume("-Infinity") {
            return Ok(PyValue::Float(f64::NEG_INFINITY));
        }
        let rest = self.remaining();
        let n_digits = |from: usize| {
            let digits = rest.get(from..).unwrap_or_default().bytes();
            digits.take_while(u8::is_ascii_digit).count()
        };
        let sign = usize::from(rest.starts_with('-'));
        let n_whole = match n_digits(sign) {
            0 => return self.fault("a digit was expected"),
            _ if rest[sign..].starts_with('0') => 1,
            n => n,
        };
        let mut end = sign + n_whole;
        let n_fraction = if rest[end..].starts_with('.') {
            n_digits(end + 1)
        } else {
            0
        };
        let whole_end = end;
        end += if n_fraction > 0 { 1 + n_fraction } else { 0 };
        if rest[end..].starts_with(['e', 'E']) {
            let signed = usize::from(rest[end + 1..].starts_with(['+', '-']));
            let n_exponent = n_digits(end + 1 + signed);
            end += if n_exponent > 0 {
                1 + signed + n_exponent
            } else {
                0
            };
        }
        let literal = &rest[..end];
        let value = match end == whole_end {
            true if n_whole > MAX_DIGITS => return self.fault("the integer is too long"),
            true => literal.parse::<BigInt>().ok().map(PyValue::Int),
            false => literal.parse::<f64>().ok().map(PyValue::Float),
        };
        self.at += end;
        value.ok_or_else(|| fault(self.at, "a number was expected"))
    }

    fn list(&mut self, level: usize) -> Result<PyValue, PythonJsonError> {
        let mut items = Vec::new();
        self.consume("[");
        self.skip_blanks();
        if self.consume("]") {
            return Ok(PyValue::List(items));
        }
        loop {
            self.skip_blanks();
            items.push(self.value(level + 1)?);
            self.skip_blanks();
            if self.consume("]") {
                return Ok(PyValue::List(items));
            }
            if !self.consume(",") {
                return self.fault("a comma or a bracket was expected");
            }
        }
    }

    fn dict(&mut self, level: usize) -> Result<PyValue, PythonJsonError> {
        let mut fields = PyDict::new();
        self.consume("{");
        self.skip_blanks();
        if self.consume("}") {
            return Ok(PyValue::Dict(fields));
        }
        loop {
            self.skip_blanks();
            if !self.remaining().starts_with('"') {
                return self.fault("a key in double quotes was expected");
            }
            let key = self.string()?;
            self.skip_blanks();
            if !self.consume(":") {
                return self.fault("a colon was expected");
            }
            self.skip_blanks();
            let field = self.value(level + 1)?;
            fields.insert(key, field);
            self.skip_blanks();
            if self.consume("}") {
                return Ok(PyValue::Dict(fields));
            }
            if !self.consume(",") {
                return self.fault("a comma or a brace was expected");
            }
        }
    }

    fn string(&mut self) -> Result<String, PythonJsonError> {
        let mut text = String::new();
        self.consume("\"");
        loop {
            let rest = self.remaining();
            let n_plain = rest
                .find(|c: char| matches!(c, '"' | '\\' | '\0'..='\u{1f}'))
                .unwrap_or(rest.len());
            text.push_str(&rest[..n_plain]);
            self.at += n_plain;
            if self.consume("\"") {
                return Ok(text);
            }
            if !self.consume("\\") {
                return self.fault("the string is not closed, or contains a control character");
            }
            let character = self.parse_escape()?;
            text.push(character);
        }
    }

    fn parse_escape(&mut self) -> Result<char, PythonJsonError> {
        let Some(letter) = self.remaining().chars().next() else {
            return self.fault("the string is not closed");
        };
        let character = match letter {
            '"' | '\\' | '/' => letter,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => return self.parse_unicode_escape(),
            _ => return self.fault("unknown escape"),
        };
        self.at += letter.len_utf8();
        Ok(character)
    }

    fn parse_unicode_escape(&mut self) -> Result<char, PythonJsonError> {
        let first = self.unit()?;
        let start = self.at;
        if (0xd800..0xdc00).contains(&first) && self.consume("\\") {
            if self.remaining().starts_with('u') {
                let second = self.unit()?;
                if let Some(Ok(pair)) = char::decode_utf16([first, second]).next() {
                    return Ok(pair);
                }
            }
            self.at = start;
        }
        Ok(char::from_u32(u32::from(first)).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    /// Reads the four digits after a `u`.
    fn unit(&mut self) -> Result<u16, PythonJsonError> {
        let digits = self.remaining().get(1..5).unwrap_or_default();
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        match u16::from_str_radix(digits, 16) {
            Ok(unit) if is_hex => {
                self.at += 5;
                Ok(unit)
            }
            _ => self.fault("four hexadecimal digits were expected"),
        }
    }
}

/// Writes a value as `json.dumps` does: ASCII, a space after comma and colon, keys in their order.
///
/// A tuple is written as a list. Any other object, which `json.dumps` rejects, is written as the
/// string of its `repr`.
pub fn dumps(value: &PyValue) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text
}

fn write(value: &PyValue, out: &mut String) {
    match value {
        PyValue::None => out.push_str("null"),
        PyValue::Bool(is_true) => out.push_str(if *is_true { "true" } else { "false" }),
        PyValue::Int(integer) => out.push_str(&integer.to_string()),
        PyValue::Float(float) if float.is_nan() => out.push_str("NaN"),
        PyValue::Float(float) if float.is_infinite() => {
            out.push_str(if *float > 0.0 {
                "Infinity"
            } else {
                "-Infinity"
            });
        }
        PyValue::Float(float) => out.push_str(&python_float_repr(*float)),
        PyValue::Text(text) | PyValue::Other(text) => write_text(text, out),
        PyValue::List(items) | PyValue::Tuple(items) => {
            out.push('[');
            for (item_idx, item) in items.iter().enumerate() {
                out.push_str(if item_idx > 0 { ", " } else { "" });
                write(item, out);
            }
            out.push(']');
        }
        PyValue::Dict(fields) => {
            out.push('{');
            for (field_idx, (key, field)) in fields.iter().enumerate() {
                out.push_str(if field_idx > 0 { ", " } else { "" });
                write_text(key, out);
                out.push_str(": ");
                write(field, out);
            }
            out.push('}');
        }
    }
}

fn write_text(text: &str, out: &mut String) {
    out.push_str(&crate::dumps(&Value::from(text), Style::PythonAscii));
}
