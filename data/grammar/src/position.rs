//! Tracks the position in the JSON text to detect tokens whose result no reader would interpret as
//! intended: a number outside the range of 64-bit floats, a forbidden substring, or a duplicate
//! key.
//!
//! A grammar does not count digits or remember keys. It allows `1e999`, which RFC 8259 permits but
//! readers of 64-bit floats refuse. It also allows `{"a": 1, "a": 2}` if keys are free, although
//! readers keep only one of the two values. A digit is masked if it would move the number out of
//! range, and the end of a key is masked if the object already has that key. There is always
//! another continuation: the number before that digit is valid, or `0` may follow the exponent's
//! sign, and most keys can be longer.

use std::collections::HashSet;
use std::sync::Arc;

use super::forbidden_substrings::ForbiddenSubstrings;

/// The position in a JSON text: inside a string or number, and the enclosing arrays and objects.
#[derive(Debug, Clone)]
pub(super) struct JsonPosition {
    forbidden_substrings: Arc<ForbiddenSubstrings>,
    is_in_string: bool,
    is_escaped: bool,
    /// The last bytes of the string, enough to detect a forbidden substring.
    tail: Vec<u8>,
    number: Vec<u8>,
    levels: Vec<Level>,
    /// Whether the next string of the object is a key.
    expects_key: bool,
    /// The raw bytes of the key that is being written; `None` outside a key. Raw bytes identify a
    /// key, because each character has only one spelling.
    key: Option<Vec<u8>>,
}

/// An open array or object.
#[derive(Debug, Clone)]
struct Level {
    /// `None` for an array.
    keys: Option<Arc<HashSet<Vec<u8>>>>,
}

/// A number with fewer bytes and no exponent is within range.
const N_SAFE_BYTES: usize = 300;

impl JsonPosition {
    pub(super) fn new(forbidden_substrings: Arc<ForbiddenSubstrings>) -> Self {
        Self {
            forbidden_substrings,
            is_in_string: false,
            is_escaped: false,
            tail: Vec::new(),
            number: Vec::new(),
            levels: Vec::new(),
            expects_key: false,
            key: None,
        }
    }

    /// Advances by the bytes of a token. Returns `false` if they make a number too large, complete
    /// a forbidden substring, or end a duplicate key.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().all(|&byte| self.byte(byte))
    }

    /// Number of open arrays and objects.
    pub(super) fn n_levels(&self) -> usize {
        self.levels.len()
    }

    /// Whether a token without an exponent can make the number too large at this position.
    pub(super) fn is_near_limit(&self, n_token_bytes: usize) -> bool {
        self.number.len() + n_token_bytes >= N_SAFE_BYTES || self.has_exponent()
    }

    /// The minimum number of quotes in a token that ends a key at this position.
    pub(super) fn min_quotes_to_end_key(&self) -> usize {
        match (&self.key, self.is_in_string) {
            (Some(_), _) => 1,
            (None, false) => 2,
            (None, true) => 3,
        }
    }

    /// Whether the key being written may be a duplicate.
    pub(super) fn may_be_duplicate_key(&self) -> bool {
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
            return self.forbidden_substrings.push_byte(&mut self.tail, byte);
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

    /// Records a key that ends here; returns `false` if the object already has it.
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

/// Whether a digit follows an `e`, optionally with a sign between them.
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
