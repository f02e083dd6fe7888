//! The whole pipeline against a real server that writes pairs by rule.

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
use tooltune_rows::text::{DataFormat, all_rows, read_rows};

use super::*;
use crate::endpoint::{Asking, EndpointGenerator};
use crate::files::Staged;
use crate::journal::JOURNAL_FILE;
use crate::report::Report;
use crate::run::Limits;

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

/// A pair whose number, from a digest of the prompt, decides what is wrong with it.
fn pair(number: u64) -> Value {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let (schema, gold) = match number % 5 {
        0 => (schema, json!({"n": number.to_string()})),
        1 => (json!({"type": "object"}), json!({"n": number})),
        _ => (schema, json!({"n": number})),
    };
    json!({"input_text": format!("There are {number}."), "json_schema": schema, "gold": gold})
}

/// What a well-behaved model says: a function of the prompt alone.
fn said(request: &Value) -> String {
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
    chat_server(|request, _| completion(&said(request)))
}

fn generator(server: &TestServer) -> EndpointGenerator {
    let endpoint = ChatEndpoint::with_environment(&endpoint_options(&server.url()), &environment);
    EndpointGenerator::of(
        endpoint.unwrap(),
        Asking {
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
    let left = Cell::new(n_looks);
    let outcome = SlotPipeline::read(options, None)?.run(Place {
        dir,
        generator: &generator(server),
        files: &Staged,
        limits: Limits::default(),
        only: None,
        watch: &mut |_| {
            left.set(left.get().saturating_sub(1));
            left.get() > 0
        },
    })?;
    assert!(outcome.is_whole);
    Ok(outcome.report)
}

fn files(dir: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .filter(|path| !path.ends_with(JOURNAL_FILE))
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(&path).unwrap())
        })
        .collect()
}

#[test]
fn rows_are_written_checked_and_judged_and_every_drop_is_counted() {
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
            "the schema describes no object with properties",
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
    // What training reads.
    let rows = all_rows(read_rows(&dir.path().join(ROWS_FILE), DataFormat::Slot).unwrap()).unwrap();
    assert_eq!(rows.len(), judge.n_kept);
    assert!(
        rows.iter()
            .all(|row| !row.slot.as_ref().unwrap().input_text.ends_with("7."))
    );
    let found = complexity_of_file("ours", &dir.path().join(ROWS_FILE)).unwrap();
    assert_eq!(
        (found.n_rows, &found.means[..2]),
        (judge.n_kept, &[("depth", 1.0), ("keys", 1.0)][..])
    );
    // Prompts name what they were drawn from, and ask for what is drawn.
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
fn a_pipeline_that_is_ended_at_any_moment_ends_as_one_that_was_not() {
    let (whole, server) = (tempfile::tempdir().unwrap(), server());
    run(whole.path(), options(12), &server, usize::MAX).unwrap();
    let n_requests = server.received().len();
    for n_looks in [2, 3, 5, 9] {
        let (dir, server) = (tempfile::tempdir().unwrap(), self::server());
        while let Err(error) = run(dir.path(), options(12), &server, n_looks) {
            assert!(matches!(error, PipelineError::Stopped { .. }), "{error}");
        }
        assert_eq!(files(dir.path()), files(whole.path()), "{n_looks}");
        // What was under way when the work ended is given up, and alone asked again.
        assert!(server.received().len() >= n_requests);
    }
}

#[test]
fn given_texts_go_through_the_same_stages() {
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
    let annotate = report.of("annotate").unwrap();
    assert_eq!((annotate.n_in, annotate.n_kept), (9, 6));
    let reasons: Vec<&str> = annotate.dropped.keys().map(String::as_str).collect();
    assert_eq!(
        reasons,
        [
            "a pull request and no issue",
            "the table has no sentence",
            "the text is empty"
        ]
    );
    let check = report.of("check").unwrap();
    assert_eq!(
        check.dropped,
        BTreeMap::from([("the text stands in an earlier row".to_owned(), 1)])
    );
    let rows = files(&out)[ROWS_FILE].clone();
    assert!(
        rows.contains("\"input_text\":\"## It fails\\n\\nOn start.\""),
        "{rows}"
    );
    std::fs::write(&texts, "{\"body\": \"x\"}\n").unwrap();
    let error = SlotPipeline::read(options, None).unwrap_err().to_string();
    assert!(
        error.contains("texts.jsonl:1: the entry holds no text"),
        "{error}"
    );
}

#[test]
fn a_plan_sends_nothing_and_is_exact_where_it_can_be() {
    let (dir, server) = (tempfile::tempdir().unwrap(), server());
    let plan = |rows: usize| {
        let pipeline = SlotPipeline::read(options(rows), None).unwrap();
        pipeline.plan(dir.path(), &generator(&server)).unwrap()
    };
    let before = plan(40);
    assert!(server.received().is_empty());
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
    assert_eq!(
        (
            before[0].n_requests,
            before[0].n_there,
            before[0].n_max_tokens
        ),
        (14, 0, 14 * 900)
    );
    assert_eq!((before[1].n_requests, before[1].is_at_most), (40, true));
    let report = run(dir.path(), options(40), &server, usize::MAX).unwrap();
    let n_judged = report.of("judge").unwrap().n_in;
    assert!(n_judged < before[1].n_requests);
    let after = plan(40);
    assert_eq!(
        (
            after[0].n_requests,
            after[0].n_there,
            after[0].n_prompt_tokens
        ),
        (14, 14, 0)
    );
    assert_eq!(
        (after[1].n_requests, after[1].n_there, after[1].is_at_most),
        (n_judged, n_judged, false)
    );
}

#[test]
fn a_reply_without_json_is_asked_for_once_more_and_then_dropped() {
    let n_again = AtomicUsize::new(0);
    let server = chat_server(move |request, _| {
        let prompt = last_content(request);
        if !prompt.starts_with("You write") {
            return completion(&said(request));
        }
        if prompt.contains("could not be used")
            && n_again.fetch_add(1, Ordering::SeqCst).is_multiple_of(2)
        {
            return completion(&said(request));
        }
        Answer::json(
            200,
            &json!({"choices": [{"message": {"content": "{\"pairs\": ["}, "finish_reason": "length"}]}),
        )
    });
    let dir = tempfile::tempdir().unwrap();
    let report = run(dir.path(), options(12), &server, usize::MAX).unwrap();
    let generate = report.of("generate").unwrap();
    assert_eq!((generate.n_in, generate.n_kept), (12, 6));
    assert_eq!(
        (generate.requests.n_replies, generate.requests.n_asked_again),
        (8, 4)
    );
    let dropped = &files(dir.path())["generated.dropped.jsonl"];
    assert!(
        dropped.contains("cut off at its limit of tokens"),
        "{dropped}"
    );
}
