//! The text so far to whether a token would write what no reader takes as it is meant: a number
//! that no 64-bit float holds, a text that no string may hold, or a key that its object has.
//!
//! A grammar counts no digits and remembers no keys: it allows `1e999`, which RFC 8259 permits and
//! a reader of 64-bit floats refuses, and `{"a": 1, "a": 2}` where keys are free, of which readers
//! take one. A digit is held back where the number would leave its range, and the end of a key
//! where the object has it. There is another way on: the number before that digit is one, or `0`
//! may follow its exponent's sign; and most keys can be longer.

use std::collections::HashSet;
use std::sync::Arc;

use super::unwritten::Unwritten;

/// Where a text of JSON stands: in a string, in a number, and in which arrays and objects.
#[derive(Debug, Clone)]
pub(super) struct JsonPlace {
    unwritten: Arc<Unwritten>,
    is_in_string: bool,
    is_escaped: bool,
    /// The last bytes of the string, as many as decide whether it holds a text of `unwritten`.
    tail: Vec<u8>,
    number: Vec<u8>,
    levels: Vec<Level>,
    /// Whether the next string of the object is a key.
    expects_key: bool,
    /// The bytes of the key that is being written, as they are written: each character has one
    /// spelling. None outside a key.
    key: Option<Vec<u8>>,
}

/// An array or an object that is open.
#[derive(Debug, Clone)]
struct Level {
    /// None for an array.
    keys: Option<Arc<HashSet<Vec<u8>>>>,
}

/// A number with fewer bytes and no exponent is within range.
const N_SAFE_BYTES: usize = 300;

impl JsonPlace {
    pub(super) fn new(unwritten: Arc<Unwritten>) -> Self {
        Self {
            unwritten,
            is_in_string: false,
            is_escaped: false,
            tail: Vec::new(),
            number: Vec::new(),
            levels: Vec::new(),
            expects_key: false,
            key: None,
        }
    }

    /// Goes on by the bytes of a token; `false` if one of them makes a number too large, ends a
    /// text that no string may hold, or ends a key that the object has already.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().all(|&byte| self.byte(byte))
    }

    /// Arrays and objects that are open.
    pub(super) fn n_levels(&self) -> usize {
        self.levels.len()
    }

    /// Whether a token without an exponent of its own may make a number too large here.
    pub(super) fn is_near_the_limit(&self, n_token_bytes: usize) -> bool {
        self.number.len() + n_token_bytes >= N_SAFE_BYTES || self.has_exponent()
    }

    /// How many quotes a token has at least that ends a key here.
    pub(super) fn n_quotes_to_the_end_of_a_key(&self) -> usize {
        match (&self.key, self.is_in_string) {
            (Some(_), _) => 1,
            (None, false) => 2,
            (None, true) => 3,
        }
    }

    /// Whether what is written next is a key that may be one that the object has.
    pub(super) fn is_on_a_used_key(&self) -> bool {
        let Some(used) = self.levels.last().and_then(|level| level.keys.as_ref()) else {
            return false;
        };
        match &self.key {
            Some(key) => used.iter().any(|used| used.starts_with(key)),
            None => !self.is_in_string && self.expects_key && !used.is_empty(),
        }
    }

    fn byte(&mut self, byte: u8) -> bool {
        if self.is_in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => {
                    self.is_in_string = false;
                    self.tail.clear();
                    return self.end_key();
                }
                _ => {}
            }
            if let Some(key) = &mut self.key {
                key.push(byte);
            }
            return self.unwritten.goes_on(&mut self.tail, byte);
        }
        match byte {
            b'0'..=b'9' => {
                self.number.push(byte);
                return self.is_finite();
            }
            b'-' => self.number.push(byte),
            b'.' | b'+' | b'e' | b'E' if !self.number.is_empty() => self.number.push(byte),
            _ => self.number.clear(),
        }
        match byte {
            b'"' => {
                self.is_in_string = true;
                self.key = self.expects_key.then(Vec::new);
            }
            b'{' => self.open(Some(Arc::default())),
            b'[' => self.open(None),
            b'}' | b']' => {
                self.levels.pop();
                self.expects_key = false;
            }
            b',' => {
                let last = self.levels.last();
                self.expects_key = last.is_some_and(|level| level.keys.is_some());
            }
            b':' => self.expects_key = false,
            _ => {}
        }
        true
    }

    fn open(&mut self, keys: Option<Arc<HashSet<Vec<u8>>>>) {
        self.expects_key = keys.is_some();
        self.levels.push(Level { keys });
    }

    /// Takes note of a key that ends here; `false` if the object has it.
    fn end_key(&mut self) -> bool {
        let Some(key) = self.key.take() else {
            return true;
        };
        let level = self.levels.last_mut();
        match level.and_then(|level| level.keys.as_mut()) {
            Some(used) if used.contains(&key) => false,
            Some(used) => Arc::make_mut(used).insert(key),
            None => true,
        }
    }

    fn has_exponent(&self) -> bool {
        self.number.iter().any(|byte| matches!(byte, b'e' | b'E'))
    }

    fn is_finite(&self) -> bool {
        if self.number.len() < N_SAFE_BYTES && !self.has_exponent() {
            return true;
        }
        let number = std::str::from_utf8(&self.number).ok();
        let number = number.and_then(|text| text.parse::<f64>().ok());
        number.is_none_or(f64::is_finite)
    }
}

/// Whether a digit follows an `e` in these bytes, with or without a sign between them.
pub(super) fn has_exponent(bytes: &[u8]) -> bool {
    bytes.iter().enumerate().any(|(idx, byte)| {
        let after = bytes.get(idx + 1..).unwrap_or_default();
        let after = match after {
            [b'+' | b'-', rest @ ..] => rest,
            rest => rest,
        };
        matches!(byte, b'e' | b'E') && after.first().is_some_and(u8::is_ascii_digit)
    })
}
