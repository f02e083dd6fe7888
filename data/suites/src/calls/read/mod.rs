//! Reads the calls that an answer holds, whichever model family wrote it.
//!
//! What is not written as a call is text, and no error; what begins as a call and is none is
//! malformed, with the reason. JSON is read as strictly as everywhere: a lenient reader hides a
//! model's mistakes, and a server would not run such a call.

mod json_text;
mod tagged;

use std::fmt;

use serde::{Deserialize, Serialize};
use tooltune_rows::json;
use tooltune_rows::python::dumps;

use self::json_text::{bare, json_after, mistral};
use self::tagged::{functions, in_tags};
use super::answer::{CallsAnswer, WrittenCall};
use super::tools::ToolSet;
use crate::python_calls::{Positional, python_calls, without_thoughts};

/// The most calls of an answer that are compared; one with more is malformed.
pub const MAX_CALLS: usize = 256;

/// The most bytes of an answer that are read; a longer one is malformed.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

/// How calls are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallDialect {
    /// JSON alone, in a fence or text around it: `{"name": ..., "parameters": {...}}`, `arguments`
    /// in its place, a list of such, an object with such a list as `tool_calls`. Llama 3.1, and
    /// after `<|python_tag|>`; families whose marks were dropped as special tokens.
    Json,
    /// JSON in `<tool_call>` tags: Hermes, Qwen2.5, Qwen3.
    Hermes,
    /// `<function=name><parameter=key>value</parameter></function>`, in `<tool_call>` tags or not:
    /// Qwen3-Coder, Qwen3.5, Nemotron 3; `<function=name>{...}</function>` of Llama 3.1.
    Function,
    /// A name with `<arg_key>` and `<arg_value>` in `<tool_call>` tags: GLM-4.5.
    Glm,
    /// `[TOOL_CALLS]` before a list, or before a name and its arguments: Mistral.
    Mistral,
    /// `<|tool_call|>` before a list: Granite 3, Phi-4-mini.
    Granite,
    /// `[name(key=value), ...]`, as Python writes calls: Llama 3.2, ToolACE, LFM2 between
    /// `<|tool_call_start|>` and `<|tool_call_end|>`.
    Python,
}

impl CallDialect {
    /// Its name, as it is in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Hermes => "hermes",
            Self::Function => "function",
            Self::Glm => "glm",
            Self::Mistral => "mistral",
            Self::Granite => "granite",
            Self::Python => "python",
        }
    }
}

impl fmt::Display for CallDialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads an answer; `tools` are those that the model was shown.
///
/// Thoughts are passed over: all up to the last `</think>`, and an opened `<think>` with all after
/// it. The marks of a family must be in the text where its tokenizer has them as special tokens;
/// without them JSON is found all the same, and then its dialect is [`CallDialect::Json`].
pub fn read_calls(text: &str, tools: &ToolSet) -> CallsAnswer {
    if text.len() > MAX_TEXT_BYTES {
        return malformed(
            None,
            format!(
                "the answer has {} bytes; {MAX_TEXT_BYTES} are read",
                text.len()
            ),
        );
    }
    let text = without_thoughts(text).trim();
    let after = |mark: &str| text.split_once(mark).map(|(_, after)| after.trim());
    let answer = if text.contains(tagged::OPEN) {
        in_tags(text, tools)
    } else if text.contains(tagged::FUNCTION) {
        functions(text, tools)
    } else if text.contains(json_text::TOOL_CALLS) {
        mistral(text)
    } else if let Some(after) = after("<|tool_call|>").or_else(|| after("<|tool_calls|>")) {
        json_after(after, CallDialect::Granite)
    } else if let Some(after) = after("<|tool_call_start|>") {
        let end = after.find("<|tool_call_end|>").unwrap_or(after.len());
        python(&after[..end])
    } else if let Some(after) = after("<|python_tag|>") {
        json_after(after, CallDialect::Json)
    } else if is_python(text) {
        python(text)
    } else {
        bare(text, tools)
    };
    answer.within_budget()
}

fn malformed(dialect: Option<CallDialect>, reason: String) -> CallsAnswer {
    CallsAnswer {
        calls: Vec::new(),
        malformed: vec![reason],
        dialect,
    }
}

/// Whether a text begins as a list of Python's calls.
fn is_python(text: &str) -> bool {
    let Some(inside) = text.strip_prefix('[') else {
        return false;
    };
    let inside = inside.trim_start();
    let name = inside.split('(').next().unwrap_or_default();
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
    name.len() < inside.len()
        && name.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && name.chars().all(is_name)
}

fn python(text: &str) -> CallsAnswer {
    let dialect = CallDialect::Python;
    let Some(calls) = python_calls(text.trim(), Positional::Refused) else {
        let reason = "this is no list of Python's calls with arguments by name and literal values";
        return malformed(Some(dialect), reason.to_owned());
    };
    let mut answer = CallsAnswer::in_dialect(dialect);
    for call in calls {
        let value = json::parse(&dumps(&call));
        let value = value.map_err(|error| format!("a call is no JSON: {error}"));
        answer.add(value.and_then(|value| WrittenCall::of_value(&value)));
    }
    answer
}
