//! Counts the values of a JSON text before they are built.
//!
//! A parsed value takes up to a hundred times the bytes of its text (`0,` becomes a number of 72
//! bytes), so a limit on bytes does not bound memory. The count takes one pass over the text
//! without allocations or syntax checks. For input that is not JSON, the count may exceed the
//! number of values that a parser builds before its error, but the count is never lower than this
//! number.

/// Maximum number of values in a JSON text, with the name of its constant for error messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValueBudget {
    values: usize,
    name: &'static str,
}

/// A JSON text has more values than its budget allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the JSON text has more than {} values, the limit ({} in docs/limits.md); split it into \
     smaller files", budget.values, budget.name
)]
pub struct TooManyValues {
    budget: ValueBudget,
}

impl TooManyValues {
    /// The message without advice, for JSON that the user cannot split.
    pub fn limit_message(&self) -> String {
        let ValueBudget { values, name } = self.budget;
        format!("more than {values} JSON values, the limit ({name} in docs/limits.md)")
    }
}

impl ValueBudget {
    /// Creates a budget of `values`; `name` is the name of its constant in docs/limits.md.
    pub const fn new(name: &'static str, values: usize) -> Self {
        Self { values, name }
    }

    /// The number of values.
    pub const fn max_values(self) -> usize {
        self.values
    }

    /// Counts the values in a JSON text: numbers, strings, `true`, `false`, `null`, arrays and
    /// objects, but not keys. Texts that are too short to exceed the budget are skipped.
    ///
    /// # Errors
    ///
    /// - the text has more values than the budget
    pub fn check(self, text: &[u8]) -> Result<(), TooManyValues> {
        // Each value takes at least one byte. Each value except the outermost also takes a comma or
        // a bracket.
        let max_values = text.len() / 2 + 1;
        if max_values > self.values && count_values_up_to(self.values, text) > self.values {
            return Err(TooManyValues { budget: self });
        }
        Ok(())
    }
}

/// Returns the number of values in a JSON text, as counted by [`ValueBudget::check`].
pub fn n_values(text: &[u8]) -> usize {
    count_values_up_to(usize::MAX, text)
}

/// Returns the number of values in a JSON text, stopping once it exceeds `max_values`.
fn count_values_up_to(max_values: usize, text: &[u8]) -> usize {
    let mut n_values = 1_usize;
    // A non-empty container has one value more than it has commas.
    let mut has_just_opened = false;
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        at += 1;
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => continue,
            b'[' | b'{' => {
                n_values += usize::from(has_just_opened);
                has_just_opened = true;
                continue;
            }
            b']' | b'}' => {}
            b',' => n_values += 1,
            b'"' => {
                n_values += usize::from(has_just_opened);
                at += string_len(&text[at..]);
            }
            _ => n_values += usize::from(has_just_opened),
        }
        has_just_opened = false;
        if n_values > max_values {
            break;
        }
    }
    n_values
}

/// Length of a string after its opening quote, including the closing one.
fn string_len(text: &[u8]) -> usize {
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn count_parsed_values(value: &Value) -> usize {
        1 + match value {
            Value::Array(items) => items.iter().map(count_parsed_values).sum(),
            Value::Object(fields) => fields.values().map(count_parsed_values).sum::<usize>(),
            _ => 0,
        }
    }

    #[test]
    fn counted_values_equal_parsed_values() {
        for text in [
            "0",
            "[]",
            "[ ]",
            "{ }",
            "[[]]",
            "[[],[],{}]",
            "[0, 1]",
            "\"a, [b] \\\" {\"",
            "{\"a,\": [1, \"]\\\\\", null], \"b\": {\"c\": {}, \"d\\\"\": true}}",
            "\n{ \"a\" :\t[ { \"b\" : [ ] } , \"\" ] }\r\n",
        ] {
            let value: Value = serde_json::from_str(text).expect(text);
            assert_eq!(
                n_values(text.as_bytes()),
                count_parsed_values(&value),
                "{text}"
            );
            // With a zero budget no text is too short to be counted.
            assert!(text.len() / 2 + 1 >= count_parsed_values(&value), "{text}");
        }
    }

    #[test]
    fn a_text_beyond_the_budget_is_refused_with_the_limit_and_its_name() {
        let budget = ValueBudget::new("SOME_VALUES", 3);
        assert_eq!(budget.check(b"[1,2]"), Ok(()));
        // Truncated strings are counted up to their end.
        for text in ["[1,2,3]", "[1,2,3", "{\"a\":[[[", "[\"\\"] {
            let result = budget.check(text.as_bytes());
            assert_eq!(result.is_err(), text != "[\"\\", "{text}");
        }
        let message = budget
            .check(b"[1,2,3]")
            .expect_err("four values")
            .to_string();
        assert_eq!(
            message,
            "the JSON text has more than 3 values, the limit (SOME_VALUES in docs/limits.md); \
             split it into smaller files"
        );
    }
}
