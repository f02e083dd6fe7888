//! Tests agent loops with realistic model outputs.

use proptest::prelude::*;

use super::*;

/// The requests and the outcome of a scripted loop.
struct Run {
    prompts: Vec<String>,
    outcome: Outcome,
}

/// Runs a loop. Generations are `texts` in order, repeating the last one, and the result of a call
/// is its arguments.
fn run(method: Method, texts: &[&str], limits: AgentLimits) -> Run {
    let catalogue = catalogue();
    let mut agent = Agent::new(method, "Q?", &catalogue, limits);
    let mut prompts = Vec::new();
    for _ in 0..1_000 {
        match agent.next() {
            AgentRequest::Retrieve { k, .. } => {
                agent.feed_documents(&(0..k.min(catalogue.len())).collect::<Vec<_>>());
            }
            AgentRequest::Generate { conversation, .. } => {
                let text = texts[prompts.len().min(texts.len() - 1)];
                prompts.push(prompt(&conversation).to_owned());
                agent.feed_text(text);
            }
            AgentRequest::Call { arguments, .. } => {
                agent.feed_result(if arguments.contains_key("fail") {
                    CallResult::failure("no such thing")
                } else {
                    CallResult::success(Value::Object(arguments))
                });
            }
            AgentRequest::Done(outcome) => {
                assert!(agent.is_done());
                return Run { prompts, outcome };
            }
        }
    }
    panic!("the loop does not end");
}

fn with_defaults(method: Method, texts: &[&str]) -> Run {
    run(method, texts, AgentLimits::default())
}

const QUOTE: &str = "{\"name\": \"Stocks/Quote\", \"arguments\": {\"symbol\": \"A\"}}";
const FAIL: &str = "{\"name\": \"Maps/Route\", \"arguments\": {\"fail\": 1}}";

#[test]
fn a_failed_call_shows_its_error_and_the_loop_continues() {
    let plan = "[\"Maps/Route\", \"Stocks/Quote\"]";
    let run = with_defaults(Method::Global, &[plan, FAIL, QUOTE, "It is A."]);
    assert!(run.prompts[2].contains("\nResult 1: {\"error\": \"no such thing\"}\nCall 2:"));
    assert_eq!(run.outcome.path, ["Maps/Route", "Stocks/Quote"]);
    assert_eq!(
        run.outcome.calls[0].exception.as_deref(),
        Some("no such thing")
    );
    assert_eq!(run.outcome.calls[0].output, Value::Null);
    assert_eq!(run.outcome.calls[1].exception, None);
    assert_eq!(run.outcome.response, "It is A.");
}

#[test]
fn unknown_planned_names_are_failed_calls_in_the_path() {
    let plan = "[\"Stocks/Qoute\", \"Stocks/Quote\", \"None/Such\"]";
    let run = with_defaults(Method::Global, &[plan, QUOTE, "A."]);
    let expected = "\nCall 1: {\"name\": \"Stocks/Qoute\", \"arguments\": {}}\nResult 1: \
                 {\"error\": \"unknown API \\\"Stocks/Qoute\\\", did you mean \
                 \\\"Stocks/Quote\\\"?\"}\nCall 2:";
    assert!(run.prompts[1].ends_with(expected), "{}", run.prompts[1]);
    assert_eq!(run.prompts.len(), 3);
    assert_eq!(
        run.outcome.path,
        ["Stocks/Qoute", "Stocks/Quote", "None/Such"]
    );
    let unknown = &run.outcome.calls[2];
    assert_eq!(unknown.arguments, None);
    assert_eq!(
        unknown.exception.as_deref(),
        Some("unknown API \"None/Such\"")
    );
}

#[test]
fn an_empty_plan_leads_directly_to_the_answer() {
    let run = with_defaults(Method::Global, &["[]", "I know."]);
    assert_eq!(run.prompts.len(), 2);
    assert!(run.prompts[1].ends_with("\n\nQuery: Q?\nAnswer:"));
    assert_eq!((run.outcome.path.len(), run.outcome.failures.len()), (0, 0));
    assert_eq!(
        (run.outcome.response.as_str(), run.outcome.end),
        ("I know.", EndReason::Answered)
    );
}

#[test]
fn an_unparsable_plan_is_a_failure_and_the_loop_still_answers() {
    for method in [Method::Global, Method::GlobalId] {
        let run = with_defaults(method, &["First the quote, then the route.", "I guess."]);
        let [failure] = &run.outcome.failures[..] else {
            panic!("{:?}", run.outcome.failures)
        };
        assert!(
            failure.reason.starts_with("this is not a JSON array of "),
            "{failure:?}"
        );
        assert_eq!(failure.text, "First the quote, then the route.");
        assert_eq!(
            (run.outcome.response.as_str(), run.outcome.calls.len()),
            ("I guess.", 0)
        );
    }
}

#[test]
fn a_long_plan_is_truncated_at_the_limit_of_calls() {
    let endless = format!("[{}\"Stocks/Quote\"]", "\"Stocks/Quote\", ".repeat(40));
    let run = with_defaults(Method::Global, &[&endless, QUOTE]);
    assert_eq!((run.outcome.calls.len(), run.outcome.plan.len()), (10, 10));
    assert!(
        run.outcome.failures[0]
            .reason
            .contains("the plan has 41 calls, of which 10")
    );
    let endless = format!("[{}\"x\"]", "\"x\", ".repeat(40));
    let run = with_defaults(Method::GlobalId, &[&endless, QUOTE]);
    assert_eq!(
        (run.outcome.calls.len(), run.outcome.sub_queries.len()),
        (10, 10)
    );
}

#[test]
fn an_unparsable_call_is_a_failed_call_with_its_planned_name() {
    let plan = "[\"Stocks/Quote\", \"Maps/Route\"]";
    let texts = [
        plan,
        "I would\ncall it.",
        "{\"name\": \"Sky/Forecast\"}",
        "Done.",
    ];
    let run = with_defaults(Method::Global, &texts);
    assert_eq!(run.outcome.path, ["Stocks/Quote", "Sky/Forecast"]);
    assert_eq!(run.outcome.failures.len(), 2);
    let first_call = &run.outcome.calls[0];
    assert_eq!(
        (first_call.arguments.as_ref(), first_call.raw.as_deref()),
        (None, Some("I would\ncall it."))
    );
    assert_eq!(
        first_call.exception.as_deref(),
        Some("this is no JSON object")
    );
    assert!(run.prompts[2].ends_with(
        "\nCall 1: I would call it.\nResult 1: {\"error\": \"this is no JSON object\"}\nCall 2:"
    ));
    assert_eq!(run.outcome.response, "Done.");
}

#[test]
fn a_fenced_call_with_extra_blanks_in_its_name_uses_the_catalogue_name() {
    let text =
        "Sure:\n```json\n{\"name\": \" Maps/Find  City\", \"arguments\": {\"name\": 1}}\n```";
    let run = with_defaults(Method::Global, &["[\"Maps/Find City\"]", text, "Ok."]);
    assert_eq!(run.outcome.path, ["Maps/Find City"]);
    assert_eq!(run.outcome.calls[0].exception, None);
    assert_eq!(run.outcome.calls[0].output, json!({"name": 1}));
}

#[test]
fn a_call_of_an_unknown_api_is_never_executed() {
    let unknown = "Action: {\"name\": \"Nope\", \"arguments\": {\"a\": 1}}";
    let run = with_defaults(Method::React, &[unknown, "Finish: No."]);
    assert_eq!(run.outcome.path, ["Nope"]);
    assert_eq!(
        run.outcome.calls[0].arguments,
        Some(object(json!({"a": 1})))
    );
    assert_eq!(
        run.outcome.calls[0].exception.as_deref(),
        Some("unknown API \"Nope\"")
    );
    assert_eq!(run.outcome.response, "No.");
}

#[test]
fn react_without_finish_stops_after_ten_steps_without_an_answer() {
    let run = with_defaults(
        Method::React,
        &[&format!("Thought: again\nAction: {QUOTE}")],
    );
    assert_eq!((run.prompts.len(), run.outcome.calls.len()), (10, 10));
    assert_eq!(run.outcome.end, EndReason::StepLimit);
    assert_eq!(run.outcome.response, "");
    assert!(run.prompts[9].ends_with("\nStep 10:"));
}

#[test]
fn unparsable_react_steps_stop_after_ten_failures() {
    let run = with_defaults(Method::React, &["Thought: hm"]);
    assert_eq!(run.outcome.calls.len(), 10);
    assert_eq!(
        (run.outcome.path.len(), run.outcome.failures.len()),
        (0, 10)
    );
    assert_eq!(run.outcome.end, EndReason::StepLimit);
    assert!(run.outcome.calls.iter().all(|call| call.name.is_none()));
}

#[test]
fn react_uses_the_first_action_and_ignores_invented_results() {
    let text = format!("Thought: x\nAction: {QUOTE}\nResult: 7\nFinish: It is 7.");
    let run = with_defaults(
        Method::React,
        &[&text, "Thought: y\nFinish: It is A.\nSure."],
    );
    assert_eq!(run.outcome.path, ["Stocks/Quote"]);
    assert_eq!(run.outcome.response, "It is A.\nSure.");
    assert_eq!(run.outcome.end, EndReason::Answered);
}

#[test]
fn sequential_sub_queries_end_with_done_an_empty_reply_or_the_limit() {
    let run = with_defaults(Method::ReactId, &["Find A.", QUOTE, "DONE", "A."]);
    assert_eq!(run.outcome.sub_queries, ["Find A."]);
    assert_eq!(
        (run.outcome.response.as_str(), run.outcome.end),
        ("A.", EndReason::Answered)
    );
    let silent = with_defaults(Method::ReactId, &["", "Nothing."]);
    assert_eq!(silent.outcome.failures.len(), 1);
    assert_eq!(silent.outcome.response, "Nothing.");
    let endless = with_defaults(Method::ReactId, &[QUOTE]);
    assert_eq!(
        (
            endless.outcome.calls.len(),
            endless.outcome.retrievals.len()
        ),
        (10, 10)
    );
    assert_eq!(endless.outcome.end, EndReason::StepLimit);
    assert_eq!(endless.outcome.response, QUOTE);
}

#[test]
fn planned_sub_queries_are_each_retrieved_and_shown_when_reached() {
    let run = with_defaults(
        Method::GlobalId,
        &["[\"One.\", \"\", \"Two.\"]", QUOTE, FAIL, "End."],
    );
    let texts: Vec<&str> = run
        .outcome
        .retrievals
        .iter()
        .map(|r| r.text.as_str())
        .collect();
    assert_eq!(texts, ["One.", "Two."]);
    assert!(
        !run.prompts[1].contains("Two.") && run.prompts[2].contains("Sub-query 2: Two.\nCall 2:")
    );
    assert_eq!(run.outcome.retrievals[0].documents.len(), 5);
    assert!(run.prompts[3].ends_with("{\"error\": \"no such thing\"}\nAnswer:"));
}

#[test]
fn a_stopped_loop_keeps_its_calls() {
    let catalogue = catalogue();
    let mut agent = Agent::new(Method::React, "Q?", &catalogue, AgentLimits::default());
    agent.feed_documents(&[0]);
    agent.feed_text(&format!("Action: {QUOTE}"));
    agent.feed_result(CallResult::success(json!(1)));
    agent.stop(EndReason::Deadline);
    agent.stop(EndReason::StepLimit);
    let AgentRequest::Done(outcome) = agent.next() else {
        panic!("{:?}", agent.next())
    };
    assert_eq!((outcome.end, outcome.path.len()), (EndReason::Deadline, 1));
}

#[test]
fn repeated_next_returns_the_same_request_with_the_limits_of_its_kind() {
    let catalogue = catalogue();
    let limits = AgentLimits {
        n_documents: 3,
        plan_tokens: 7,
        ..AgentLimits::default()
    };
    let mut agent = Agent::new(Method::Global, "Q?", &catalogue, limits);
    let retrieve = AgentRequest::Retrieve {
        text: "Q?".to_owned(),
        k: 3,
    };
    assert_eq!((agent.next(), agent.next()), (retrieve.clone(), retrieve));
    agent.feed_documents(&[4, 0, 2]);
    let AgentRequest::Generate {
        conversation,
        max_new_tokens,
        kind,
    } = agent.next()
    else {
        panic!("{:?}", agent.next())
    };
    assert_eq!((max_new_tokens, kind), (7, ExampleKind::Plan));
    assert_eq!(
        shown_apis(prompt(&conversation)),
        ["Maps/Find City", "Stocks/Quote", "Films/Search"]
    );
}

#[test]
fn an_outcome_is_written_and_read_as_json() {
    let run = with_defaults(
        Method::Global,
        &["[\"Nope\", \"Stocks/Quote\"]", "no", "It is A."],
    );
    let text = serde_json::to_string(&run.outcome).unwrap();
    assert_eq!(serde_json::from_str::<Outcome>(&text).unwrap(), run.outcome);
    let value = serde_json::to_value(&run.outcome).unwrap();
    assert_eq!(value["method"], "global");
    assert_eq!(value["end"], "answered");
    assert_eq!(value["path"], json!(["Nope", "Stocks/Quote"]));
    assert_eq!(value["failures"][0]["kind"], "call");
    assert_eq!(value["calls"][1]["raw"], "no");
}

/// Arbitrary text, and nearly valid text.
fn arbitrary_reply() -> impl Strategy<Value = String> {
    let parts = [
        QUOTE,
        FAIL,
        "[]",
        "DONE",
        "Thought: x",
        "Finish: y",
        "[\"Stocks/Quote\", \"Nope\", \"\"]",
        "{\"name\": \"\", \"arguments\": {}}",
        "\nAction:",
        "```json\n{\"name\"",
        "\"",
        "]}",
    ];
    let part = prop_oneof![
        proptest::sample::select(parts.to_vec()).prop_map(str::to_owned),
        any::<String>(),
    ];
    prop::collection::vec(part, 0..4).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn every_loop_ends_within_its_limits_for_any_reply(
        texts in prop::collection::vec(arbitrary_reply(), 1..6),
    ) {
        let limits = AgentLimits { max_calls: 3, max_steps: 4, ..AgentLimits::default() };
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        for method in METHODS {
            let outcome = run(method, &texts, limits.clone()).outcome;
            prop_assert!(outcome.calls.len() <= 4);
            prop_assert_eq!(
                outcome.path.len(),
                outcome.calls.iter().filter(|call| call.name.is_some()).count()
            );
            let text = serde_json::to_string(&outcome).unwrap();
            prop_assert_eq!(serde_json::from_str::<Outcome>(&text).unwrap(), outcome);
        }
    }
}

#[test]
fn only_pure_json_replies_have_a_schema_of_the_shown_apis() {
    let catalogue = catalogue();
    let limits = AgentLimits::default();
    let allows = |agent: &Agent<'_>, text: Value| {
        let schema = agent.text_schema().unwrap();
        jsonschema::is_valid(&schema, &text)
    };
    let quote = json!({"name": "Stocks/Quote", "arguments": {"symbol": "A"}});
    let search = json!({"name": "Films/Search", "arguments": {"query": "A"}});

    let mut global = Agent::new(Method::Global, "Q?", &catalogue, limits.clone());
    assert_eq!(global.text_schema(), None);
    global.feed_documents(&[0, 2]);
    assert!(allows(&global, json!(["Films/Search", "Stocks/Quote"])));
    assert!(!allows(&global, json!(["Stocks/Convert"])));
    assert!(!allows(&global, json!([])));
    let too_many = vec!["Films/Search"; limits.max_calls + 1];
    assert!(!allows(&global, json!(too_many)));
    global.feed_text("[\"Stocks/Quote\"]");
    // The schema allows only the planned call, with all of its arguments.
    assert!(allows(&global, quote.clone()));
    assert!(!allows(&global, search.clone()));
    assert!(!allows(
        &global,
        json!({"name": "Stocks/Quote", "arguments": {}})
    ));
    global.feed_text(&quote.to_string());
    global.feed_result(CallResult::success(json!(1)));
    assert_eq!(global.text_schema(), None);

    let mut with_id = Agent::new(Method::GlobalId, "Q?", &catalogue, limits.clone());
    assert!(allows(&with_id, json!(["What is it?"])));
    with_id.feed_text("[\"What is it?\"]");
    with_id.feed_documents(&[0, 2]);
    assert!(allows(&with_id, quote) && allows(&with_id, search));

    let mut react = Agent::new(Method::React, "Q?", &catalogue, limits);
    react.feed_documents(&[0]);
    assert_eq!(react.text_schema(), None);
}
