//! The text so far to whether a token would write a number that no reader can hold, or a text that
//! no string may hold.
//!
//! A grammar counts no digits: it allows `1e999`, which RFC 8259 permits and a reader of 64-bit
//! floats refuses. A digit is held back where the number would leave that range. There always is
//! another way on: the number before that digit is one, or `0` may follow its exponent's sign.

use std::sync::Arc;

use super::unwritten::Unwritten;

/// Where a text of JSON stands: in a string, in a number, and how deep.
#[derive(Debug, Clone)]
pub(super) struct JsonPlace {
    unwritten: Arc<Unwritten>,
    is_in_string: bool,
    is_escaped: bool,
    /// The last bytes of the string, as many as decide whether it holds a text of `unwritten`.
    tail: Vec<u8>,
    number: Vec<u8>,
    n_levels: usize,
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
            n_levels: 0,
        }
    }

    /// Goes on by the bytes of a token; `false` if one of them makes a number too large, or ends a
    /// text that no string may hold.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().all(|&byte| self.byte(byte))
    }

    /// Arrays and objects that are open.
    pub(super) fn n_levels(&self) -> usize {
        self.n_levels
    }

    /// Whether a token without an exponent of its own may make a number too large here.
    pub(super) fn is_near_the_limit(&self, n_token_bytes: usize) -> bool {
        self.number.len() + n_token_bytes >= N_SAFE_BYTES || self.has_exponent()
    }

    fn byte(&mut self, byte: u8) -> bool {
        if self.is_in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => {
                    self.is_in_string = false;
                    self.tail.clear();
                    return true;
                }
                _ => {}
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
            b'"' => self.is_in_string = true,
            b'{' | b'[' => self.n_levels += 1,
            b'}' | b']' => self.n_levels = self.n_levels.saturating_sub(1),
            _ => {}
        }
        true
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
