//! Parses one RFC 8259 text, and says the place and the reason when it is refused.
//!
//! `serde_json` already refuses NaN, Infinity, comments, numbers beyond the range of a 64-bit
//! float, lone surrogates, a second value and more than 127 levels; the tests hold it to that.
//! The byte-order mark and the empty text get their own errors, since both are frequent in
//! files and completions and a syntax message does not say how to fix them.

use std::borrow::Cow;

use serde_json::Value;

use super::unique::DuplicateKey;

/// The deepest nesting that [`parse`] accepts; a flat object has one level.
pub const MAX_LEVELS: usize = 127;

/// Why a text is not one JSON value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// The text is empty or holds white space only.
    #[error("the text is empty; a JSON value was expected")]
    Empty,
    /// The text starts with U+FEFF, which RFC 8259 forbids in a JSON text.
    #[error("the text starts with a byte-order mark; save it as UTF-8 without one")]
    ByteOrderMark,
    /// An object has two values of one name; only [`parse_unique`](super::parse_unique) asks.
    #[error(transparent)]
    DuplicateKey(#[from] DuplicateKey),
    /// Syntax, range, surrogate, nesting or trailing-text error.
    #[error("line {line}, column {column}: {reason}")]
    Refused {
        /// Line of the fault, from 1.
        line: usize,
        /// Column of the fault in bytes, from 1; 0 when the fault is the end of a line.
        column: usize,
        /// What is wrong there.
        reason: String,
    },
}

/// Parses a text that holds exactly one JSON value, with JSON white space around it allowed.
///
/// Of duplicate keys the last value wins, at the place of the first, and `-0` is the integer 0, both
/// as in Python.
///
/// # Errors
///
/// - the text is empty, or starts with a byte-order mark
/// - it is not RFC 8259: NaN, Infinity, comments, single quotes, leading zeros, bare words
/// - a number is beyond the range of a 64-bit float (`1e999`), or an escape is a lone surrogate
/// - something other than white space follows the value
/// - it nests deeper than [`MAX_LEVELS`]
pub fn parse(text: &str) -> Result<Value, JsonError> {
    parse_with(text, |text| serde_json::from_str(text))
}

/// As [`parse`], with another reader of what is JSON.
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
    read(&without_negative_zeros(text)).map_err(|error| refusal(&error))
}

/// The text with a blank for the sign of each `-0`, which `serde_json` would read as a float; no
/// place in the text moves.
fn without_negative_zeros(text: &str) -> Cow<'_, str> {
    let mut changed: Option<String> = None;
    if !text.contains("-0") {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let is_number = |at: usize| {
        let byte = bytes.get(at);
        byte.is_some_and(|byte| byte.is_ascii_digit() || b"+-.eE".contains(byte))
    };
    for (at, _) in outside_strings(bytes).filter(|(at, _)| bytes[*at..].starts_with(b"-0")) {
        let follows_a_number = at.checked_sub(1).is_some_and(is_number);
        if !follows_a_number && !is_number(at + 2) {
            let text = changed.get_or_insert_with(|| text.to_owned());
            text.replace_range(at..=at, " ");
        }
    }
    changed.map_or(Cow::Borrowed(text), Cow::Owned)
}

/// The bytes of a JSON text that are in no string, each with its place.
pub fn outside_strings(text: &[u8]) -> impl Iterator<Item = (usize, u8)> {
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
    let place = format!(" at line {line} column {column}");
    let reason = message.strip_suffix(&place).unwrap_or(&message);
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
    fn texts_that_lenient_readers_accept_are_refused() {
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
    fn what_a_value_cannot_hold_is_refused() {
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
    fn of_duplicate_keys_the_last_value_wins_at_the_first_place() {
        let value = parse("{\"a\": 1, \"b\": 2, \"a\": 3}").expect("valid JSON");
        assert_eq!(value.to_string(), "{\"a\":3,\"b\":2}");
    }

    #[test]
    fn each_refusal_says_where_and_why() {
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
    fn a_negative_zero_is_the_integer_that_python_reads() {
        let text = r#"{"-0": [-0, -0.0, -0e0, 1e-0, "-0", "\"-0,"], "a": -0}"#;
        let read = parse(text).expect("valid JSON");
        let wanted = r#"{"-0":[0,-0.0,-0.0,1.0,"-0","\"-0,"],"a":0}"#;
        assert_eq!(read.to_string(), wanted);
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
