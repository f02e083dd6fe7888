//! What a call gave, and how a prompt shows it.

use serde_json::{Value, json};

/// The answer to one call.
#[derive(Debug, Clone, PartialEq)]
pub struct CallResult {
    /// What the API returned; null where it returned nothing.
    pub output: Value,
    /// What went wrong, if anything did.
    pub exception: Option<String>,
    /// Whether this is no word of the API: nothing answered, or only to say that it is busy or out
    /// of order, so that the same call may go well another time.
    pub is_unanswered: bool,
}

impl CallResult {
    /// The result of a call that went well.
    pub fn success(output: Value) -> Self {
        Self {
            output,
            exception: None,
            is_unanswered: false,
        }
    }

    /// The result of a call that failed without an output.
    pub fn failure(message: impl Into<String>) -> Self {
        Self {
            output: Value::Null,
            exception: Some(message.into()),
            is_unanswered: false,
        }
    }

    /// What came of a call: its output, and what went wrong with it, if anything did.
    pub fn of(output: Value, exception: Option<String>) -> Self {
        Self {
            output,
            exception,
            is_unanswered: false,
        }
    }

    /// The result of a call that nothing answered.
    pub fn unanswered(message: impl Into<String>) -> Self {
        Self {
            is_unanswered: true,
            ..Self::failure(message)
        }
    }

    /// Whether the call failed.
    pub fn is_failure(&self) -> bool {
        self.exception.is_some()
    }

    /// What a prompt shows: the output, or `{"error": message}` of a failed call.
    pub fn shown(&self) -> Value {
        match &self.exception {
            None => self.output.clone(),
            Some(message) => json!({ "error": message }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_call_is_shown_as_its_error_and_a_good_one_as_its_output() {
        let good = CallResult::success(json!({"id": 7}));
        assert_eq!(good.shown(), json!({"id": 7}));
        assert!(!good.is_failure());
        let bad = CallResult::of(
            json!({"partial": 1}),
            Some("no city \"Atlantis\"".to_owned()),
        );
        assert_eq!(bad.shown(), json!({"error": "no city \"Atlantis\""}));
        assert!(bad.is_failure());
        assert_eq!(CallResult::failure("x").output, Value::Null);
    }
}
