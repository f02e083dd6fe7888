//! What a model wrote to the JSON of a row, and the rules that it breaks.

use serde::Serialize;
use serde_json::Value;
use tooltune_agents::flat::{FlatSlotRow, UnflattenReport};
use tooltune_grammar::{MOST_CHARACTERS, MOST_ENTRIES};
use tooltune_pipelines::reply;
use tooltune_rows::json::{self, Style};
use tooltune_rows::json_schema::BoundedValidator;

use crate::eval::generate::{FinishReason, GenerationOptions};
use crate::eval::generator::Completion;

/// One line of the output.
#[derive(Debug, Clone, Serialize)]
pub struct Answer {
    /// The row's own name, or its place.
    pub id: Value,
    /// The JSON; null where none came to be.
    pub json: Value,
    /// Whether it satisfies the row's schema.
    pub valid: bool,
    /// What it breaks.
    pub violations: Vec<Violation>,
    /// What the model wrote in place of JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<String>,
    /// The answer of the first model, where one was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Why the text was written freely, where it should have kept to the schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unenforced: Option<String>,
    /// How far lists and texts were kept short, where the text did not end otherwise, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shortened: Option<String>,
    /// Why the row could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A rule that an answer breaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// A keyword of JSON Schema; `json` where there is no JSON, and else what cut the text, or kept
    /// it from being written: `max_new_tokens`, `max_time`, `context`, `constraint` or `upstream`.
    pub rule: String,
    /// JSON pointer to the value; empty for the whole.
    pub path: String,
    /// What the rule wants.
    pub message: String,
}

impl Violation {
    /// A rule about the whole text.
    pub fn whole(rule: &str, message: String) -> Self {
        Self {
            rule: rule.to_owned(),
            path: String::new(),
            message,
        }
    }
}

/// A text as it is judged.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Judged {
    /// The JSON in it; null where there is none.
    pub json: Value,
    /// What it breaks; nothing where it is valid.
    pub violations: Vec<Violation>,
    /// The text, where there is no JSON in it.
    pub written: Option<String>,
}

/// The rule that a text breaks which [`GenerationOptions::max_new_tokens`] cuts.
pub(super) const MAX_NEW_TOKENS: &str = "max_new_tokens";

/// How long lists and texts are at most in what is written once more.
pub(super) fn short_limits() -> String {
    format!("at most {MOST_ENTRIES} entries a list and {MOST_CHARACTERS} characters a text")
}

impl Judged {
    /// Whether the limit of tokens cut the text.
    pub(super) fn is_cut_by_tokens(&self) -> bool {
        let first = self.violations.first();
        first.is_some_and(|violation| violation.rule == MAX_NEW_TOKENS)
    }

    /// A text without JSON.
    fn without(text: &str, violation: Violation) -> Self {
        Self {
            json: Value::Null,
            violations: vec![violation],
            written: Some(text.to_owned()),
        }
    }

    /// Why the text is of no use, for a model that is asked again.
    pub(super) fn reason(&self) -> String {
        let said = self.violations.iter().map(|one| match one.path.as_str() {
            "" => one.message.clone(),
            path => format!("{path}: {}", one.message),
        });
        said.collect::<Vec<_>>().join("; ")
    }
}

/// Finds the JSON in a text and validates it. A text that was cut is never valid, whatever of it can
/// be read; what was written under a flat schema is brought back.
pub(super) fn judged(
    written: &Completion,
    flat: Option<&FlatSlotRow>,
    validator: &BoundedValidator,
    options: &GenerationOptions,
) -> Judged {
    if let Some(violation) = cut(written, options) {
        return Judged::without(&written.text, violation);
    }
    let no_json = |reason: String| Judged::without(&written.text, Violation::whole("json", reason));
    let mut value = match reply::json_value(&written.text) {
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
    Judged {
        violations: violations.collect(),
        json: value,
        written: None,
    }
}

/// What kept a text from its end, if something did.
fn cut(written: &Completion, options: &GenerationOptions) -> Option<Violation> {
    let is = |reason: FinishReason| written.finish_reason == reason.name();
    let n_tokens = written.n_tokens;
    let (rule, message) = if is(FinishReason::Stop) {
        return None;
    } else if is(FinishReason::Length) && n_tokens >= options.max_new_tokens {
        let message = format!(
            "the text is cut off after {n_tokens} tokens, eval.max_new_tokens; raise it with --set"
        );
        (MAX_NEW_TOKENS, message)
    } else if is(FinishReason::Length) {
        let message = format!(
            "the text is cut off after {n_tokens} tokens, where the model's context is full; shorten \
             the text or the schema"
        );
        ("context", message)
    } else if is(FinishReason::Context) {
        let message = "the prompt fills the model's context; shorten the text or the schema";
        ("context", message.to_owned())
    } else if is(FinishReason::Time) {
        let message = format!(
            "the text is cut off after {n_tokens} tokens at eval.max_time; raise it with --set"
        );
        ("max_time", message)
    } else {
        let message = "the text met a limit of its constraint before its end";
        ("constraint", message.to_owned())
    };
    Some(Violation::whole(rule, message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judge(text: &str, finish: FinishReason, n_tokens: usize) -> Judged {
        let written = Completion {
            text: text.to_owned(),
            finish_reason: finish.name().to_owned(),
            n_tokens,
            ..Completion::default()
        };
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}},
            "required": ["a"]});
        let validator = BoundedValidator::new(&schema).unwrap();
        let options = GenerationOptions::greedy(8, 1, Vec::new());
        judged(&written, None, &validator, &options)
    }

    #[test]
    fn a_text_is_valid_json_or_names_the_rules_that_it_breaks() {
        let valid = judge("{\"a\": 1}", FinishReason::Stop, 5);
        assert_eq!((valid.json, valid.violations), (json!({"a": 1}), vec![]));
        let fenced = judge("Here:\n```json\n{\"a\": 1}\n```", FinishReason::Stop, 5);
        assert_eq!((fenced.json, fenced.violations), (json!({"a": 1}), vec![]));
        let wrong = judge("{\"a\": \"1\"}", FinishReason::Stop, 5);
        let broken = &wrong.violations[0];
        assert_eq!((broken.rule.as_str(), broken.path.as_str()), ("type", "/a"));
        assert!(wrong.reason().starts_with("/a: "), "{}", wrong.reason());
        let prose = judge("I cannot.", FinishReason::Stop, 5);
        assert_eq!(prose.json, Value::Null);
        assert_eq!(prose.violations[0].rule, "json");
        assert_eq!(prose.written.as_deref(), Some("I cannot."));
    }

    #[test]
    fn what_is_cut_is_never_valid_and_says_by_what() {
        for (finish, n_tokens, rule) in [
            (FinishReason::Length, 8, "max_new_tokens"),
            (FinishReason::Length, 7, "context"),
            (FinishReason::Context, 0, "context"),
            (FinishReason::Time, 3, "max_time"),
            (FinishReason::Constraint, 3, "constraint"),
        ] {
            // Complete, and yet the model was not done with it.
            let cut = judge("{\"a\": 1}", finish, n_tokens);
            assert_eq!(cut.json, Value::Null);
            assert_eq!(cut.violations.len(), 1);
            assert_eq!(cut.violations[0].rule, rule);
            assert_eq!(cut.written.as_deref(), Some("{\"a\": 1}"));
        }
        let said = judge("{", FinishReason::Length, 8).reason();
        assert!(
            said.contains("after 8 tokens, eval.max_new_tokens"),
            "{said}"
        );
    }
}
