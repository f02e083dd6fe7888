//! The errors with which a server would reject the calls of an answer.

use super::answer::{AnswerEnd, CallsAnswer};
use super::item::CallsItem;
use super::score::CallsScorer;

/// Why an answer's calls cannot be executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRejection {
    /// Why calls cannot be parsed.
    pub malformed: Vec<String>,
    /// The error of each parsed call; `None` if the call is valid.
    pub calls: Vec<Option<String>>,
}

impl CallsScorer {
    /// Validates the calls of an answer: they can be parsed, name a tool of the row, and have
    /// arguments that the tool declares and its schema accepts. `None` if all calls are valid, or if
    /// the answer was cut off.
    pub fn rejection(&mut self, item: &CallsItem, answer: &CallsAnswer) -> Option<CallRejection> {
        if answer.end == AnswerEnd::Cut {
            return None;
        }
        let calls = answer.calls.iter().map(|call| {
            let check = self.check(call, &item.tools);
            let faults = check.names.iter().chain(&check.faults);
            let messages: Vec<&str> = faults.map(|fault| fault.message.as_str()).collect();
            (!check.is_valid).then(|| messages.join("; "))
        });
        let rejection = CallRejection {
            calls: calls.collect(),
            malformed: answer.malformed.clone(),
        };
        let is_rejected =
            !rejection.malformed.is_empty() || rejection.calls.iter().any(Option::is_some);
        is_rejected.then_some(rejection)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{call, item, tide_call};
    use super::super::{CallsAnswer, CallsScorer, read_calls};
    use serde_json::json;

    #[test]
    fn only_calls_that_a_server_cannot_execute_are_rejected() {
        let item = item(vec![tide_call("Rye")]);
        let mut scorer = CallsScorer::default();
        let mut errors = |calls| {
            let rejection = scorer.rejection(&item, &CallsAnswer::from_calls(calls));
            rejection.map(|rejection| rejection.calls)
        };
        // Wrong answers that are valid calls are not rejected.
        assert_eq!(errors(vec![tide_call("Ulm")]), None);
        assert_eq!(errors(Vec::new()), None);
        let found = errors(vec![call("tides", json!({})), tide_call("Rye")]).expect("an error");
        let is_unknown = |error: &String| error.starts_with("unknown tool tides");
        assert!(found[0].as_ref().is_some_and(is_unknown), "{found:?}");
        assert_eq!(found[1], None);
        let found = errors(vec![call("tide", json!({"port": 3}))]).expect("an error");
        let expected = "tide.port: value is not of type \"string\"";
        assert_eq!(found, [Some(expected.to_owned())]);
    }

    #[test]
    fn a_malformed_call_is_rejected_unless_the_answer_was_cut() {
        let item = item(vec![tide_call("Rye")]);
        let mut scorer = CallsScorer::default();
        let answer = read_calls("<tool_call>{\"name\": \"tide\", </tool_call>", &item.tools);
        let rejection = scorer.rejection(&item, &answer).expect("an error");
        assert_eq!(rejection.malformed.len(), 1);
        assert_eq!(scorer.rejection(&item, &answer.truncate()), None);
    }
}
