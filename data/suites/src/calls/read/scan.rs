//! Scans an answer: skips reasoning, and starts a family's parser at each of its markers.

use std::ops::Range;

use super::gemma::{FUNCTION_GEMMA, GEMMA_4, parse_gemma_call};
use super::json_text::{parse_json_at, parse_marked_json, parse_mistral};
use super::marked::{parse_deepseek, parse_harmony, parse_kimi, parse_python_tag};
use super::python_text::{
    parse_code_fence, parse_code_tags, parse_function_calls, parse_list_at, parse_marked_list,
};
use super::tagged::{parse_function_tags, parse_tool_call_tags};
use super::{CallDialect, MAX_CALLS};
use crate::calls::answer::CallsAnswer;
use crate::calls::tools::ToolSet;

/// Maximum number of brackets at which the scanner tries to parse a value. Without this limit, a
/// text of brackets would take quadratic time.
pub(super) const MAX_TRIED: usize = 256;

/// The markers around reasoning.
struct ReasoningMarks {
    open: &'static str,
    close: &'static str,
    /// Whether the prompt may end with the opening marker. If so, an answer may contain only the
    /// closing marker.
    in_prompts: bool,
}

const THOUGHTS: [ReasoningMarks; 5] = [
    ReasoningMarks::new("<think>", "</think>", true),
    ReasoningMarks::new("[THINK]", "[/THINK]", true),
    ReasoningMarks::new("<seed:think>", "</seed:think>", true),
    ReasoningMarks::new("<|channel|>analysis<|message|>", "<|end|>", false),
    ReasoningMarks::new("<|channel>thought", "<channel|>", false),
];

impl ReasoningMarks {
    const fn new(open: &'static str, close: &'static str, in_prompts: bool) -> Self {
        Self {
            open,
            close,
            in_prompts,
        }
    }
}

/// The position of a call parser: the text, and the byte after the marker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'t> {
    pub(super) text: &'t str,
    pub(super) begin: usize,
    pub(super) tools: &'t ToolSet,
}

impl<'t> Cursor<'t> {
    /// The text from this position on.
    pub(super) fn rest(self) -> &'t str {
        &self.text[self.begin..]
    }

    /// The position after whitespace.
    pub(super) fn skip_whitespace(self) -> Self {
        let n_blanks = self.rest().len() - self.rest().trim_start().len();
        self.skip(n_blanks)
    }

    /// The position `n` bytes later.
    pub(super) fn skip(self, n: usize) -> Self {
        Self {
            begin: self.begin + n,
            ..self
        }
    }

    /// The position after a marker, if the text continues with it.
    pub(super) fn strip_mark(self, mark: &str) -> Option<Self> {
        let is_match = self.rest().starts_with(mark);
        is_match.then(|| self.skip(mark.len()))
    }
}

/// Parses the text after a marker, adds its calls, and returns the byte where the text continues.
/// Returns `None` and adds nothing if the marker does not start a call.
type MarkerParser = fn(Cursor<'_>, &mut CallsAnswer) -> Option<usize>;

/// Each marker with its parser; the parser sets the dialect.
const MARKS: [(&str, MarkerParser); 15] = [
    ("<tool_call>", parse_tool_call_tags),
    ("<function=", parse_function_tags),
    ("[TOOL_CALLS]", parse_mistral),
    ("<|tool_call|>", |at, answer| {
        parse_marked_json(at, CallDialect::Granite, answer)
    }),
    ("<|tool_calls|>", |at, answer| {
        parse_marked_json(at, CallDialect::Granite, answer)
    }),
    ("<|tool_call_start|>", parse_marked_list),
    ("<|python_start|>", parse_marked_list),
    ("<|python_tag|>", parse_python_tag),
    ("<function_calls>", parse_function_calls),
    ("```tool_code", parse_code_fence),
    ("<code>", parse_code_tags),
    (FUNCTION_GEMMA.open, |at, answer| {
        parse_gemma_call(at, FUNCTION_GEMMA, answer)
    }),
    (GEMMA_4.open, |at, answer| {
        parse_gemma_call(at, GEMMA_4, answer)
    }),
    ("<｜tool▁call▁begin｜>", parse_deepseek),
    ("<|tool_call_begin|>", parse_kimi),
];

/// The start of a gpt-oss header, which has no marker before the name.
const HARMONY: &str = "to=functions.";

/// Result of scanning an answer.
///
/// Reasoning is the text between an opening marker such as `<think>` at the start of a line and its
/// closing marker. Unterminated reasoning extends to the end of the answer. If the chat template
/// opens the reasoning in the prompt, the answer contains only the closing marker, and everything
/// before the first closing marker is reasoning. A closing marker inside a call or a JSON string is
/// ignored.
#[derive(Debug)]
pub(super) struct ScannedAnswer {
    /// The calls between markers; the dialect is `None` if there are none.
    pub(super) answer: CallsAnswer,
    /// The bytes after the first reasoning and before unterminated reasoning.
    pub(super) visible: Range<usize>,
}

impl ScannedAnswer {
    /// Scans a text.
    pub(super) fn new(text: &str, tools: &ToolSet) -> Self {
        let mut walk = Scanner {
            text,
            tools,
            answer: CallsAnswer::default(),
            visible: 0..text.len(),
            may_close: true,
            n_tried: 0,
        };
        let mut start = 0;
        while let Some(offset) = text[start..].find(['<', '[', '{', '`', 't']) {
            if walk.answer.calls.len() + walk.answer.malformed.len() > MAX_CALLS {
                break;
            }
            start = walk.step(start + offset);
        }
        Self {
            answer: walk.answer,
            visible: walk.visible,
        }
    }
}

struct Scanner<'t> {
    text: &'t str,
    tools: &'t ToolSet,
    answer: CallsAnswer,
    visible: Range<usize>,
    /// Whether a closing marker may still belong to reasoning opened in the prompt.
    may_close: bool,
    n_tried: usize,
}

impl Scanner<'_> {
    /// Parses at this byte and returns where the text continues.
    fn step(&mut self, start: usize) -> usize {
        let rest = &self.text[start..];
        for marks in &THOUGHTS {
            if rest.starts_with(marks.open) && self.is_line_start(start) {
                return self.skip_reasoning(start, marks);
            }
            if marks.in_prompts && self.may_close && rest.starts_with(marks.close) {
                let end = start + marks.close.len();
                self.may_close = false;
                self.visible.start = end;
                self.answer = CallsAnswer::default();
                return end;
            }
        }
        let parser = MARKS.iter().find(|(mark, _)| rest.starts_with(mark));
        let parser = parser.copied().or_else(|| {
            let is_header = rest.starts_with(HARMONY);
            is_header.then_some((HARMONY, parse_harmony as MarkerParser))
        });
        if let Some((mark, parser)) = parser {
            let cursor = Cursor {
                text: self.text,
                begin: start + mark.len(),
                tools: self.tools,
            };
            return parser(cursor, &mut self.answer).unwrap_or(cursor.begin);
        }
        match rest.as_bytes()[0] {
            b'{' | b'[' => self.skip_value(start),
            _ => start + 1,
        }
    }

    /// Skips reasoning that starts here.
    fn skip_reasoning(&mut self, start: usize, marks: &ReasoningMarks) -> usize {
        self.may_close = false;
        let content_start = start + marks.open.len();
        let is_first = self.text[self.visible.start..start].trim().is_empty();
        match self.text[content_start..].find(marks.close) {
            Some(offset) => {
                let end = content_start + offset + marks.close.len();
                if is_first {
                    self.visible.start = end;
                }
                end
            }
            None => {
                self.visible.end = start;
                self.text.len()
            }
        }
    }

    /// Skips a JSON value or list of Python calls without markers, because markers in its strings
    /// are text. If the value is broken, skips its valid part.
    fn skip_value(&mut self, start: usize) -> usize {
        if self.n_tried == MAX_TRIED {
            return start + 1;
        }
        self.n_tried += 1;
        let cursor = Cursor {
            text: self.text,
            begin: start,
            tools: self.tools,
        };
        if let Some((_, end)) = parse_list_at(cursor) {
            return end;
        }
        match parse_json_at(self.text, start) {
            Ok((_, end)) => end,
            Err(json_error) => json_error.at.max(start + 1),
        }
    }

    fn is_line_start(&self, start: usize) -> bool {
        let line_before = self.text[self.visible.start..start].trim_end_matches([' ', '\t']);
        line_before.is_empty() || line_before.ends_with('\n') || line_before.ends_with('>')
    }
}
