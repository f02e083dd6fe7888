//! Runs the whole pipeline against a real server that writes pairs by rule.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tooltune_endpoint::ChatEndpoint;
use tooltune_endpoint::chat_server::{
    chat_server, completion, environment, last_content, options as endpoint_options,
};
use tooltune_endpoint::http::test_server::{Answer, TestServer};
use tooltune_json::faults::collect_rows;
use tooltune_rows::text::{DataFormat, read_rows};

use super::*;
use crate::endpoint::{EndpointGenerator, GeneratorOptions};
use crate::report::Report;
use crate::run::Limits;
use crate::tests::files;

fn options(rows: usize) -> SlotOptions {
    SlotOptions {
        rows,
        seed: 5,
        demonstrations: None,
        texts: None,
        reply_tokens: 900,
        verdict_tokens: 60,
    }
}

/// A pair; its number, from a digest of the prompt, selects its defect.
fn pair(number: u64) -> Value {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let (schema, gold) = match number % 5 {
        0 => (schema, json!({"n": number.to_string()})),
        1 => (json!({"type": "object"}), json!({"n": number})),
        _ => (schema, json!({"n": number})),
    };
    json!({"input_text": format!("There are {number}."), "json_schema": schema, "gold": gold})
}

/// The reply of a well-behaved model, which depends only on the prompt.
fn prompt_of(request: &Value) -> String {
    let prompt = last_content(request);
    let number = u64::from_str_radix(&digest(prompt.as_bytes())[..6], 16).unwrap();
    if prompt.starts_with("Judge") {
        let is_supported = !prompt.contains("7.\n</text>");
        return json!({"unsupported": [], "supported": is_supported}).to_string();
    }
    if prompt.starts_with("You annotate") {
        let text = prompt
            .split("<text>\n")
            .nth(1)
            .unwrap()
            .split("\n</text>")
            .next()
            .unwrap();
        let schema = json!({"type": "object", "properties": {"said": {"type": "string"}}});
        return json!({"json_schema": schema, "gold": {"said": text}}).to_string();
    }
    let n_pairs =
        request["response_format"]["json_schema"]["schema"]["properties"]["pairs"]["minItems"]
            .as_u64();
    let pairs: Vec<Value> = (0..n_pairs.unwrap()).map(|n| pair(number + n)).collect();
    format!(
        "```json\n{}\n```",
        json!({"planning": "1/3, 2/3, 3/3", "pairs": pairs})
    )
}

fn server() -> TestServer {
    chat_server(|request, _| completion(&prompt_of(request)))
}

fn generator(server: &TestServer) -> EndpointGenerator {
    let endpoint = ChatEndpoint::with_environment(&endpoint_options(&server.url()), &environment);
    EndpointGenerator::from_endpoint(
        endpoint.unwrap(),
        GeneratorOptions {
            concurrency: 7,
            extra_body: Map::new(),
            is_constrained: true,
        },
    )
}

fn run(
    dir: &Path,
    options: SlotOptions,
    server: &TestServer,
    n_looks: usize,
) -> Result<Report, PipelineError> {
    let n_looks_left = Cell::new(n_looks);
    let outcome = SlotPipeline::read(options, None)?.run(RunContext {
        dir,
        generator: &generator(server),
        limits: Limits::default(),
        only: None,
        ask_again: None,
        watch: &mut |_| {
            n_looks_left.set(n_looks_left.get().saturating_sub(1));
            n_looks_left.get() > 0
        },
    })?;
    assert!(outcome.is_complete);
    Ok(outcome.report)
}

#[test]
fn rows_are_generated_checked_and_judged_and_every_drop_is_counted() {
    let (dir, server) = (tempfile::tempdir().unwrap(), server());
    let report = run(dir.path(), options(40), &server, usize::MAX).unwrap();
    let [generate, check, judge] = report.stages.as_slice() else {
        panic!("{report:?}");
    };
    assert_eq!(
        (generate.n_in, generate.n_kept, generate.requests.n_replies),
        (40, 40, 14)
    );
    let kinds: Vec<&str> = check.dropped.keys().map(String::as_str).collect();
    assert_eq!(
        kinds,
        [
            "the gold does not fit the schema",
            "the schema does not describe an object with properties",
        ]
    );
    assert_eq!(
        check.n_in,
        check.n_kept + check.dropped.values().sum::<usize>()
    );
    assert_eq!(
        (judge.n_in, judge.requests.n_replies),
        (check.n_kept, check.n_kept)
    );
    assert!(
        judge
            .dropped
            .contains_key("the text does not support the gold")
    );
    // The rows, parsed as for training.
    let rows =
        collect_rows(read_rows(&dir.path().join(ROWS_FILE), DataFormat::Slot).unwrap()).unwrap();
    assert_eq!(rows.len(), judge.n_kept);
    assert!(
        rows.iter()
            .all(|row| !row.slot.as_ref().unwrap().input_text.ends_with("7."))
    );
    let complexity = complexity_of_file("ours", &dir.path().join(ROWS_FILE)).unwrap();
    assert_eq!(
        (complexity.n_rows, &complexity.means[..2]),
        (judge.n_kept, &[("depth", 1.0), ("keys", 1.0)][..])
    );
    // Prompts contain the values that they were drawn from, and request the drawn temperature.
    let requests: Vec<Value> = server
        .received()
        .iter()
        .map(|request| serde_json::from_str(&request.body).unwrap())
        .filter(|request| last_content(request).starts_with("You write"))
        .collect();
    let temperatures: std::collections::BTreeSet<String> = requests
        .iter()
        .map(|request| request["temperature"].to_string())
        .collect();
    assert!(temperatures.len() > 4, "{temperatures:?}");
    for request in &requests {
        let temperature = request["temperature"].as_f64().unwrap();
        assert!((0.0..=0.5).contains(&temperature));
        assert_eq!(request["response_format"]["type"], "json_schema");
        let prompt = last_content(request);
        let n_shown = prompt
            .lines()
            .filter(|line| line.starts_with("{\"input_text\""))
            .count();
        assert!((1..=3).contains(&n_shown), "{n_shown}");
        assert!(
            dimensions::DIMENSIONS
                .genre
                .iter()
                .any(|genre| prompt.contains(genre))
        );
    }
}

#[test]
fn an_interrupted_pipeline_resumes_with_the_same_files() {
    let (complete, server) = (tempfile::tempdir().unwrap(), server());
    run(complete.path(), options(12), &server, usize::MAX).unwrap();
    let n_requests = server.received().len();
    for n_looks in [2, 3, 5, 9] {
        let (dir, server) = (tempfile::tempdir().unwrap(), self::server());
        while let Err(error) = run(dir.path(), options(12), &server, n_looks) {
            assert!(matches!(error, PipelineError::Stopped { .. }), "{error}");
        }
        assert_eq!(files(dir.path()), files(complete.path()), "{n_looks}");
        // Requests in flight at the interruption are abandoned, and only these are sent again.
        assert!(server.received().len() >= n_requests);
    }
}

#[test]
fn user_texts_pass_through_the_same_stages() {
    let (dir, server) = (tempfile::tempdir().unwrap(), server());
    let texts = dir.path().join("texts.jsonl");
    let lines = [
        json!("A plain text."),
        json!({"text": "Another."}),
        json!({"input_text": "A third."}),
        json!({"table": [], "sentence_annotations": [{"final_sentence": "Cypresses date from 1887."}]}),
        json!({"table": [], "sentence_annotations": []}),
        json!({"title": "It fails", "body": "On start."}),
        json!({"title": "Fix", "pull_request": {"url": "x"}}),
        json!({"text": " "}),
        json!("a  plain TEXT."),
    ];
    std::fs::write(&texts, lines.map(|line| line.to_string()).join("\n")).unwrap();
    let options = SlotOptions {
        texts: Some(texts.clone()),
        ..options(0)
    };
    let out = dir.path().join("out");
    let report = run(&out, options.clone(), &server, usize::MAX).unwrap();
    let annotate = report.stage("annotate").unwrap();
    assert_eq!((annotate.n_in, annotate.n_kept), (9, 6));
    let reasons: Vec<&str> = annotate.dropped.keys().map(String::as_str).collect();
    assert_eq!(
        reasons,
        [
            "a pull request, not an issue",
            "the table has no sentence",
            "the text is empty"
        ]
    );
    let check = report.stage("check").unwrap();
    assert_eq!(
        check.dropped,
        BTreeMap::from([("same text as an earlier row".to_owned(), 1)])
    );
    let rows = files(&out)[ROWS_FILE].clone();
    assert!(
        rows.contains("\"input_text\":\"## It fails\\n\\nOn start.\""),
        "{rows}"
    );
    std::fs::write(&texts, "{\"body\": \"x\"}\n").unwrap();
    let error = SlotPipeline::read(options, None).unwrap_err().to_string();
    assert!(
        error.contains("texts.jsonl:1: the entry has no text"),
        "{error}"
    );
}

#[test]
fn a_plan_sends_nothing_and_is_exact_for_existing_items() {
    let (dir, server) = (tempfile::tempdir().unwrap(), server());
    let plan = |rows: usize| {
        let pipeline = SlotPipeline::read(options(rows), None).unwrap();
        pipeline.plan(dir.path(), &generator(&server)).unwrap()
    };
    let plan_before = plan(40);
    assert!(server.received().is_empty());
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
    assert_eq!(
        (
            plan_before[0].n_requests,
            plan_before[0].n_stored,
            plan_before[0].n_max_tokens
        ),
        (14, 0, 14 * 900)
    );
    assert_eq!(
        (plan_before[1].n_requests, plan_before[1].is_at_most),
        (40, true)
    );
    let report = run(dir.path(), options(40), &server, usize::MAX).unwrap();
    let n_judged = report.stage("judge").unwrap().n_in;
    assert!(n_judged < plan_before[1].n_requests);
    let plan_after = plan(40);
    assert_eq!(
        (
            plan_after[0].n_requests,
            plan_after[0].n_stored,
            plan_after[0].n_prompt_tokens
        ),
        (14, 14, 0)
    );
    assert_eq!(
        (
            plan_after[1].n_requests,
            plan_after[1].n_stored,
            plan_after[1].is_at_most
        ),
        (n_judged, n_judged, false)
    );
}

#[test]
fn a_reply_without_json_is_requested_once_more_and_then_dropped() {
    let n_again = AtomicUsize::new(0);
    let server = chat_server(move |request, _| {
        let prompt = last_content(request);
        if !prompt.starts_with("You write") {
            return completion(&prompt_of(request));
        }
        if prompt.contains("could not be used")
            && n_again.fetch_add(1, Ordering::SeqCst).is_multiple_of(2)
        {
            return completion(&prompt_of(request));
        }
        Answer::json(
            200,
            &json!({"choices": [{"message": {"content": "{\"pairs\": ["}, "finish_reason": "length"}]}),
        )
    });
    let dir = tempfile::tempdir().unwrap();
    let report = run(dir.path(), options(12), &server, usize::MAX).unwrap();
    let generate = report.stage("generate").unwrap();
    assert_eq!((generate.n_in, generate.n_kept), (12, 6));
    assert_eq!(
        (generate.requests.n_replies, generate.requests.n_asked_again),
        (8, 4)
    );
    let dropped = &files(dir.path())["generated.dropped.jsonl"];
    assert!(dropped.contains("cut off at the token limit"), "{dropped}");
}
