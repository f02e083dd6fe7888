//! Evaluations that are interrupted by a failure or a limit: finished requests are not sent again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::suites::{config, workplace};
use crate::support::server::{Response, TestServer, chat};

#[test]
fn interrupted_agents_resume_without_repeating_a_call() {
    let workplace = workplace();
    let is_well = Arc::new(AtomicBool::new(false));
    let writer = {
        let is_well = is_well.clone();
        let action = |city| {
            format!(
                "Action: {{\"name\": \"GET /weather\", \"arguments\": {{\"city\": \"{city}\"}}}}"
            )
        };
        let texts = [
            action("Oslo"),
            action("Bergen"),
            "Finish: It is -3.".to_owned(),
        ];
        TestServer::start(move |_, number| {
            // The second request fails until the server recovers; then it succeeds.
            let is_well = is_well.load(Ordering::SeqCst);
            match number {
                0 => chat(&texts[0]),
                number if is_well => chat(&texts[(number - 1).min(2)]),
                _ => Response::json(400, &json!({"error": {"message": "no such model"}})),
            }
        })
    };
    let called = TestServer::start(|_, _| Response::json(200, &json!({"degrees": -3})));
    let executor = format!(
        "[goat.executor]\nkind = \"http\"\nspecification = \"sky.json\"\nbase_url = \"{}/v1\"\n",
        called.url()
    );
    workplace.write("sky.toml", config(&executor));
    let eval = format!(
        "eval sky.toml --suite restbench --checkpoint base --max-samples 1 --output out \
         --endpoint {}/v1 --endpoint-model m --concurrency 1",
        writer.url()
    );
    let failed = workplace.run(eval.split_whitespace());
    assert_eq!(failed.status, Some(1), "{}", failed.stderr);
    assert_eq!((writer.received().len(), called.received().len()), (2, 1));
    // The journal has a header, a completion and the result of its call.
    assert_eq!(workplace.read("out/texts.partial.jsonl").lines().count(), 3);

    is_well.store(true, Ordering::SeqCst);
    workplace.run(eval.split_whitespace()).success();
    assert_eq!((writer.received().len(), called.received().len()), (4, 2));
    let prediction = workplace.read("out/predictions.jsonl");
    let prediction: Value = serde_json::from_str(prediction.trim()).unwrap();
    let calls = prediction["outcome"]["calls"].as_array().unwrap();
    let cities: Vec<&Value> = calls
        .iter()
        .map(|call| &call["arguments"]["city"])
        .collect();
    assert_eq!(cities, ["Oslo", "Bergen"], "{prediction}");
    assert_eq!(calls[0]["output"], json!({"degrees": -3}));
    assert!(!workplace.path("out/texts.partial.jsonl").exists());
}

#[test]
fn agent_loops_end_at_their_time_limit_and_step_limit() {
    let workplace = workplace();
    workplace.write(
        "sky.toml",
        config("executor = { kind = \"canned\", responses = \"responses.json\" }"),
    );
    let response = json!({"api": "GET /weather", "response": {"degrees": -3}});
    workplace.write("responses.json", response.to_string());
    let action = "Action: {\"name\": \"GET /weather\", \"arguments\": {\"city\": \"Oslo\"}}";
    let writer = TestServer::start(move |_, _| chat(action));
    for (limit, end, n_texts) in [("3600", "step-limit", 10), ("0.000001", "deadline", 1)] {
        let n_before = writer.received().len();
        let eval = format!(
            "eval sky.toml --suite restbench --checkpoint base --max-samples 1 --output {end} \
             --endpoint {}/v1 --endpoint-model m --set eval.max_time={limit}",
            writer.url()
        );
        workplace.run(eval.split_whitespace()).success();
        let prediction = workplace.read(&format!("{end}/predictions.jsonl"));
        let prediction: Value = serde_json::from_str(prediction.trim()).unwrap();
        assert_eq!(prediction["outcome"]["end"], end, "{prediction}");
        assert_eq!(writer.received().len() - n_before, n_texts, "{prediction}");
    }
}
