//! Tests the executor against a small library server with an imported specification.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tooltune_apis::{RequestBodies, import_openapi_operations};

use super::*;
use crate::http::test_server::{Answer, CLOSED_PORT, Received, TestServer};

const SPEC: &str = r##"
openapi: 3.0.0
info: {title: Library}
paths:
  /books/{title}:
    get:
      parameters:
        - {name: title, in: path, required: true, schema: {type: string}}
  /books:
    get:
      parameters:
        - {name: q, in: query, required: true, schema: {type: string}}
        - {name: limit, in: query, schema: {type: integer}}
        - {name: tags, in: query, explode: false, schema: {type: array, items: {type: string}}}
        - {name: Accept-Language, in: header, schema: {type: string}}
        - {name: X-Api-Key, in: header, required: true, schema: {type: string}}
  /shelves/{shelf}/books:
    post:
      parameters:
        - {name: shelf, in: path, required: true, schema: {type: integer}}
        - {name: notify, in: query, schema: {type: boolean}}
      requestBody:
        content:
          application/json:
            schema:
              type: object
              required: [title]
              properties:
                title: {type: string}
                pages: {type: integer}
                authors: {type: array, items: {type: string}}
    delete: {parameters: [{name: shelf, in: path, schema: {type: integer}}]}
  /notes:
    post:
      requestBody:
        required: true
        content: {application/x-www-form-urlencoded: {schema: {properties: {text: {type: string}}}}}
  /photos:
    post:
      requestBody:
        content: {image/png: {schema: {properties: {text: {type: string}}}}}
  /odd/{kind}:
    get: {parameters: [{name: kind, in: path, schema: {type: string}}]}
  /moved/{place}:
    get: {parameters: [{name: place, in: path, schema: {type: string}}]}
    post: {parameters: [{name: place, in: path, schema: {type: string}}]}
"##;

const KEY: &str = "key-0123456789";

fn environment(name: &str) -> Option<String> {
    (name == "LIBRARY_KEY").then(|| KEY.to_owned())
}

/// The library server: it has one book, and produces all kinds of server errors.
fn library(request: &Received, _: usize) -> Answer {
    if request.headers.get("x-api-key").map(String::as_str) != Some(KEY) {
        return Answer::json(401, &json!({"error": "no key"}));
    }
    let target = request.target.strip_prefix("/v1").expect("below the base");
    if let Some(kind) = target.strip_prefix("/odd/") {
        return faulty_answer(kind);
    }
    if let Some(target_place) = target.strip_prefix("/moved/") {
        return match target_place {
            "slow" => {
                std::thread::sleep(Duration::from_millis(150));
                Answer::redirect(302, "/v1/moved/slow")
            }
            "round" => Answer::redirect(302, "/v1/moved/round"),
            "303" => Answer::redirect(303, "../echo?from=moved"),
            "307" => Answer::redirect(307, "/v1/echo"),
            "file" => Answer::redirect(302, "file:///etc/hosts"),
            // The test sets this to the address of another server.
            port => Answer::redirect(302, &format!("http://127.0.0.1:{port}/v1/echo")),
        };
    }
    match (request.method.as_str(), target) {
        ("GET", "/books/AC%2FDC%20%26%20%C3%9C%3F") => Answer::json(200, &json!({"pages": 7})),
        ("GET", target) if target.starts_with("/books/") => Answer::json(
            404,
            &json!({"error": format!("no book; your key is {KEY}")}),
        ),
        ("DELETE", _) => Answer::Raw(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()),
        _ => Answer::json(200, &echo(request)),
    }
}

fn echo(request: &Received) -> Value {
    let header = |name: &str| request.headers.get(name).cloned();
    json!({
        "method": request.method, "target": request.target, "body": request.body,
        "type": header("content-type"), "language": header("accept-language"),
        "has_key": header("x-api-key").is_some(),
    })
}

fn faulty_answer(kind: &str) -> Answer {
    let plain = |status, body: &[u8]| Answer::Reply(status, Vec::new(), body.to_vec());
    match kind {
        "html" => Answer::html(200, "<html>\n<h1>Sign in</h1></html>"),
        "down" => Answer::html(502, "<h1>Bad gateway</h1>"),
        "empty" => plain(200, b""),
        "blank" => plain(200, b" \r\n"),
        "bare" => plain(503, b""),
        "cut" => plain(200, b"{\"pages\": [1, 2"),
        "bytes" => plain(200, b"\xff\xfe\x00{}"),
        "deep" => plain(200, "[".repeat(5_000).as_bytes()),
        "huge" => plain(200, "[0]".repeat(100_000).as_bytes()),
        "teapot" => plain(499, b"[\"odd\"]"),
        "short" => Answer::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"a\":".to_vec()),
        "close" => Answer::Raw(Vec::new()),
        "nonsense" => Answer::Raw(b"hello\r\n\r\n".to_vec()),
        "drip" => Answer::Drip(
            b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n".to_vec(),
            Duration::from_millis(20),
        ),
        "null" => plain(200, b"null"),
        _ => Answer::Hang,
    }
}

fn options(base_url: String) -> HttpOptions {
    HttpOptions {
        headers: BTreeMap::from([("X-Api-Key".to_owned(), "LIBRARY_KEY".to_owned())]),
        timeout_secs: 40.0,
        connect_timeout_secs: 40.0,
        max_body_bytes: 10_000,
        allow_methods: vec!["POST".to_owned(), "delete".to_owned()],
        ..HttpOptions::new(base_url)
    }
}

fn executor(options: &HttpOptions) -> Result<HttpExecutor, HttpConfigError> {
    let operations = import_openapi_operations(SPEC, RequestBodies::AsParameters);
    HttpExecutor::with_environment(operations.expect("a spec"), options, &environment)
}

/// The result of one call to the library.
fn call(name: &str, arguments: Value) -> CallResult {
    let server = TestServer::start(library);
    call_at(&options(format!("{}/v1/", server.url())), name, arguments)
}

/// As [`call`] with a short timeout, for servers that never finish.
fn short_call(name: &str, arguments: Value) -> CallResult {
    let server = TestServer::start(library);
    let options = HttpOptions {
        timeout_secs: 0.25,
        ..options(format!("{}/v1/", server.url()))
    };
    call_at(&options, name, arguments)
}

fn call_at(options: &HttpOptions, name: &str, arguments: Value) -> CallResult {
    let mut executor = executor(options).expect("good options");
    let result = executor.call(name, arguments.as_object().expect("an object"));
    assert!(
        !format!("{result:?} {executor:?}").contains(KEY),
        "{result:?}"
    );
    result
}

#[track_caller]
fn assert_fails(result: CallResult, expected: &str) {
    let message = result.exception.expect(expected);
    assert!(message.contains(expected), "{message}");
}

#[test]
fn path_values_are_fully_encoded() {
    let title = json!({"title": "AC/DC & Ü?"});
    assert_eq!(
        call("GET /books/{title}", title).output,
        json!({"pages": 7})
    );
    let in_name = call(
        "get https://elsewhere/v3/books/AC%2FDC%20%26%20Ü%3F",
        json!({}),
    );
    assert_eq!(in_name.output, json!({"pages": 7}));
    for step in ["..", ".", ""] {
        let result = call("GET /books/{title}", json!({"title": step}));
        assert_fails(result, "it cannot be part of a path");
    }
}

#[test]
fn query_and_header_are_filled_and_the_key_comes_from_the_environment() {
    let arguments = json!({
        "q": "a+b=c & d", "limit": "5", "tags": ["x y", "z,"], "Accept-Language": "de",
        "X-Api-Key": "what a model makes up",
    });
    assert_eq!(
        call("GET /books", arguments).output,
        json!({
            "method": "GET", "target": "/v1/books?q=a%2Bb%3Dc%20%26%20d&limit=5&tags=x%20y,z%2C",
            "body": "", "type": null, "language": "de", "has_key": true,
        })
    );
    let invalid = json!({"q": "a", "Accept-Language": "de\r\nX-Evil: 1"});
    assert_fails(
        call("GET /books", invalid),
        "\"Accept-Language\" has a line break",
    );
}

#[test]
fn a_body_is_a_form_or_json_with_the_declared_types() {
    let arguments = json!({
        "shelf": 3.0, "notify": "True", "title": 1984, "pages": "328", "authors": "['Eric Blair']",
    });
    let created = call("POST /shelves/{shelf}/books", arguments).output;
    assert_eq!(created["target"], "/v1/shelves/3/books?notify=true");
    assert_eq!(created["type"], "application/json");
    assert_eq!(
        created["body"],
        r#"{"title":"1984","pages":328,"authors":["Eric Blair"]}"#
    );
    let note = call("POST /notes", json!({"text": "a&b ü"})).output;
    assert_eq!(note["type"], "application/x-www-form-urlencoded");
    assert_eq!(note["body"], "text=a%26b%20%C3%BC");
    assert_eq!(call("POST /notes", json!({})).output["body"], "");
    let photo = call("POST /photos", json!({"text": "x"}));
    assert_fails(
        photo,
        "POST /photos: a body of type image/png is not supported",
    );
    let deleted = call("DELETE /shelves/{shelf}/books", json!({"shelf": 1}));
    assert_eq!(deleted, CallResult::success(Value::Null));
}

#[test]
fn invalid_arguments_are_never_sent() {
    let server = TestServer::start(library);
    let options = options(format!("{}/v1", server.url()));
    for (name, arguments, expected) in [
        (
            "GET /boks",
            json!({}),
            "unknown API \"GET /boks\", did you mean \"GET /books\"?",
        ),
        (
            "GET /books",
            json!({"q": null}),
            "GET /books needs \"q\"; it takes q (string)",
        ),
        (
            "GET /books",
            json!({"q": "a", "page": 2}),
            "GET /books has no parameter \"page\"",
        ),
        (
            "GET /books",
            json!({"q": "a", "limit": "many"}),
            "GET /books: argument \"limit\" must be integer, got \"many\"",
        ),
        (
            "GET /books",
            json!({"q": ["a"]}),
            "argument \"q\" must be string, got [\"a\"]",
        ),
        (
            "GET /books",
            json!({"q": "a", "tags": "b"}),
            "argument \"tags\" must be array",
        ),
        (
            "POST /shelves/{shelf}/books",
            json!({"shelf": 1}),
            "needs \"title\"; it takes shelf (integer), title (string)",
        ),
    ] {
        assert_fails(call_at(&options, name, arguments), expected);
    }
    assert!(server.received().is_empty());
}

#[test]
fn every_server_fault_gives_a_result() {
    for (kind, expected) in [
        (
            "html",
            "was answered 200 OK, but not in JSON (text/html), with: <html> <h1>Sign in</h1>",
        ),
        (
            "down",
            "was answered 502 Bad Gateway with: <h1>Bad gateway</h1>",
        ),
        (
            "empty",
            "GET /odd/{kind} was answered 200 OK with an empty body",
        ),
        ("blank", "was answered 200 OK with an empty body"),
        (
            "bare",
            "was answered 503 Service Unavailable with an empty body",
        ),
        ("cut", "but not in JSON, with: {\"pages\": [1, 2"),
        ("bytes", "but not in UTF-8, with: "),
        ("deep", "but not in JSON, with: [[["),
        (
            "huge",
            "was answered 200 OK with more than 10000 bytes, which is the limit",
        ),
        ("teapot", "was answered 499 with: [\"odd\"]"),
        ("short", "the answer broke off"),
        ("close", "the answer broke off"),
        ("nonsense", "the answer broke off"),
    ] {
        assert_fails(call("GET /odd/{kind}", json!({"kind": kind})), expected);
    }
    for kind in ["drip", "hang"] {
        let result = short_call("GET /odd/{kind}", json!({"kind": kind}));
        assert_fails(result, "GET /odd/{kind}: no complete answer within 250ms");
    }
    let null = call("GET /odd/{kind}", json!({"kind": "null"}));
    assert_eq!(null, CallResult::success(Value::Null));
    let closed = options(format!("http://127.0.0.1:{CLOSED_PORT}"));
    let unreachable = call_at(&closed, "POST /notes", json!({}));
    assert_fails(unreachable, "POST /notes: no connection");
}

#[test]
fn a_failed_call_contains_the_reply_without_the_key() {
    let result = call("GET /books/{title}", json!({"title": "none"}));
    let error_body = json!({"error": "no book; your key is ***"});
    assert_eq!(result.output, error_body);
    let expected = format!("GET /books/{{title}} was answered 404 Not Found with: {error_body}");
    assert_eq!(result.exception, Some(expected));
}

#[test]
fn redirects_follow_the_rules_of_their_status() {
    let echoed = call("POST /moved/{place}", json!({"place": "303"})).output;
    assert_eq!(
        (&echoed["method"], &echoed["target"]),
        (&json!("GET"), &json!("/v1/echo?from=moved"))
    );
    let redirected = call("POST /moved/{place}", json!({"place": "307"})).output;
    assert_eq!(
        (&redirected["method"], &redirected["target"]),
        (&json!("POST"), &json!("/v1/echo"))
    );
    for (target_place, expected) in [
        ("round", "the server redirects more than 3 times"),
        (
            "file",
            "the server redirects to something that is not an http or https URL",
        ),
    ] {
        assert_fails(
            call("GET /moved/{place}", json!({"place": target_place})),
            expected,
        );
    }
    let slow = short_call("GET /moved/{place}", json!({"place": "slow"}));
    assert_fails(slow, "no complete answer within 250ms");
}

#[test]
fn other_hosts_are_used_only_if_allowed_and_never_get_the_key() {
    let other = TestServer::start(|request, _| Answer::json(200, &echo(request)));
    let port = other.url().rsplit_once(':').expect("a port").1.to_owned();
    let redirect_arguments = json!({"place": port});
    let server = TestServer::start(library);
    let mut options = options(format!("{}/v1", server.url()));
    let refusal = call_at(&options, "GET /moved/{place}", redirect_arguments.clone());
    let expected =
        format!("the server redirects to 127.0.0.1:{port}, which is not in allowed_hosts");
    assert_fails(refusal, &expected);
    assert!(other.received().is_empty());

    options.allowed_hosts = vec!["127.0.0.1".to_owned()];
    let redirected = call_at(&options, "GET /moved/{place}", redirect_arguments);
    assert_eq!(redirected.output["has_key"], false);
    assert_eq!(other.received().len(), 1);
}

#[test]
fn invalid_options_are_refused() {
    let valid = || options("http://127.0.0.1:9".to_owned());
    let error_text = |change: fn(&mut HttpOptions)| {
        let mut options = valid();
        change(&mut options);
        executor(&options).expect_err("a fault").to_string()
    };
    for (message, expected) in [
        (
            error_text(|o| o.base_url = "library".to_owned()),
            "base_url \"library\" is not an absolute URL",
        ),
        (
            error_text(|o| o.allowed_hosts = vec!["x.org".to_owned()]),
            "127.0.0.1:9, which is not in",
        ),
        (
            error_text(|o| {
                o.headers.insert("X-Other".to_owned(), "NO_SUCH".to_owned());
            }),
            "headers.X-Other needs the environment variable NO_SUCH, which is unset",
        ),
        (
            error_text(|o| o.timeout_secs = f64::NAN),
            "timeout_secs is NaN; give a number of seconds above 0",
        ),
        (
            error_text(|o| o.connect_timeout_secs = 0.0),
            "connect_timeout_secs is 0",
        ),
        (error_text(|o| o.max_body_bytes = 0), "max_body_bytes is 0"),
        (
            error_text(|o| o.allow_methods = vec!["FETCH".to_owned()]),
            "allow_methods contains \"FETCH\", which is not a method; use only GET, HEAD,",
        ),
    ] {
        assert!(message.contains(expected), "{message}");
    }
    let without_operations = HttpExecutor::new(Vec::new(), &HttpOptions::new("http://127.0.0.1:9"));
    let message = without_operations.expect_err("no operation").to_string();
    assert!(
        message.contains("the specification has no operation"),
        "{message}"
    );
    let options_back: HttpOptions =
        serde_json::from_value(json!({"base_url": "x"})).expect("reads");
    assert_eq!(options_back, HttpOptions::new("x"));
    let misspelt = json!({"base_url": "x", "timeout": 1});
    assert!(serde_json::from_value::<HttpOptions>(misspelt).is_err());
}
