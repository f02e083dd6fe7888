//! The data pipelines of the program, asked of a server that writes by rule and of a model here:
//! killed, stopped, refused and resumed.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::server::{Received, Response, TestServer, chat};
use crate::workplace::{Answer, Workplace, tooltune};

/// Longer than anything here takes that is not waited for in vain.
const PATIENCE: Duration = Duration::from_secs(60);

/// The prompt of a request.
fn prompt(body: &str) -> String {
    // A process that is killed leaves half a request.
    let request: Value = serde_json::from_str(body).unwrap_or_default();
    let content = request["messages"][0]["content"].as_str();
    content.unwrap_or_default().to_owned()
}

/// A number that follows from a text.
fn number(text: &str) -> u64 {
    text.bytes()
        .fold(7, |n, byte| (n * 31 + u64::from(byte)) % 100_003)
}

/// What a model says that writes by rule, right for four pairs of five.
fn said(prompt: &str) -> String {
    if prompt.starts_with("Judge") {
        let is_supported = !prompt.contains("9 seats");
        return json!({"unsupported": [], "supported": is_supported}).to_string();
    }
    let schema = json!({
        "type": "object",
        "properties": {"seats": {"type": "integer"}},
        "required": ["seats"],
    });
    if prompt.starts_with("You annotate") {
        return json!({"json_schema": schema, "gold": {"seats": number(prompt)}}).to_string();
    }
    let pair = |n: u64| {
        let seats = number(prompt) + n;
        let gold = match seats % 5 {
            0 => json!({"seats": "many"}),
            _ => json!({"seats": seats}),
        };
        json!({"input_text": format!("It has {seats} seats."), "json_schema": schema, "gold": gold})
    };
    json!({"planning": "by rule", "pairs": [pair(0), pair(1), pair(2)]}).to_string()
}

fn command(server: &TestServer, output: &str, rest: &str) -> Vec<String> {
    let line = format!(
        "data slot --output {output} --rows 30 --endpoint {}/v1 --endpoint-model m --concurrency 4 {rest}",
        server.url()
    );
    line.split_whitespace().map(str::to_owned).collect()
}

/// Runs the program in a folder.
fn run(dir: &TempDir, arguments: &[String]) -> Answer {
    Answer::of(tooltune().current_dir(dir.path()).args(arguments))
}

/// The files of a pipeline but for its journal, which has its lines in the order of the replies.
fn files(dir: &TempDir, output: &str) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(dir.path().join(output)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| !path.ends_with("journal.jsonl"))
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (
                name,
                std::fs::read_to_string(&path)
                    .unwrap()
                    .replace(output, "OUT"),
            )
        })
        .collect()
}

#[test]
fn pairs_become_rows_that_training_reads_and_the_same_command_sends_nothing_again() {
    let dir = TempDir::new().unwrap();
    let server = TestServer::start(|request, _| chat(&said(&prompt(&request.body))));
    let plan = run(
        &dir,
        &command(
            &server,
            "out",
            "--dry-run --input-price 3 --output-price 15",
        ),
    )
    .success();
    for part in [
        "| generate |",
        "at most 30",
        "which cost at most",
        "Nothing was sent",
    ] {
        assert!(plan.contains(part), "{part}: {plan}");
    }
    assert!(server.received().is_empty() && !dir.path().join("out").exists());

    let done = run(&dir, &command(&server, "out", "--output-price 15")).success();
    for part in [
        "dropped 7: the gold does not fit the schema",
        "judge dropped",
        "the text does not support the gold",
        "the replies have cost",
        "schema_complexity",
        "out/rows.jsonl; their complexity in out/complexity.html",
    ] {
        assert!(done.contains(part), "{part}: {done}");
    }
    let stats = run(
        &dir,
        &["data", "stats", "out/rows.jsonl"].map(str::to_owned),
    )
    .success();
    let report: Value = serde_json::from_str(&files(&dir, "out")["report.json"]).unwrap();
    let n_kept = &report["stages"][2]["n_kept"];
    assert!(stats.contains(&format!("{n_kept} rows in")), "{stats}");
    let page = &files(&dir, "out")["complexity.html"];
    assert_eq!(page.matches("<svg").count(), 7);

    let n_requests = server.received().len();
    let again = run(&dir, &command(&server, "out", "--compare out/rows.jsonl")).success();
    assert_eq!(server.received().len(), n_requests);
    assert!(again.contains("| out/rows.jsonl |"), "{again}");
    let other = run(&dir, &command(&server, "out", "--seed 18"));
    assert_eq!(other.status, Some(2));
    assert!(
        other.stderr.contains("seed was 17 and is 18"),
        "{}",
        other.stderr
    );
}

#[test]
fn a_pipeline_that_is_killed_at_any_moment_ends_as_one_that_was_not_and_pays_once() {
    let dir = TempDir::new().unwrap();
    let well = TestServer::start(|request, _| chat(&said(&prompt(&request.body))));
    run(&dir, &command(&well, "whole", "")).success();
    let n_once = well.received().len();
    // Killed when so many requests have come, then when so many more have.
    for moments in [[1, 6, 12], [4, 10, 26], [9, 17, 30]] {
        let output = format!("killed-{}", moments[0]);
        let server = TestServer::start(|request, _| {
            std::thread::sleep(Duration::from_millis(5));
            chat(&said(&prompt(&request.body)))
        });
        for n_requests in moments {
            let mut child = tooltune()
                .current_dir(dir.path())
                .args(command(&server, &output, ""))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let begun = Instant::now();
            while server.received().len() < n_requests && child.try_wait().unwrap().is_none() {
                assert!(begun.elapsed() < PATIENCE);
                std::thread::sleep(Duration::from_millis(1));
            }
            child.kill().unwrap();
            child.wait().unwrap();
        }
        run(&dir, &command(&server, &output, "")).success();
        assert_eq!(files(&dir, &output), files(&dir, "whole"));
        // At each kill at most the requests that were under way are lost, four and no more.
        let n_sent = server.received().len();
        assert!(
            (n_once..=n_once + 4 * moments.len()).contains(&n_sent),
            "{n_sent}"
        );
        let mut times: BTreeMap<String, usize> = BTreeMap::new();
        let whole = |request: &Received| !prompt(&request.body).is_empty();
        for request in server.received().into_iter().filter(whole) {
            *times.entry(request.body).or_default() += 1;
        }
        assert_eq!(times.len(), n_once);
    }
}

#[test]
fn a_signal_ends_a_pipeline_in_order_and_says_what_is_kept() {
    let dir = TempDir::new().unwrap();
    for (signal, status) in [("-INT", 130), ("-TERM", 75)] {
        let server = TestServer::start(|request, number| match number {
            0..=2 => chat(&said(&prompt(&request.body))),
            _ => Response::Hang,
        });
        let mut child = tooltune();
        child
            .current_dir(dir.path())
            .args(command(&server, signal.trim_start_matches('-'), ""))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let child = child.spawn().unwrap();
        let begun = Instant::now();
        while server.received().len() < 7 {
            assert!(begun.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(5));
        }
        let sent = std::process::Command::new("kill")
            .args([signal, &child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(
            said.contains("3 replies are kept, and the same command continues"),
            "{said}"
        );
    }
}

#[test]
fn a_failing_server_loses_no_pair_and_a_budget_and_a_stage_end_where_they_say() {
    let dir = TempDir::new().unwrap();
    let well = TestServer::start(|request, _| chat(&said(&prompt(&request.body))));
    run(&dir, &command(&well, "whole", "")).success();
    let seen: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let n_faults = Arc::new(AtomicUsize::new(0));
    let server = {
        let n_faults = n_faults.clone();
        TestServer::start(move |request, _| {
            let n_before = {
                let mut seen = seen.lock().unwrap();
                let n = seen.entry(request.body.clone()).or_default();
                *n += 1;
                *n - 1
            };
            if n_before > 0 {
                return chat(&said(&prompt(&request.body)));
            }
            match n_faults.fetch_add(1, Ordering::SeqCst) % 6 {
                0 => Response::json(429, &json!({"error": "slow down"})),
                1 => Response::json(500, &json!({"error": "oops"})),
                2 => Response::html(502, "<html>bad gateway</html>"),
                3 => Response::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"cho".to_vec()),
                4 => Response::Hang,
                _ => chat(&said(&prompt(&request.body))),
            }
        })
    };
    let rest = "--timeout 1.5 --max-requests 7";
    let stopped = run(&dir, &command(&server, "faults", rest));
    assert_eq!(stopped.status, Some(1), "{}", stopped.stderr);
    for part in [
        "7 of 7 requests",
        "3 requests are left",
        "a larger --max-requests",
    ] {
        assert!(stopped.stderr.contains(part), "{part}: {}", stopped.stderr);
    }
    let alone = run(
        &dir,
        &command(&server, "faults", "--timeout 1.5 --stage generate"),
    )
    .success();
    assert!(!alone.contains("| check"), "{alone}");
    let early = run(&dir, &command(&server, "faults", "--stage judge"));
    assert_eq!(early.status, Some(2));
    assert!(
        early.stderr.contains("the stage check comes first"),
        "{}",
        early.stderr
    );
    run(&dir, &command(&server, "faults", "--timeout 1.5")).success();
    assert_eq!(files(&dir, "faults"), files(&dir, "whole"));
    assert!(n_faults.load(Ordering::SeqCst) > 12);

    let refused = TestServer::start(|_, _| Response::json(401, &json!({"error": "no key"})));
    let failed = run(&dir, &command(&refused, "refused", ""));
    assert_eq!(failed.status, Some(1));
    for part in ["answered 401", "--api-key-env", "0 replies are kept"] {
        assert!(failed.stderr.contains(part), "{part}: {}", failed.stderr);
    }
}

#[test]
fn texts_are_annotated_with_prompts_of_the_users() {
    let dir = TempDir::new().unwrap();
    let server = TestServer::start(|request, _| chat(&said(&prompt(&request.body))));
    let texts = "{\"text\": \"A hall for many.\"}\n\"A boat for six.\"\n";
    std::fs::write(dir.path().join("texts.jsonl"), texts).unwrap();
    std::fs::create_dir(dir.path().join("own")).unwrap();
    std::fs::write(
        dir.path().join("own/judge.jinja"),
        "Judge {{ gold }} by {{ input_text }}",
    )
    .unwrap();
    let line = format!(
        "data slot --output out --texts texts.jsonl --prompts own --endpoint {}/v1 --endpoint-model m",
        server.url()
    );
    let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let done = run(&dir, &arguments).success();
    assert!(done.contains("2 rows in out/rows.jsonl"), "{done}");
    let judged = server
        .received()
        .iter()
        .filter(|request| prompt(&request.body).starts_with("Judge {\"seats\": "))
        .count();
    assert_eq!(judged, 2);
    std::fs::write(
        dir.path().join("own/judge.jinja"),
        "Judge {{ gold }} in {{ input_text }}",
    )
    .unwrap();
    let other = run(&dir, &arguments);
    assert_eq!(other.status, Some(2));
    assert!(
        other.stderr.contains("prompts/judge.jinja was"),
        "{}",
        other.stderr
    );
}

#[test]
fn a_model_here_writes_under_its_grammar_and_is_not_asked_twice() {
    let workplace = Workplace::new();
    let command = "data slot --output out --rows 4 --model config.toml --checkpoint base \
                   --reply-tokens 24 --set eval.batch_size=2";
    let plan = workplace
        .run(format!("{command} --dry-run").split_whitespace())
        .success();
    assert!(
        plan.contains("at most 2 requests are left")
            || plan.contains("at most 6 requests are left"),
        "{plan}"
    );
    let done = workplace.run(command.split_whitespace()).success();
    // Its weights are random: what it writes begins as the schema says and is cut.
    assert!(
        done.contains("generate dropped 4: the reply cannot be read"),
        "{done}"
    );
    let journal = workplace.read("out/journal.jsonl");
    let replies: Vec<Value> = journal
        .lines()
        .skip(1)
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(replies.len(), 4, "two batches, each asked twice");
    for reply in &replies {
        assert_eq!(reply["reply"]["finish_reason"], "length");
        let text = reply["reply"]["text"].as_str().unwrap();
        assert!(text.starts_with("{\"planning\""), "{text}");
    }
    workplace.run(command.split_whitespace()).success();
    assert_eq!(workplace.read("out/journal.jsonl"), journal);
    // Draws follow the requests, not what was written before.
    let first: String = journal.split_inclusive('\n').take(2).collect();
    std::fs::create_dir(workplace.path("again")).unwrap();
    workplace.write("again/journal.jsonl", first);
    workplace
        .run(
            command
                .replace("--output out", "--output again")
                .split_whitespace(),
        )
        .success();
    let sorted = |text: String| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(
        sorted(workplace.read("again/journal.jsonl")),
        sorted(journal)
    );
}
