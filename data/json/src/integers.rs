//! Finds integers in a JSON text that a 64-bit value would round.
//!
//! `serde_json` silently stores an integer beyond 64 bits as the nearest float. In training data
//! the model would then be trained on `1.2345678901234568e+22` instead of
//! `12345678901234567890123`, so row readers run this check first.

use super::exact::Walk;

/// An integer that has no 64-bit value, and its location.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{field} is the integer {literal}, which does not fit into 64 bits and would be rounded; write \
     it as a string, \"{literal}\", or make it shorter"
)]
pub struct OversizedInteger {
    /// Path of the integer, such as `calls[0].arguments.id`.
    pub field: String,
    /// The integer as written.
    pub literal: String,
}

/// Returns the first integer beyond 64 bits in a string that [`parse`](super::parse) accepts.
///
/// In an object, only the fields selected by `is_read` are searched, because fields that are never
/// rendered may be rounded.
pub fn oversized_integer(text: &str, is_read: impl Fn(&str) -> bool) -> Option<OversizedInteger> {
    // The shortest integer beyond 64 bits has nineteen digits.
    let mut runs = text.as_bytes().split(|byte| !byte.is_ascii_digit());
    if !runs.any(|digits| digits.len() >= 19) {
        return None;
    }
    let mut search = Search {
        field: String::new(),
        is_read: true,
        found: None,
    };
    search.value(&mut Walk::new(text), &is_read);
    search.found
}

struct Search {
    field: String,
    is_read: bool,
    found: Option<OversizedInteger>,
}

impl Search {
    fn value(&mut self, walk: &mut Walk<'_>, is_read: &dyn Fn(&str) -> bool) {
        let (n_before, is_outermost) = (self.field.len(), self.field.is_empty());
        match walk.peek() {
            b'{' => walk.object(|walk, key| {
                if is_outermost {
                    self.is_read = is_read(&key);
                } else {
                    self.field.push('.');
                }
                self.field.push_str(&key);
                self.value(walk, is_read);
                self.field.truncate(n_before);
            }),
            b'[' => {
                let mut item_idx = 0_usize;
                walk.list(|walk| {
                    self.field.push_str(&format!("[{item_idx}]"));
                    self.value(walk, is_read);
                    self.field.truncate(n_before);
                    item_idx += 1;
                });
            }
            b'"' => {
                walk.string();
            }
            _ => self.literal(walk.literal()),
        }
    }

    fn literal(&mut self, literal: &str) {
        let digits = literal.strip_prefix('-').unwrap_or(literal);
        let is_integer = digits.bytes().all(|byte| byte.is_ascii_digit());
        let fits = literal.parse::<i64>().is_ok() || literal.parse::<u64>().is_ok();
        if self.is_read && self.found.is_none() && is_integer && !fits {
            self.found = Some(OversizedInteger {
                field: self.field.clone(),
                literal: literal.to_owned(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_oversized(text: &str) -> Option<(String, String)> {
        super::super::parse(text).expect("JSON");
        oversized_integer(text, |field| field != "note").map(|found| (found.field, found.literal))
    }

    #[test]
    fn integers_beyond_64_bits_are_found_with_their_path() {
        for (text, field, literal) in [
            ("18446744073709551616", "", "18446744073709551616"),
            ("[0, -9223372036854775809]", "[1]", "-9223372036854775809"),
            (
                r#"{"a": [{"b\n\"": {"c": 99999999999999999999 , "d": 1}}]}"#,
                "a[0].b\n\".c",
                "99999999999999999999",
            ),
            (
                r#"{"note": 99999999999999999999, "id": 99999999999999999998}"#,
                "id",
                "99999999999999999998",
            ),
        ] {
            let expected = Some((field.to_owned(), literal.to_owned()));
            assert_eq!(find_oversized(text), expected, "{text}");
        }
    }

    #[test]
    fn exact_integers_and_other_literals_pass() {
        for text in [
            "18446744073709551615",
            "-9223372036854775808",
            "1e30",
            "99999999999999999999.0",
            "0.99999999999999999999",
            r#"{"a": "99999999999999999999", "99999999999999999999": null}"#,
            r#"{"note": [{"id": 99999999999999999999}], "id": 1}"#,
        ] {
            assert_eq!(find_oversized(text), None, "{text}");
        }
    }
}
