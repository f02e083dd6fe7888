//! One step of a dialogue: the prompt for the next call or reply, and its outcome.
//!
//! The APIs of the dialogue are given, so nothing is retrieved. Earlier calls are shown with their
//! recorded results, not with results of the model's own calls.

use tooltune_apis::{ApiCatalogue, DialogueGold, DialogueStep, DialogueTurn, GoldCall};
use tooltune_json as json;
use tooltune_json::Style;
use tooltune_template::{Conversation, Message, Role};

use super::agent::shorten;
use super::method::{ExampleKind, Method};
use super::options::AgentLimits;
use super::outcome::{AttemptedCall, Failure, Outcome};
use super::prompts::{ShownCall, one_line};
use super::reading;
use super::shown_result::shown_result;
use crate::executors::{CallResult, Executor};

const CALL: &str = "Write the API call that the dialogue needs next as a JSON object with name and \
                    arguments.";
const REPLY: &str = "Write the assistant's next reply from the results of the API calls.";

/// The prompt for the next turn of a dialogue; results are shortened according to `limits`.
pub fn dialogue_prompt(
    step: &DialogueStep,
    catalogue: &ApiCatalogue,
    limits: &AgentLimits,
) -> Conversation {
    let is_call = matches!(step.gold, DialogueGold::Call(_));
    let mut text = if is_call { CALL } else { REPLY }.to_owned();
    if is_call {
        text.push_str("\n\nAPIs:");
        for document in step.apis.iter().filter_map(|name| catalogue.get(name)) {
            text.push('\n');
            text.push_str(&json::dumps(&document.prompt_value(), Style::Compact));
        }
    }
    text.push_str("\n\nDialogue:");
    let mut n_calls = 0;
    for turn in &step.turns {
        match turn {
            DialogueTurn::User(user_text) => {
                text.push_str(&format!("\nUser: {}", one_line(user_text)))
            }
            DialogueTurn::Assistant(user_text) => {
                text.push_str(&format!("\nAssistant: {}", one_line(user_text)));
            }
            DialogueTurn::Call(call) => {
                n_calls += 1;
                let ShownCall { call, result } = shown_call(call, limits);
                text.push_str(&format!(
                    "\nCall {n_calls}: {call}\nResult {n_calls}: {result}"
                ));
            }
        }
    }
    if is_call {
        text.push_str(&format!("\nCall {}:", n_calls + 1))
    } else {
        text.push_str("\nAssistant:")
    }
    Conversation::new(vec![Message::new(Role::User, text)])
}

fn shown_call(call: &GoldCall, limits: &AgentLimits) -> ShownCall {
    let result = CallResult::new(call.output.clone(), call.exception.clone());
    let arguments = call.arguments.clone().unwrap_or_default();
    ShownCall::from_call(&call.name, &arguments, shown_result(&result, limits))
}

/// Interprets the model's text for a step: a call with its result, or a reply.
///
/// The outcome has the format of a one-turn loop, so that it is stored and scored like one.
pub fn dialogue_outcome(
    step: &DialogueStep,
    method: Method,
    text: &str,
    catalogue: &ApiCatalogue,
    executor: &mut dyn Executor,
) -> Outcome {
    let mut outcome = Outcome::empty(method);
    if let DialogueGold::Reply(_) = step.gold {
        outcome.response = text.trim().to_owned();
        return outcome;
    }
    let call = match reading::read_call(text) {
        Ok(call) => {
            let name = one_line(&call.name);
            let result = match catalogue.get(&name) {
                Some(_) => executor.call(&name, &call.arguments),
                None => {
                    let hint = catalogue.hint(&name);
                    CallResult::failure(format!("unknown API {name:?}{hint}"))
                }
            };
            AttemptedCall {
                name: Some(name),
                arguments: Some(call.arguments),
                raw: None,
                output: result.output,
                exception: result.exception,
            }
        }
        Err(error) => {
            outcome.failures.push(Failure {
                kind: ExampleKind::Call,
                reason: error.reason.to_owned(),
                text: shorten(text),
            });
            AttemptedCall {
                name: error.name,
                arguments: None,
                raw: Some(shorten(text)),
                output: serde_json::Value::Null,
                exception: Some(error.reason.to_owned()),
            }
        }
    };
    outcome.path.extend(call.name.clone());
    outcome.calls.push(call);
    outcome
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};
    use tooltune_apis::ApiDocument;

    use super::*;

    struct EchoExecutor;

    impl Executor for EchoExecutor {
        fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult {
            CallResult::success(json!({"called": name, "with": arguments}))
        }
    }

    fn step(gold: DialogueGold) -> DialogueStep {
        let tide_call = GoldCall {
            name: "Tide".to_owned(),
            arguments: json!({"port": "Emden"}).as_object().cloned(),
            output: json!("06:10"),
            exception: None,
            check_input: false,
        };
        DialogueStep {
            id: "a[2]".to_owned(),
            apis: vec!["Tide".to_owned()],
            turns: vec![
                DialogueTurn::User("When is\nlow water?".to_owned()),
                DialogueTurn::Call(tide_call),
            ],
            gold,
        }
    }

    fn call_step() -> DialogueStep {
        step(DialogueGold::Call(GoldCall {
            name: "Tide".to_owned(),
            arguments: None,
            output: Value::Null,
            exception: None,
            check_input: false,
        }))
    }

    fn catalogue() -> ApiCatalogue {
        ApiCatalogue::new(vec![
            ApiDocument::new("", "Tide"),
            ApiDocument::new("", "Pilot"),
        ])
        .expect("two names")
    }

    fn prompt(step: &DialogueStep) -> String {
        let conversation = dialogue_prompt(step, &catalogue(), &AgentLimits::default());
        conversation.messages[0].content.clone().expect("a text")
    }

    #[test]
    fn a_prompt_has_the_apis_turns_and_calls_of_the_dialogue() {
        let text = prompt(&call_step());
        assert!(
            text.contains("\"Tide\"") && !text.contains("Pilot"),
            "{text}"
        );
        let dialogue = "\n\nDialogue:\nUser: When is low water?\n\
                        Call 1: {\"name\": \"Tide\", \"arguments\": {\"port\": \"Emden\"}}\n\
                        Result 1: \"06:10\"\nCall 2:";
        assert!(text.ends_with(dialogue), "{text}");
        let text = prompt(&step(DialogueGold::Reply(String::new())));
        assert!(
            !text.contains("APIs:") && text.ends_with("\nAssistant:"),
            "{text}"
        );
    }

    #[test]
    fn a_completion_becomes_an_executed_call_or_a_reply() {
        let outcome = |step: &DialogueStep, text: &str| {
            dialogue_outcome(step, Method::Global, text, &catalogue(), &mut EchoExecutor)
        };
        let call_outcome = outcome(
            &call_step(),
            "{\"name\": \"Tide\", \"arguments\": {\"port\": 1}}",
        );
        assert_eq!(call_outcome.calls[0].output["with"], json!({"port": 1}));
        assert_eq!(call_outcome.path, ["Tide"]);
        let unknown = outcome(&call_step(), "{\"name\": \"Tides\", \"arguments\": {}}");
        let message = unknown.calls[0].exception.as_deref().expect("a failure");
        assert!(message.contains("did you mean \"Tide\"?"), "{message}");
        let unparsed = outcome(&call_step(), "I would call Tide.");
        assert_eq!((unparsed.calls.len(), unparsed.failures.len()), (1, 1));
        let reply = outcome(&step(DialogueGold::Reply(String::new())), " At 06:10. ");
        assert_eq!(
            (reply.response.as_str(), reply.calls.len()),
            ("At 06:10.", 0)
        );
    }
}
