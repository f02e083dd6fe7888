//! Pipelines with a real HTTP server, with and without errors.

use std::sync::Mutex;

use tooltune_endpoint::ChatEndpoint;
use tooltune_endpoint::chat_server::{chat_server, completion, environment, last_content, options};
use tooltune_endpoint::http::test_server::{Answer, TestServer};

use super::*;

fn endpoint(server: &TestServer, concurrency: usize) -> EndpointGenerator {
    let options = tooltune_endpoint::EndpointOptions {
        timeout_secs: 5.0,
        ..options(&server.url())
    };
    let endpoint = ChatEndpoint::with_environment(&options, &environment).unwrap();
    EndpointGenerator::from_endpoint(
        endpoint,
        GeneratorOptions {
            concurrency,
            extra_body: Map::new(),
            is_constrained: true,
        },
    )
}

/// Invariant: A faulty server loses no pipeline item, and no budget is exceeded.
#[test]
fn a_thousand_concurrent_requests_lose_no_reply_despite_server_errors() {
    let complete_dir = tempfile::tempdir().unwrap();
    let setup = Setup {
        n_items: 1_000,
        ..Setup::default()
    };
    run(complete_dir.path(), &RuleGenerator::default(), &setup).unwrap();
    // The first request of each prompt gets an error chosen by its number, the second an answer.
    let n_by_prompt: Mutex<BTreeMap<String, usize>> = Mutex::default();
    let server = chat_server(move |request, _| {
        let text = last_content(request).to_owned();
        let n_before = {
            let mut n_by_prompt = n_by_prompt.lock().unwrap();
            let n = n_by_prompt.entry(text.clone()).or_default();
            *n += 1;
            *n - 1
        };
        let n: usize = text.split_whitespace().nth(1).unwrap().parse().unwrap();
        match (n_before, n % 11) {
            (0, 1) => Answer::json(429, &json!({"error": "slow down"})),
            (0, 2) => Answer::json(500, &json!({"error": "oops"})),
            (0, 3) => Answer::html(503, "<html>busy</html>"),
            (0, 4) => {
                Answer::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{\"choices".to_vec())
            }
            (0, 5) => Answer::Raw(Vec::new()),
            // The client does not retry this error, but the stage does.
            (0, 6) if n < 20 => Answer::html(200, "<html>a page</html>"),
            (0, 7) if n < 20 => Answer::json(200, &json!({"choices": [{}]})),
            _ => completion(&by_rule(&text)),
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let report = run(dir.path(), &endpoint(&server, 1_000), &setup).unwrap();
    assert_eq!(report.stage("double").unwrap().n_kept, 999);
    assert_eq!(
        report.stage("double").unwrap().requests.unanswered,
        BTreeMap::new()
    );
    for name in ["doubled.jsonl", "summed.jsonl", "doubled.dropped.jsonl"] {
        assert_eq!(
            files(dir.path())[name],
            files(complete_dir.path())[name],
            "{name}"
        );
    }
}

#[test]
fn a_request_without_a_reply_drops_only_its_item_and_is_counted() {
    let server = chat_server(|request, _| match last_content(request) {
        "double 3" => Answer::html(200, "<html>a page</html>"),
        "double 4" => Answer::json(
            400,
            &json!({"error": {"message": "maximum context length"}}),
        ),
        text => completion(&by_rule(text)),
    });
    let dir = tempfile::tempdir().unwrap();
    let report = run(dir.path(), &endpoint(&server, 4), &Setup::default()).unwrap();
    let double = report.stage("double").unwrap();
    assert_eq!((double.n_in, double.n_kept), (12, 9));
    let expected = [
        ("no reply: context", 1),
        ("no reply: no chat completion", 1),
        (UNREADABLE, 1),
    ];
    let expected = expected.map(|(reason, n)| (reason.to_owned(), n));
    assert_eq!(double.dropped, BTreeMap::from(expected));
    let n_of = |text: &str| {
        let received = server.received();
        let is_it = |body: &&str| last_content(&serde_json::from_str(body).unwrap()) == text;
        received
            .iter()
            .map(|request| request.body.as_str())
            .filter(is_it)
            .count()
    };
    assert_eq!(
        (n_of("double 3"), n_of("double 4"), n_of("double 5")),
        (2, 1, 1)
    );
    let n_sent = server.received().len();
    run(
        dir.path(),
        &endpoint(&server, 4),
        &Setup {
            only: Some("double"),
            ..Setup::default()
        },
    )
    .unwrap();
    assert_eq!(
        server.received().len(),
        n_sent,
        "a request without a reply is not sent again"
    );
}

#[test]
fn a_server_error_stops_the_run_and_keeps_the_replies_so_far() {
    for (status, message) in [(401, "answered 401"), (500, "several requests in a row")] {
        let server = chat_server(move |request, number| match number {
            0..=3 => completion(&by_rule(last_content(request))),
            _ => Answer::json(status, &json!({"error": "no"})),
        });
        let dir = tempfile::tempdir().unwrap();
        let error = run(dir.path(), &endpoint(&server, 1), &Setup::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains(message), "{error}");
        assert!(error.contains("4 replies are kept"), "{error}");
    }
    let server = chat_server(|_, _| Answer::html(200, "<html>"));
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup {
        n_items: 3,
        ..Setup::default()
    };
    let error = run(dir.path(), &endpoint(&server, 1), &setup)
        .unwrap_err()
        .to_string();
    assert!(error.contains("no request has a reply"), "{error}");
}
