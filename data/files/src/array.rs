//! Splits one JSON array into its items.
//!
//! The array is split only at its own commas. The reader of the rows parses each item and reports
//! its errors.

use std::fmt;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

use tooltune_json::ReadError;
use tooltune_json::budgets::LINE_BYTES;
use tooltune_json::input_limits::{BlankRun, refuse_rows_without_end};
use tooltune_json::lines::{Records, TooLong};

/// What is wrong with an array of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum ArrayFault {
    #[error(
        "the array has no end; the file is cut off, or a string or bracket in it is not closed"
    )]
    NoEnd,
    #[error("an item of the array is empty; remove the extra comma")]
    EmptyItem,
    #[error(
        "expected a comma or the end of the array, found {0:?}; insert a comma between the items"
    )]
    MissingComma(char),
    #[error("there is more text after the end of the array; use JSON Lines, or one array")]
    TextAfterEnd,
}

/// What the reader expects next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the opening bracket.
    Start,
    /// After the opening bracket; the array may be empty.
    First,
    /// After a comma.
    Item,
    /// After an item.
    Comma,
    /// After the closing bracket.
    Done,
    /// After an error.
    Failed,
}

/// The items of an array.
pub(crate) struct ArrayItems {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    state: State,
    n_items: usize,
    max_item_bytes: usize,
}

impl fmt::Debug for ArrayItems {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.location())
    }
}

impl ArrayItems {
    /// Reads text that begins with a bracket.
    pub(crate) fn new(path: &Path, reader: Box<dyn BufRead + Send>) -> Self {
        Self {
            path: path.to_owned(),
            reader,
            state: State::Start,
            n_items: 0,
            max_item_bytes: LINE_BYTES,
        }
    }

    fn unreadable(&self, error: io::Error) -> ReadError {
        ReadError::unreadable_or_truncated(&self.path, error)
    }

    fn fault(&self, fault: ArrayFault) -> ReadError {
        let location = PathBuf::from(self.location());
        ReadError::Unreadable {
            path: location,
            error: io::Error::new(io::ErrorKind::InvalidData, fault),
            check: "that the file is one JSON array of rows",
        }
    }

    /// The next byte that is not whitespace, without consuming it.
    fn peek(&mut self) -> Result<Option<u8>, ReadError> {
        let mut blanks = BlankRun::default();
        loop {
            let buffer = match self.reader.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) => return Err(self.unreadable(error)),
            };
            let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
            match buffer.iter().position(|byte| !is_blank(byte)) {
                _ if buffer.is_empty() => return Ok(None),
                Some(n) => {
                    let byte = buffer[n];
                    self.reader.consume(n);
                    return Ok(Some(byte));
                }
                None => {
                    let n = buffer.len();
                    self.reader.consume(n);
                    blanks.add(n)?;
                }
            }
        }
    }

    fn step(&mut self) -> Result<Option<Vec<u8>>, ReadError> {
        loop {
            let next = self.peek()?;
            match (self.state, next) {
                (State::Done, None) | (State::Failed, _) => return Ok(None),
                (State::Done, Some(_)) => return Err(self.fault(ArrayFault::TextAfterEnd)),
                (_, None) => return Err(self.fault(ArrayFault::NoEnd)),
                // Only a byte-order mark may precede the bracket.
                (State::Start, Some(b'[')) => self.advance(State::First),
                (State::Start, Some(_)) => self.advance(State::Start),
                (State::First | State::Comma, Some(b']')) => self.advance(State::Done),
                (State::Comma, Some(b',')) => self.advance(State::Item),
                (State::Comma, Some(byte)) => {
                    return Err(self.fault(ArrayFault::MissingComma(char::from(byte))));
                }
                (State::First | State::Item, Some(b',' | b']')) => {
                    return Err(self.fault(ArrayFault::EmptyItem));
                }
                (State::First | State::Item, Some(_)) => {
                    self.n_items += 1;
                    refuse_rows_without_end(self.n_items)?;
                    let item = self.item()?;
                    self.state = State::Comma;
                    return Ok(Some(item));
                }
            }
        }
    }

    fn advance(&mut self, state: State) {
        self.reader.consume(1);
        self.state = state;
    }

    /// An item up to the following comma or bracket.
    fn item(&mut self) -> Result<Vec<u8>, ReadError> {
        let mut item = Vec::new();
        let mut scanner = ItemScanner::default();
        loop {
            let buffer = match self.reader.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) => return Err(self.unreadable(error)),
            };
            if buffer.is_empty() {
                return Err(self.fault(ArrayFault::NoEnd));
            }
            let end = buffer.iter().position(|&byte| scanner.is_after_item(byte));
            let n = end.unwrap_or(buffer.len());
            item.extend_from_slice(&buffer[..n]);
            self.reader.consume(n);
            if item.len() > self.max_item_bytes {
                return Err(TooLong::line(self.max_item_bytes).into());
            }
            if end.is_some() {
                item.truncate(item.trim_ascii_end().len());
                return Ok(item);
            }
        }
    }
}

/// Finds the end of an item by tracking strings and nesting.
#[derive(Default)]
struct ItemScanner {
    depth: usize,
    is_text: bool,
    is_escaped: bool,
}

impl ItemScanner {
    /// Whether a byte is the first one after the item.
    fn is_after_item(&mut self, byte: u8) -> bool {
        if self.is_text {
            if self.is_escaped {
                self.is_escaped = false;
            } else if byte == b'\\' {
                self.is_escaped = true;
            } else if byte == b'"' {
                self.is_text = false;
            }
            return false;
        }
        match byte {
            b'"' => self.is_text = true,
            b'{' | b'[' => self.depth += 1,
            b']' | b',' if self.depth == 0 => return true,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        false
    }
}

impl Records for ArrayItems {
    fn path(&self) -> &Path {
        &self.path
    }

    fn location(&self) -> String {
        format!("{}:{}", self.path.display(), self.n_items)
    }

    fn has_any(&self) -> bool {
        self.n_items > 0
    }

    fn next_record(&mut self) -> Result<Option<Vec<u8>>, ReadError> {
        if self.state == State::Failed {
            return Ok(None);
        }
        let item = self.step();
        if item.is_err() {
            self.state = State::Failed;
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(text: &str, max_item_bytes: usize, capacity: usize) -> Vec<Result<String, String>> {
        let text = io::Cursor::new(text.as_bytes().to_vec());
        let reader = Box::new(io::BufReader::with_capacity(capacity, text));
        let mut items = ArrayItems {
            max_item_bytes,
            ..ArrayItems::new(Path::new("a.json"), reader)
        };
        let mut records = Vec::new();
        loop {
            match items.next_record() {
                Ok(None) => return records,
                Ok(Some(item)) => {
                    let location = items.location();
                    let item = String::from_utf8(item).expect("UTF-8");
                    records.push(Ok(format!("{location} {item}")));
                }
                Err(error) => {
                    records.push(Err(error.to_string()));
                    return records;
                }
            }
        }
    }

    #[test]
    fn items_are_split_only_at_the_arrays_own_commas() {
        let text = "\u{feff} [ {\"a\": \"],\\\"\", \"b\": [1, {}]} ,\n\t7 , \"x,]\",[ ] ]\n";
        for capacity in [1, 2, 3, 1000] {
            let records = items(text, 1000, capacity);
            let expected = [
                r#"a.json:1 {"a": "],\"", "b": [1, {}]}"#,
                "a.json:2 7",
                r#"a.json:3 "x,]""#,
                "a.json:4 [ ]",
            ];
            assert_eq!(records, expected.map(|item| Ok(item.to_owned())));
            assert_eq!(items(" []", 10, capacity), []);
        }
    }

    #[test]
    fn an_invalid_array_is_an_error_with_its_item() {
        for (text, message) in [
            ("[{}", "a.json:1: cannot read: the array has no end"),
            ("[1, [2, 3", "a.json:2: cannot read: the array has no end"),
            ("[1, \"2]", "a.json:2: cannot read: the array has no end"),
            ("[1, ", "a.json:1: cannot read: the array has no end"),
            (
                "[1,,2]",
                "a.json:1: cannot read: an item of the array is empty",
            ),
            (
                "[1,]",
                "a.json:1: cannot read: an item of the array is empty",
            ),
            (
                "[,1]",
                "a.json:0: cannot read: an item of the array is empty",
            ),
            ("[1] [2]", "there is more text after the end of the array"),
            ("[\"1234567890123\"]", "the line has more than 12 bytes"),
        ] {
            let records = items(text, 12, 4);
            let error = records.last().expect("an item").as_ref().expect_err(text);
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
