//! The client with a server of the standard library of Python, as a process.

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
fn tools_of_all_pages_are_documents_and_calls_arrive_nested() {
    let mut shop = executor("good");
    let names: Vec<String> = shop.catalogue().iter().map(|one| one.call_name()).collect();
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
fn calls_that_a_tool_does_not_take_are_not_sent() {
    let mut shop = executor("good");
    for (name, given, expected) in [
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
        let said = shop
            .call(name, &arguments(given))
            .exception
            .expect(expected);
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_server_that_ends_says_why_and_is_started_again() {
    let mut shop = executor("dies");
    let ended = shop.call("order_state", &arguments(json!({"order_id": 1})));
    let said = ended.exception.expect("it ended");
    assert!(
        said.contains("the MCP server ended (exit status: 3)"),
        "{said}"
    );
    assert!(said.contains("out of stock"), "{said}");
    let state = shop.call("order_state", &arguments(json!({"order_id": 7})));
    assert_eq!(state, CallResult::success(json!({"state": "paid"})));
}

#[test]
fn a_call_without_an_answer_costs_its_own_time_alone() {
    let options = McpOptions {
        timeout: Duration::from_millis(300),
        ..options(&["slow"])
    };
    let mut shop = McpExecutor::start(&options, Arc::default()).expect("a server");
    let began = Instant::now();
    let silent = shop.call("order_state", &arguments(json!({"order_id": 7})));
    let said = silent.exception.expect("no answer");
    assert!(
        said.contains("did not answer tools/call within 0.3 s; it said: shop: line 0"),
        "{said}"
    );
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn what_a_server_does_wrong_is_named() {
    for (mode, expected) in [
        (
            "old",
            "speaks revision \"1999-01-01\" of the protocol; this client speaks 2025-11-25,",
        ),
        ("toolless", "offers no tools"),
        (
            "junk",
            "what is no message of the protocol: Shop 1.0 is ready.",
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
            "a message of more than 16777216 bytes (MCP_MESSAGE_BYTES",
        ),
    ] {
        let mut shop = executor(mode);
        let result = shop.call("order_state", &arguments(json!({"order_id": 7})));
        let said = result.exception.expect(expected);
        assert!(said.contains(expected), "{mode}: {said}");
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
    let none = McpOptions::new(vec!["no-such-program-of-ours".to_owned()]);
    let error = McpClient::start(&none, Arc::default()).expect_err("no program");
    assert!(
        error.to_string().contains("cannot start the MCP server"),
        "{error}"
    );
    let error =
        McpClient::start(&McpOptions::new(Vec::new()), Arc::default()).expect_err("nothing");
    assert!(matches!(error, McpError::NoCommand), "{error}");
}

#[test]
fn the_log_of_a_server_is_read_and_shows_no_secret() {
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
        "SHOP_KEY" => Some("sesame-open-wide".to_owned()),
        "PATH" => std::env::var("PATH").ok(),
        _ => None,
    };
    let client = McpClient::with_environment(&options, Arc::default(), &environment);
    let mut client = client.expect("a server that talks");
    assert_eq!(client.tools().expect("tools").documents.len(), 2);
    let slow = McpOptions {
        start_timeout: Duration::from_millis(500),
        command: [&options.command[..2], &["silent".to_owned()]].concat(),
        ..options
    };
    let error = McpClient::with_environment(&slow, Arc::default(), &environment);
    let said = error.expect_err("silence").to_string();
    assert!(
        said.contains("key ***") && !said.contains("sesame"),
        "{said}"
    );
}

/// Whether a process is there and no zombie.
fn lives(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    status.is_ok_and(|status| !status.contains(") Z "))
}

#[cfg(target_os = "linux")]
#[test]
fn a_server_and_what_it_started_end_with_the_client() {
    let folder = tempfile::tempdir().expect("a folder");
    for mode in ["good", "stays"] {
        let pids = folder.path().join(mode);
        let pids = pids.to_str().expect("UTF-8");
        let client = McpClient::start(&options(&[mode, pids]), Arc::default()).expect("a server");
        let text = std::fs::read_to_string(pids).expect("ids");
        let ids: Vec<&str> = text.split(' ').collect();
        assert!(ids.iter().all(|pid| lives(pid)), "{text}");
        drop(client);
        // The child is collected by whoever inherits it.
        let deadline = Instant::now() + Duration::from_secs(5);
        while ids.iter().any(|pid| lives(pid)) {
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
