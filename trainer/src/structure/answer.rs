//! Extracts JSON from a completion and checks it against the schema of its row.

use serde::Serialize;
use serde_json::Value;
use tooltune_agents::flat::{FlatSlotRow, UnflattenReport};
use tooltune_grammar::{MAX_CHARACTERS, MAX_ENTRIES};
use tooltune_json as json;
use tooltune_json::Style;
use tooltune_json::json_schema::BoundedValidator;
use tooltune_pipelines::reply;

use crate::eval::generate::{FinishReason, GenerationOptions};
use crate::eval::generator::Completion;

/// One line of the output.
#[derive(Debug, Clone, Serialize)]
pub struct Answer {
    /// Id of the row, or its location.
    pub id: Value,
    /// The JSON; null if there is none.
    pub json: Value,
    /// Whether the JSON satisfies the row's schema.
    pub valid: bool,
    /// Violated rules.
    pub violations: Vec<Violation>,
    /// The completion, if it contains no JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<String>,
    /// The text of the first model, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The reason if the completion was generated without its schema although constraints are on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unenforced: Option<String>,
    /// If the completion was generated again with limits on lists and strings: the limits and the
    /// reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shortened: Option<String>,
    /// Why the row could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A violated rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// A keyword of JSON Schema; `json` if there is no JSON; or the cause of a missing or
    /// incomplete completion: `max_new_tokens`, `max_time`, `context`, `constraint`, `upstream` or
    /// `text`.
    pub rule: String,
    /// JSON pointer to the value; empty for the root.
    pub path: String,
    /// The requirement of the rule.
    pub message: String,
}

impl Violation {
    /// A violation that concerns the whole completion.
    pub fn for_completion(rule: &str, message: String) -> Self {
        Self {
            rule: rule.to_owned(),
            path: String::new(),
            message,
        }
    }
}

/// A checked completion.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CheckedCompletion {
    /// The JSON; null if there is none.
    pub json: Value,
    /// Violated rules; empty if the JSON is valid.
    pub violations: Vec<Violation>,
    /// The completion, if it contains no JSON.
    pub written: Option<String>,
}

/// The rule that a completion violates if [`GenerationOptions::max_new_tokens`] cut it off.
pub(super) const MAX_NEW_TOKENS: &str = "max_new_tokens";

/// The limits on lists and strings of a second attempt.
pub(super) fn short_limits() -> String {
    format!("at most {MAX_ENTRIES} entries per list and {MAX_CHARACTERS} characters per string")
}

impl CheckedCompletion {
    /// Whether only string formats are violated.
    pub(super) fn violates_only_formats(&self) -> bool {
        !self.violations.is_empty() && self.violations.iter().all(|one| one.rule == "format")
    }

    /// A completion without JSON.
    fn invalid(text: &str, violation: Violation) -> Self {
        Self {
            json: Value::Null,
            violations: vec![violation],
            written: Some(text.to_owned()),
        }
    }

    /// Describes the violations, for a second attempt.
    pub(super) fn reason(&self) -> String {
        let violations = self.violations.iter().map(|one| match one.path.as_str() {
            "" => one.message.clone(),
            path => format!("{path}: {}", one.message),
        });
        violations.collect::<Vec<_>>().join("; ")
    }
}

/// Finds and validates the JSON in a completion. JSON of a flat schema is nested first. A
/// completion that was cut off is never valid, even if it contains JSON.
pub(super) fn check_completion(
    completion: &Completion,
    flat: Option<&FlatSlotRow>,
    validator: &BoundedValidator,
    options: &GenerationOptions,
) -> CheckedCompletion {
    if let Some(violation) = incomplete_violation(completion, options) {
        return CheckedCompletion::invalid(&completion.text, violation);
    }
    let no_json = |reason: String| {
        CheckedCompletion::invalid(&completion.text, Violation::for_completion("json", reason))
    };
    let mut value = match reply::json_value(&completion.text) {
        Ok(value) => value,
        Err(reason) => return no_json(reason),
    };
    if let Some(form) = flat.filter(|form| form.flat_schema.is_some()) {
        let flat = json::dumps(&value, Style::Python);
        let nested = form.nested_completion(&flat, &mut UnflattenReport::default());
        value = match (nested.malformed, json::parse(&nested.text)) {
            (None, Ok(nested)) => nested,
            (malformed, _) => {
                return no_json(format!(
                    "the flat JSON has no nested form ({})",
                    malformed.unwrap_or("not_json")
                ));
            }
        };
    }
    let faults = validator.faults(&value).into_iter();
    let violations = faults.map(|fault| Violation {
        rule: fault.rule,
        path: fault.place.to_string(),
        message: fault.masked,
    });
    CheckedCompletion {
        violations: violations.collect(),
        json: value,
        written: None,
    }
}

/// The violation if the completion is incomplete.
fn incomplete_violation(completion: &Completion, options: &GenerationOptions) -> Option<Violation> {
    let is = |reason: FinishReason| completion.finish_reason == reason.name();
    let n_tokens = completion.n_tokens;
    let (rule, message) = if is(FinishReason::Stop) {
        return None;
    } else if is(FinishReason::Length) && n_tokens >= options.max_new_tokens {
        let message = format!(
            "the text was cut off after {n_tokens} tokens (eval.max_new_tokens); raise it with \
             --set"
        );
        (MAX_NEW_TOKENS, message)
    } else if is(FinishReason::Length) {
        let message = format!(
            "the text was cut off after {n_tokens} tokens because the model's context is full; \
             shorten the text or the schema"
        );
        ("context", message)
    } else if is(FinishReason::Context) {
        let message = "the prompt fills the model's context; shorten the text or the schema";
        ("context", message.to_owned())
    } else if is(FinishReason::Time) {
        let message = format!(
            "the text was cut off after {n_tokens} tokens by eval.max_time; raise it with --set"
        );
        ("max_time", message)
    } else {
        let message = "the text reached a limit of its constraint before its end";
        ("constraint", message.to_owned())
    };
    Some(Violation::for_completion(rule, message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(text: &str, finish: FinishReason, n_tokens: usize) -> CheckedCompletion {
        let completion = Completion {
            text: text.to_owned(),
            finish_reason: finish.name().to_owned(),
            n_tokens,
            ..Completion::default()
        };
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}},
            "required": ["a"]});
        let validator = BoundedValidator::new(&schema).unwrap();
        let options = GenerationOptions::greedy(8, 1, Vec::new());
        check_completion(&completion, None, &validator, &options)
    }

    #[test]
    fn a_text_is_valid_json_or_names_the_rules_that_it_breaks() {
        let valid = check("{\"a\": 1}", FinishReason::Stop, 5);
        assert_eq!((valid.json, valid.violations), (json!({"a": 1}), vec![]));
        let fenced = check("Here:\n```json\n{\"a\": 1}\n```", FinishReason::Stop, 5);
        assert_eq!((fenced.json, fenced.violations), (json!({"a": 1}), vec![]));
        let wrong = check("{\"a\": \"1\"}", FinishReason::Stop, 5);
        let broken = &wrong.violations[0];
        assert_eq!((broken.rule.as_str(), broken.path.as_str()), ("type", "/a"));
        assert!(wrong.reason().starts_with("/a: "), "{}", wrong.reason());
        let prose = check("I cannot.", FinishReason::Stop, 5);
        assert_eq!(prose.json, Value::Null);
        assert_eq!(prose.violations[0].rule, "json");
        assert_eq!(prose.written.as_deref(), Some("I cannot."));
    }

    #[test]
    fn a_date_must_match_its_format() {
        let schema = json!({"type": "object", "properties": {
            "day": {"type": "string", "format": "date"}, "n": {"type": "integer"}}});
        let validator = BoundedValidator::asserting_formats(&schema).unwrap();
        let options = GenerationOptions::greedy(8, 1, Vec::new());
        let check_text = |text: &str| {
            let completion = Completion {
                text: text.to_owned(),
                finish_reason: FinishReason::Stop.name().to_owned(),
                ..Completion::default()
            };
            check_completion(&completion, None, &validator, &options)
        };
        let words = check_text(r#"{"day": "20 July 2026"}"#);
        assert_eq!(
            (
                words.violations[0].rule.as_str(),
                words.violations[0].path.as_str()
            ),
            ("format", "/day")
        );
        assert!(words.violates_only_formats());
        assert!(!check_text(r#"{"day": "20 July 2026", "n": "x"}"#).violates_only_formats());
        let right = check_text(r#"{"day": "2026-07-20"}"#);
        assert!(right.violations.is_empty() && !right.violates_only_formats());
    }

    #[test]
    fn a_truncated_completion_is_never_valid_and_names_the_limit() {
        for (finish, n_tokens, rule) in [
            (FinishReason::Length, 8, "max_new_tokens"),
            (FinishReason::Length, 7, "context"),
            (FinishReason::Context, 0, "context"),
            (FinishReason::Time, 3, "max_time"),
            (FinishReason::Constraint, 3, "constraint"),
        ] {
            // The JSON is complete, but the model had not finished.
            let cut = check("{\"a\": 1}", finish, n_tokens);
            assert_eq!(cut.json, Value::Null);
            assert_eq!(cut.violations.len(), 1);
            assert_eq!(cut.violations[0].rule, rule);
            assert_eq!(cut.written.as_deref(), Some("{\"a\": 1}"));
        }
        let reason = check("{", FinishReason::Length, 8).reason();
        assert!(
            reason.contains("after 8 tokens (eval.max_new_tokens)"),
            "{reason}"
        );
    }
}
