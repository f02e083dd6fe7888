//! Parses a shell script into commands with their words as a shell would pass them.
//!
//! Nothing is run. Quotes, escapes, comments, line continuations, redirections, operators and
//! variables set in the script follow the rules of POSIX and bash. Words that depend on a running
//! shell (unset variables, `$(...)`, patterns) keep the text that makes them unknown.

mod scanner;
#[cfg(test)]
mod tests;
mod variables;

use scanner::{Piece, Token, tokens};
use variables::Variables;

/// A command of a script.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Command {
    /// Line of its start, from 1.
    pub line: usize,
    /// Words; the first is the program.
    pub words: Vec<Word>,
    /// Environment assignments, such as `CUDA_VISIBLE_DEVICES=0`, as written.
    pub environment: Vec<String>,
    /// Redirections and the following operator, such as `2>&1` and `| tee log`, as written.
    pub redirections: Vec<String>,
    /// Enclosing compound command, such as `for`.
    pub inside: Option<String>,
}

/// A word of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Word {
    /// Text passed to the program.
    pub text: String,
    /// Part that only a running shell knows, such as `$HOME`.
    pub unknown: Option<String>,
}

/// Reason why a text is not a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShellError {
    /// An unclosed quote, `$(` or `${`.
    #[error("a quote is not closed, or the text ends with a backslash (line {line})")]
    Open {
        /// Line of its start, from 1.
        line: usize,
    },
    /// Too many commands for a script of settings.
    #[error("the script has more than {MOST_COMMANDS} commands; keep the one that trains")]
    TooLong,
}

/// Largest number of commands in a script.
const MOST_COMMANDS: usize = 10_000;

/// Words that start a compound command, and the word that ends it.
const COMPOUND: [(&str, &str); 7] = [
    ("if", "fi"),
    ("for", "done"),
    ("while", "done"),
    ("until", "done"),
    ("select", "done"),
    ("case", "esac"),
    ("{", "}"),
];

/// Words in compound commands that precede a command.
const BETWEEN: [&str; 5] = ["then", "else", "elif", "do", "!"];

/// Commands of a script, in order.
///
/// # Errors
///
/// A quote is not closed, or there are too many commands.
pub(super) fn commands(text: &str) -> Result<Vec<Command>, ShellError> {
    let text = text.replace("\r\n", "\n");
    let mut reader = Reader::default();
    for token in tokens(&text)? {
        reader.take(token)?;
    }
    reader.finish_script();
    Ok(reader.commands)
}

/// Parser state.
#[derive(Default)]
struct Reader {
    commands: Vec<Command>,
    variables: Variables,
    command: Command,
    /// Open compound commands: start word and end word.
    open: Vec<(String, &'static str)>,
    /// Assignments of the current command, which set variables if no word follows.
    assignments: Vec<(String, Vec<Piece>)>,
    /// A redirection without its word so far.
    redirection: Option<String>,
    /// Name and words of the array being read.
    array: Option<(String, Vec<Word>)>,
    /// Whether the last command continues in a pipe, which is then part of its `redirections`.
    is_piped: bool,
    /// Whether the command is conditional, as after `&&`.
    is_conditional: bool,
}

impl Reader {
    fn take(&mut self, token: Token) -> Result<(), ShellError> {
        match token {
            Token::Word { line, pieces, raw } => self.add_word(line, pieces, &raw),
            Token::Redirection(text) => self.redirection = Some(text),
            Token::Operator(operator) => self.apply_operator(&operator),
        }
        if self.commands.len() > MOST_COMMANDS {
            return Err(ShellError::TooLong);
        }
        Ok(())
    }

    fn add_word(&mut self, line: usize, pieces: Vec<Piece>, raw: &str) {
        if let Some((_, words)) = &mut self.array {
            words.extend(self.variables.expand(&pieces));
            return;
        }
        if let Some(redirection) = self.redirection.take() {
            let gap = if redirection.ends_with('&') { "" } else { " " };
            let text = format!("{redirection}{gap}{raw}");
            return self.command.redirections.push(text);
        }
        let is_first = self.command.words.is_empty();
        if is_first && self.assignments.is_empty() {
            self.command.line = line;
        }
        if is_first && let Some((name, value)) = variables::assignment(&pieces) {
            self.command.environment.push(raw.to_owned());
            return self.assignments.push((name, value));
        }
        if is_first && self.assignments.is_empty() && self.is_keyword(raw) {
            return;
        }
        if self.command.inside.is_none() {
            self.command.inside = self.open.last().map(|(begin, _)| begin.clone());
        }
        let is_declaration = self.command.words.first().is_some_and(|first| {
            ["export", "declare", "local", "readonly", "typeset"].contains(&first.text.as_str())
        });
        if is_declaration && let Some((name, value)) = variables::assignment(&pieces) {
            self.set(&name, &value);
        }
        self.command.words.extend(self.variables.expand(&pieces));
    }

    /// Whether the word starts, continues or ends a compound command.
    fn is_keyword(&mut self, word: &str) -> bool {
        let compound = COMPOUND.iter().find(|(begin, _)| *begin == word);
        if let Some((begin, end)) = compound {
            self.open.push(((*begin).to_owned(), end));
            // Words after `for` and `case` are read as a command and ignored.
            if !matches!(*begin, "for" | "select" | "case") {
                return true;
            }
            return false;
        }
        if self.open.last().is_some_and(|(_, end)| *end == word) {
            self.open.pop();
            return true;
        }
        BETWEEN.contains(&word) && (word == "!" || !self.open.is_empty())
    }

    fn apply_operator(&mut self, operator: &str) {
        if self.array.is_some() {
            if operator == ")" {
                let array = self.array.take();
                if let Some((name, words)) = array {
                    let is_sure = self.open.is_empty() && !self.is_conditional;
                    self.variables.set_list(&name, words, is_sure);
                }
            }
            return;
        }
        if operator == "(" {
            let is_assigned = self.command.words.is_empty();
            match self.assignments.last() {
                Some((name, value)) if is_assigned && value.is_empty() => {
                    self.array = Some((name.clone(), Vec::new()));
                    self.assignments.pop();
                    self.command.environment.pop();
                    return;
                }
                _ => {}
            }
            // `name() {` starts a function; other round brackets are a subshell.
            if self.command.words.len() != 1 {
                self.finish_command();
            }
            self.open.push(("(".to_owned(), ")"));
            return;
        }
        if operator == ")" {
            let is_function = self.command.words.len() == 1;
            let is_case = self.open.last().is_some_and(|(_, end)| *end == "esac");
            if is_function || is_case {
                self.command = Command::default();
                self.assignments.clear();
            } else {
                self.finish_command();
            }
            if self.open.last().is_some_and(|(_, end)| *end == ")") {
                self.open.pop();
            }
            return;
        }
        if matches!(operator, "|" | "|&" | "&") && !self.command.words.is_empty() {
            self.command.redirections.push(operator.to_owned());
        }
        self.finish_command();
        self.is_piped = matches!(operator, "|" | "|&");
        self.is_conditional = matches!(operator, "&&" | "||" | "|" | "|&");
    }

    /// Ends the current command.
    fn finish_command(&mut self) {
        let command = std::mem::take(&mut self.command);
        let assignments = std::mem::take(&mut self.assignments);
        self.redirection = None;
        if command.words.is_empty() {
            for (name, value) in assignments {
                self.set(&name, &value);
            }
            return;
        }
        let before = self.commands.last_mut().filter(|_| self.is_piped);
        if let Some(before) = before {
            // The reader of a pipe belongs to the command that it reads from.
            let words: Vec<&str> = command
                .words
                .iter()
                .map(|word| word.text.as_str())
                .collect();
            before.redirections.push(words.join(" "));
            before.redirections.extend(command.redirections);
        } else {
            self.commands.push(command);
        }
    }

    fn set(&mut self, name: &str, value: &[Piece]) {
        let is_sure = self.open.is_empty() && !self.is_conditional;
        self.variables.set(name, value, is_sure);
    }

    fn finish_script(&mut self) {
        self.array = None;
        self.finish_command();
    }
}
