//! Parses one RFC 8259 text, and reports the location and reason of an error.
//!
//! `serde_json` already rejects NaN, Infinity, comments, numbers beyond the range of a 64-bit
//! float, lone surrogates, a second value and more than 127 levels; the tests check this. A
//! byte-order mark and an empty text have their own errors. Both are frequent in files and
//! completions, and a syntax message does not tell the user how to fix them.

use std::borrow::Cow;

use serde::de::{DeserializeOwned, Error};
use serde_json::Value;

use super::unique::DuplicateKey;
use super::value_budget::TooManyValues;
use crate::budgets::JSON_VALUES;

/// The deepest nesting that [`parse`] accepts; a flat object has one level.
pub const MAX_LEVELS: usize = 127;

/// The reason that a string is not one JSON value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// The text is empty or only white space.
    #[error("the text is empty, but a JSON value is needed")]
    Empty,
    /// The text starts with U+FEFF, which RFC 8259 forbids in a JSON text.
    #[error("the text starts with a byte-order mark; save it as UTF-8 without one")]
    ByteOrderMark,
    /// An object has a duplicate key; only [`parse_unique`](super::parse_unique) rejects this.
    #[error(transparent)]
    DuplicateKey(#[from] DuplicateKey),
    /// The text has more values than fit into memory.
    #[error(transparent)]
    TooManyValues(#[from] TooManyValues),
    /// Syntax, range, surrogate, nesting or trailing-text error.
    #[error("line {line}, column {column}: {reason}")]
    Refused {
        /// Line of the error, from 1.
        line: usize,
        /// Column of the error in bytes, from 1; 0 if the error is at the end of a line.
        column: usize,
        /// Description of the error.
        reason: String,
    },
}

impl JsonError {
    /// The message for a string that is one line of a file: it contains the column but not the
    /// line.
    pub fn line_message(&self) -> String {
        match self {
            JsonError::Refused { column, reason, .. } => format!("column {column}: {reason}"),
            other => other.to_string(),
        }
    }
}

/// Parses a string that contains exactly one JSON value, with optional JSON white space around it.
///
/// As in Python, the last of duplicate keys is used, at the position of the first. `-0` is the
/// integer 0.
///
/// # Errors
///
/// - the text is empty, or starts with a byte-order mark
/// - it is not RFC 8259: NaN, Infinity, comments, single quotes, leading zeros, bare words
/// - a number is beyond the range of a 64-bit float (`1e999`), or an escape is a lone surrogate
/// - something other than white space follows the value
/// - it nests deeper than [`MAX_LEVELS`]
/// - it has more than [`JSON_VALUES`] values, which are counted before any is built
pub fn parse(text: &str) -> Result<Value, JsonError> {
    parse_with(text, |text| serde_json::from_str(text))
}

/// Deserializes a JSON text as [`serde_json::from_slice`] does, but only up to [`JSON_VALUES`]
/// values. For files that this program wrote, which may be damaged or replaced by other files.
///
/// # Errors
///
/// - the text has more than [`JSON_VALUES`] values, which are counted before any is built
/// - it is not JSON, or not a `T`
pub fn from_slice<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    JSON_VALUES.check(text).map_err(serde_json::Error::custom)?;
    serde_json::from_slice(text)
}

/// Like [`parse`], with a custom deserializer for the JSON.
pub(super) fn parse_with(
    text: &str,
    read: impl FnOnce(&str) -> serde_json::Result<Value>,
) -> Result<Value, JsonError> {
    if text.starts_with('\u{feff}') {
        return Err(JsonError::ByteOrderMark);
    }
    if text
        .bytes()
        .all(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
    {
        return Err(JsonError::Empty);
    }
    JSON_VALUES.check(text.as_bytes())?;
    read(&blank_negative_signs_of_zero(text)).map_err(|error| refusal(&error))
}

/// `serde_json` would read `-0` as a float, so the sign of each `-0` is replaced by a space, which
/// keeps all positions.
fn blank_negative_signs_of_zero(text: &str) -> Cow<'_, str> {
    let mut replaced: Option<String> = None;
    if !text.contains("-0") {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let is_number = |at: usize| {
        let byte = bytes.get(at);
        byte.is_some_and(|byte| byte.is_ascii_digit() || b"+-.eE".contains(byte))
    };
    for (at, _) in bytes_outside_strings(bytes).filter(|(at, _)| bytes[*at..].starts_with(b"-0")) {
        let follows_a_number = at.checked_sub(1).is_some_and(is_number);
        if !follows_a_number && !is_number(at + 2) {
            let text = replaced.get_or_insert_with(|| text.to_owned());
            text.replace_range(at..=at, " ");
        }
    }
    replaced.map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Iterates over the bytes of a JSON text outside strings, with their positions.
pub fn bytes_outside_strings(text: &[u8]) -> impl Iterator<Item = (usize, u8)> {
    let (mut is_string, mut is_escaped) = (false, false);
    text.iter().copied().enumerate().filter(move |(_, byte)| {
        let was_string = is_string;
        if is_escaped {
            is_escaped = false;
        } else if *byte == b'"' {
            is_string = !is_string;
        } else {
            is_escaped = is_string && *byte == b'\\';
        }
        !was_string && !is_string
    })
}

fn refusal(error: &serde_json::Error) -> JsonError {
    let (line, column) = (error.line(), error.column());
    let message = error.to_string();
    let location = format!(" at line {line} column {column}");
    let reason = message.strip_suffix(&location).unwrap_or(&message);
    let reason = match reason {
        "recursion limit exceeded" => format!("nested deeper than {MAX_LEVELS} levels"),
        "trailing characters" => "text follows the JSON value".to_owned(),
        other => other.to_owned(),
    };
    JsonError::Refused {
        line,
        column,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reason(text: &str) -> String {
        parse(text).expect_err(text).to_string()
    }

    #[test]
    fn one_value_with_white_space_around_it_is_accepted() {
        assert_eq!(
            parse(" \r\n\t{\"a\": [1, null]} \n"),
            Ok(json!({"a": [1, null]}))
        );
        assert_eq!(parse("\"x\""), Ok(json!("x")));
        assert_eq!(parse("-0.5e-3"), Ok(json!(-0.0005)));
        assert_eq!(parse("\"\\ud83d\\ude00\""), Ok(json!("😀")));
    }

    #[test]
    fn texts_that_lenient_parsers_accept_are_rejected() {
        let texts = [
            "{'a': 1}",
            "{\"a\": 1,}",
            "[1,]",
            "{a: 1}",
            "01",
            "+1",
            ".5",
            "1.",
            "0x1",
            "NaN",
            "-Infinity",
            "True",
            "None",
            "1 // c",
            "/* c */ 1",
            "```json\n{}\n```",
            "{} {}",
            "1 2",
            "{\"a\" 1}",
            "\"a\nb\"",
            "\"\\x41\"",
            "\u{a0}1",
            "1\u{b}",
            "{\"a\":1",
        ];
        for text in texts {
            assert!(parse(text).is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn values_beyond_the_budget_are_not_built() {
        let text = |n: usize| format!("[{}0]", "0,".repeat(n - 2));
        let within = text(JSON_VALUES.max_values());
        let read = from_slice::<serde::de::IgnoredAny>(within.as_bytes());
        assert!(read.is_ok(), "{read:?}");
        let beyond = text(JSON_VALUES.max_values() + 1);
        let error = from_slice::<Value>(beyond.as_bytes()).expect_err("too many");
        assert!(error.to_string().contains("JSON_VALUES"), "{error}");
        assert_eq!(from_slice::<u8>(b" 7").expect("a number"), 7);
    }

    #[test]
    fn unrepresentable_values_are_rejected() {
        for text in [
            "1e999",
            "[-1e400]",
            "\"\\ud800\"",
            "\"\\udc00\"",
            "\"\\ud800\\u0041\"",
        ] {
            assert!(parse(text).is_err(), "{text:?} was accepted");
        }
        assert_eq!(parse("1e-999"), Ok(json!(0.0)));
    }

    #[test]
    fn the_128th_level_is_refused() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(parse(&nested(MAX_LEVELS)).is_ok());
        let message = reason(&nested(MAX_LEVELS + 1));
        assert_eq!(message, "line 1, column 128: nested deeper than 127 levels");
        assert!(parse(&nested(100_000)).is_err());
    }

    #[test]
    fn the_last_duplicate_key_wins_at_the_first_position() {
        let value = parse("{\"a\": 1, \"b\": 2, \"a\": 3}").expect("valid JSON");
        assert_eq!(value.to_string(), "{\"a\":3,\"b\":2}");
    }

    #[test]
    fn each_refusal_has_a_location_and_a_reason() {
        assert_eq!(parse(""), Err(JsonError::Empty));
        assert_eq!(parse(" \n"), Err(JsonError::Empty));
        assert_eq!(parse("\u{feff}{}"), Err(JsonError::ByteOrderMark));
        assert_eq!(
            reason("{}\n{}"),
            "line 2, column 1: text follows the JSON value"
        );
        assert_eq!(reason("[1e999]"), "line 1, column 6: number out of range");
    }

    #[test]
    fn negative_zero_is_read_as_the_integer_zero() {
        let text = r#"{"-0": [-0, -0.0, -0e0, 1e-0, "-0", "\"-0,"], "a": -0}"#;
        let parsed = parse(text).expect("valid JSON");
        let expected = r#"{"-0":[0,-0.0,-0.0,1.0,"-0","\"-0,"],"a":0}"#;
        assert_eq!(parsed.to_string(), expected);
        assert_eq!(parse("-0"), Ok(json!(0)));
        for text in ["--0", "1-0", "-0 1", "-00", "[1 -0]"] {
            assert!(parse(text).is_err(), "{text:?} was accepted");
        }
        assert_eq!(
            reason("[-0, 1e999]"),
            "line 1, column 10: number out of range"
        );
    }

    #[test]
    fn floats_are_read_to_the_nearest_double() {
        for (text, bits) in [
            ("1.7976931348623157e308", f64::MAX),
            ("5e-324", f64::from_bits(1)),
        ] {
            assert_eq!(parse(text).expect("in range").as_f64(), Some(bits));
        }
        let hard = "9007199254740993.0000000000000000000000001";
        assert_eq!(
            parse(hard).expect("in range").as_f64(),
            Some(9_007_199_254_740_994.0)
        );
    }
}
