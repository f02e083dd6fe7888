//! Results of executors, recorded and replayed.

use serde_json::json;

use crate::suites::{TRAINED_CHECKPOINT, config, metrics, run_with, train_to_call, workplace};
use crate::support::server::{Response, TestServer};
use crate::workplace::parse_lines;

/// Invariant: A recording replays the original answers after any interruption and contains no
/// secret.
#[test]
fn a_recording_of_a_server_gives_the_same_evaluation_without_it() {
    let workplace = workplace();
    train_to_call(&workplace);
    let server = TestServer::start(|request, number| match number {
        0 => Response::json(503, &json!({"message": "busy"})),
        _ => Response::json(
            200,
            &json!({"degrees": -3, "key": request.headers["x-key"]}),
        ),
    });
    let executor = format!(
        "[goat.executor]\nkind = \"http\"\nspecification = \"sky.json\"\nbase_url = \"{}/v1\"\n\
         headers = {{ X-Key = \"SKY_KEY\" }}\nrecord = \"kept/replay.jsonl\"\n",
        server.url()
    );
    workplace.write("sky.toml", config(&executor));
    let eval = |config: &'static str, output: &'static str| {
        let eval = ["eval", config, "--suite", "restbench", "--output", output];
        let eval: Vec<&str> = eval.into_iter().chain(TRAINED_CHECKPOINT).collect();
        run_with(&workplace, &[("SKY_KEY", "s3cret-0123")], &eval).success()
    };
    eval("sky.toml", "busy");
    // The reply of a busy server is not recorded, and a repeated call is recorded once.
    let recorded = workplace.read("kept/replay.jsonl");
    let call = json!({"api_name": "GET /weather", "input": {"city": "Oslo"},
        "output": {"degrees": -3, "key": "***"}, "exception": null});
    assert_eq!(parse_lines(&recorded), [call]);
    eval("sky.toml", "served");
    assert_eq!(workplace.read("kept/replay.jsonl"), recorded);
    drop(server);
    let replay = "[goat.executor]\nkind = \"replay\"\nrecorded = \"kept/replay.jsonl\"\n";
    workplace.write("replay.toml", config(replay));
    eval("replay.toml", "replayed");
    assert_eq!(
        metrics(&workplace, "replayed")["restbench"],
        metrics(&workplace, "served")["restbench"]
    );
    let outcomes = |folder: &str| {
        let rows = parse_lines(&workplace.read(&format!("{folder}/predictions.jsonl")));
        rows.iter()
            .map(|row| (row["outcome"]["calls"].clone(), row["score"].clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(outcomes("replayed"), outcomes("served"));

    // A file that is not a recording is refused before a model is loaded.
    let text = config(replay).replace(
        "kept/replay.jsonl\"\n",
        "kept/replay.jsonl\"\nrecord = \"queries.json\"\n",
    );
    workplace.write("none.toml", text);
    let refused = workplace.run([
        "eval",
        "none.toml",
        "--suite",
        "restbench",
        "--output",
        "none",
    ]);
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    assert!(
        refused
            .stderr
            .contains("goat.executor.record: queries.json"),
        "{}",
        refused.stderr
    );
}
