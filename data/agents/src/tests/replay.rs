//! Compares training prompts with the prompts of the loop at inference.

use super::*;
use crate::truncation::ShapeOptions;

/// Runs a loop on gold texts and outputs, with documents in the order of the training prompts.
fn prompts_of_the_loop(
    options: &GoatOptions,
    examples: &[GoatExample],
) -> (Vec<Conversation>, Outcome) {
    let catalogue = catalogue();
    let trajectory = trajectory();
    let mut agent = Agent::new(
        options.method,
        &trajectory.query,
        &catalogue,
        options.limits(),
    );
    let mut outputs = trajectory.calls.iter();
    let mut prompts = Vec::new();
    loop {
        match agent.next() {
            AgentRequest::Retrieve { .. } => {
                let next_prompt = prompt(&examples[prompts.len()].conversation);
                let positions: Vec<usize> = shown_apis(next_prompt)
                    .iter()
                    .map(|name| catalogue.position(name).unwrap())
                    .collect();
                agent.feed_documents(&positions);
            }
            AgentRequest::Generate { conversation, .. } => {
                prompts.push(conversation);
                agent.feed_text(completion(&examples[prompts.len() - 1]));
            }
            AgentRequest::Call { name, arguments } => {
                let call = outputs.next().unwrap();
                assert_eq!((&name, &arguments), (&call.name, &call.arguments));
                agent.feed_result(CallResult::success(call.output.clone()));
            }
            AgentRequest::Done(outcome) => return (prompts, outcome),
        }
    }
}

fn check_prompts(options: &GoatOptions) -> Vec<GoatExample> {
    let examples = expand(&trajectory(), options);
    let (prompts, _) = prompts_of_the_loop(options, &examples);
    let training_prompts: Vec<Conversation> = examples
        .iter()
        .map(|example| {
            assert_eq!(example.conversation.completion_start, 1);
            Conversation::new(example.conversation.prompt().to_vec())
        })
        .collect();
    assert_eq!(prompts, training_prompts, "{:?}", options.method);
    examples
}

#[test]
fn prompts_of_the_loop_equal_the_training_prompts() {
    for method in METHODS {
        check_prompts(&options(method));
    }
}

#[test]
fn results_are_shortened_identically_in_training_and_in_the_loop() {
    for method in METHODS {
        let mut options = options(method);
        options.truncate = Some(ShapeOptions {
            filter: Some("currency".to_owned()),
            ..ShapeOptions::default()
        });
        let examples = check_prompts(&options);
        let last = prompt(&examples[examples.len() - 1].conversation);
        let nothing_found = "{\"_meta\": \"the filter currency finds nothing in this output.\"}";
        for line in ["Result 1: \"BVK\"", &format!("Result 2: {nothing_found}")] {
            assert!(
                last.lines().any(|shown_line| shown_line == line),
                "{method:?}: {last}"
            );
        }
    }
}

#[test]
fn gold_completions_reproduce_the_gold_calls_and_answer() {
    for method in METHODS {
        let examples = expand(&trajectory(), &options(method));
        let (_, outcome) = prompts_of_the_loop(&options(method), &examples);
        assert_eq!(outcome.path, ["Stocks/Quote", "Stocks/Convert"]);
        let gold = trajectory();
        assert_eq!(outcome.calls.len(), gold.calls.len());
        for (call, gold) in outcome.calls.iter().zip(&gold.calls) {
            assert_eq!(call.name.as_ref(), Some(&gold.name), "{method:?}");
            assert_eq!(call.arguments.as_ref(), Some(&gold.arguments), "{method:?}");
            assert_eq!(call.output, gold.output, "{method:?}");
        }
        assert_eq!(outcome.response, gold.response);
        assert_eq!(
            (outcome.end, outcome.failures),
            (EndReason::Answered, Vec::new())
        );
        let n_retrievals = if method.decomposes() { 2 } else { 1 };
        assert_eq!(outcome.retrievals.len(), n_retrievals);
        assert!(
            outcome
                .retrievals
                .iter()
                .all(|retrieval| retrieval.documents.len() == 5)
        );
    }
}
