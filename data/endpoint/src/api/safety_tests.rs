//! Tests requests that an executor must never send, and secrets that must never be returned.

use std::collections::BTreeMap;

use base64::Engine;
use serde_json::{Value, json};
use tooltune_apis::{RequestBodies, import_openapi_operations};

use super::*;
use crate::http::test_server::{Answer, TestServer};

const SPEC: &str = r##"
openapi: 3.1.0
paths:
  /files/{name}:
    get:
      operationId: readFile
      parameters:
        - {name: name, in: path, required: true, schema: {type: string}}
        - {name: X-HTTP-Method-Override, in: header, schema: {type: string}}
        - {name: q, in: query, allowReserved: true, schema: {type: string}}
        - {name: note, in: query, schema: {type: [string, "null"]}}
        - {name: Expect, in: header, schema: {type: string}}
        - {name: Upgrade, in: header, schema: {type: string}}
        - {name: Trailer, in: header, schema: {type: string}}
        - {name: Accept-Encoding, in: header, schema: {type: string}}
    delete:
      operationId: removeFile
      parameters: [{name: name, in: path, required: true, schema: {type: string}}]
  /parts/{a}{b}:
    get:
      parameters:
        - {name: a, in: path, schema: {type: string}}
        - {name: b, in: path, schema: {type: string}}
  /../admin/{a}:
    get: {parameters: [{name: a, in: path, schema: {type: string}}]}
  /x/%252e%252e/admin:
    get: {}
  /labels/{a}:
    get: {parameters: [{name: a, in: path, style: label, schema: {type: string}}]}
  /notes:
    post:
      operationId: writeNote
      requestBody:
        content:
          application/json:
            schema:
              type: object
              required: [text]
              properties:
                text: {type: [string, "null"]}
                n: {type: integer}
                tag: {$ref: "#/components/schemas/Tag", nullable: true}
components:
  schemas:
    Tag: {type: string}
"##;

const KEY: &str = "tokSECRET77";

fn executor(server: &TestServer, allow_methods: &[&str]) -> HttpExecutor {
    let operations = import_openapi_operations(SPEC, RequestBodies::AsParameters);
    let options = HttpOptions {
        headers: BTreeMap::from([("Authorization".to_owned(), "TOKEN".to_owned())]),
        allow_methods: allow_methods.iter().map(|&name| name.to_owned()).collect(),
        ..HttpOptions::new(server.url())
    };
    let environment = |name: &str| (name == "TOKEN").then(|| format!("Bearer {KEY}"));
    HttpExecutor::with_environment(operations.expect("a spec"), &options, &environment)
        .expect("good options")
}

fn call(executor: &mut HttpExecutor, name: &str, arguments: Value) -> CallResult {
    executor.call(name, arguments.as_object().expect("an object"))
}

fn ok() -> TestServer {
    TestServer::start(|request, _| {
        Answer::json(
            200,
            &json!({"target": request.target, "body": request.body, "method": request.method}),
        )
    })
}

#[test]
fn only_read_only_methods_are_sent_unless_others_are_allowed() {
    let server = ok();
    let mut careful = executor(&server, &[]);
    for name in ["removeFile", "DELETE /files/{name}", "delete /files/x"] {
        let refusal = careful.refusal(name).expect(name);
        assert!(refusal.contains("DELETE is not sent"), "{refusal}");
        assert!(refusal.contains("--allow-method DELETE"), "{refusal}");
        let result = call(&mut careful, name, json!({"name": "x"}));
        assert_eq!(result, CallResult::failure(refusal));
    }
    assert!(call(&mut careful, "writeNote", json!({"text": "x"})).is_failure());
    assert!(server.received().is_empty());
    assert_eq!(careful.refusal("readFile"), None);
    let read_result = call(&mut careful, "readFile", json!({"name": "x"}));
    assert_eq!(read_result.output["target"], "/files/x");

    let mut allowed = executor(&server, &["post"]);
    assert_eq!(allowed.refusal("writeNote"), None);
    assert!(allowed.refusal("removeFile").is_some());
    let write_result = call(&mut allowed, "writeNote", json!({"text": "x"}));
    assert_eq!(write_result.output["method"], "POST");
}

#[test]
fn operations_are_known_by_id_and_by_path() {
    let server = ok();
    let mut executor = executor(&server, &[]);
    for name in ["readFile", "GET /files/{name}", "get https://x/files/x"] {
        let result = call(&mut executor, name, json!({"name": "x"}));
        assert_eq!(result.output["target"], "/files/x", "{name}");
    }
    assert!(executor.has_operation("readFile") && executor.has_operation("GET /files/{name}"));
    assert!(!executor.has_operation("readFiles"));
    assert_eq!(
        executor.endpoint("readFile").as_deref(),
        Some("GET /files/{name}")
    );
}

#[test]
fn arguments_that_change_the_path_are_not_sent() {
    let server = ok();
    let mut executor = executor(&server, &[]);
    for name in [
        "",
        " ",
        ".",
        "..",
        "../../admin",
        "a/../b",
        "a/..;x/b",
        "..\\admin",
        "a//b",
        "/etc/passwd",
        "a/",
        "%2e%2e",
        "%2E%2E%2Fadmin",
        "..%2fadmin",
        "a%2Fb",
        "a%252fb",
        "%252e%252e",
        "a\0b",
        "a%00b",
        "a%5cb",
    ] {
        let result = call(&mut executor, "readFile", json!({"name": name}));
        let message = result.exception.expect(name);
        assert!(
            message.contains("cannot be part of a path"),
            "{name}: {message}"
        );
    }
    for (name, arguments) in [
        ("GET /parts/{a}{b}", json!({"a": ".", "b": "."})),
        ("GET /labels/{a}", json!({"a": "."})),
    ] {
        assert!(call(&mut executor, name, arguments).is_failure(), "{name}");
    }
    // The path of the specification must not leave the API's address either.
    for (name, arguments) in [
        ("GET /../admin/{a}", json!({"a": "x"})),
        ("GET /x/%252e%252e/admin", json!({})),
    ] {
        let message = call(&mut executor, name, arguments).exception.expect(name);
        assert!(message.contains("the segment \"..\""), "{name}: {message}");
    }
    assert!(server.received().is_empty());
    for (name, target) in [
        ("owner/name", "/files/owner%2Fname"),
        ("..a", "/files/..a"),
        ("100%", "/files/100%25"),
        ("a.b..c", "/files/a.b..c"),
        ("x?y#z", "/files/x%3Fy%23z"),
    ] {
        let sent = call(&mut executor, "readFile", json!({"name": name}));
        assert_eq!(sent.output["target"], target);
    }
}

#[test]
fn hop_by_hop_headers_are_not_sent_for_a_model() {
    let server = ok();
    let mut executor = executor(&server, &[]);
    for name in ["Expect", "Upgrade", "Trailer", "Accept-Encoding"] {
        let result = call(
            &mut executor,
            "readFile",
            json!({"name": "x", name: "100-continue"}),
        );
        let message = result.exception.expect(name);
        assert!(message.contains("cannot be sent as a header"), "{message}");
    }
    assert!(server.received().is_empty());
}

#[test]
fn arguments_neither_add_parameters_nor_change_the_method() {
    let server = ok();
    let mut executor = executor(&server, &[]);
    let injected = json!({"name": "x", "q": "a/b?c&admin=1#z"});
    let sent = call(&mut executor, "readFile", injected);
    assert_eq!(sent.output["target"], "/files/x?q=a/b?c%26admin=1%23z");
    let overridden = json!({"name": "x", "X-HTTP-Method-Override": "DELETE"});
    let result = call(&mut executor, "readFile", overridden);
    let message = result.exception.expect("refused");
    assert!(message.contains("would change the method"), "{message}");
}

#[test]
fn null_is_sent_only_if_the_schema_accepts_it() {
    let server = ok();
    let mut executor = executor(&server, &["POST"]);
    for (arguments, body) in [
        (json!({"text": null}), r#"{"text":null}"#),
        (
            json!({"text": null, "n": 3, "tag": null}),
            r#"{"text":null,"n":3,"tag":null}"#,
        ),
        (json!({"text": "x", "n": null}), r#"{"text":"x"}"#),
    ] {
        let result = call(&mut executor, "writeNote", arguments);
        assert_eq!(result.output["body"], body, "{:?}", result.exception);
    }
    let missing = call(&mut executor, "writeNote", json!({"n": 3}));
    let message = missing.exception.expect("no text");
    assert!(message.contains("needs \"text\""), "{message}");
    let read_result = call(
        &mut executor,
        "readFile",
        json!({"name": "x", "note": null}),
    );
    assert_eq!(read_result.output["target"], "/files/x");
}

#[test]
fn a_key_repeated_by_a_server_in_any_encoding_is_removed_from_results() {
    let escaped: String = KEY
        .chars()
        .map(|character| format!("\\u{:04x}", u32::from(character)))
        .collect();
    let base64 = base64::engine::general_purpose::STANDARD;
    let bodies = [
        format!("{{\"echo\": \"{escaped}\"}}"),
        format!("[\"{}\", \"{}\"]", &KEY[..6], &KEY[6..]),
        format!("{{\"{KEY}\": 1}}"),
        json!({"basic": base64.encode(format!("ada:{KEY}"))}).to_string(),
        json!({"url": KEY.replace('t', "%74")}).to_string(),
        json!({"inner": json!({"k": KEY}).to_string()}).to_string(),
        format!("\"{escaped}\", and this is not JSON"),
    ];
    for status in [200, 400] {
        for body in &bodies {
            let answer = body.clone();
            let server = TestServer::start(move |_, _| {
                Answer::Reply(status, Vec::new(), answer.clone().into_bytes())
            });
            let result = call(
                &mut executor(&server, &[]),
                "readFile",
                json!({"name": "x"}),
            );
            let result_text = format!("{} {:?}", result.output, result.exception);
            assert!(
                result_text.contains("***"),
                "{status} {body}: {result_text}"
            );
            let decoded = base64.encode(KEY);
            for spelling in [KEY, escaped.as_str(), &decoded[..12], "%74ok"] {
                assert!(
                    !result_text.contains(spelling),
                    "{status} {body}: {result_text}"
                );
            }
        }
    }
}
