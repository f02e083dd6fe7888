//! Parses the calls in a completion, by the rules of its model family.
//!
//! The published parsers accept no text before the calls. Published numbers depend on this rule, so
//! it is kept. [`Parser::Lenient`] is our own parser and finds calls anywhere.

use tooltune_json::python::{PyValue, loads};

use super::lenient::lenient_calls;
use crate::python_calls::{Positional, python_calls};

/// The parser of a model family's completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parser {
    /// The whole text is a list.
    JsonList,
    /// Like [`Parser::JsonList`], after removing `<|tool_call|>` and `<tool_call>`.
    Granite31,
    /// Like [`Parser::JsonList`], after removing `<|eom_id|>` and one trailing `'`, and adding
    /// missing brackets.
    Llama,
    /// Like [`Parser::JsonList`], after removing fence markers but not the fence language; an empty
    /// list is an error.
    Hammer,
    /// One object per `<tool_call>`. Unparsable objects are skipped, and a text without any object
    /// is an error.
    Hermes,
    /// An object with `tool_calls`; markers such as `[BEGIN OF ANSWER]` are removed.
    Xlam,
    /// `[name(argument=value), ..]` in Python notation. There are no labels, so references and
    /// executions fail.
    ToolAce,
    /// Any text that contains calls, see [`lenient_calls`].
    Lenient,
}

/// The parsed calls of a completion.
#[derive(Debug, Clone, Default)]
pub struct ParsedCalls {
    /// The calls as written, whether or not they are valid.
    pub calls: Vec<PyValue>,
    /// Whether the text could not be parsed.
    pub is_error: bool,
}

impl Parser {
    /// The parsers with their option names.
    pub const ALL: [(&'static str, Self); 8] = [
        ("json_list", Self::JsonList),
        ("granite31", Self::Granite31),
        ("llama", Self::Llama),
        ("hammer", Self::Hammer),
        ("hermes", Self::Hermes),
        ("xlam", Self::Xlam),
        ("toolace", Self::ToolAce),
        ("lenient", Self::Lenient),
    ];

    /// The parser with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut parsers = Self::ALL.into_iter();
        parsers.find_map(|(parser_name, parser)| (parser_name == name).then_some(parser))
    }

    /// The name of the parser.
    pub fn name(self) -> &'static str {
        let mut parsers = Self::ALL.into_iter();
        parsers
            .find_map(|(name, parser)| (parser == self).then_some(name))
            .unwrap_or_default()
    }

    /// Parses a completion, with JSON as in Python.
    ///
    /// # Source
    ///
    /// NESTFUL's published parsers, one per model family.
    pub fn parse(self, completion: &str) -> ParsedCalls {
        let calls = match self {
            Self::JsonList => list(completion),
            Self::Granite31 => list(&remove_marks(completion, &["<|tool_call|>", "<tool_call>"])),
            Self::Llama => list(&with_brackets(&remove_marks(completion, &["<|eom_id|>"]))),
            Self::Hammer => {
                list(remove_marks(completion, &["```"]).trim()).filter(|calls| !calls.is_empty())
            }
            Self::Hermes => tagged_values(completion.trim()).filter(|calls| !calls.is_empty()),
            Self::Xlam => tool_calls(completion.trim()),
            Self::ToolAce => python_calls(completion.trim(), Positional::Dropped)
                .filter(|calls| !calls.is_empty()),
            Self::Lenient => lenient_calls(completion),
        };
        ParsedCalls {
            is_error: calls.is_none(),
            calls: calls.unwrap_or_default(),
        }
    }
}

fn remove_marks(text: &str, marks: &[&str]) -> String {
    let remove = |text: String, mark: &&str| text.replace(mark, "");
    marks.iter().fold(text.to_owned(), remove)
}

fn list(text: &str) -> Option<Vec<PyValue>> {
    match loads(text).ok()? {
        PyValue::List(calls) => Some(calls),
        _ => None,
    }
}

fn with_brackets(text: &str) -> String {
    let text = text.trim();
    let text = text.strip_suffix('\'').unwrap_or(text);
    let bracket = if text.starts_with('[') { "" } else { "[" };
    let close = if text.ends_with(']') { "" } else { "]" };
    format!("{bracket}{text}{close}")
}

/// The JSON values in the `<tool_call>` tags.
pub(super) fn tagged_values(text: &str) -> Option<Vec<PyValue>> {
    const OPEN: &str = "<tool_call>";
    let fixed = text
        .starts_with("tool_call\n{")
        .then(|| text.replace("tool_call\n{", "<tool_call>\n{"));
    let mut rest = fixed.as_deref().unwrap_or(text);
    let mut calls = Vec::new();
    while let Some(start) = rest.find(OPEN) {
        let inside = &rest[start + OPEN.len()..];
        let Some((block, after)) = inside.split_once("</tool_call>") else {
            break;
        };
        calls.extend(loads(block.trim()).ok());
        rest = after;
    }
    Some(calls)
}

fn tool_calls(text: &str) -> Option<Vec<PyValue>> {
    const MARKS: [&str; 5] = [
        "[BEGIN OF ANSWER]",
        "[BEGIN OF FUNCTION CALLS]",
        "[BEGIN OF FUNCTION CALL]",
        "[BEGIN OF ACTIONS]",
        "[BEGIN OF ACTION]",
    ];
    let value = loads(remove_marks(text, &MARKS).trim()).ok()?;
    Some(value.get("tool_calls")?.as_list()?.to_vec())
}
