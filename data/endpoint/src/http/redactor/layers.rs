//! Decodes the escapes of a string level by level: percent, JSON and HTML escapes.
//!
//! Each level is searched as a whole. The time depends only on the length of the string and the
//! number of levels, not on how often the string repeats the start of a secret.

use std::ops::Range;

/// The maximum number of levels to decode. `%252541` has three.
const LEVELS: usize = 8;

/// The bytes of one level, each with its offset in the original string.
pub(super) struct Layer {
    pub(super) bytes: Vec<u8>,
    /// The start of each byte's escape, then the end of the last one; empty for the original string.
    starts: Vec<usize>,
}

impl Layer {
    /// The range of the original string that these bytes were decoded from.
    pub(super) fn source_range(&self, bytes: Range<usize>) -> Range<usize> {
        match self.starts.is_empty() {
            true => bytes,
            false => self.starts[bytes.start]..self.starts[bytes.end],
        }
    }

    fn source_start(&self, byte_idx: usize) -> usize {
        match self.starts.is_empty() {
            true => byte_idx,
            false => self.starts[byte_idx],
        }
    }
}

/// Iterates over the original string, then over each decoded level until no escape is left.
pub(super) struct Layers {
    next: Option<Layer>,
    n_left: usize,
}

impl Layers {
    pub(super) fn new(text: &[u8]) -> Self {
        let bytes = text.to_vec();
        let starts = Vec::new();
        Self {
            next: Some(Layer { bytes, starts }),
            n_left: LEVELS,
        }
    }
}

impl Iterator for Layers {
    type Item = Layer;

    fn next(&mut self) -> Option<Layer> {
        let layer = self.next.take()?;
        if self.n_left > 0 {
            self.n_left -= 1;
            self.next = decode_layer(&layer);
        }
        Some(layer)
    }
}

/// The string with all levels of escapes decoded.
pub(super) fn without_layers(text: &str) -> Vec<u8> {
    let last = Layers::new(text.as_bytes()).last();
    last.map_or_else(Vec::new, |layer| layer.bytes)
}

/// The layer with one level of escapes decoded; `None` if it has none.
fn decode_layer(layer: &Layer) -> Option<Layer> {
    let bytes = &layer.bytes;
    let is_mark = |byte: &u8| matches!(byte, b'%' | b'\\' | b'&');
    let first_mark = bytes.iter().position(is_mark)?;
    let mut decoded = Layer {
        bytes: Vec::with_capacity(bytes.len()),
        starts: Vec::with_capacity(bytes.len() + 1),
    };
    let mut is_changed = false;
    decoded.bytes.extend_from_slice(&bytes[..first_mark]);
    decoded
        .starts
        .extend((0..first_mark).map(|byte_idx| layer.source_start(byte_idx)));
    let mut byte_idx = first_mark;
    while byte_idx < bytes.len() {
        let remaining = &bytes[byte_idx..];
        let escape = match remaining[0] {
            b'%' => read_percent(remaining),
            b'\\' => read_backslash(remaining),
            b'&' => read_entity(remaining),
            _ => None,
        };
        let n_made = decoded.bytes.len();
        match escape {
            Some((decoded_bytes, n_bytes)) => {
                is_changed = true;
                match decoded_bytes {
                    DecodedPart::Byte(byte) => decoded.bytes.push(byte),
                    DecodedPart::Character(character) => {
                        let mut buffer = [0; 4];
                        let encoded = character.encode_utf8(&mut buffer);
                        decoded.bytes.extend_from_slice(encoded.as_bytes());
                    }
                }
                decoded
                    .starts
                    .resize(decoded.bytes.len(), layer.source_start(byte_idx));
                debug_assert!(
                    decoded.bytes.len() > n_made,
                    "an escape decodes to at least one byte"
                );
                byte_idx += n_bytes;
            }
            None => {
                decoded.bytes.push(remaining[0]);
                decoded.starts.push(layer.source_start(byte_idx));
                byte_idx += 1;
            }
        }
    }
    decoded.starts.push(layer.source_start(bytes.len()));
    is_changed.then_some(decoded)
}

/// The value of an escape.
enum DecodedPart {
    Byte(u8),
    Character(char),
}

type Escape = Option<(DecodedPart, usize)>;

/// Reads a percent escape such as `%C3`, which is one byte.
fn read_percent(text: &[u8]) -> Escape {
    let byte = u8::try_from(read_hex(text, 1, 2)?).ok()?;
    Some((DecodedPart::Byte(byte), 3))
}

/// Reads a backslash escape: `\u00e9`, `\u{e9}`, `\U000000e9`, `\xe9`, `\351`, `\n`, `\/`.
fn read_backslash(text: &[u8]) -> Escape {
    let second = *text.get(1)?;
    let character =
        |code: u32, n_bytes: usize| Some((DecodedPart::Character(char::from_u32(code)?), n_bytes));
    match second {
        b'u' if text.get(2) == Some(&b'{') => {
            let n_digits = text.iter().skip(3).take(7).position(|byte| *byte == b'}')?;
            character(read_hex(text, 3, n_digits)?, n_digits + 4)
        }
        b'u' | b'U' => {
            if second == b'U'
                && let Some(code) = read_hex(text, 2, 8)
                && char::from_u32(code).is_some()
            {
                return character(code, 10);
            }
            let unit = read_hex(text, 2, 4)?;
            let low = match (unit, text.get(6), text.get(7)) {
                (0xD800..=0xDBFF, Some(b'\\'), Some(b'u' | b'U')) => read_hex(text, 8, 4),
                _ => None,
            };
            match low {
                Some(low @ 0xDC00..=0xDFFF) => {
                    character(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00), 12)
                }
                _ => character(unit, 6),
            }
        }
        b'x' => {
            let value = read_hex(text, 2, 2)?;
            // Python writes the bytes of UTF-8 like this; JavaScript writes characters.
            let is_utf8_byte = |byte_idx: usize| {
                text.get(byte_idx..byte_idx + 2) == Some(b"\\x")
                    && read_hex(text, byte_idx + 2, 2).is_some_and(|v| v >= 0x80)
            };
            match value {
                0x80.. if is_utf8_byte(4) || value < 0xC0 => {
                    Some((DecodedPart::Byte(u8::try_from(value).ok()?), 4))
                }
                _ => character(value, 4),
            }
        }
        b'n' => character(u32::from(b'\n'), 2),
        b'r' => character(u32::from(b'\r'), 2),
        b't' => character(u32::from(b'\t'), 2),
        b'0'..=b'3' => {
            let digits = text.get(1..4)?;
            let is_octal = digits.iter().all(|byte| matches!(byte, b'0'..=b'7'));
            let value = digits
                .iter()
                .fold(0, |sum, byte| sum * 8 + u32::from(byte - b'0'));
            is_octal.then_some(())?;
            Some((DecodedPart::Byte(u8::try_from(value).ok()?), 4))
        }
        other if other.is_ascii_punctuation() => Some((DecodedPart::Byte(other), 2)),
        _ => None,
    }
}

/// Reads an HTML entity such as `&#233;`, `&#xe9;` or `&quot;`.
fn read_entity(text: &[u8]) -> Escape {
    const MAX_ENTITY_BYTES: usize = 10;
    let end = text
        .iter()
        .take(MAX_ENTITY_BYTES)
        .position(|byte| *byte == b';')?;
    let name = std::str::from_utf8(&text[1..end]).ok()?;
    let character = match NAMED_ENTITIES
        .iter()
        .find(|(entity_name, _)| *entity_name == name)
    {
        Some((_, character)) => *character,
        None => {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => number.parse(),
            };
            char::from_u32(code.ok()?)?
        }
    };
    Some((DecodedPart::Character(character), end + 1))
}

/// HTML's names for the ASCII punctuation of keys and URLs.
const NAMED_ENTITIES: [(&str, char); 29] = [
    ("amp", '&'),
    ("lt", '<'),
    ("gt", '>'),
    ("quot", '"'),
    ("apos", '\''),
    ("sol", '/'),
    ("bsol", '\\'),
    ("plus", '+'),
    ("equals", '='),
    ("lowbar", '_'),
    ("period", '.'),
    ("comma", ','),
    ("colon", ':'),
    ("semi", ';'),
    ("excl", '!'),
    ("quest", '?'),
    ("num", '#'),
    ("dollar", '$'),
    ("percnt", '%'),
    ("ast", '*'),
    ("commat", '@'),
    ("lpar", '('),
    ("rpar", ')'),
    ("lsqb", '['),
    ("rsqb", ']'),
    ("lcub", '{'),
    ("rcub", '}'),
    ("vert", '|'),
    ("grave", '`'),
];

/// The value of `n_digits` hexadecimal digits at an offset.
fn read_hex(bytes: &[u8], start: usize, n_digits: usize) -> Option<u32> {
    let digits = bytes.get(start..start + n_digits)?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
