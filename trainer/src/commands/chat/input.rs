//! Reads the lines of a conversation from a terminal, a pipe or a file.

use std::io::{BufRead, IsTerminal};

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use tooltune_json::lines::{BoundedRead, read_line, strip_line_end};

use crate::budgets::CHAT_LINE_BYTES;
use crate::commands::eprint_line;
use crate::error::Error;

/// The input of a conversation.
pub(in crate::commands) enum Input {
    /// A terminal with line editing and history.
    Editor(Box<DefaultEditor>),
    /// A pipe or file, read line by line.
    Lines(Lines),
}

/// The lines of a reader, with a limit on their length.
pub(in crate::commands) struct Lines {
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
    number: usize,
}

impl Input {
    pub(in crate::commands) fn open() -> Result<Self, Error> {
        if !std::io::stdin().is_terminal() {
            return Ok(Self::Lines(Lines::new(std::io::stdin().lock())));
        }
        let editor = DefaultEditor::new().map_err(unreadable)?;
        Ok(Self::Editor(Box::new(editor)))
    }

    /// Whether the input is a terminal.
    pub(in crate::commands) fn is_terminal(&self) -> bool {
        matches!(self, Self::Editor(_))
    }

    /// Reads the next line; `None` at the end. Prints `help` on Ctrl-C.
    pub(in crate::commands) fn line(
        &mut self,
        prompt: &str,
        help: &str,
    ) -> Result<Option<String>, Error> {
        match self {
            Self::Lines(lines) => lines.next(),
            Self::Editor(editor) => loop {
                match editor.readline(prompt) {
                    Ok(line) => {
                        // The line is valid even if the history rejects it.
                        let _ = editor.add_history_entry(&line);
                        return Ok(Some(line));
                    }
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(ReadlineError::Interrupted) => eprint_line(help)?,
                    Err(error) => return Err(unreadable(error)),
                }
            },
        }
    }
}

impl Lines {
    fn new(reader: impl BufRead + 'static) -> Self {
        Self {
            reader: Box::new(reader),
            line: Vec::new(),
            number: 0,
        }
    }

    fn next(&mut self) -> Result<Option<String>, Error> {
        self.number += 1;
        let number = self.number;
        let outcome = read_line(&mut self.reader, &mut self.line, CHAT_LINE_BYTES);
        match outcome.map_err(unreadable)? {
            BoundedRead::End => return Ok(None),
            BoundedRead::TooLong => {
                return Err(Error::Usage(format!(
                    "standard input: line {number} has more than {CHAT_LINE_BYTES} bytes, the \
                     limit for one message (CHAT_LINE_BYTES in docs/limits.md); write one message \
                     per line, and shorten this one"
                )));
            }
            BoundedRead::Whole => {}
        }
        match std::str::from_utf8(&self.line) {
            Ok(line) => Ok(Some(strip_line_end(line).to_owned())),
            Err(error) => Err(Error::Usage(format!(
                "standard input: line {number} is not valid UTF-8 at byte {}; convert it, for \
                 example with `iconv -t UTF-8`",
                error.valid_up_to() + 1
            ))),
        }
    }
}

fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::Usage(format!("cannot read standard input: {error}"))
}

#[cfg(test)]
mod tests {
    use std::io::{self, BufReader};

    use super::*;

    #[test]
    fn lines_are_bounded_and_utf8_and_lose_one_line_end() {
        let text = "one\r\n\n two é\r\r\nlast\r".as_bytes();
        let mut lines = Lines::new(text);
        let found = std::iter::from_fn(|| lines.next().expect("a line"));
        assert_eq!(found.collect::<Vec<_>>(), ["one", "", " two é\r", "last\r"]);
        let mut endless = Lines::new(BufReader::new(io::repeat(0)));
        let error = endless.next().expect_err("without end").to_string();
        assert!(
            error.contains("line 1 has more than 1048576 bytes"),
            "{error}"
        );
        let mut bytes = Lines::new(&b"good\nb\xff\n"[..]);
        assert!(bytes.next().is_ok());
        let error = bytes.next().expect_err("no text").to_string();
        assert!(
            error.contains("line 2 is not valid UTF-8 at byte 2"),
            "{error}"
        );
    }
}
