//! Predictions in answer and code settings, with a runner that knows a few functions.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::llm_judge::JudgeVerdict;
use crate::toolqa::{AnswerFacts, AnswerMetric, ExtractedCode, SUITE, TaskType, ToolResponse};

/// Simulates the functions of these tests without Python.
struct NamedFunctions;

impl CodeRunner for NamedFunctions {
    fn run(&self, code: &ExtractedCode, response: &Value) -> Result<Value, CodeFailure> {
        let reason = || code.code.clone();
        match code.name.as_str() {
            "note" => Ok(response["note"].clone()),
            "count" => Ok(json!(2)),
            "error_text" => Ok(json!("Code execution error")),
            "slow" => Err(CodeFailure::Stopped { reason: reason() }),
            "gone" => Err(CodeFailure::Unavailable {
                reason: "no Python".to_owned(),
            }),
            _ => Err(CodeFailure::Failed { reason: reason() }),
        }
    }
}

fn rows(n: usize) -> Vec<ToolQaRow> {
    let response = Arc::new(ToolResponse {
        response_id: "b-1".to_owned(),
        endpoint: "Berths".to_owned(),
        split: "paper".to_owned(),
        response: json!({"note": "Quay 4"}),
    });
    let row = |idx| ToolQaRow {
        uid: format!("q{idx}"),
        task: "GetNote".to_owned(),
        task_type: TaskType::Extractive,
        metric: AnswerMetric::AccuracyString,
        question: "What is the note?".to_owned(),
        gold_answer: "quay 4".to_owned(),
        facts: AnswerFacts::default(),
        read_keys: None,
        response: Arc::clone(&response),
    };
    (0..n).map(row).collect()
}

/// Gold answers without a single number, which no answer matches strictly.
#[test]
fn the_gold_score_is_below_one_if_its_number_does_not_parse() {
    let ceilings = |golds: &[&str]| {
        let rows = rows(golds.len()).into_iter().zip(golds);
        let rows = rows.map(|(row, gold)| ToolQaRow {
            metric: AnswerMetric::ApproxNumberMatch,
            gold_answer: (*gold).to_owned(),
            ..row
        });
        let numbers = gold_numbers(&rows.collect::<Vec<_>>()).expect("rows");
        let gold_ceilings = SUITE.ceilings(|name| numbers.value(name)).into_iter();
        gold_ceilings
            .map(|ceiling| (ceiling.metric, ceiling.value))
            .collect::<Vec<_>>()
    };
    assert_eq!(ceilings(&["4", "1,250.5"]), []);
    assert_eq!(ceilings(&["4", "3 of 4"]), [("exact_match_strict", 0.5)]);
    assert!(gold_numbers(&[]).is_none());
}

fn predictions(outputs: &[Option<&str>]) -> Vec<ToolQaPrediction> {
    let prediction = |(idx, output): (usize, &Option<&str>)| ToolQaPrediction {
        uid: format!("q{idx}"),
        model_output: output.map(str::to_owned),
        context_exceeded: false,
        finish_reason: Some("stop".to_owned()),
        n_tokens: Some(2),
        setting: None,
        classifier_output: None,
        without_text: None,
    };
    outputs.iter().enumerate().map(prediction).collect()
}

fn options(setting: Setting) -> ScoreOptions {
    ScoreOptions {
        setting: Some(setting),
        code_rule: CodeRule::Robust,
        concurrency: 4,
    }
}

fn score(setting: Setting, outputs: &[Option<&str>]) -> Result<ToolQaRun, ToolQaError> {
    let (rows, predictions) = (rows(outputs.len()), predictions(outputs));
    let runner = Some(&NamedFunctions as &dyn CodeRunner);
    score_predictions(&rows, &predictions, &options(setting), runner, &mut |_| {
        true
    })
}

#[test]
fn answers_are_compared_as_they_were_generated() {
    let outputs = [Some("QUAY 4."), Some("It is quay 4"), Some("5"), None];
    let run = score(Setting::Answer, &outputs).expect("a run");
    let right: Vec<(bool, bool)> = run
        .samples
        .iter()
        .map(|sample| (sample.score.exact_match, sample.score.contains))
        .collect();
    assert_eq!(
        right,
        [(true, true), (false, true), (false, false), (false, false)]
    );
    assert_eq!((run.report.overall.n, run.report.n_without_output), (3, 1));
    assert_eq!(run.samples[0].answer, json!("QUAY 4."));
    assert_eq!(run.samples[3].score.status, AnswerStatus::NoOutput);
    assert_eq!(run.samples[3].failure.as_deref(), Some("no model output"));
}

#[test]
fn code_is_run_and_each_failure_has_its_own_status() {
    let outputs: Vec<String> = ["note", "count", "error_text", "slow", "missing"]
        .iter()
        .map(|name| format!("```python\ndef {name}(d): ...\n```"))
        .collect();
    let mut outputs: Vec<Option<&str>> = outputs.iter().map(|text| Some(text.as_str())).collect();
    outputs.push(Some("The note is quay 4."));
    let run = score(Setting::Code, &outputs).expect("a run");
    let statuses: Vec<AnswerStatus> = run
        .samples
        .iter()
        .map(|sample| sample.score.status)
        .collect();
    use AnswerStatus::{Answered, CodeError, NoCode};
    assert_eq!(
        statuses,
        [Answered, Answered, CodeError, CodeError, CodeError, NoCode]
    );
    let right: Vec<bool> = run
        .samples
        .iter()
        .map(|sample| sample.score.exact_match)
        .collect();
    assert_eq!(right, [true, false, false, false, false, false]);
    assert_eq!(run.samples[1].answer, json!(2));
    let failures: Vec<&str> = run
        .samples
        .iter()
        .filter_map(|sample| sample.failure.as_deref())
        .collect();
    assert_eq!(
        failures,
        [
            "Code execution error",
            "the code was stopped: def slow(d): ...",
            "the code failed: def missing(d): ...",
            "no Python code in the output",
        ]
    );
    let overall = &run.report.overall;
    assert_eq!((overall.n_code_errors, overall.n_parse_errors), (3, 1));
}

#[test]
fn a_prompt_that_was_too_long_is_wrong_and_counted() {
    let rows = rows(2);
    let mut predictions = predictions(&[Some("quay 4"), None]);
    predictions[1].context_exceeded = true;
    let setting = options(Setting::Answer);
    let run = score_predictions(&rows, &predictions, &setting, None, &mut |_| true);
    let run = run.expect("a run");
    assert_eq!(run.report.overall.n_context_exceeded, 1);
    assert_eq!(run.report.overall.exact_match.value, 0.5);
    assert_eq!(
        run.samples[1].failure.as_deref(),
        Some("context length exceeded")
    );
}

#[test]
fn predictions_must_match_the_rows_by_uid() {
    let setting = options(Setting::Answer);
    let error_text = |n, predictions: &[ToolQaPrediction]| {
        let run = score_predictions(&rows(n), predictions, &setting, None, &mut |_| true);
        run.expect_err("a fault").to_string()
    };
    let two = predictions(&[Some("a"), Some("b")]);
    assert!(
        error_text(3, &two).starts_with("1 of 3 questions have no prediction, the first is \"q2\"")
    );
    assert!(error_text(1, &two).starts_with("no question has the uid \"q1\""));
    let duplicated = [two[0].clone(), two[0].clone()];
    assert!(
        error_text(1, &duplicated)
            .starts_with("prediction 2: duplicate uid \"q0\" (first at prediction 1)")
    );
    assert!(error_text(1, &predictions(&[None])).starts_with("no question has a model output"));
}

#[test]
fn code_without_a_runner_or_a_machine_for_it_is_an_error() {
    let one_prediction = predictions(&[Some("def note(d): ...")]);
    let run = score_predictions(
        &rows(1),
        &one_prediction,
        &options(Setting::CodeSchema),
        None,
        &mut |_| true,
    );
    let message = run.expect_err("no runner").to_string();
    assert!(
        message.starts_with("the ToolQA setting code_schema requires running code"),
        "{message}"
    );
    let outputs = [Some("def note(d): ..."), Some("def gone(d): ...")];
    let message = score(Setting::Code, &outputs)
        .expect_err("no Python")
        .to_string();
    assert_eq!(message, "question \"q1\": cannot run code: no Python");
}

#[test]
fn the_caller_can_stop_the_work() {
    let outputs = [Some("def note(d): ..."); 500];
    let (rows, predictions) = (rows(500), predictions(&outputs));
    let runner = Some(&NamedFunctions as &dyn CodeRunner);
    let mut last = 0;
    let mut watch = |n_done| {
        last = n_done;
        n_done < 5
    };
    let setting = options(Setting::Code);
    let run = score_predictions(&rows, &predictions, &setting, runner, &mut watch);
    match run {
        Err(ToolQaError::Stopped { n_done, n: 500 }) => assert!(n_done >= 5, "{n_done}"),
        // The threads may have finished before they were stopped.
        Ok(run) => assert_eq!(run.samples.len(), 500),
        Err(error) => panic!("{error}"),
    }
    assert!(last >= 5, "{last}");
}

#[test]
fn verdicts_are_added_and_samples_without_an_answer_are_not_approved() {
    let outputs = [
        Some("def note(d): ..."),
        Some("def slow(d): ..."),
        Some("def count(d): ..."),
    ];
    let run = score(Setting::Code, &outputs).expect("a run");
    let verdict = |id: &str, verdict| JudgeVerdict {
        id: id.to_owned(),
        verdict,
        replies: vec!["True".to_owned()],
        error: None,
    };
    let run = run.with_verdicts(&[verdict("q0", Some(true)), verdict("q9", Some(true))]);
    let run = run.expect("a run");
    let verdicts: Vec<Option<bool>> = run
        .samples
        .iter()
        .map(|sample| sample.score.judged)
        .collect();
    assert_eq!(verdicts, [Some(true), Some(false), None]);
    assert_eq!(
        run.report.overall.judged.map(|share| share.value),
        Some(0.5)
    );
}

#[test]
fn a_report_recomputed_from_sample_lines_is_equal() {
    let run = score(
        Setting::Code,
        &[Some("def note(d): ..."), Some("none"), None],
    )
    .expect("a run");
    let lines: Vec<String> = run
        .samples
        .iter()
        .map(|sample| serde_json::to_string(sample).expect("written"))
        .collect();
    assert!(
        lines[0].contains("\"status\":\"answered\",\"exact_match\":true"),
        "{}",
        lines[0]
    );
    let read_back: Vec<ToolQaSample> = lines
        .iter()
        .map(|line| serde_json::from_str(line).expect("read"))
        .collect();
    assert_eq!(ToolQaRun::new(read_back).expect("a run"), run);
}

#[test]
fn a_line_contains_the_content_returned_instead_of_text() {
    let rows = rows(2);
    let mut predictions = predictions(&[Some(""), Some("b")]);
    predictions[0].without_text = Some("reasoning".to_owned());
    let options = options(Setting::Answer);
    let run = score_predictions(&rows, &predictions, &options, None, &mut |_| true).unwrap();
    let lines: Vec<Value> = run
        .samples
        .iter()
        .map(|sample| serde_json::to_value(sample).unwrap())
        .collect();
    assert_eq!(lines[0]["without_text"], "reasoning");
    assert_eq!(lines[1].get("without_text"), None);
}

#[test]
fn a_prediction_is_read_with_our_field_names_or_the_published_ones() {
    let parse = |line: Value| ToolQaPrediction::from_line(&line).map_err(|error| error.to_string());
    let mut expected = predictions(&[Some("a"), None]);
    expected[1].context_exceeded = true;
    (expected[1].finish_reason, expected[1].n_tokens) = (None, None);
    expected[1].without_text = Some("reasoning".to_owned());
    let ours = json!({"id": "q0", "prediction": "a", "finish_reason": "stop", "n_tokens": 2});
    assert_eq!(parse(ours).as_ref(), Ok(&expected[0]));
    let published = json!({"uid": "q1", "model_output": null, "context_exceeded": true,
        "without_text": "reasoning"});
    assert_eq!(parse(published).as_ref(), Ok(&expected[1]));
    for (line, part) in [
        (json!({"id": "q1"}), "field \"prediction\" is missing"),
        (
            json!({"uid": "q1", "model_output": 3}),
            "model_output is a number",
        ),
        (
            json!({"id": "q1", "prediction": 3}),
            "prediction is a number",
        ),
        (
            json!({"uid": "q1", "model_outputs": "a"}),
            "unknown field \"model_outputs\"",
        ),
        (json!({"prediction": "a"}), "field \"id\" is missing"),
        (
            json!({"id": "q1", "prediction": null, "context_exceeded": 1}),
            "a boolean",
        ),
    ] {
        let message = parse(line).expect_err(part);
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_truncated_or_empty_output_is_wrong_whatever_the_gold_is() {
    for (output, finish_reason) in [("one", "length"), ("", "stop"), (" ", "stop")] {
        let mut rows = rows(1);
        rows[0].gold_answer = output.to_owned();
        rows[0].metric = AnswerMetric::AccuracyString;
        let mut saved = predictions(&[Some(output)]);
        saved[0].finish_reason = Some(finish_reason.to_owned());
        let options = ScoreOptions {
            setting: Some(Setting::Answer),
            code_rule: CodeRule::Official,
            concurrency: 1,
        };
        let run = score_predictions(&rows, &saved, &options, None, &mut |_| true).expect("a run");
        let score = run.samples[0].score;
        assert_eq!(score.status, AnswerStatus::Unfinished, "{output}");
        assert!(!score.exact_match && !score.exact_match_strict && !score.contains);
    }
}
