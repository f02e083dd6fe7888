//! Tests the client with a server process that uses only Python's standard library.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tooltune_agents::executors::{CallResult, Executor};

use super::{McpClient, McpError, McpExecutor, McpOptions};

fn server() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/mcp_server.py")
}

fn options(arguments: &[&str]) -> McpOptions {
    let server = server();
    let server = server.to_str().expect("a path of UTF-8");
    let command = [&["python3", server], arguments].concat();
    McpOptions {
        timeout: Duration::from_secs(10),
        allow_tools: vec!["create_order".to_owned()],
        ..McpOptions::new(command.into_iter().map(str::to_owned).collect())
    }
}

fn executor(mode: &str) -> McpExecutor {
    McpExecutor::start(&options(&[mode]), Arc::default()).expect("a server")
}

fn arguments(value: Value) -> Map<String, Value> {
    value.as_object().expect("an object").clone()
}

#[test]
fn tools_of_all_pages_become_documents_and_nested_arguments_are_sent() {
    let mut shop = executor("good");
    let names: Vec<String> = shop.catalogue().iter().map(|document| document.call_name()).collect();
    assert_eq!(names, ["create_order", "order_state"]);
    let order = json!({"customer": {"name": "Ada", "address": {"city": "Rye"}},
        "items": [{"sku": "W1", "quantity": 2}]});
    let result = shop.call("create_order", &arguments(order.clone()));
    assert_eq!(
        result,
        CallResult::success(json!({"order_id": 7, "received": order}))
    );
    let state = shop.call(" order_state", &arguments(json!({"order_id": "7"})));
    assert_eq!(state, CallResult::success(json!({"state": "paid"})));
    let missing = shop.call("order_state", &arguments(json!({"order_id": 8})));
    assert_eq!(
        missing.exception.as_deref(),
        Some("order_state failed: no such order")
    );
}

#[test]
fn invalid_calls_of_a_tool_are_not_sent() {
    let mut shop = executor("good");
    for (name, invalid_arguments, expected) in [
        (
            "create_orders",
            json!({}),
            "unknown tool \"create_orders\", did you mean \"create_order\"?",
        ),
        (
            "create_order",
            json!({"items": []}),
            "create_order needs \"customer\"",
        ),
        (
            "create_order",
            json!({"customer": {"name": "Ada", "adress": {}}, "items": []}),
            "arguments.customer.adress: create_order has no such parameter, did you mean \"address\"?",
        ),
        (
            "create_order",
            json!({"customer": {"name": "Ada"}, "items": [{"quantity": 1}]}),
            "arguments.items[0]",
        ),
        (
            "order_state",
            json!({"order_id": 7, "x": 1}),
            "has no parameter \"x\"",
        ),
    ] {
        let message = shop
            .call(name, &arguments(invalid_arguments))
            .exception
            .expect(expected);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn an_ended_server_is_reported_and_restarted() {
    let mut shop = executor("dies");
    let ended_call = shop.call("order_state", &arguments(json!({"order_id": 1})));
    let message = ended_call.exception.expect("it ended");
    assert!(
        message.contains("the MCP server ended (exit status: 3)"),
        "{message}"
    );
    assert!(message.contains("out of stock"), "{message}");
    let state = shop.call("order_state", &arguments(json!({"order_id": 7})));
    assert_eq!(state, CallResult::success(json!({"state": "paid"})));
}

#[test]
fn a_timed_out_call_does_not_delay_others() {
    let options = McpOptions {
        timeout: Duration::from_millis(300),
        ..options(&["slow"])
    };
    let mut shop = McpExecutor::start(&options, Arc::default()).expect("a server");
    let began = Instant::now();
    let silent = shop.call("order_state", &arguments(json!({"order_id": 7})));
    let message = silent.exception.expect("no answer");
    assert!(
        message.contains("did not answer tools/call within 0.3 s; its standard error ends with: shop: line 0"),
        "{message}"
    );
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn server_faults_are_reported() {
    for (mode, expected) in [
        (
            "old",
            "uses revision \"1999-01-01\" of the protocol; this client supports 2025-11-25,",
        ),
        ("toolless", "offers no tools"),
        (
            "junk",
            "something that is not a protocol message: Shop 1.0 is ready.",
        ),
        ("endless", "lists tools without end"),
    ] {
        let error = McpExecutor::start(&options(&[mode]), Arc::default()).expect_err(expected);
        assert!(error.to_string().contains(expected), "{mode}: {error}");
    }
    for (mode, expected) in [
        ("refuses", "refuses tools/call: not today (code -32602)"),
        (
            "long",
            "answered tools/call with more than 1048576 bytes, the limit for a result (MCP_RESULT_BYTES",
        ),
    ] {
        let mut shop = executor(mode);
        let result = shop.call("order_state", &arguments(json!({"order_id": 7})));
        let message = result.exception.expect(expected);
        assert!(message.contains(expected), "{mode}: {message}");
    }
    let silent = McpOptions {
        start_timeout: Duration::from_millis(500),
        ..options(&["silent"])
    };
    let error = McpClient::start(&silent, Arc::default()).expect_err("silence");
    assert!(
        matches!(
            error,
            McpError::Timeout {
                method: "initialize",
                ..
            }
        ),
        "{error}"
    );
    let no_such_program = McpOptions::new(vec!["no-such-program-of-ours".to_owned()]);
    let error = McpClient::start(&no_such_program, Arc::default()).expect_err("no program");
    assert!(
        error.to_string().contains("cannot start the MCP server"),
        "{error}"
    );
    let error =
        McpClient::start(&McpOptions::new(Vec::new()), Arc::default()).expect_err("nothing");
    assert!(matches!(error, McpError::NoCommand), "{error}");
}

#[test]
fn a_servers_log_is_quoted_without_secrets() {
    let options = McpOptions {
        environment: vec!["SHOP_KEY".to_owned()],
        timeout: Duration::from_secs(5),
        ..options(&["talks"])
    };
    let missing = McpClient::with_environment(&options, Arc::default(), &|_| None);
    let error = missing.expect_err("no key").to_string();
    assert!(
        error.contains("needs the environment variable SHOP_KEY"),
        "{error}"
    );
    let environment = |name: &str| match name {
        "SHOP_KEY" => Some(OsString::from("sesame-open-wide")),
        "PATH" => std::env::var_os("PATH"),
        _ => None,
    };
    let client = McpClient::with_environment(&options, Arc::default(), &environment);
    let mut client = client.expect("a server that talks");
    assert_eq!(client.tools().expect("tools").apis.documents.len(), 2);
    let slow = McpOptions {
        start_timeout: Duration::from_millis(500),
        command: [&options.command[..2], &["silent".to_owned()]].concat(),
        ..options
    };
    let error = McpClient::with_environment(&slow, Arc::default(), &environment);
    let message = error.expect_err("silence").to_string();
    assert!(
        message.contains("key ***") && !message.contains("sesame"),
        "{message}"
    );
}

#[test]
fn only_read_only_tools_are_called_unless_others_are_allowed() {
    let careful = McpOptions {
        allow_tools: Vec::new(),
        ..options(&["good"])
    };
    let mut shop = McpExecutor::start(&careful, Arc::default()).expect("a server");
    assert_eq!(shop.refusal("order_state"), None);
    let refusal = shop.refusal(" create_order").expect("it may change data");
    for expected in ["readOnlyHint", "--allow-tool create_order", "allow_tools"] {
        assert!(refusal.contains(expected), "{refusal}");
    }
    let order = json!({"customer": {"name": "Ada"}, "items": []});
    let result = shop.call("create_order", &arguments(order));
    assert_eq!(result, CallResult::failure(refusal));
    let every = McpOptions {
        allow_tools: vec!["*".to_owned()],
        ..careful.clone()
    };
    let shop = McpExecutor::start(&every, Arc::default()).expect("a server");
    assert_eq!(shop.refusal("create_order"), None);
    let unknown = McpOptions {
        allow_tools: vec!["create_orders".to_owned()],
        ..careful
    };
    let error = McpExecutor::start(&unknown, Arc::default()).expect_err("no such tool");
    assert!(
        error.to_string().contains("did you mean \"create_order\"?"),
        "{error}"
    );
}

#[test]
fn messages_of_a_server_are_limited_before_parsing() {
    for (mode, expected) in [
        ("numbers", "a message of more than 1000000 values (MCP_VALUES"),
        ("pages", "lists tools on pages that together exceed 16777216 bytes"),
        ("pings", "does not read its standard input: 64 messages are waiting"),
        ("long-id", "something that is not a protocol message"),
        ("deep", "sent a message that cannot be read (line 1"),
        ("no-end", "sent a message of more than 16777216 bytes"),
    ] {
        let error = McpExecutor::start(&options(&[mode]), Arc::default()).expect_err(expected);
        assert!(error.to_string().contains(expected), "{mode}: {error}");
    }
    let mut shop = executor("big");
    let result = shop.call("order_state", &arguments(json!({"order_id": 7})));
    let message = result.exception.expect("too long");
    assert!(message.contains("more than 1048576 bytes"), "{message}");
    assert!(!result.is_unanswered);
    // The server still runs and replies to other calls.
    let state = shop.call("order_state", &arguments(json!({"order_id": 8})));
    assert!(state.exception.expect("none").contains("no such order"));
}

#[test]
fn an_empty_cursor_is_followed_without_losing_tools() {
    for mode in ["empty-cursor", "empty-cursor-refused", "empty-cursor-more"] {
        let shop = executor(mode);
        let names: Vec<String> = shop.catalogue().iter().map(|document| document.call_name()).collect();
        assert_eq!(names, ["create_order", "order_state"], "{mode}");
    }
}

#[test]
fn secrets_of_a_server_are_removed_from_its_results() {
    let options = McpOptions {
        environment: vec!["SHOP_KEY".to_owned()],
        ..options(&["tells"])
    };
    let environment = |name: &str| match name {
        "SHOP_KEY" => Some(OsString::from("sesame-open-wide")),
        "PATH" => std::env::var_os("PATH"),
        _ => None,
    };
    let client = McpClient::with_environment(&options, Arc::default(), &environment);
    let shop = McpExecutor::with_client(client.expect("a server"), &options, Arc::default());
    let mut shop = shop.expect("tools");
    let result = shop.call("order_state", &arguments(json!({"order_id": 7})));
    assert_eq!(result.exception, None);
    let all_texts = format!("{:?} {result:?}", shop.catalogue());
    assert!(!all_texts.contains("sesame") && !all_texts.contains("open-wide"), "{all_texts}");
    assert_eq!(result.output["key"], "***");
    assert_eq!(result.output["parts"], json!(["***", "***"]));
}

#[test]
fn secrets_in_the_command_are_removed_from_results() {
    let options = options(&["echoes", "--api-key", "sesame-open-wide", "--host=shop.example"]);
    let mut shop = McpExecutor::start(&options, Arc::default()).expect("a server");
    let result = shop.call("order_state", &arguments(json!({"order_id": 7})));
    let shown = ["echoes", "--api-key", "***", "--host=shop.example"];
    assert_eq!(result, CallResult::success(json!({"arguments": shown})));
}

#[cfg(unix)]
#[test]
fn variables_that_are_not_utf8_are_passed_on_or_reported() {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let folder = tempfile::tempdir().expect("a folder");
    let home = OsString::from_vec(b"/srv/Ren\xe9".to_vec());
    let environment = |name: &str| match name {
        "PATH" => std::env::var_os("PATH"),
        "HOME" | "SHOP_KEY" => Some(home.clone()),
        _ => None,
    };
    let written = folder.path().join("home");
    let written_path = written.to_str().expect("UTF-8");
    let mut options = options(&["homes", written_path]);
    let client = McpClient::with_environment(&options, Arc::default(), &environment);
    drop(client.expect("a server"));
    assert_eq!(std::fs::read(&written).expect("written"), home.as_bytes());
    options.environment = vec!["SHOP_KEY".to_owned()];
    let error = McpClient::with_environment(&options, Arc::default(), &environment);
    let message = error.expect_err("a key that is not UTF-8").to_string();
    assert!(
        message.starts_with("SHOP_KEY: the value of this environment variable"),
        "{message}"
    );
}

/// Whether a process exists and is not a zombie.
fn is_alive(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    status.is_ok_and(|status| !status.contains(") Z "))
}

#[cfg(target_os = "linux")]
#[test]
fn a_server_and_its_descendants_end_with_the_client() {
    let folder = tempfile::tempdir().expect("a folder");
    for mode in ["good", "stays", "leaves"] {
        let pids = folder.path().join(mode);
        let pids = pids.to_str().expect("UTF-8");
        let client = McpClient::start(&options(&[mode, pids]), Arc::default()).expect("a server");
        let text = std::fs::read_to_string(pids).expect("ids");
        let ids: Vec<&str> = text.split(' ').collect();
        assert!(ids.iter().all(|pid| is_alive(pid)), "{text}");
        drop(client);
        // The new parent of the child reaps it.
        let deadline = Instant::now() + Duration::from_secs(5);
        while ids.iter().any(|pid| is_alive(pid)) {
            assert!(Instant::now() < deadline, "{mode}: {text} still live");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn waits_end_at_once_when_the_work_is_stopped() {
    let stop = Arc::new(AtomicBool::new(false));
    let mut shop = McpExecutor::start(&options(&["slow"]), Arc::clone(&stop)).expect("a server");
    let setter = Arc::clone(&stop);
    let stopping = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        setter.store(true, Ordering::Relaxed);
    });
    let began = Instant::now();
    let result = shop.call("order_state", &arguments(json!({"order_id": 7})));
    stopping.join().expect("set");
    assert_eq!(result.exception.as_deref(), Some("order_state: stopped"));
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
}
