//! Reads the calls that a completion holds, by the rules of its model family.
//!
//! The published parsers save nothing: any text before the calls leaves none. That is part of the
//! numbers they are compared with, so it is kept; [`Parser::Lenient`] is ours and finds calls
//! wherever they are.

use tooltune_rows::python::{PyValue, loads};

use super::lenient::lenient_calls;
use crate::python_calls::{Positional, python_calls};

/// How the completions of a model family are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parser {
    /// The whole text is a list.
    JsonList,
    /// As [`Parser::JsonList`] without `<|tool_call|>` and `<tool_call>`.
    Granite31,
    /// As [`Parser::JsonList`] without `<|eom_id|>` and one `'` at the end, brackets added where
    /// they are missing.
    Llama,
    /// As [`Parser::JsonList`] without the marks of a fence; its language stays, and an empty list
    /// is an error.
    Hammer,
    /// One object in each `<tool_call>`; those that cannot be read are skipped, none is an error.
    Hermes,
    /// An object with `tool_calls`; marks such as `[BEGIN OF ANSWER]` are dropped.
    Xlam,
    /// `[name(argument=value), ..]`, as Python writes calls. There are no labels, so that
    /// references and executions fail.
    ToolAce,
    /// Whatever holds calls, see [`lenient_calls`].
    Lenient,
}

/// What a completion holds.
#[derive(Debug, Clone, Default)]
pub struct ParsedCalls {
    /// The calls as written, whether or not they are such.
    pub calls: Vec<PyValue>,
    /// Whether the text could not be read.
    pub is_error: bool,
}

impl Parser {
    /// The parsers by the names that options have for them.
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

    /// The parser of that name.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find_map(|(known, parser)| (known == name).then_some(parser))
    }

    /// The parser's name.
    pub fn name(self) -> &'static str {
        let mut all = Self::ALL.into_iter();
        all.find_map(|(name, parser)| (parser == self).then_some(name))
            .unwrap_or_default()
    }

    /// Reads a completion; JSON is read as Python reads it.
    ///
    /// # Source
    ///
    /// NESTFUL's published parsers, one for each model family.
    pub fn parse(self, completion: &str) -> ParsedCalls {
        let calls = match self {
            Self::JsonList => list(completion),
            Self::Granite31 => list(&without(completion, &["<|tool_call|>", "<tool_call>"])),
            Self::Llama => list(&with_brackets(&without(completion, &["<|eom_id|>"]))),
            Self::Hammer => {
                list(without(completion, &["```"]).trim()).filter(|calls| !calls.is_empty())
            }
            Self::Hermes => tagged(completion.trim()).filter(|calls| !calls.is_empty()),
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

fn without(text: &str, marks: &[&str]) -> String {
    let drop = |text: String, mark: &&str| text.replace(mark, "");
    marks.iter().fold(text.to_owned(), drop)
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
    let open = if text.starts_with('[') { "" } else { "[" };
    let close = if text.ends_with(']') { "" } else { "]" };
    format!("{open}{text}{close}")
}

/// What stands in each pair of `<tool_call>` tags and is JSON.
pub(super) fn tagged(text: &str) -> Option<Vec<PyValue>> {
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
    let value = loads(without(text, &MARKS).trim()).ok()?;
    Some(value.get("tool_calls")?.as_list()?.to_vec())
}
