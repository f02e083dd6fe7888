//! Servers that refuse, lie and fall silent, and signals and limits of the process meanwhile: what
//! was paid for is kept, and every end says what it was.

use std::io::Read;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::suites::{config, saved_outcomes, workplace as sky};
use crate::support::server::{Response, TestServer, chat};
use crate::workplace::{Answer, Workplace, tooltune};

/// Longer than anything here takes that is not waited for in vain.
const PATIENCE: Duration = Duration::from_secs(60);

fn eval(server: &TestServer, output: &str) -> String {
    format!(
        "eval config.toml --checkpoint base --endpoint {}/v1 --endpoint-model m --concurrency 1 \
         --max-samples 3 --output {output}",
        server.url()
    )
}

fn start(workplace: &Workplace, arguments: &str) -> Child {
    let mut command = tooltune();
    command
        .current_dir(workplace.folder())
        .args(arguments.split_whitespace())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn until(mut is_so: impl FnMut() -> bool, what: &str) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends one signal; the status and what was said. A server that is waited for would be silent for
/// two minutes.
fn signalled(mut child: Child, signal: &str) -> (Option<i32>, String) {
    let sent = std::process::Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
    let mut status = None;
    until(
        || {
            status = child.try_wait().unwrap();
            status.is_some()
        },
        "the signal ends nothing",
    );
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    (status.unwrap().code(), said)
}

#[test]
fn one_signal_ends_what_waits_for_a_silent_server_and_keeps_its_texts() {
    let workplace = Workplace::new();
    for (signal, status) in [("-INT", 130), ("-TERM", 75)] {
        let is_well = Arc::new(AtomicBool::new(false));
        let server = {
            let is_well = is_well.clone();
            TestServer::start(move |_, number| match number {
                0 => chat("{}"),
                _ if is_well.load(Ordering::SeqCst) => chat("{}"),
                _ => Response::Hang,
            })
        };
        let command = eval(&server, signal.trim_start_matches('-'));
        let child = start(&workplace, &command);
        until(|| server.received().len() == 2, "no second request");
        let (ended, said) = signalled(child, signal);
        assert_eq!(ended, Some(status), "{said}");
        for part in [
            "1 requests to the server, silent for",
            "1 texts are in",
            "resumes from there",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        is_well.store(true, Ordering::SeqCst);
        workplace.run(command.split(' ')).success();
        assert_eq!(
            server.received().len(),
            4,
            "the first text is not asked for again"
        );
    }
}

#[test]
fn one_signal_ends_what_waits_for_a_judge() {
    let workplace = sky();
    workplace.write("saved.jsonl", saved_outcomes());
    let server = TestServer::start(|_, _| Response::Hang);
    let judge = format!(
        "[goat.judge]\nbase_url = \"{}/v1\"\nmodel = \"j\"\n",
        server.url()
    );
    workplace.write("judged.toml", config(&judge));
    let command = "eval judged.toml --suite restbench --predictions saved.jsonl --output out";
    let child = start(&workplace, command);
    until(|| !server.received().is_empty(), "no request");
    let (status, said) = signalled(child, "-INT");
    assert_eq!(status, Some(130), "{said}");
    assert!(said.contains("requests to the judge, silent for"), "{said}");
    assert!(workplace.path("out/predictions.jsonl").exists());
}

#[test]
fn one_signal_ends_what_waits_for_an_executor_and_its_call_is_not_taken_for_answered() {
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
    let child = start(&workplace, &command);
    until(|| !called.received().is_empty(), "no call");
    let (status, said) = signalled(child, "-INT");
    assert_eq!(status, Some(130), "{said}");
    assert!(said.contains("calls of the executor"), "{said}");
    // The head and the text that asks for the call.
    assert_eq!(workplace.read("out/texts.partial.jsonl").lines().count(), 2);
}

#[test]
fn a_refused_prompt_costs_its_own_text_and_stays_refused_over_a_resume() {
    let workplace = Workplace::new();
    let is_well = Arc::new(AtomicBool::new(false));
    let long = json!({"error": {"message": "This model's maximum context length is 10 tokens"}});
    let server = {
        let is_well = is_well.clone();
        TestServer::start(move |_, number| match number {
            0 => Response::json(400, &long),
            1 => chat("{}"),
            _ if is_well.load(Ordering::SeqCst) => Response::Reply(
                200,
                Vec::new(),
                b"{\"choices\": [{\"message\": {\"content\": \"\xff\"}}]}".to_vec(),
            ),
            _ => Response::json(401, &json!({"error": "no key"})),
        })
    };
    let command = eval(&server, "out");
    // A key that is wrong concerns all rows.
    let failed = workplace.run(command.split(' '));
    assert_eq!(failed.status, Some(1), "{}", failed.stderr);
    assert!(failed.stderr.contains("answered 401"), "{}", failed.stderr);
    assert!(failed.stderr.contains("--api-key-env"), "{}", failed.stderr);
    assert_eq!(server.received().len(), 3);
    is_well.store(true, Ordering::SeqCst);
    let done = workplace.run(command.split(' '));
    assert_eq!(server.received().len(), 4, "what was refused is final");
    for part in [
        "2 of 3 prompts have no answer of the server and count as empty",
        "1 context, such as dev.jsonl:1: ",
        "1 not UTF-8, such as dev.jsonl:3: ",
        "answered 200 with what is not UTF-8 from byte",
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
    // What is saved is scored as it was.
    let again =
        "eval config.toml --max-samples 3 --predictions out/predictions.jsonl --output again";
    workplace.run(again.split(' ')).success();
    assert_eq!(
        workplace.read("again/metrics.json"),
        workplace.read("out/metrics.json")
    );
}

#[test]
fn a_server_that_refuses_every_prompt_is_not_asked_for_all_and_nothing_is_final() {
    let workplace = Workplace::new();
    let many = "data synth slot --split dev --rows 24 --output many.jsonl";
    workplace.run(many.split(' ')).success();
    let server =
        TestServer::start(|_, _| Response::json(400, &json!({"error": "top_k is no field"})));
    for (rows, said) in [
        ("24", "several requests in a row"),
        ("3", "none of the 3 requests"),
    ] {
        let before = server.received().len();
        let command = format!(
            "eval config.toml --checkpoint base --endpoint {}/v1 --endpoint-model m --output o{rows} \
             --concurrency 2 --data many.jsonl --max-samples {rows}",
            server.url()
        );
        let failed = workplace.run(command.split(' '));
        assert_eq!(failed.status, Some(1), "{}", failed.stderr);
        for part in ["top_k is no field", said] {
            assert!(failed.stderr.contains(part), "{part}: {}", failed.stderr);
        }
        assert!(server.received().len() - before <= 10);
        let journal = workplace.read(&format!("o{rows}/texts.partial.jsonl"));
        assert_eq!(journal.lines().count(), 1, "{journal}");
    }
}

#[test]
fn an_evaluation_that_died_after_its_numbers_were_written_is_finished_by_the_same_command() {
    let workplace = Workplace::new();
    let is_well = Arc::new(AtomicBool::new(false));
    let server = {
        let is_well = is_well.clone();
        TestServer::start(move |_, number| match number {
            2 if !is_well.load(Ordering::SeqCst) => Response::json(401, &json!({})),
            _ => chat("{}"),
        })
    };
    let command = eval(&server, "out");
    assert_eq!(workplace.run(command.split(' ')).status, Some(1));
    let journal = workplace.read("out/texts.partial.jsonl");
    is_well.store(true, Ordering::SeqCst);
    workplace.run(command.split(' ')).success();
    let files = ["metrics.json", "predictions.jsonl"];
    let whole = files.map(|file| workplace.read(&format!("out/{file}")));
    let partial = workplace.path("out/texts.partial.jsonl");
    assert!(!partial.exists());
    // As a kill leaves it behind the last file, and one between the two.
    for gone in [None, Some("out/metrics.json")] {
        if let Some(gone) = gone {
            std::fs::remove_file(workplace.path(gone)).unwrap();
        }
        std::fs::write(&partial, &journal).unwrap();
        workplace.run(command.split(' ')).success();
        assert_eq!(
            files.map(|file| workplace.read(&format!("out/{file}"))),
            whole
        );
        assert!(!partial.exists());
    }
    let refused = workplace.run(command.split(' '));
    assert_eq!(refused.status, Some(2));
    assert!(
        refused.stderr.contains("holds an evaluation"),
        "{}",
        refused.stderr
    );
    // Without a server it is the same: the file that says so is there from the beginning.
    let saved =
        "eval config.toml --max-samples 3 --predictions out/predictions.jsonl --output saved";
    workplace.run(saved.split(' ')).success();
    assert!(!workplace.path("saved/texts.partial.jsonl").exists());
}

#[test]
fn secrets_of_an_address_are_in_no_message() {
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
#[test]
fn limits_of_the_process_are_named_where_they_end_a_command() {
    let workplace = Workplace::new();
    let within = |limit: &str, arguments: &str| {
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
        Answer::of(&mut shell)
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
            ["Too many open files", "at most 6 open files (ulimit -n)"],
        ),
        (
            "-v 500000",
            4,
            ["of memory were refused", "512000000 bytes (ulimit -v)"],
        ),
    ] {
        let ended = within(limit, "train config.toml");
        assert_eq!(ended.status, Some(status), "{limit}: {}", ended.stderr);
        for part in parts {
            assert!(
                ended.stderr.contains(part),
                "{limit}: {part}: {}",
                ended.stderr
            );
        }
    }
    // Commands have a stack of their own.
    let ended = within("-s 128", "plan config.toml");
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
}
