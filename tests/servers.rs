//! Servers that reject requests, send invalid responses or stop responding, also with signals and
//! process limits. Finished results are kept, and every error names its cause.

use std::io::Read;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::suites::{config, saved_outcomes, workplace as sky};
use crate::support::server::{Response, TestServer, chat};
use crate::workplace::{CommandOutput, Workplace, tooltune};

/// A time limit longer than any successful wait here.
const PATIENCE: Duration = Duration::from_secs(60);

fn eval_arguments(server: &TestServer, output: &str) -> String {
    format!(
        "eval config.toml --checkpoint base --endpoint {}/v1 --endpoint-model m --concurrency 1 \
         --max-samples 3 --output {output}",
        server.url()
    )
}

fn spawn(workplace: &Workplace, arguments: &str) -> Child {
    let mut command = tooltune();
    command
        .current_dir(workplace.folder())
        .args(arguments.split_whitespace())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn wait_until(mut is_so: impl FnMut() -> bool, what: &str) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends one signal, and returns the exit code and the output. Without the signal, the command
/// would wait two minutes for the server.
fn send_signal(mut child: Child, signal: &str) -> (Option<i32>, String) {
    let sent = std::process::Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
    let mut status = None;
    wait_until(
        || {
            status = child.try_wait().unwrap();
            status.is_some()
        },
        "the signal ends nothing",
    );
    let mut stderr = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    (status.unwrap().code(), stderr)
}

/// Invariant: One signal ends any wait for a server, judge or executor and keeps the finished
/// completions.
#[test]
fn one_signal_ends_a_wait_for_a_server_and_keeps_completions() {
    let workplace = Workplace::new();
    for (signal, status) in [("-INT", 130), ("-TERM", 75)] {
        let is_server_up = Arc::new(AtomicBool::new(false));
        let server = {
            let is_server_up = is_server_up.clone();
            TestServer::start(move |_, number| match number {
                0 => chat("{}"),
                _ if is_server_up.load(Ordering::SeqCst) => chat("{}"),
                _ => Response::Hang,
            })
        };
        let command = eval_arguments(&server, signal.trim_start_matches('-'));
        let child = spawn(&workplace, &command);
        wait_until(|| server.received().len() == 2, "no second request");
        let (ended, stderr) = send_signal(child, signal);
        assert_eq!(ended, Some(status), "{stderr}");
        for part in [
            "1 requests to the server, silent for",
            "1 completions are saved in",
            "resumes from there",
        ] {
            assert!(stderr.contains(part), "{part}: {stderr}");
        }
        is_server_up.store(true, Ordering::SeqCst);
        workplace.run(command.split(' ')).success();
        assert_eq!(
            server.received().len(),
            4,
            "the first text is not requested again"
        );
    }
}

/// Invariant: One signal ends any wait for a server, judge or executor and keeps the finished
/// completions.
#[test]
fn one_signal_ends_a_wait_for_a_judge() {
    let workplace = sky();
    workplace.write("saved.jsonl", saved_outcomes());
    let server = TestServer::start(|_, _| Response::Hang);
    let judge = format!(
        "[goat.judge]\nbase_url = \"{}/v1\"\nmodel = \"j\"\n",
        server.url()
    );
    workplace.write("judged.toml", config(&judge));
    let command = "eval judged.toml --suite restbench --predictions saved.jsonl --output out";
    let child = spawn(&workplace, command);
    wait_until(|| !server.received().is_empty(), "no request");
    let (status, stderr) = send_signal(child, "-INT");
    assert_eq!(status, Some(130), "{stderr}");
    assert!(
        stderr.contains("requests to the judge, silent for"),
        "{stderr}"
    );
    assert!(workplace.path("out/predictions.jsonl").exists());
}

/// Invariant: One signal ends any wait for a server, judge or executor and keeps the finished
/// completions.
#[test]
fn one_signal_ends_a_wait_for_an_executor_whose_call_stays_open() {
    let workplace = sky();
    let action = "Action: {\"name\": \"GET /weather\", \"arguments\": {\"city\": \"Oslo\"}}";
    let writer = TestServer::start(move |_, _| chat(action));
    let called = TestServer::start(|_, _| Response::Hang);
    let executor = format!(
        "[goat.executor]\nkind = \"http\"\nspecification = \"sky.json\"\nbase_url = \"{}/v1\"\n\
         timeout_secs = 300\n",
        called.url()
    );
    workplace.write("sky.toml", config(&executor));
    let command = format!(
        "eval sky.toml --suite restbench --checkpoint base --max-samples 1 --output out \
         --endpoint {}/v1 --endpoint-model m",
        writer.url()
    );
    let child = spawn(&workplace, &command);
    wait_until(|| !called.received().is_empty(), "no call");
    let (status, stderr) = send_signal(child, "-INT");
    assert_eq!(status, Some(130), "{stderr}");
    assert!(stderr.contains("executor calls"), "{stderr}");
    // The journal has a header and the completion with the call.
    assert_eq!(workplace.read("out/texts.partial.jsonl").lines().count(), 2);
}

/// Invariant: A failed prompt costs one completion, and a failing server ends the evaluation.
#[test]
fn a_refused_prompt_loses_only_its_completion_also_after_a_resume() {
    let workplace = Workplace::new();
    let is_server_up = Arc::new(AtomicBool::new(false));
    let long = json!({"error": {"message": "This model's maximum context length is 10 tokens"}});
    let server = {
        let is_server_up = is_server_up.clone();
        TestServer::start(move |_, number| match number {
            0 => Response::json(400, &long),
            1 => chat("{}"),
            _ if is_server_up.load(Ordering::SeqCst) => Response::Reply(
                200,
                Vec::new(),
                b"{\"choices\": [{\"message\": {\"content\": \"\xff\"}}]}".to_vec(),
            ),
            _ => Response::json(401, &json!({"error": "no key"})),
        })
    };
    let command = eval_arguments(&server, "out");
    // A wrong key affects all rows.
    let failed = workplace.run(command.split(' '));
    assert_eq!(failed.status, Some(1), "{}", failed.stderr);
    assert!(failed.stderr.contains("answered 401"), "{}", failed.stderr);
    assert!(failed.stderr.contains("--api-key-env"), "{}", failed.stderr);
    assert_eq!(server.received().len(), 3);
    is_server_up.store(true, Ordering::SeqCst);
    let done = workplace.run(command.split(' '));
    assert_eq!(
        server.received().len(),
        4,
        "a rejected request is not sent again"
    );
    for part in [
        "2 of 3 prompts got no answer from the server and are scored as empty",
        "1 context, such as dev.jsonl:1: ",
        "1 not UTF-8, such as dev.jsonl:3: ",
        "answered 200 with invalid UTF-8 at byte",
    ] {
        assert!(done.stderr.contains(part), "{part}: {}", done.stderr);
    }
    done.success();
    let lines = workplace.read("out/predictions.jsonl");
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let reasons: Vec<&Value> = lines.iter().map(|line| &line["finish_reason"]).collect();
    assert_eq!(reasons, ["context", "stop", "error"]);
    assert!(
        lines[0]["error"]
            .as_str()
            .unwrap()
            .contains("maximum context length")
    );
    assert_eq!(
        (&lines[0]["prediction"], lines[1].get("error")),
        (&json!(""), None)
    );
    // Saved results are scored unchanged.
    let again =
        "eval config.toml --max-samples 3 --predictions out/predictions.jsonl --output again";
    workplace.run(again.split(' ')).success();
    let without_origin = |file: &str| {
        let mut metrics: Value = serde_json::from_str(&workplace.read(file)).unwrap();
        let origin = metrics.as_object_mut().unwrap().shift_remove("origin");
        (metrics, origin.expect("an origin"))
    };
    let (again, predictions_origin) = without_origin("again/metrics.json");
    let (out, server_origin) = without_origin("out/metrics.json");
    assert_eq!(again, out);
    assert_eq!(server_origin["endpoint"]["model"], "m");
    assert_eq!(
        predictions_origin["predictions"]["file"],
        "out/predictions.jsonl"
    );
}

/// Invariant: A failed prompt costs one completion, and a failing server ends the evaluation.
#[test]
fn a_server_that_refuses_every_prompt_stops_the_evaluation_without_results() {
    let workplace = Workplace::new();
    let many = "data synth slot --split dev --rows 24 --output many.jsonl";
    workplace.run(many.split(' ')).success();
    let server =
        TestServer::start(|_, _| Response::json(400, &json!({"error": "top_k is not a field"})));
    for (rows, expected) in [
        ("24", "several requests in a row"),
        ("3", "all 3 requests failed"),
    ] {
        let before = server.received().len();
        let command = format!(
            "eval config.toml --checkpoint base --endpoint {}/v1 --endpoint-model m --output o{rows} \
             --concurrency 2 --data many.jsonl --max-samples {rows}",
            server.url()
        );
        let failed = workplace.run(command.split(' '));
        assert_eq!(failed.status, Some(1), "{}", failed.stderr);
        for part in ["top_k is not a field", expected] {
            assert!(failed.stderr.contains(part), "{part}: {}", failed.stderr);
        }
        assert!(server.received().len() - before <= 10);
        let journal = workplace.read(&format!("o{rows}/texts.partial.jsonl"));
        assert_eq!(journal.lines().count(), 1, "{journal}");
    }
}

/// Invariant: The same command completes an evaluation that died at any point.
#[test]
fn an_evaluation_killed_after_writing_its_metrics_is_completed_by_the_same_command() {
    let workplace = Workplace::new();
    let is_server_up = Arc::new(AtomicBool::new(false));
    let server = {
        let is_server_up = is_server_up.clone();
        TestServer::start(move |_, number| match number {
            2 if !is_server_up.load(Ordering::SeqCst) => Response::json(401, &json!({})),
            _ => chat("{}"),
        })
    };
    let command = eval_arguments(&server, "out");
    assert_eq!(workplace.run(command.split(' ')).status, Some(1));
    let journal = workplace.read("out/texts.partial.jsonl");
    is_server_up.store(true, Ordering::SeqCst);
    workplace.run(command.split(' ')).success();
    let files = ["metrics.json", "predictions.jsonl"];
    let expected = files.map(|file| workplace.read(&format!("out/{file}")));
    let partial = workplace.path("out/texts.partial.jsonl");
    assert!(!partial.exists());
    // The files after a kill that followed the last file, and after a kill between the last two.
    for removed in [None, Some("out/metrics.json")] {
        if let Some(removed) = removed {
            std::fs::remove_file(workplace.path(removed)).unwrap();
        }
        std::fs::write(&partial, &journal).unwrap();
        workplace.run(command.split(' ')).success();
        assert_eq!(
            files.map(|file| workplace.read(&format!("out/{file}"))),
            expected
        );
        assert!(!partial.exists());
    }
    let refused = workplace.run(command.split(' '));
    assert_eq!(refused.status, Some(2));
    assert!(
        refused.stderr.contains("already contains an evaluation"),
        "{}",
        refused.stderr
    );
    // A local evaluation resumes in the same way, because it writes its settings first.
    let saved =
        "eval config.toml --max-samples 3 --predictions out/predictions.jsonl --output saved";
    workplace.run(saved.split(' ')).success();
    assert!(!workplace.path("saved/texts.partial.jsonl").exists());
}

/// Invariant: Messages contain no secret from an address or a key.
#[test]
fn secrets_in_a_url_appear_in_no_message() {
    let workplace = Workplace::new();
    for address in [
        "http://127.0.0.1:9/v1?api-key=hunter2",
        "http://me:hunter2@127.0.0.1:9/v1",
        "127.0.0.1:9/v1?api-key=hunter2",
        "http://127.0.0.1:9/v1#hunter2",
    ] {
        let command = [
            "eval",
            "config.toml",
            "--endpoint-model",
            "m",
            "--endpoint",
            address,
        ];
        let refused = workplace.run(command);
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains("***"), "{}", refused.stderr);
        assert!(refused.stderr.contains("--endpoint "), "{}", refused.stderr);
        assert!(!refused.stderr.contains("hunter2"), "{}", refused.stderr);
        let judge = format!("[goat.judge]\nbase_url = \"{address}\"\nmodel = \"m\"\n");
        let path = "judge.toml";
        workplace.write(path, config(&judge));
        let refused = workplace.run(["eval", path, "--suite", "goat"]);
        assert!(!refused.stderr.contains("hunter2"), "{}", refused.stderr);
    }
}

#[cfg(target_os = "linux")]
/// Invariant: An error that a process limit causes names the limit.
#[test]
fn process_limits_that_end_a_command_are_named() {
    let workplace = Workplace::new();
    let run_within = |limit: &str, arguments: &str| {
        let program = tooltune();
        let settings = program
            .get_envs()
            .filter_map(|(key, value)| Some((key, value?)));
        let mut shell = std::process::Command::new("sh");
        shell
            .args(["-c", &format!("ulimit {limit}; exec \"$0\" \"$@\"")])
            .arg(program.get_program())
            .args(arguments.split(' '))
            .envs(settings)
            .env("RUST_BACKTRACE", "0")
            .current_dir(workplace.folder());
        CommandOutput::from_command(&mut shell)
    };
    for (limit, status, parts) in [
        (
            "-f 4",
            1,
            ["cannot write run/", "(ulimit -f); raise that limit"],
        ),
        (
            "-n 6",
            1,
            ["Too many open files", "at most 6 files at once (ulimit -n)"],
        ),
        (
            "-v 500000",
            4,
            [
                "out of memory: cannot allocate",
                "512000000 bytes (ulimit -v)",
            ],
        ),
    ] {
        let ended = run_within(limit, "train config.toml");
        assert_eq!(ended.status, Some(status), "{limit}: {}", ended.stderr);
        for part in parts {
            assert!(
                ended.stderr.contains(part),
                "{limit}: {part}: {}",
                ended.stderr
            );
        }
    }
    // Commands have their own stack.
    let ended = run_within("-s 128", "plan config.toml");
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
}
