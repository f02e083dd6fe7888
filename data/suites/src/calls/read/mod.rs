//! Parses the calls in an answer, in the notation of any supported model family.
//!
//! An answer is scanned once from start to end. If a family's marker starts a call, that family's
//! parser parses the call and returns its end. Markers inside JSON strings or arguments are
//! ignored. Text that starts like a call and cannot be parsed is malformed, with the reason;
//! everything else is text. JSON is parsed strictly: a lenient parser would hide a model's
//! mistakes, and an inference server would not run such a call.

mod gemma;
mod json_text;
mod marked;
mod python_text;
mod scan;
mod tagged;

use std::fmt;

use serde::{Deserialize, Serialize};

use self::json_text::parse_bare;
use self::python_text::parse_python_list;
use self::scan::ScannedAnswer;
use super::answer::{AnswerEnd, CallsAnswer};
use super::tools::ToolSet;

/// Maximum number of calls in an answer. An answer with more calls is malformed.
pub const MAX_CALLS: usize = 256;

/// Maximum length of an answer in bytes. A longer answer is malformed.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

/// The notation of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallDialect {
    /// JSON without model-specific markers, possibly in a fence or surrounded by text: `{"name":
    /// ..., "parameters": {...}}`, or with `arguments`; a list of such objects; an object with such
    /// a list as `tool_calls`. Llama 3.1, also after `<|python_tag|>`.
    Json,
    /// JSON in `<tool_call>` tags: Hermes, Qwen2.5, Qwen3, Granite 4, SmolLM3.
    Hermes,
    /// `<function=name><parameter=key>value</parameter></function>`, with or without `<tool_call>`
    /// tags: Qwen3-Coder, Qwen3.5, Nemotron 3, Seed-OSS; `<function=name>{...}</function>` of Llama
    /// 3.1.
    Function,
    /// A name with `<arg_key>` and `<arg_value>` in `<tool_call>` tags: GLM-4.5.
    Glm,
    /// `[TOOL_CALLS]` before a list, or before a name and its arguments: Mistral.
    Mistral,
    /// `<|tool_call|>` before a list: Granite 3, Phi-4-mini.
    Granite,
    /// `[name(key=value), ...]`, Python notation: Llama 3.2, ToolACE, LFM2 between
    /// `<|tool_call_start|>` and `<|tool_call_end|>`, Llama 4 after `<|python_start|>`.
    Python,
    /// `name(key=value)` lines between `<function_calls>` tags: OLMo 3.
    Olmo,
    /// `name(key=value)` lines in a `tool_code` fence or in `<code>` tags: Gemma 3, SmolLM3.
    Code,
    /// `call:name{key:<escape>value<escape>}` after `<start_function_call>`: FunctionGemma; with
    /// `<|"|>` for `<escape>` after `<|tool_call>`: Gemma 4.
    Gemma,
    /// A name and JSON between `<｜tool▁call▁begin｜>` and `<｜tool▁call▁end｜>`: DeepSeek.
    Deepseek,
    /// An id such as `functions.name:0` and JSON after `<|tool_call_begin|>`: Kimi K2.
    Kimi,
    /// `to=functions.name` in the header of a JSON message: gpt-oss.
    Harmony,
}

impl CallDialect {
    /// The name used in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Hermes => "hermes",
            Self::Function => "function",
            Self::Glm => "glm",
            Self::Mistral => "mistral",
            Self::Granite => "granite",
            Self::Python => "python",
            Self::Olmo => "olmo",
            Self::Code => "code",
            Self::Gemma => "gemma",
            Self::Deepseek => "deepseek",
            Self::Kimi => "kimi",
            Self::Harmony => "harmony",
        }
    }
}

impl fmt::Display for CallDialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Parses an answer to a prompt with these `tools`.
///
/// Reasoning before the first call is ignored: it is the text inside reasoning markers. Calls
/// between a family's markers take precedence over calls without markers. An answer that has
/// neither calls nor visible text is [`AnswerEnd::Empty`].
pub fn read_calls(text: &str, tools: &ToolSet) -> CallsAnswer {
    if text.len() > MAX_TEXT_BYTES {
        return malformed(
            None,
            format!(
                "the answer has {} bytes; at most {MAX_TEXT_BYTES} are parsed",
                text.len()
            ),
        );
    }
    let scan = ScannedAnswer::new(text, tools);
    let visible = text[scan.visible.clone()].trim();
    let mut answer = if scan.answer.dialect.is_some() {
        scan.answer
    } else {
        parse_python_list(visible, tools).unwrap_or_else(|| parse_bare(visible, tools))
    };
    if visible.is_empty() && answer.dialect.is_none() {
        answer.end = AnswerEnd::Empty;
    }
    answer.limit_calls()
}

/// The text of an answer after its reasoning, without unterminated reasoning at the end.
pub(crate) fn without_reasoning(text: &str) -> &str {
    &text[ScannedAnswer::new(text, &ToolSet::default()).visible]
}

fn malformed(dialect: Option<CallDialect>, reason: String) -> CallsAnswer {
    CallsAnswer {
        malformed: vec![reason],
        dialect,
        ..CallsAnswer::default()
    }
}
