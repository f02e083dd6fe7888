//! Tests of the judge with a server that evaluates its prompts.

use std::sync::Arc;

use serde_json::{Value, json};
use tooltune_endpoint::chat_server::{chat_server, completion, environment, last_content, options};

use super::*;
use crate::toolqa::{
    AnswerFacts, AnswerMetric, CodeFailure, CodeRule, CodeRunner, ExtractedCode, ScoreOptions,
    Setting, TaskType, ToolQaPrediction, ToolQaRow, ToolResponse, score_predictions,
};

#[test]
fn a_positive_verdict_starts_with_true() {
    for (reply, expected) in [
        ("True", true),
        (" \n TRUE, they match", true),
        ("Truely", true),
        ("False", false),
        ("The answer is true", false),
        ("", false),
    ] {
        assert_eq!(judge_verdict(reply), expected, "{reply}");
    }
}

struct Echo;

impl CodeRunner for Echo {
    fn run(&self, code: &ExtractedCode, response: &Value) -> Result<Value, CodeFailure> {
        match response.get(&code.name) {
            Some(value) => Ok(value.clone()),
            None => Err(CodeFailure::Failed {
                reason: "KeyError".to_owned(),
            }),
        }
    }
}

#[test]
fn only_samples_with_an_answer_are_judged_next_to_their_gold() {
    let response = Arc::new(ToolResponse {
        response_id: "b-1".to_owned(),
        endpoint: "Berths".to_owned(),
        split: "paper".to_owned(),
        response: json!({"note": "at Quay 4", "ids": ["a", true], "none": null}),
    });
    let names = ["note", "ids", "none", "missing"];
    let rows = names.map(|name| ToolQaRow {
        uid: name.to_owned(),
        task: "Get".to_owned(),
        task_type: TaskType::Extractive,
        metric: AnswerMetric::AccuracyString,
        question: "Which?".to_owned(),
        gold_answer: "Quay 4".to_owned(),
        facts: AnswerFacts::default(),
        read_keys: None,
        response: Arc::clone(&response),
    });
    let predictions = names.map(|name| ToolQaPrediction {
        uid: name.to_owned(),
        model_output: Some(format!("def {name}(d): ...")),
        context_exceeded: false,
        finish_reason: Some("stop".to_owned()),
        n_tokens: Some(2),
        setting: None,
        classifier_output: None,
        without_text: None,
    });
    let score_options = ScoreOptions {
        setting: Some(Setting::Code),
        code_rule: CodeRule::Official,
        concurrency: 1,
    };
    let run = score_predictions(
        &rows,
        &predictions,
        &score_options,
        Some(&Echo),
        &mut |_| true,
    )
    .expect("a run");
    let server = chat_server(|request, _| {
        let prompt_text = last_content(request);
        let says = match prompt_text.contains("Predicted answer: at Quay 4\n") {
            true => "True",
            false if prompt_text.contains("Predicted answer: ['a', True]\n") => "False: a list",
            false => panic!("{prompt_text}"),
        };
        completion(says)
    });
    let endpoint = ChatEndpoint::with_environment(&options(&server.url()), &environment);
    let endpoint = endpoint.expect("options");
    let prompts = PromptSet::default();
    let judge_options = JudgeOptions::default();
    let verdicts = judge_answers(
        &endpoint,
        &run.samples,
        &prompts,
        &judge_options,
        &mut |_| true,
    )
    .expect("all judged");
    let ids: Vec<(&str, Option<bool>)> = verdicts
        .iter()
        .map(|judged| (judged.id.as_str(), judged.verdict))
        .collect();
    assert_eq!(ids, [("note", Some(true)), ("ids", Some(false))]);
    assert_eq!(verdicts[1].replies, ["False: a list"]);
    let judged = run
        .with_verdicts(&verdicts)
        .expect("a run")
        .report
        .overall
        .judged;
    assert_eq!(judged.map(|share| share.value), Some(0.25));
}

#[test]
fn replies_without_a_verdict_are_counted() {
    let verdict = |replies: &[&str]| JudgeVerdict {
        id: String::new(),
        verdict: None,
        replies: replies.iter().map(|text| (*text).to_owned()).collect(),
        error: None,
    };
    let verdicts = [
        verdict(&["True."]),
        verdict(&[" FALSE\n"]),
        verdict(&["I think it is true"]),
        verdict(&["<think>true</think>True"]),
        verdict(&["neither", "false"]),
        verdict(&[]),
    ];
    assert_eq!(n_neither(&verdicts), 3);
}
