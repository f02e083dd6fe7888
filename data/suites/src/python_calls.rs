//! Parses `[name(argument=value, ..), ..]`, the Python notation of calls.
//!
//! Values are Python literals; anything else makes the text unparsable.

use num_bigint::BigInt;
use tooltune_json::MAX_LEVELS;
use tooltune_json::python::{PyDict, PyValue};

/// Treatment of positional arguments. The notation has no names for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Positional {
    /// They are skipped, as in the published parser of ToolACE.
    Dropped,
    /// They make the text unparsable.
    Refused,
}

/// The names allowed for calls and arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CallNames<'n> {
    /// Python identifiers joined by dots.
    Python,
    /// Like [`CallNames::Python`], but `-` is also allowed. The listed names are always allowed,
    /// regardless of their characters.
    Known(&'n [&'n str]),
}

/// The calls at the start of a text.
#[derive(Debug)]
pub(crate) struct PythonCalls {
    /// The calls, each with `name` and `arguments`.
    pub(crate) calls: Vec<PyValue>,
    /// Length of the calls in bytes.
    pub(crate) n_bytes: usize,
}

/// Parses a list of calls, with or without brackets, and nothing else.
pub(crate) fn python_calls(text: &str, positional: Positional) -> Option<Vec<PyValue>> {
    let mut reader = Reader {
        rest: text,
        positional,
        names: CallNames::Python,
    };
    let is_list = reader.accept("[");
    let mut calls = Vec::new();
    while !(is_list && reader.accept("]")) {
        if !is_list && reader.is_at_end() {
            break;
        }
        if !calls.is_empty() && !reader.accept(",") {
            return None;
        }
        if !calls.is_empty() && is_list && reader.accept("]") {
            break;
        }
        calls.push(reader.parse_call()?);
    }
    reader.is_at_end().then_some(calls)
}

/// Parses the calls at the start of a text, up to the first text that is not a call. The calls are
/// in a list, or are separated by whitespace, commas or semicolons.
pub(crate) fn python_calls_at(text: &str, names: CallNames<'_>) -> Option<PythonCalls> {
    let mut reader = Reader {
        rest: text,
        positional: Positional::Refused,
        names,
    };
    let mut calls = Vec::new();
    if reader.accept("[") {
        while !reader.accept("]") {
            if !calls.is_empty() && !reader.accept(",") {
                return None;
            }
            if !calls.is_empty() && reader.accept("]") {
                break;
            }
            calls.push(reader.parse_call()?);
        }
    } else {
        loop {
            let reader_before = reader.rest;
            if !calls.is_empty() {
                let _separator = reader.accept(",") || reader.accept(";");
            }
            let Some(call) = reader.parse_call() else {
                reader.rest = reader_before;
                break;
            };
            calls.push(call);
        }
    }
    Some(PythonCalls {
        calls,
        n_bytes: text.len() - reader.rest.len(),
    })
}

/// Parses a single Python literal.
pub(crate) fn python_literal(text: &str) -> Option<PyValue> {
    let mut reader = Reader {
        rest: text,
        positional: Positional::Refused,
        names: CallNames::Python,
    };
    let value = reader.parse_literal(0)?;
    reader.is_at_end().then_some(value)
}

struct Reader<'t> {
    rest: &'t str,
    positional: Positional,
    names: CallNames<'t>,
}

impl<'t> Reader<'t> {
    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn is_at_end(&mut self) -> bool {
        self.skip_blanks();
        self.rest.is_empty()
    }

    fn accept(&mut self, mark: &str) -> bool {
        self.skip_blanks();
        let after = self.rest.strip_prefix(mark);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn take_word(&mut self, is_part: impl Fn(char) -> bool) -> &'t str {
        self.skip_blanks();
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn parse_call(&mut self) -> Option<PyValue> {
        let name = self.parse_name()?;
        if !self.accept("(") {
            return None;
        }
        let mut arguments = PyDict::new();
        let mut is_first = true;
        while !self.accept(")") {
            if !is_first && !self.accept(",") {
                return None;
            }
            if !is_first && self.accept(")") {
                break;
            }
            is_first = false;
            if let Some(keyword) = self.parse_keyword() {
                let value = self.parse_literal(0)?;
                arguments.insert(keyword.to_owned(), value);
            } else if self.positional == Positional::Dropped {
                self.parse_literal(0)?;
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

    /// Parses the name of a call.
    fn parse_name(&mut self) -> Option<&'t str> {
        self.skip_blanks();
        let start = self.rest;
        let dash = match self.names {
            CallNames::Python => '.',
            CallNames::Known(names) => {
                let is_called = |name: &&&str| {
                    let after = start.strip_prefix(**name);
                    after.is_some_and(|after| after.starts_with('('))
                };
                if let Some(name) = names.iter().filter(is_called).max_by_key(|name| name.len()) {
                    let (name, after) = start.split_at(name.len());
                    self.rest = after;
                    return Some(name);
                }
                '-'
            }
        };
        let name = self.take_word(|c| c.is_alphanumeric() || matches!(c, '_' | '.') || c == dash);
        let starts_well = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
        starts_well.then_some(name)
    }

    /// Parses a name and the `=` or `:` after it. Consumes nothing if there is no such name.
    fn parse_keyword(&mut self) -> Option<&'t str> {
        self.skip_blanks();
        let start = self.rest;
        let name = match self.names {
            CallNames::Python => self.take_word(|c| c.is_alphanumeric() || c == '_'),
            // Templates write JSON keys without quotes.
            CallNames::Known(_) => {
                let ends = ['=', ',', '(', ')', '[', ']', '{', '}', '"', '\''];
                self.take_word(|c| !ends.contains(&c) && c != '\n')
            }
        };
        let is_keyword = !name.is_empty() && self.accept("=");
        if !is_keyword {
            self.rest = start;
        }
        is_keyword.then_some(name)
    }

    fn parse_literal(&mut self, level: usize) -> Option<PyValue> {
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
