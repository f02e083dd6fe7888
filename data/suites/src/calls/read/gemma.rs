//! Parses the calls of FunctionGemma and Gemma 4: `parse_call:name{key:value}`, with special string
//! quotes.

use serde_json::{Map, Value};
use tooltune_json as json;
use tooltune_json::MAX_LEVELS;

use super::CallDialect;
use super::scan::Cursor;
use crate::calls::answer::{CallsAnswer, WrittenCall};

/// The delimiters of a Gemma generation.
#[derive(Debug, Clone, Copy)]
pub(super) struct GemmaMarks {
    /// Delimiter before a call.
    pub(super) open: &'static str,
    close: &'static str,
    quote: &'static str,
}

pub(super) const FUNCTION_GEMMA: GemmaMarks = GemmaMarks {
    open: "<start_function_call>",
    close: "<end_function_call>",
    quote: "<escape>",
};

pub(super) const GEMMA_4: GemmaMarks = GemmaMarks {
    open: "<|tool_call>",
    close: "<tool_call|>",
    quote: "<|\"|>",
};

/// Parses one or more calls between the delimiters.
pub(super) fn parse_gemma_call(
    cursor: Cursor<'_>,
    marks: GemmaMarks,
    answer: &mut CallsAnswer,
) -> Option<usize> {
    answer.record_dialect(CallDialect::Gemma);
    let mut cursor = cursor;
    loop {
        match parse_call(cursor, marks) {
            Ok((call, end)) => {
                answer.calls.push(call);
                cursor = Cursor {
                    begin: end,
                    ..cursor
                };
            }
            Err(reason) => {
                answer.add_malformed(reason);
                return Some(cursor.begin);
            }
        }
        let start = cursor.skip_whitespace();
        if let Some(end) = start.strip_mark(marks.close) {
            return Some(end.begin);
        }
        if !start.rest().starts_with("call:") || answer.has_too_many_calls() {
            return Some(start.begin);
        }
        cursor = start;
    }
}

fn parse_call(cursor: Cursor<'_>, marks: GemmaMarks) -> Result<(WrittenCall, usize), String> {
    let Some(head) = cursor.skip_whitespace().strip_mark("call:") else {
        return Err("a call does not start with call:".to_owned());
    };
    let rest = head.rest();
    let is_called = |name: &&str| {
        rest.strip_prefix(*name)
            .is_some_and(|rest| rest.starts_with('{'))
    };
    // A tool name may contain a brace.
    let known_tool = head
        .tools
        .names()
        .filter(is_called)
        .max_by_key(|name| name.len());
    let Some(n_bytes) = known_tool.map(str::len).or_else(|| rest.find('{')) else {
        return Err("a call has no arguments".to_owned());
    };
    let name = rest[..n_bytes].trim().to_owned();
    let mut reader = Reader {
        text: rest,
        at: n_bytes,
        quote: marks.quote,
    };
    match reader.parse_value(0) {
        Some(Value::Object(arguments)) => {
            Ok((WrittenCall { name, arguments }, head.begin + reader.at))
        }
        _ => Err(format!(
            "the arguments of the call to {name} cannot be parsed"
        )),
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    quote: &'static str,
}

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn skip_blanks(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn accept(&mut self, mark: &str) -> bool {
        self.skip_blanks();
        let is_match = self.rest().starts_with(mark);
        self.at += if is_match { mark.len() } else { 0 };
        is_match
    }

    fn parse_value(&mut self, level: usize) -> Option<Value> {
        if level > MAX_LEVELS {
            return None;
        }
        if self.accept(self.quote) {
            return self
                .parse_string(|after| after.starts_with([',', '}', ']']))
                .map(Value::from);
        }
        if self.accept("{") {
            return self.parse_fields(level).map(Value::Object);
        }
        if self.accept("[") {
            return self.parse_items(level).map(Value::Array);
        }
        self.parse_scalar()
    }

    /// Parses a string after its opening quote. The string ends at the first quote after which the
    /// call continues.
    fn parse_string(&mut self, continues: impl Fn(&str) -> bool) -> Option<&'t str> {
        let rest = self.rest();
        let mut ends = rest.match_indices(self.quote);
        let end =
            ends.find(|(position, quote)| continues(rest[position + quote.len()..].trim_start()));
        let (end, quote) = end?;
        self.at += end + quote.len();
        Some(&rest[..end])
    }

    fn parse_fields(&mut self, level: usize) -> Option<Map<String, Value>> {
        let mut fields = Map::new();
        loop {
            if self.accept("}") {
                return Some(fields);
            }
            if !fields.is_empty() && !self.accept(",") {
                return None;
            }
            let key = if self.accept(self.quote) {
                self.parse_string(|after| after.starts_with(':'))?
            } else {
                let end = self.rest().find(':')?;
                let key = self.rest()[..end].trim();
                self.at += end;
                key
            };
            if !self.accept(":") {
                return None;
            }
            let value = self.parse_value(level + 1)?;
            fields.insert(key.to_owned(), value);
        }
    }

    fn parse_items(&mut self, level: usize) -> Option<Vec<Value>> {
        let mut items = Vec::new();
        loop {
            if self.accept("]") {
                return Some(items);
            }
            if !items.is_empty() && !self.accept(",") {
                return None;
            }
            items.push(self.parse_value(level + 1)?);
        }
    }

    /// Parses a number or word, as JSON or Python writes it.
    fn parse_scalar(&mut self) -> Option<Value> {
        self.skip_blanks();
        let rest = self.rest();
        let end = rest.find([',', '}', ']'])?;
        let literal = rest[..end].trim();
        self.at += end;
        match literal {
            "None" => Some(Value::Null),
            "True" => Some(Value::Bool(true)),
            "False" => Some(Value::Bool(false)),
            _ => json::parse(literal).ok(),
        }
    }
}
