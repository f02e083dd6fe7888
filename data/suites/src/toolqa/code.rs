//! Finds the Python function in a model's output, and declares the contract of who runs it.
//!
//! The published rule takes the name between the first `def` and the first bracket of the code, so
//! it calls a function that merely comes first, or none. The robust rule calls the last function of
//! the top level. Nothing is run here.

use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_rows::python::is_blank;

/// What the published evaluation returns in place of an answer when code fails.
pub const CODE_EXECUTION_ERROR: &str = "Code execution error";

const FENCE: &str = "```";
const PYTHON_FENCE: &str = "```python";
const EXAMPLE: &str = "# Example usage:";

/// Where a program begins: an import, a decorator, a class or a function without indentation.
static PROGRAM: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r"(?m)^(?:import[ \t]+[\w.]+[ \t]*(?:as\b|[,;#\r]|$)|from[ \t]+[\w.]+[ \t]+import\b",
        r"|@\w|class[ \t]+\w|(?:async[ \t]+)?def[ \t]+\w)"
    ))
});

/// A function without indentation, its name in group 1.
static FUNCTION: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?m)^def[ \t]+(\w+)[ \t]*\("));

/// The line after a fence that names a language, or the name alone where the code follows it.
static LANGUAGE: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"^(?:[ \t]*[\w+.-]*[ \t]*\r?\n|(?:python3?|py)[ \t]+)"));

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a fixed pattern")
}

/// A program and the function of it that is called with the response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtractedCode {
    /// The program.
    pub code: String,
    /// Name of the function; by the published rule perhaps none that exists.
    pub name: String,
}

/// Which function of an output is called.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeRule {
    /// As the published evaluation.
    #[default]
    Official,
    /// The last function of the top level in the first fenced block that has one.
    Robust,
}

/// Finds the code of a model's output; nothing where there is none.
///
/// # Source
///
/// The published evaluation for [`CodeRule::Official`].
pub fn extract_code(output: &str, rule: CodeRule) -> Option<ExtractedCode> {
    match rule {
        CodeRule::Official => official(output),
        CodeRule::Robust => robust(output),
    }
}

/// The text after the first Python fence, else a text that has `def `, up to the next fence and the
/// example usage.
fn official(output: &str) -> Option<ExtractedCode> {
    let begun = match output.split_once(PYTHON_FENCE) {
        Some((_, after)) => after,
        None if output.contains("def ") => output,
        None => return None,
    };
    let code = before(begun, FENCE).trim_matches(is_blank);
    let code = before(code, EXAMPLE);
    Some(ExtractedCode {
        code: code.to_owned(),
        name: official_name(code).trim_matches(is_blank).to_owned(),
    })
}

/// `code[code.find("def") + 4 : code.find("(")]` as Python slices: what is not found counts as -1,
/// and -1 as an end is the last character.
fn official_name(code: &str) -> String {
    let n_characters = code.chars().count();
    let place = |part| Some(code[..code.find(part)?].chars().count());
    let start = place("def").map_or(3, |at| at + 4);
    let end = place("(").unwrap_or(n_characters.saturating_sub(1));
    let n_taken = end.saturating_sub(start);
    code.chars().skip(start).take(n_taken).collect()
}

/// Fenced blocks come first, in their order, then what stands outside of them.
fn robust(output: &str) -> Option<ExtractedCode> {
    let parts = || output.split(FENCE).enumerate();
    let fenced = parts().filter(|(idx, _)| idx % 2 == 1);
    let fenced =
        fenced.map(|(_, block)| &block[LANGUAGE.find(block).map_or(0, |line| line.end())..]);
    let open = parts()
        .filter(|(idx, _)| idx % 2 == 0)
        .map(|(_, text)| text);
    fenced.chain(open).find_map(program)
}

/// The text from its first import or definition on, if it defines a function.
fn program(text: &str) -> Option<ExtractedCode> {
    let text = before(text, EXAMPLE);
    let code = text[PROGRAM.find(text)?.start()..].trim_matches(is_blank);
    let last = FUNCTION.captures_iter(code).last()?;
    Some(ExtractedCode {
        code: code.to_owned(),
        name: last.get(1)?.as_str().to_owned(),
    })
}

fn before<'t>(text: &'t str, mark: &str) -> &'t str {
    text.split_once(mark).map_or(text, |(before, _)| before)
}

/// Runs code that a model wrote; whoever implements it keeps the machine safe from that code.
pub trait CodeRunner: Sync {
    /// Calls the function `name` of `code` with the response and returns what it returns.
    ///
    /// # Errors
    ///
    /// - the code or the call raises, has no such function, or returns what JSON cannot hold
    /// - the call takes too long or too much
    /// - code cannot be run on this machine at all
    fn run(&self, code: &ExtractedCode, response: &Value) -> Result<Value, CodeFailure>;
}

/// Why code has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum CodeFailure {
    /// The code's own fault, such as an exception: the answer is wrong.
    #[error("the code failed: {reason}")]
    Failed {
        /// The exception, or what else went wrong.
        reason: String,
    },
    /// A limit of time, memory or output was reached: the answer is wrong.
    #[error("the code was stopped: {reason}")]
    Stopped {
        /// Which limit.
        reason: String,
    },
    /// No code can be run, whatever it is: there are no scores.
    #[error("code cannot be run: {reason}")]
    Unavailable {
        /// What is missing and how to fix it.
        reason: String,
    },
}

#[cfg(test)]
mod tests;
