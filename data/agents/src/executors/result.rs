//! What a call gave, and how a prompt shows it.

use serde_json::{Value, json};

/// The answer to one call.
#[derive(Debug, Clone, PartialEq)]
pub struct CallResult {
    /// What the API returned; null where it returned nothing.
    pub output: Value,
    /// What went wrong, if anything did.
    pub exception: Option<String>,
}

impl CallResult {
    /// The result of a call that went well.
    pub fn success(output: Value) -> Self {
        Self {
            output,
            exception: None,
        }
    }

    /// The result of a call that failed without an output.
    pub fn failure(message: impl Into<String>) -> Self {
        Self {
            output: Value::Null,
            exception: Some(message.into()),
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
        let bad = CallResult {
            output: json!({"partial": 1}),
            exception: Some("no city \"Atlantis\"".to_owned()),
        };
        assert_eq!(bad.shown(), json!({"error": "no city \"Atlantis\""}));
        assert!(bad.is_failure());
        assert_eq!(CallResult::failure("x").output, Value::Null);
    }
}
