//! The result of a call, and how a prompt shows it.

use serde_json::{Value, json};

/// The result of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct CallResult {
    /// The returned value; null if there is none.
    pub output: Value,
    /// The error, if the call failed.
    pub exception: Option<String>,
    /// Whether the API did not process the call: it did not answer, or answered that it is busy or
    /// out of order. The same call may succeed later.
    pub is_unanswered: bool,
}

impl CallResult {
    /// The result of a successful call.
    pub fn success(output: Value) -> Self {
        Self {
            output,
            exception: None,
            is_unanswered: false,
        }
    }

    /// The result of a failed call without an output.
    pub fn failure(message: impl Into<String>) -> Self {
        Self {
            output: Value::Null,
            exception: Some(message.into()),
            is_unanswered: false,
        }
    }

    /// A result with an output and an optional error.
    pub fn new(output: Value, exception: Option<String>) -> Self {
        Self {
            output,
            exception,
            is_unanswered: false,
        }
    }

    /// The result of an unanswered call.
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

    /// The value shown in a prompt: the output, or `{"error": message}` for a failed call.
    pub fn shown_value(&self) -> Value {
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
    fn a_failed_call_shows_its_error_and_a_successful_one_its_output() {
        let success = CallResult::success(json!({"id": 7}));
        assert_eq!(success.shown_value(), json!({"id": 7}));
        assert!(!success.is_failure());
        let failure = CallResult::new(
            json!({"partial": 1}),
            Some("no city \"Atlantis\"".to_owned()),
        );
        assert_eq!(
            failure.shown_value(),
            json!({"error": "no city \"Atlantis\""})
        );
        assert!(failure.is_failure());
        assert_eq!(CallResult::failure("x").output, Value::Null);
    }
}
