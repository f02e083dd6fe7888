//! Finds the Python function in a model's output, and declares the interface for running it.
//!
//! The published rule uses the name between the first `def` and the first parenthesis of the code.
//! The result may be the name of a helper function, or not a function name. The robust rule calls
//! the last top-level function. This module runs no code.

use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_json::blank::is_blank;

/// The answer that the published evaluation uses if code fails.
pub const CODE_EXECUTION_ERROR: &str = "Code execution error";

const FENCE: &str = "```";
const PYTHON_FENCE: &str = "```python";
const EXAMPLE: &str = "# Example usage:";

/// The start of a program: an unindented import, decorator, class or function.
static PROGRAM: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r"(?m)^(?:import[ \t]+[\w.]+[ \t]*(?:as\b|[,;#\r]|$)|from[ \t]+[\w.]+[ \t]+import\b",
        r"|@\w|class[ \t]+\w|(?:async[ \t]+)?def[ \t]+\w)"
    ))
});

/// An unindented function, with its name in group 1.
static FUNCTION: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?m)^def[ \t]+(\w+)[ \t]*\("));

/// The language name after an opening fence, with the line break. If code follows on the same line,
/// only the language name.
static LANGUAGE: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"^(?:[ \t]*[\w+.-]*[ \t]*\r?\n|(?:python3?|py)[ \t]+)"));

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a fixed pattern")
}

/// A program, and the function of it that is called with the response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtractedCode {
    /// The program.
    pub code: String,
    /// Name of the function. By the published rule, this function may not exist.
    pub name: String,
}

/// The rule that selects the function of an output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeRule {
    /// As in the published evaluation.
    #[default]
    Official,
    /// The last top-level function in the first fenced block that has one.
    Robust,
}

/// Finds the code in a model's output; `None` if there is none.
///
/// # Source
///
/// The published evaluation for [`CodeRule::Official`].
pub fn extract_code(output: &str, rule: CodeRule) -> Option<ExtractedCode> {
    match rule {
        CodeRule::Official => extract_official(output),
        CodeRule::Robust => extract_robust(output),
    }
}

/// The text after the first Python fence, otherwise a text that contains `def `. It ends at the
/// next fence or at the example usage.
fn extract_official(output: &str) -> Option<ExtractedCode> {
    let after_fence = match output.split_once(PYTHON_FENCE) {
        Some((_, after)) => after,
        None if output.contains("def ") => output,
        None => return None,
    };
    let code = prefix_before(after_fence, FENCE).trim_matches(is_blank);
    let code = prefix_before(code, EXAMPLE);
    Some(ExtractedCode {
        code: code.to_owned(),
        name: official_name(code).trim_matches(is_blank).to_owned(),
    })
}

/// `code[code.find("def") + 4 : code.find("(")]` with Python's slicing. A missing match is -1, and
/// -1 as an end means the last character.
fn official_name(code: &str) -> String {
    let n_characters = code.chars().count();
    let position = |part| Some(code[..code.find(part)?].chars().count());
    let start = position("def").map_or(3, |idx| idx + 4);
    let end = position("(").unwrap_or(n_characters.saturating_sub(1));
    let n_taken = end.saturating_sub(start);
    code.chars().skip(start).take(n_taken).collect()
}

/// Tries the fenced blocks in order, then the text outside of them.
fn extract_robust(output: &str) -> Option<ExtractedCode> {
    let parts = || output.split(FENCE).enumerate();
    let fenced = parts().filter(|(idx, _)| idx % 2 == 1);
    let fenced =
        fenced.map(|(_, block)| &block[LANGUAGE.find(block).map_or(0, |line| line.end())..]);
    let is_open = parts()
        .filter(|(idx, _)| idx % 2 == 0)
        .map(|(_, text)| text);
    fenced.chain(is_open).find_map(from_program)
}

/// The text from its first import or definition to its end, if it defines a function.
fn from_program(text: &str) -> Option<ExtractedCode> {
    let text = prefix_before(text, EXAMPLE);
    let code = text[PROGRAM.find(text)?.start()..].trim_matches(is_blank);
    let last = FUNCTION.captures_iter(code).last()?;
    Some(ExtractedCode {
        code: code.to_owned(),
        name: last.get(1)?.as_str().to_owned(),
    })
}

fn prefix_before<'t>(text: &'t str, mark: &str) -> &'t str {
    text.split_once(mark).map_or(text, |(before, _)| before)
}

/// Runs model-generated code. Implementations must isolate it from the machine.
pub trait CodeRunner: Sync {
    /// Calls the function `name` of `code` with the response and returns its result.
    ///
    /// # Errors
    ///
    /// - the code or the call raises, the function is missing, or the result cannot be represented
    ///   in JSON
    /// - the call exceeds a limit
    /// - code cannot be run on this machine
    fn run(&self, code: &ExtractedCode, response: &Value) -> Result<Value, CodeFailure>;
}

/// Why code did not return an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum CodeFailure {
    /// The code failed, for example by an exception: the answer is wrong.
    #[error("the code failed: {reason}")]
    Failed {
        /// The exception or other error.
        reason: String,
    },
    /// A limit on time, memory or output was reached: the answer is wrong.
    #[error("the code was stopped: {reason}")]
    Stopped {
        /// The limit.
        reason: String,
    },
    /// No code can be run on this machine, so there are no scores.
    #[error("code cannot be run: {reason}")]
    Unavailable {
        /// The missing requirement, and how to fix it.
        reason: String,
    },
}

#[cfg(test)]
mod tests;
