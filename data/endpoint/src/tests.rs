//! Tests the endpoint against servers that reply, refuse, fail temporarily, hang and break off.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tooltune_template::{Message, Role};

use super::chat_server::{KEY, MODEL, chat_server, completion, environment, last_content, options};
use super::*;
use crate::http::test_server::{Answer, CLOSED_PORT, TestServer};

fn ask(text: &str) -> Vec<Message> {
    vec![
        Message::new(Role::System, "Say it backwards."),
        Message::new(Role::User, text),
    ]
}

fn endpoint(options: &EndpointOptions) -> ChatEndpoint {
    ChatEndpoint::with_environment(options, &environment).expect("good options")
}

/// The text of one request, and the number of requests that the server received.
fn complete(
    change: impl Fn(&mut EndpointOptions),
    answer: impl Fn(&Value, usize) -> Answer + Send + Sync + 'static,
) -> (Result<String, EndpointError>, usize) {
    let server = chat_server(answer);
    let mut options = options(&server.url());
    change(&mut options);
    let endpoint = endpoint(&options);
    let result = endpoint.complete(&ask("abc"), &ChatOptions::default());
    let result = result.map(|answer| answer.text);
    let debug_text = format!("{result:?} {endpoint:?}");
    assert!(!debug_text.contains(KEY), "{debug_text}");
    if let Err(error) = &result {
        assert!(error.to_string().contains(&server.url()), "{error}");
    }
    (result, server.received().len())
}

fn backwards(request: &Value, _: usize) -> Answer {
    completion(&last_content(request).chars().rev().collect::<String>())
}

fn status(status: u16, retry_after: Option<&str>) -> Answer {
    let header = retry_after.map(|wait| ("Retry-After".to_owned(), wait.to_owned()));
    Answer::Reply(status, header.into_iter().collect(), b"busy".to_vec())
}

#[test]
fn the_server_receives_the_messages_and_its_text_is_returned() {
    let (result, n_requests) = complete(|_| (), backwards);
    assert_eq!((result, n_requests), (Ok("cba".to_owned()), 1));
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {}}});
    let expected_format = format.clone();
    let server = chat_server(move |request, _| {
        let is_passed_on =
            request["response_format"] == expected_format && request["temperature"] == 0.0;
        completion(if is_passed_on { "passed on" } else { "lost" })
    });
    let options = ChatOptions {
        temperature: Some(0.0),
        response_format: Some(format),
        ..ChatOptions::default()
    };
    let endpoint = endpoint(&super::chat_server::options(&server.url()));
    assert_eq!(
        endpoint.complete(&ask("x"), &options).map(|a| a.text),
        Ok("passed on".to_owned())
    );
}

/// llama-cpp-python's reply to `json_schema`.
const SUPPORTS_JSON_OBJECT: &str = "1 validation error:\n  {'type': 'literal_error', \
    'loc': ('body', 'response_format', 'type'), 'msg': \"Input should be 'text' or 'json_object'\", \
    'input': 'json_schema', 'ctx': {'expected': \"'text' or 'json_object'\"}}";

#[test]
fn a_server_that_supports_only_json_object_gets_the_schema_next_to_it() {
    let server = chat_server(
        |request, _| match request["response_format"]["type"].as_str() {
            Some("json_schema") => {
                Answer::json(500, &json!({"error": {"message": SUPPORTS_JSON_OBJECT}}))
            }
            _ => completion(&request["response_format"].to_string()),
        },
    );
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"a": 1}}});
    let asking = ChatOptions {
        response_format: Some(format),
        ..ChatOptions::default()
    };
    let endpoint = endpoint(&options(&server.url()));
    let expected = json!({"type": "json_object", "schema": {"a": 1}}).to_string();
    // The refusal occurs only once, and causes no wait.
    for n_requests in [2, 3] {
        let text = endpoint.complete(&ask("x"), &asking).map(|a| a.text);
        assert_eq!(text.as_deref(), Ok(expected.as_str()));
        assert_eq!(server.received().len(), n_requests);
    }
}

#[test]
fn a_server_that_refuses_both_formats_is_not_retried() {
    let refuses = || chat_server(|_, _| Answer::json(400, &json!({"error": SUPPORTS_JSON_OBJECT})));
    let json_schema = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {}}});
    for (format, n_requests) in [(json_schema, 2), (json!({"type": "text"}), 1)] {
        let server = refuses();
        let asking = ChatOptions {
            response_format: Some(format),
            ..ChatOptions::default()
        };
        let result = endpoint(&options(&server.url())).complete(&ask("x"), &asking);
        let result = result.expect_err("refused").to_string();
        assert!(result.contains("answered 400 with: "), "{result}");
        assert_eq!(server.received().len(), n_requests);
    }
}

#[test]
fn temporary_faults_are_retried() {
    let raw = |bytes: &[u8]| Answer::Raw(bytes.to_vec());
    for temporary in [
        status(500, None),
        status(503, Some("0")),
        status(429, None),
        status(429, Some("0.05")),
        Answer::html(502, "<h1>Bad gateway</h1>"),
        Answer::Hang,
        Answer::json(200, &json!({"choices": []})),
        raw(b""),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 70\r\n\r\n{\"choices\": ["),
        Answer::Drip(
            b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
            Duration::from_millis(20),
        ),
    ] {
        let debug_text = format!("{temporary:?}");
        let is_endless = matches!(temporary, Answer::Hang | Answer::Drip(..));
        let (result, n_requests) = complete(
            |o| {
                if is_endless {
                    (o.timeout_secs, o.retries) = (0.2, 20);
                }
            },
            move |request, number| match number {
                0 => temporary.clone(),
                _ => backwards(request, number),
            },
        );
        assert_eq!(result, Ok("cba".to_owned()), "{debug_text}");
        // On a busy machine later replies may also be late.
        let is_expected = if is_endless {
            n_requests >= 2
        } else {
            n_requests == 2
        };
        assert!(is_expected, "{debug_text}: {n_requests}");
    }
}

#[test]
fn the_wait_that_a_server_requests_is_respected() {
    let start = Instant::now();
    let (result, _) = complete(
        |_| (),
        |request, number| match number {
            0 => status(429, Some("0.4")),
            _ => backwards(request, number),
        },
    );
    assert!(result.is_ok() && start.elapsed() >= Duration::from_millis(400));
    let (result, n_requests) = complete(|_| (), |_, _| status(429, Some("60")));
    let message = result.expect_err("too long").to_string();
    assert_eq!(n_requests, 1);
    assert!(
        message.contains("a wait of 60s exceeds the time left of 50s"),
        "{message}"
    );
}

#[test]
fn attempts_and_time_are_bounded() {
    let (result, n_requests) = complete(|_| (), |_, _| status(500, None));
    assert_eq!(n_requests, 4);
    let message = result.expect_err("a failing server").to_string();
    let expected = "gave no answer in 4 attempts; the last attempt: the status 500 with: busy";
    assert!(message.contains(expected), "{message}");

    // Each attempt needs its full timeout, so no more attempts fit the total time.
    let (result, _) = complete(
        |o| {
            o.timeout_secs = 0.2;
            o.total_secs = 0.5;
            o.retries = 20;
        },
        |_, _| Answer::Hang,
    );
    let Err(EndpointError::InvalidReply { n_attempts, .. }) = result else {
        panic!("{result:?}");
    };
    assert!((1..=3).contains(&n_attempts), "{n_attempts}");

    // An attempt must not exceed the total time either; otherwise the server would break off first.
    let (result, n_requests) = complete(
        |o| {
            o.timeout_secs = 6000.0;
            o.total_secs = 0.3;
        },
        |_, _| Answer::Hang,
    );
    let message = result.expect_err("no answer").to_string();
    assert!(n_requests <= 1, "{n_requests}");
    let expected = "in 1 attempts; the last attempt: no complete answer within ";
    assert!(message.contains(expected), "{message}");

    let closed_url = format!("http://127.0.0.1:{CLOSED_PORT}");
    let unreachable_result =
        endpoint(&options(&closed_url)).complete(&ask("x"), &ChatOptions::default());
    let message = unreachable_result.expect_err("a closed port").to_string();
    let expected = format!("{closed_url}/v1/chat/completions: no connection: ");
    assert!(message.starts_with(&expected), "{message}");
    assert!(message.contains("; check base_url and that"), "{message}");
}

#[test]
fn a_server_that_replied_before_is_retried_when_unreachable() {
    let server = chat_server(|_, _| completion("x"));
    let endpoint = endpoint(&options(&server.url()));
    let complete = || endpoint.complete(&ask("x"), &ChatOptions::default());
    complete().expect("an answer");
    drop(server);
    let message = complete().expect_err("it is gone").to_string();
    assert!(
        message.contains("gave no answer in 4 attempts"),
        "{message}"
    );
}

#[test]
fn refusals_are_not_retried_and_never_contain_the_key() {
    let (result, n_requests) = complete(|o| o.model = "other".to_owned(), backwards);
    let message = result.expect_err("no such model").to_string();
    assert_eq!(n_requests, 1);
    assert!(
        message.contains("answered 404 with: ") && message.contains("does not exist"),
        "{message}"
    );
    assert!(message.contains("ends in /v1, and model"), "{message}");

    let (result, n_requests) = complete(|o| o.api_key_env = None, backwards);
    let message = result.expect_err("no key").to_string();
    assert_eq!(n_requests, 1);
    assert!(
        message.contains("answered 401 ") && message.contains("api_key_env"),
        "{message}"
    );

    let repeats = |_: &Value, _: usize| Answer::json(403, &json!({"error": format!("{KEY}?")}));
    let message = complete(|_| (), repeats)
        .0
        .expect_err("refused")
        .to_string();
    assert!(message.contains("***?"), "{message}");
    let moved = complete(|_| (), |_, _| Answer::redirect(301, "https://elsewhere/v1")).0;
    let message = moved.expect_err("moved").to_string();
    assert!(
        message.contains("answered 301 with an empty body; set base_url to the address"),
        "{message}"
    );
}

#[test]
fn a_reply_that_is_not_a_completion_is_described() {
    let plain = |body: &str| Answer::Reply(200, Vec::new(), body.as_bytes().to_vec());
    for (answer, expected) in [
        (
            Answer::html(200, "<html>Sign in"),
            "answered 200 with an HTML page: <html>Sign in",
        ),
        (plain("{\"choices\": [{\"mess"), "with invalid JSON"),
        (plain(""), "with an empty body"),
        (
            plain("{\"error\": \"quota\"}"),
            "without choices[0].message: {\"error\": \"quota\"}",
        ),
        (
            plain(&"[0]".repeat(100_000)),
            "with more than the limit of 10000 bytes, with: [0][0]",
        ),
        (
            plain("data: {\"choices\": []}\n\n"),
            "answered 200 with an event stream, which was not requested",
        ),
        (
            Answer::Reply(204, Vec::new(), Vec::new()),
            "answered 204 with an empty body",
        ),
        (
            Answer::Reply(200, Vec::new(), b"{\"a\": \"\xff\xfe\"}".to_vec()),
            "answered 200 with invalid UTF-8 at byte 8, with: {",
        ),
    ] {
        let (result, n_requests) = complete(|_| (), move |_, _| answer.clone());
        let message = result.expect_err(expected).to_string();
        assert!(message.contains(expected), "{message}");
        assert_eq!(n_requests, 1, "{expected}");
    }
}

#[test]
fn many_requests_keep_their_order_despite_a_failed_one() {
    let server = chat_server(|request, number| match last_content(request) {
        "7" => status(400, None),
        // Half of the other replies are late.
        text => {
            let wait = if text.len() == 1 { 20 } else { 0 };
            std::thread::sleep(Duration::from_millis(wait));
            backwards(request, number)
        }
    });
    let requests: Vec<Vec<Message>> = (0..24).map(|n| ask(&n.to_string())).collect();
    let mut reported = Vec::new();
    let mut watch = |progress: EndpointProgress| {
        reported.push(progress);
        true
    };
    let endpoint = endpoint(&options(&server.url()));
    let results = endpoint.complete_all(&requests, &ChatOptions::default(), 6, &mut watch);
    for (idx, result) in results.iter().enumerate() {
        let reversed: String = idx.to_string().chars().rev().collect();
        match idx {
            7 => assert!(matches!(
                result,
                Err(EndpointError::Refused { status: 400, .. })
            )),
            _ => assert_eq!(result.as_ref().map(|a| &a.text), Ok(&reversed)),
        }
    }
    let last = EndpointProgress {
        n_done: 24,
        n_failed: 1,
        n_all: 24,
    };
    assert_eq!(reported.last(), Some(&last));
    assert_eq!(server.received().len(), 24);
}

#[test]
fn stopped_requests_end_even_while_they_wait() {
    // If the wait were not abandoned, it would exceed any delay of a busy machine.
    let server = chat_server(|_, _| status(503, Some("600")));
    let requests: Vec<Vec<Message>> = (0..50).map(|n| ask(&n.to_string())).collect();
    let endpoint = endpoint(&EndpointOptions {
        total_secs: 6000.0,
        ..options(&server.url())
    });
    let mut watch = |_| false;
    let start = Instant::now();
    let results = endpoint.complete_all(&requests, &ChatOptions::default(), 4, &mut watch);
    assert!(start.elapsed() < Duration::from_secs(600));
    assert_eq!(results.len(), 50);
    for result in results {
        assert!(
            matches!(result, Err(EndpointError::Stopped { .. })),
            "{result:?}"
        );
    }
    assert!(server.received().len() <= 4);
}

#[test]
fn invalid_options_are_refused() {
    let valid = || options("http://127.0.0.1:9");
    let error_text = |change: fn(&mut EndpointOptions)| {
        let mut options = valid();
        change(&mut options);
        let endpoint = ChatEndpoint::with_environment(&options, &environment);
        endpoint.expect_err("a fault").to_string()
    };
    for (message, expected) in [
        (
            error_text(|o| o.base_url = "v1".to_owned()),
            "endpoint: base_url \"v1\" is not an absolute URL",
        ),
        (
            error_text(|o| o.model = " ".to_owned()),
            "endpoint: model is empty",
        ),
        (
            error_text(|o| o.retries = 21),
            "retries is 21; give at most 20",
        ),
        (error_text(|o| o.total_secs = -1.0), "total_secs is -1"),
        (
            error_text(|o| o.api_key_env = Some("NO_SUCH".to_owned())),
            "api_key_env needs the environment variable NO_SUCH, which is unset",
        ),
    ] {
        assert!(message.contains(expected), "{message}");
    }
    let options_back: EndpointOptions =
        serde_json::from_value(json!({"base_url": "x", "model": MODEL})).expect("reads");
    assert_eq!(options_back, EndpointOptions::new("x", MODEL));
    let misspelt = json!({"base_url": "x", "model": MODEL, "api_key": "secret"});
    assert!(serde_json::from_value::<EndpointOptions>(misspelt).is_err());
    let server = TestServer::start(|_, _| completion("hello"));
    let local = EndpointOptions::new(server.url(), MODEL);
    let text = ChatEndpoint::new(&local)
        .expect("no key")
        .complete(&ask("x"), &ChatOptions::default());
    assert_eq!(text.map(|answer| answer.text), Ok("hello".to_owned()));
    assert!(!server.received()[0].headers.contains_key("authorization"));
}

#[test]
fn a_reply_without_text_is_not_retried() {
    let message = json!({"role": "assistant", "content": null, "reasoning_content": "Hm"});
    let body = json!({
        "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
        "usage": {"completion_tokens": 512},
    });
    let server = chat_server(move |_, _| Answer::json(200, &body));
    let answer = endpoint(&options(&server.url())).complete(&ask("x"), &ChatOptions::default());
    let expected = ChatAnswer {
        tool_calls: Vec::new(),
        text: String::new(),
        without_text: Some(WithoutText::Reasoning),
        finish_reason: "length".to_owned(),
        n_tokens: 512,
        n_prompt_tokens: 0,
        model: String::new(),
    };
    assert_eq!(answer, Ok(expected));
    assert_eq!(server.received().len(), 1);

    let (result, n_requests) = complete(|_| (), |_, _| Answer::json(200, &json!({"choices": []})));
    let message = result.expect_err("no choice").to_string();
    assert_eq!(n_requests, 4);
    assert!(
        message.contains("the last attempt: an answer without choices[0]"),
        "{message}"
    );
}

#[test]
fn stopped_requests_end_even_if_the_server_is_silent() {
    // Only stopping ends the requests; otherwise the server would break off first.
    let server = chat_server(|_, _| Answer::Hang);
    let requests: Vec<Vec<Message>> = (0..50).map(|n| ask(&n.to_string())).collect();
    let endpoint = endpoint(&EndpointOptions {
        timeout_secs: 6000.0,
        total_secs: 6000.0,
        ..options(&server.url())
    });
    let mut watch = |_| server.received().len() < 4;
    let start = Instant::now();
    let results = endpoint.complete_all(&requests, &ChatOptions::default(), 4, &mut watch);
    assert!(start.elapsed() < Duration::from_secs(50));
    for result in results {
        assert!(
            matches!(result, Err(EndpointError::Stopped { .. })),
            "{result:?}"
        );
    }
    assert_eq!(server.received().len(), 4);
}

#[test]
fn messages_use_the_callers_option_names() {
    let names = OptionNames {
        base_url: "--endpoint",
        model: "--endpoint-model",
        api_key_env: "--api-key-env",
        patience: None,
    };
    for (answer, expected) in [
        (
            status(401, None),
            "environment variable that --api-key-env names",
        ),
        (
            status(404, None),
            "check --endpoint, which usually ends in /v1, and --endpoint-model",
        ),
        (status(400, None), "check --endpoint-model, the length"),
        (
            Answer::redirect(302, "/v2"),
            "set --endpoint to the address that it redirects to",
        ),
        (
            Answer::html(200, "<p>"),
            "check that --endpoint is the address of",
        ),
        (
            status(500, None),
            "check that the server is running, and its log",
        ),
    ] {
        let (result, _) = complete(|o| o.names = names, move |_, _| answer.clone());
        let message = result.expect_err(expected).to_string();
        assert!(message.contains(expected), "{message}");
        for absent in [
            "base_url",
            "api_key_env",
            "_secs",
            "retries",
            "max_body_bytes",
        ] {
            assert!(!message.contains(absent), "{message}");
        }
    }
    let mut invalid = options("http://127.0.0.1:9/v1?key=hunter2hunter2");
    invalid.names = names;
    let endpoint = ChatEndpoint::with_environment(&invalid, &environment);
    let message = endpoint.expect_err("a query").to_string();
    assert!(
        message.contains("--endpoint \"http://127.0.0.1:9/v1?***\""),
        "{message}"
    );
}

#[test]
fn sixteen_concurrent_requests_keep_their_order() {
    let server = chat_server(|request, number| {
        let text = last_content(request).to_owned();
        let n: usize = text.parse().expect("a number");
        std::thread::sleep(Duration::from_millis((n * 7 % 16) as u64));
        match n % 8 {
            // Another model, an unknown finish reason, and invalid calls.
            1 => Answer::json(
                200,
                &json!({"model": "other", "choices": [{"finish_reason": "moon", "message":
                    {"content": text, "tool_calls": "none"}}]}),
            ),
            // JSON with a different content type.
            2 => {
                let body = json!({"choices": [{"message": {"content": text}}]}).to_string();
                Answer::Reply(
                    200,
                    vec![("Content-Type".to_owned(), "text/html".to_owned())],
                    body.into_bytes(),
                )
            }
            3 => Answer::json(400, &json!({"error": {"code": "context_length_exceeded"}})),
            4 if number % 2 == 0 => Answer::Raw(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{\"ch".to_vec(),
            ),
            _ => completion(&text),
        }
    });
    let requests: Vec<Vec<Message>> = (0..96).map(|n| ask(&n.to_string())).collect();
    let options = EndpointOptions {
        retries: 20,
        ..options(&server.url())
    };
    let results =
        endpoint(&options).complete_all(&requests, &ChatOptions::default(), 16, &mut |_| true);
    for (n, result) in results.iter().enumerate() {
        match n % 8 {
            3 => {
                let error = result.as_ref().expect_err("too long");
                assert_eq!(error.kind(), Some(FaultKind::Context));
            }
            _ => assert_eq!(result.as_ref().map(|a| a.text.clone()), Ok(n.to_string())),
        }
    }
    let odd = results[1].as_ref().expect("an answer");
    assert_eq!(
        (odd.model.as_str(), odd.finish_reason.as_str()),
        ("other", "moon")
    );
}
