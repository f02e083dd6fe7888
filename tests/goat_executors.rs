//! `data goat` on an API for orders, with a server or a recording as the executor.

use serde_json::{Value, json};

use crate::support::model;
use crate::support::server::{Response, TestServer, chat};
use crate::workplace::{Workplace, parse_lines, tooltune};

const ORDER: &str = "POST /orders";
const STATUS: &str = "GET /orders/{order_id}";

/// A workplace with the specification of an orders API with a nested request body, and its
/// documents.
fn workplace() -> Workplace {
    let workplace = Workplace::new();
    let text = json!({"type": "string"});
    let customer = json!({"type": "object", "required": ["name"], "properties": {
        "name": text, "city": text}});
    let items = json!({"type": "array", "items": {"type": "object", "required": ["sku"],
        "properties": {"sku": text, "count": {"type": "integer"}}}});
    let body = json!({"type": "object", "required": ["customer", "items"], "properties": {
        "customer": customer, "items": items}});
    let answer = |schema: Value| {
        json!({"200": {"description": "The order.",
            "content": {"application/json": {"schema": schema}}}})
    };
    let number = json!({"type": "integer", "description": "Number of the order."});
    let ordered = json!({"type": "object", "properties": {"order_id": number}});
    let status = json!({"type": "object", "properties": {"state": text}});
    let parameter = json!({"name": "order_id", "in": "path", "required": true, "schema": number,
        "description": "Number of the order."});
    let specification = json!({"openapi": "3.0.0", "info": {"title": "Shop", "version": "1"},
    "paths": {
        "/orders": {"post": {"summary": "Order things.", "responses": answer(ordered),
            "requestBody": {"content": {"application/json": {"schema": body}}}}},
        "/orders/{order_id}": {"get": {"summary": "State of an order.",
            "parameters": [parameter], "responses": answer(status)}},
    }});
    workplace.write("shop.json", specification.to_string());
    let import = "data import openapi shop.json --output documents.jsonl";
    workplace.run(import.split(' ')).success();
    workplace
}

fn first_order() -> Value {
    json!({"customer": {"name": "Ada", "city": "Aldmouth"}, "items": [{"sku": "lamp", "count": 2}]})
}

/// The reply of a simulated model to a prompt about these two APIs.
fn model_reply(prompt: &str) -> Value {
    let is_about = |part: &str| prompt.contains(part);
    let starts_with = |prefix: &str| prompt.starts_with(prefix);
    let first = prompt.split("<second_api>").next().unwrap_or_default();
    if starts_with("Say in plain words") && is_about("State of an order.") {
        json!({"input_params": {"order_id": "the number of an order"}, "output": "its state"})
    } else if starts_with("Say in plain words") {
        json!({"input_params": {"customer": "who orders", "items": "what is ordered"},
            "output": "the number of the order"})
    } else if starts_with("Decide whether what one API") {
        let holds = first.contains(ORDER);
        json!({"reason": "The number is in order_id.", "connectable": holds})
    } else if starts_with("Two APIs were called") {
        json!({"reason": "It is the same number.", "connectable": true})
    } else if starts_with("Write the arguments of a call of this API") {
        first_order()
    } else if starts_with("Write the arguments of a call that") || starts_with("Take arguments") {
        json!({"order_id": 12})
    } else if starts_with("Write the request that this call") && is_about("State of an order.") {
        json!({"thought": "", "instruction": "Get the state of the new order."})
    } else if starts_with("Write the request that this call") {
        json!({"thought": "", "instruction": "Order two lamps for Ada in Aldmouth."})
    } else if starts_with("Steps of a task") {
        json!({"thought": "", "query": "Order two lamps for Ada in Aldmouth; how far is it?"})
    } else {
        json!({"thought": "", "final_answer": "The order is packed."})
    }
}

fn generator() -> TestServer {
    TestServer::start(|request, _| {
        let request: Value = serde_json::from_str(&request.body).unwrap();
        chat(&model_reply(request["messages"][0]["content"].as_str().unwrap()).to_string())
    })
}

#[test]
fn calls_that_may_change_data_are_listed_and_not_sent() {
    let (workplace, model_server) = (workplace(), generator());
    let shop = TestServer::start(|_, _| Response::json(200, &json!({"order_id": 12})));
    let run = |output: &str, more: &[&str]| {
        let encoder = model("all-minilm-l6-v2");
        let line = format!(
            "data goat documents.jsonl --output {output} --rows 5 --threshold 0.0 --retriever {} \
             --endpoint {}/v1 --endpoint-model m --executor kind=http \
             --executor specification=shop.json --executor base_url={}",
            encoder.display(),
            model_server.url(),
            shop.url()
        );
        let mut command = tooltune();
        command
            .current_dir(workplace.folder())
            .args(line.split_whitespace())
            .args(more);
        crate::workplace::CommandOutput::from_command(&mut command)
    };
    let host = shop.url().trim_start_matches("http://").to_owned();
    let plan = run("plan", &["--dry-run"]).success();
    for (request, calls) in [(ORDER, "none, not allowed"), (STATUS, "at most")] {
        let line = plan.lines().find(|line| line.contains(request));
        let line = line.unwrap_or_else(|| panic!("{request}: {plan}"));
        assert!(line.contains(&host) && line.contains(calls), "{line}");
    }
    assert!(plan.contains("1 of 2 APIs would not be called"), "{plan}");
    let plan = run("plan", &["--dry-run", "--allow-method", "post"]).success();
    assert!(!plan.contains("not allowed"), "{plan}");
    assert!(shop.received().is_empty() && model_server.received().is_empty());

    let done = run("careful", &[]);
    let expected = "1 of 2 APIs are not called: POST /orders";
    assert!(done.stderr.contains(expected), "{}", done.stderr);
    assert!(shop.received().is_empty() && !model_server.received().is_empty());
    let other = run("other", &["--allow-tool", "x"]);
    let expected = "--allow-tool needs an executor of kind mcp";
    assert!(other.stderr.contains(expected), "{}", other.stderr);
}

#[test]
fn nested_calls_reach_a_server_and_a_recording_gives_the_same_rows() {
    let (workplace, model_server) = (workplace(), generator());
    let shop = TestServer::start(|request, _| match request.method.as_str() {
        "POST" => Response::json(200, &json!({"order_id": 12})),
        _ if request.target == "/orders/12" => Response::json(200, &json!({"state": "packed"})),
        _ => Response::json(404, &json!({"error": "no such order"})),
    });
    let recorded = [
        json!({"api_name": ORDER, "input": first_order(), "output": {"order_id": 12}, "exception": null}),
        json!({"api_name": STATUS, "input": {"order_id": 12}, "output": {"state": "packed"}, "exception": null}),
    ];
    workplace.write(
        "recorded.jsonl",
        recorded.map(|row| row.to_string()).join("\n"),
    );
    let run_pipeline = |output: &str, executor: &[String]| {
        let encoder = model("all-minilm-l6-v2");
        let line = format!(
            "data goat documents.jsonl --output {output} --rows 5 --threshold 0.0 --retriever {} \
             --endpoint {}/v1 --endpoint-model m --dev-share 0 --seen-share 0 --unseen-share 0",
            encoder.display(),
            model_server.url()
        );
        let mut command = tooltune();
        command
            .current_dir(workplace.folder())
            .args(line.split_whitespace());
        for setting in executor {
            command.args(["--executor", setting]);
        }
        if executor[0] == "kind=http" {
            command.args(["--allow-method", "POST"]);
        }
        let done = crate::workplace::CommandOutput::from_command(&mut command).success();
        assert!(done.contains("| execute "), "{done}");
        workplace.read(&format!("{output}/train.jsonl"))
    };
    let by_server = [
        "kind=http".to_owned(),
        "specification=shop.json".to_owned(),
        format!("base_url={}", shop.url()),
    ];
    let by_recording = ["kind=replay", "recorded=recorded.jsonl"].map(str::to_owned);
    let rows = run_pipeline("by_server", &by_server);
    assert_eq!(run_pipeline("by_recording", &by_recording), rows);

    let row = &parse_lines(&rows)[0];
    assert_eq!(row["calls"][0]["name"], ORDER);
    assert_eq!(row["calls"][0]["arguments"], first_order());
    assert_eq!(row["calls"][1]["arguments"], json!({"order_id": 12}));
    let origin = &row["calls"][1]["derived"]["order_id"];
    assert_eq!(
        (&origin["call"], &origin["path"]),
        (&json!(0), &json!("order_id"))
    );
    assert_eq!(row["facts"], json!(["packed"]));
    // The body of requests is nested. The call is made twice: for the edge and for the row.
    let received = shop.received();
    let body: Value = serde_json::from_str(&received[0].body).unwrap();
    assert_eq!((body, received.len()), (first_order(), 2));
    // The prompt describes the structure of the body.
    let prompts = model_server.received();
    assert!(prompts.iter().any(|request| {
        request
            .body
            .contains("Write the arguments of a call of this API")
            && request.body.contains("sku")
    }));
}
