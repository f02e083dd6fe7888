//! Parses `[name(argument=value, ..), ..]`, the Python notation of calls.
//!
//! Values are Python literals; anything else makes the text unparsable.

use tooltune_json::python::{LiteralReader, PyDict, PyValue};

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
        text: LiteralReader { rest: text },
        positional,
        names: CallNames::Python,
    };
    let is_list = reader.text.accept("[");
    let mut calls = Vec::new();
    while !(is_list && reader.text.accept("]")) {
        if !is_list && reader.text.is_at_end() {
            break;
        }
        if !calls.is_empty() && !reader.text.accept(",") {
            return None;
        }
        if !calls.is_empty() && is_list && reader.text.accept("]") {
            break;
        }
        calls.push(reader.parse_call()?);
    }
    reader.text.is_at_end().then_some(calls)
}

/// Parses the calls at the start of a text, up to the first text that is not a call. The calls are
/// in a list, or are separated by whitespace, commas or semicolons.
pub(crate) fn python_calls_at(text: &str, names: CallNames<'_>) -> Option<PythonCalls> {
    let mut reader = Reader {
        text: LiteralReader { rest: text },
        positional: Positional::Refused,
        names,
    };
    let mut calls = Vec::new();
    if reader.text.accept("[") {
        while !reader.text.accept("]") {
            if !calls.is_empty() && !reader.text.accept(",") {
                return None;
            }
            if !calls.is_empty() && reader.text.accept("]") {
                break;
            }
            calls.push(reader.parse_call()?);
        }
    } else {
        loop {
            let reader_before = reader.text.rest;
            if !calls.is_empty() {
                let _separator = reader.text.accept(",") || reader.text.accept(";");
            }
            let Some(call) = reader.parse_call() else {
                reader.text.rest = reader_before;
                break;
            };
            calls.push(call);
        }
    }
    Some(PythonCalls {
        calls,
        n_bytes: text.len() - reader.text.rest.len(),
    })
}

struct Reader<'t> {
    text: LiteralReader<'t>,
    positional: Positional,
    names: CallNames<'t>,
}

impl<'t> Reader<'t> {
    fn parse_call(&mut self) -> Option<PyValue> {
        let name = self.parse_name()?;
        if !self.text.accept("(") {
            return None;
        }
        let mut arguments = PyDict::new();
        let mut is_first = true;
        while !self.text.accept(")") {
            if !is_first && !self.text.accept(",") {
                return None;
            }
            if !is_first && self.text.accept(")") {
                break;
            }
            is_first = false;
            if let Some(keyword) = self.parse_keyword() {
                let value = self.text.parse_literal(0)?;
                arguments.insert(keyword.to_owned(), value);
            } else if self.positional == Positional::Dropped {
                self.text.parse_literal(0)?;
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
        self.text.skip_blanks();
        let start = self.text.rest;
        let dash = match self.names {
            CallNames::Python => '.',
            CallNames::Known(names) => {
                let is_called = |name: &&&str| {
                    let after = start.strip_prefix(**name);
                    after.is_some_and(|after| after.starts_with('('))
                };
                if let Some(name) = names.iter().filter(is_called).max_by_key(|name| name.len()) {
                    let (name, after) = start.split_at(name.len());
                    self.text.rest = after;
                    return Some(name);
                }
                '-'
            }
        };
        let name = self
            .text
            .take_word(|c| c.is_alphanumeric() || matches!(c, '_' | '.') || c == dash);
        let starts_well = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
        starts_well.then_some(name)
    }

    /// Parses a name and the `=` or `:` after it. Consumes nothing if there is no such name.
    fn parse_keyword(&mut self) -> Option<&'t str> {
        self.text.skip_blanks();
        let start = self.text.rest;
        let name = match self.names {
            CallNames::Python => self.text.take_word(|c| c.is_alphanumeric() || c == '_'),
            // Templates write JSON keys without quotes.
            CallNames::Known(_) => {
                let ends = ['=', ',', '(', ')', '[', ']', '{', '}', '"', '\''];
                self.text.take_word(|c| !ends.contains(&c) && c != '\n')
            }
        };
        let is_keyword = !name.is_empty() && self.text.accept("=");
        if !is_keyword {
            self.text.rest = start;
        }
        is_keyword.then_some(name)
    }
}
