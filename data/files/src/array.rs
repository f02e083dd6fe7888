//! The items of one JSON array, one after the other.
//!
//! The array is cut at its own commas alone; each item is parsed, and its faults are told, by whoever
//! reads rows.

use std::fmt;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

use tooltune_rows::ReadError;
use tooltune_rows::budgets::LINE_BYTES;
use tooltune_rows::lines::{Records, TooLong};

/// What is not as in an array of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum ArrayFault {
    #[error("the array has no end; the file is cut off, or a text or bracket in it is not closed")]
    Open,
    #[error("nothing stands between two commas of the array")]
    NoItem,
    #[error("{0:?} stands where the array's next comma or its end must be")]
    NoComma(char),
    #[error("something stands behind the end of the array; give JSON Lines, or one array")]
    Behind,
}

/// Where the reader stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first bracket.
    Start,
    /// Behind it, where there may be no item.
    First,
    /// Behind a comma.
    Item,
    /// Behind an item.
    Comma,
    /// Behind the last bracket.
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
        formatter.write_str(&self.place())
    }
}

impl ArrayItems {
    /// Of a text that begins with a bracket.
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
        ReadError::unreadable_or_cut(&self.path, error)
    }

    fn fault(&self, fault: ArrayFault) -> ReadError {
        let place = PathBuf::from(self.place());
        ReadError::Unreadable {
            path: place,
            error: io::Error::new(io::ErrorKind::InvalidData, fault),
            check: "that the file is one JSON array of rows",
        }
    }

    /// The next byte that is not blank; it is not consumed.
    fn peek(&mut self) -> Result<Option<u8>, ReadError> {
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
                }
            }
        }
    }

    fn step(&mut self) -> Result<Option<Vec<u8>>, ReadError> {
        loop {
            let next = self.peek()?;
            match (self.state, next) {
                (State::Done, None) | (State::Failed, _) => return Ok(None),
                (State::Done, Some(_)) => return Err(self.fault(ArrayFault::Behind)),
                (_, None) => return Err(self.fault(ArrayFault::Open)),
                // Before it stands a byte-order mark at most.
                (State::Start, Some(b'[')) => self.pass(State::First),
                (State::Start, Some(_)) => self.pass(State::Start),
                (State::First | State::Comma, Some(b']')) => self.pass(State::Done),
                (State::Comma, Some(b',')) => self.pass(State::Item),
                (State::Comma, Some(byte)) => {
                    return Err(self.fault(ArrayFault::NoComma(char::from(byte))));
                }
                (State::First | State::Item, Some(b',' | b']')) => {
                    return Err(self.fault(ArrayFault::NoItem));
                }
                (State::First | State::Item, Some(_)) => {
                    self.n_items += 1;
                    let item = self.item()?;
                    self.state = State::Comma;
                    return Ok(Some(item));
                }
            }
        }
    }

    fn pass(&mut self, state: State) {
        self.reader.consume(1);
        self.state = state;
    }

    /// An item up to the comma or bracket behind it.
    fn item(&mut self) -> Result<Vec<u8>, ReadError> {
        let mut item = Vec::new();
        let mut cut = Cut::default();
        loop {
            let buffer = match self.reader.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) => return Err(self.unreadable(error)),
            };
            if buffer.is_empty() {
                return Err(self.fault(ArrayFault::Open));
            }
            let end = buffer.iter().position(|&byte| cut.is_behind(byte));
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

/// How deep in an item a byte stands.
#[derive(Default)]
struct Cut {
    depth: usize,
    is_text: bool,
    is_escaped: bool,
}

impl Cut {
    /// Whether a byte is the first one behind the item.
    fn is_behind(&mut self, byte: u8) -> bool {
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

    fn place(&self) -> String {
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
        let mut found = Vec::new();
        loop {
            match items.next_record() {
                Ok(None) => return found,
                Ok(Some(item)) => {
                    let place = items.place();
                    let item = String::from_utf8(item).expect("UTF-8");
                    found.push(Ok(format!("{place} {item}")));
                }
                Err(error) => {
                    found.push(Err(error.to_string()));
                    return found;
                }
            }
        }
    }

    #[test]
    fn items_are_cut_at_the_commas_of_the_array_alone() {
        let text = "\u{feff} [ {\"a\": \"],\\\"\", \"b\": [1, {}]} ,\n\t7 , \"x,]\",[ ] ]\n";
        for capacity in [1, 2, 3, 1000] {
            let found = items(text, 1000, capacity);
            let expected = [
                r#"a.json:1 {"a": "],\"", "b": [1, {}]}"#,
                "a.json:2 7",
                r#"a.json:3 "x,]""#,
                "a.json:4 [ ]",
            ];
            assert_eq!(found, expected.map(|item| Ok(item.to_owned())));
            assert_eq!(items(" []", 10, capacity), []);
        }
    }

    #[test]
    fn what_is_no_array_is_an_error_with_its_item() {
        for (text, said) in [
            ("[{}", "a.json:1: cannot read: the array has no end"),
            ("[1, [2, 3", "a.json:2: cannot read: the array has no end"),
            ("[1, \"2]", "a.json:2: cannot read: the array has no end"),
            ("[1, ", "a.json:1: cannot read: the array has no end"),
            ("[1,,2]", "a.json:1: cannot read: nothing stands between"),
            ("[1,]", "a.json:1: cannot read: nothing stands between"),
            ("[,1]", "a.json:0: cannot read: nothing stands between"),
            ("[1] [2]", "something stands behind the end of the array"),
            ("[\"1234567890123\"]", "the line has more than 12 bytes"),
        ] {
            let found = items(text, 12, 4);
            let error = found.last().expect("an item").as_ref().expect_err(text);
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
