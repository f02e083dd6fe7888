//! Data pipelines with a rule-based server and with a local model: they are interrupted, refused
//! and resumed.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::server::{Received, Response, TestServer, chat};
use crate::workplace::{CommandOutput, Workplace, assert_contains, tooltune};

/// A time limit longer than any successful wait here.
const PATIENCE: Duration = Duration::from_secs(60);

/// The prompt of a request.
pub(crate) fn prompt(body: &str) -> String {
    // A killed process leaves half a request.
    let request: Value = serde_json::from_str(body).unwrap_or_default();
    let content = request["messages"][0]["content"].as_str();
    content.unwrap_or_default().to_owned()
}

/// A hash of a text.
fn hash_of(text: &str) -> u64 {
    text.bytes()
        .fold(7, |n, byte| (n * 31 + u64::from(byte)) % 100_003)
}

/// The reply of a rule-based model, which is right for four pairs out of five.
pub(crate) fn rule_based_reply(prompt: &str) -> String {
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
        return json!({"json_schema": schema, "gold": {"seats": hash_of(prompt)}}).to_string();
    }
    let pair = |n: u64| {
        let seats = hash_of(prompt) + n;
        let gold = match seats % 5 {
            0 => json!({"seats": "many"}),
            _ => json!({"seats": seats}),
        };
        json!({"input_text": format!("It has {seats} seats."), "json_schema": schema, "gold": gold})
    };
    json!({"planning": "by rule", "pairs": [pair(0), pair(1), pair(2)]}).to_string()
}

pub(crate) fn command(server: &TestServer, output: &str, options: &str) -> Vec<String> {
    let line = format!(
        "data slot --output {output} --rows 30 --endpoint {}/v1 --endpoint-model m --concurrency 4 {options}",
        server.url()
    );
    line.split_whitespace().map(str::to_owned).collect()
}

/// Runs the program in a folder.
pub(crate) fn run(dir: &TempDir, arguments: &[String]) -> CommandOutput {
    CommandOutput::from_command(tooltune().current_dir(dir.path()).args(arguments))
}

/// A dry run into `out` prints `expected`, sends no request and writes no file.
pub(crate) fn check_dry_run(
    dir: &TempDir,
    server: &TestServer,
    arguments: &[String],
    expected: &[&str],
) {
    let plan = run(dir, arguments).success();
    assert_contains(&plan, expected.iter().copied().chain(["Nothing was sent"]));
    assert!(server.received().is_empty() && !dir.path().join("out").exists());
}

/// The files of a pipeline, except for the journal, whose order depends on the replies. The name of
/// the folder, which pages contain, is replaced by "OUT".
pub(crate) fn files(dir: &TempDir, output: &str) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(dir.path().join(output)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| !path.ends_with("journal.jsonl"))
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&path).unwrap();
            let patterns =
                ["of {}", "{}/", "{}&#x2f;"].map(|pattern| pattern.replace("{}", output));
            let patterns = patterns.iter();
            (
                name,
                patterns.fold(text, |text, pattern| text.replace(pattern, "OUT")),
            )
        })
        .collect()
}

#[test]
fn the_pipeline_writes_training_rows_and_a_repeated_command_sends_nothing() {
    let dir = TempDir::new().unwrap();
    let server = TestServer::start(|request, _| chat(&rule_based_reply(&prompt(&request.body))));
    let dry_run = command(
        &server,
        "out",
        "--dry-run --input-price 3 --output-price 15",
    );
    let expected = ["| generate |", "at most 30", "and cost at most"];
    check_dry_run(&dir, &server, &dry_run, &expected);

    let done = run(&dir, &command(&server, "out", "--output-price 15")).success();
    let expected = [
        "dropped 7: the gold does not fit the schema",
        "judge dropped",
        "the text does not support the gold",
        "cost of the replies:",
        "schema_complexity",
        "out/rows.jsonl; their complexity in out/complexity.html",
    ];
    assert_contains(&done, expected);
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
        other.stderr.contains("seed was 17, now 18"),
        "{}",
        other.stderr
    );
}

#[test]
fn a_signal_ends_a_pipeline_and_reports_the_kept_replies() {
    let dir = TempDir::new().unwrap();
    for (signal, status) in [("-INT", 130), ("-TERM", 75)] {
        let server = TestServer::start(|request, hash_of| match hash_of {
            0..=2 => chat(&rule_based_reply(&prompt(&request.body))),
            _ => Response::Hang,
        });
        let mut child = tooltune();
        child
            .current_dir(dir.path())
            .args(command(&server, signal.trim_start_matches('-'), ""))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let child = child.spawn().unwrap();
        let started = Instant::now();
        while server.received().len() < 7 {
            assert!(started.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(5));
        }
        let sent = std::process::Command::new("kill")
            .args([signal, &child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{stderr}");
        assert!(
            stderr.contains("3 replies are kept; run the same command to continue"),
            "{stderr}"
        );
    }
}

#[test]
fn a_failing_server_loses_no_pair_and_limits_end_the_run() {
    let dir = TempDir::new().unwrap();
    let faultless_server =
        TestServer::start(|request, _| chat(&rule_based_reply(&prompt(&request.body))));
    run(&dir, &command(&faultless_server, "whole", "")).success();
    let request_counts: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let n_faults = Arc::new(AtomicUsize::new(0));
    let server = {
        let n_faults = n_faults.clone();
        TestServer::start(move |request, _| {
            let n_before = {
                let mut request_counts = request_counts.lock().unwrap();
                let n = request_counts.entry(request.body.clone()).or_default();
                *n += 1;
                *n - 1
            };
            if n_before > 0 {
                return chat(&rule_based_reply(&prompt(&request.body)));
            }
            match n_faults.fetch_add(1, Ordering::SeqCst) % 6 {
                0 => Response::json(429, &json!({"error": "slow down"})),
                1 => Response::json(500, &json!({"error": "oops"})),
                2 => Response::html(502, "<html>bad gateway</html>"),
                3 => Response::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"cho".to_vec()),
                4 => Response::Hang,
                _ => chat(&rule_based_reply(&prompt(&request.body))),
            }
        })
    };
    let options = "--timeout 1.5 --max-requests 7";
    let stopped = run(&dir, &command(&server, "faults", options));
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
        early.stderr.contains("the earlier stage check is not done"),
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
fn invalid_arguments_are_refused_before_any_request_or_file() {
    let dir = TempDir::new().unwrap();
    let server = TestServer::start(|request, _| chat(&rule_based_reply(&prompt(&request.body))));
    std::fs::write(dir.path().join("blank.jsonl"), "\n \n").unwrap();
    std::fs::write(dir.path().join("none.json"), "[]").unwrap();
    for (options, expected) in [
        ("--rows 0", "--rows 0: set it to at least 1"),
        ("--rows 18446744073709551615", "set it to at most 1000000"),
        ("--reply-tokens 0", "--reply-tokens 0"),
        ("--verdict-tokens 18446744073709551615", "--verdict-tokens"),
        ("--texts blank.jsonl", "blank.jsonl: the file has no texts"),
        ("--texts none.json", "none.json: the file has no texts"),
        (
            "--demonstrations blank.jsonl",
            "blank.jsonl: the file has no rows",
        ),
    ] {
        let arguments = command(&server, "out", options).join(" ");
        let arguments = match options.starts_with("--demo") || options.ends_with("tokens 0") {
            true => arguments,
            false => arguments.replace(" --rows 30", ""),
        };
        let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
        let refused = run(&dir, &arguments);
        assert!(
            matches!(refused.status, Some(2 | 3)),
            "{options}: {}",
            refused.stderr
        );
        assert_contains(&refused.stderr, [expected]);
        assert!(!dir.path().join("out").exists(), "{options}");
    }
    assert!(server.received().is_empty());
}

#[test]
fn damaged_pipeline_files_are_named_with_a_remedy() {
    let dir = TempDir::new().unwrap();
    let server = TestServer::start(|request, _| chat(&rule_based_reply(&prompt(&request.body))));
    let arguments = command(&server, "out", "");
    run(&dir, &arguments).success();
    let uninterrupted = files(&dir, "out");
    let n_sent = server.received().len();
    let path = |name: &str| dir.path().join("out").join(name);
    for (name, text, status, expected) in [
        (
            "report.json",
            "{\"stages\": [",
            2,
            "remove it to rebuild the stages",
        ),
        ("checked.jsonl", "x\n", 3, "checked.jsonl:1: not valid JSON"),
        (
            "checked.jsonl",
            "x\n",
            3,
            "run the stage check again with --stage check",
        ),
        (
            "generated.jsonl",
            "{}\n",
            3,
            "generated.jsonl:1: missing field",
        ),
    ] {
        std::fs::write(path(name), text).unwrap();
        let refused = run(&dir, &arguments);
        assert_eq!(refused.status, Some(status), "{}", refused.stderr);
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
        std::fs::write(path(name), &uninterrupted[name]).unwrap();
    }
    // Follow the suggestion of the message.
    std::fs::remove_file(path("report.json")).unwrap();
    run(&dir, &arguments).success();
    assert_eq!(files(&dir, "out"), uninterrupted);
    assert_eq!(server.received().len(), n_sent);
}

#[test]
fn a_folder_has_one_writer() {
    let dir = TempDir::new().unwrap();
    let slow = TestServer::start(|_, _| Response::Hang);
    let arguments = command(&slow, "out", "");
    let mut first = tooltune()
        .current_dir(dir.path())
        .args(&arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let started = Instant::now();
    while slow.received().is_empty() {
        assert!(started.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = run(&dir, &arguments);
    assert_eq!(second.status, Some(1), "{}", second.stderr);
    assert!(
        second.stderr.contains("in use by another process"),
        "{}",
        second.stderr
    );
    first.kill().unwrap();
    first.wait().unwrap();
}

/// Peak memory of a process so far, in MiB.
#[cfg(target_os = "linux")]
fn peak_mib(id: u32) -> Option<usize> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: usize = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib / 1024)
}

/// Answers a request. Some requests get a faulty response the first time that they are sent; which
/// one depends on a hash of the request.
fn faulty_reply(request: &Received, is_first: bool) -> Response {
    let fault = if is_first {
        hash_of(&request.body) % 20
    } else {
        20
    };
    match fault {
        0 => Response::Hang,
        1 => {
            let wait = ("Retry-After".to_owned(), "1".to_owned());
            Response::Reply(429, vec![wait], b"slow down".to_vec())
        }
        2 => Response::json(500, &json!({"error": "oops"})),
        3 => Response::html(200, "<html>Sign in</html>"),
        4 => Response::Reply(200, Vec::new(), b"{\"choices\": [{\"message\"".to_vec()),
        5 => Response::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"cho".to_vec()),
        6 => Response::Raw(Vec::new()),
        7 => Response::Drip(
            b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
            Duration::from_millis(10),
        ),
        8 if hash_of(&request.body) % 40 == 8 => {
            Response::Reply(200, Vec::new(), vec![b' '; 6 << 20])
        }
        _ => chat(&rule_based_reply(&prompt(&request.body))),
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_thousand_requests_at_once_to_a_hostile_server_lose_nothing_within_time_and_memory() {
    let dir = TempDir::new().unwrap();
    let arguments = |server: &TestServer, output: &str, options: &str| {
        let arguments = command(server, output, options).join(" ");
        let arguments = arguments.replace("--rows 30", "--rows 3000");
        let arguments = arguments.replace("--concurrency 4", "--concurrency 1000");
        arguments.split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    let faultless_server =
        TestServer::start(|request, _| chat(&rule_based_reply(&prompt(&request.body))));
    run(&dir, &arguments(&faultless_server, "whole", "")).success();
    let request_counts: Mutex<BTreeMap<String, usize>> = Mutex::default();
    let (n_concurrent, max_concurrent) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let server = {
        let max_concurrent = max_concurrent.clone();
        TestServer::start(move |request, _| {
            max_concurrent.fetch_max(
                n_concurrent.fetch_add(1, Ordering::SeqCst) + 1,
                Ordering::SeqCst,
            );
            // Answer only after nearly a thousand requests have arrived, but within their timeout.
            let started = Instant::now();
            while max_concurrent.load(Ordering::SeqCst) <= 900
                && started.elapsed() < Duration::from_secs(4)
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            n_concurrent.fetch_sub(1, Ordering::SeqCst);
            let mut request_counts = request_counts.lock().unwrap();
            let n = request_counts.entry(request.body.clone()).or_default();
            *n += 1;
            faulty_reply(request, *n == 1)
        })
    };
    let started = Instant::now();
    let mut child = tooltune()
        .current_dir(dir.path())
        .args(arguments(&server, "hostile", "--timeout 5 --retries 2"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        peak = peak.max(peak_mib(child.id()).unwrap_or_default());
        std::thread::sleep(Duration::from_millis(10));
    }
    let ended = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{errors}");
    let (actual, expected) = (files(&dir, "hostile"), files(&dir, "whole"));
    for name in [
        "rows.jsonl",
        "generated.dropped.jsonl",
        "checked.dropped.jsonl",
    ] {
        assert_eq!(actual[name], expected[name], "{name}");
    }
    assert!(
        max_concurrent.load(Ordering::SeqCst) > 900,
        "{max_concurrent:?}"
    );
    let seconds = started.elapsed().as_secs();
    assert!(peak > 20 && peak < 600, "{peak} MiB in {seconds} s");
    assert!(started.elapsed() < PATIENCE, "{seconds} s");
}

#[test]
fn texts_are_annotated_with_custom_prompts() {
    let dir = TempDir::new().unwrap();
    let server = TestServer::start(|request, _| chat(&rule_based_reply(&prompt(&request.body))));
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
fn a_local_model_follows_its_grammar_and_completes_each_prompt_once() {
    let workplace = Workplace::new();
    let command = "data slot --output out --rows 4 --model config.toml --checkpoint base \
                   --reply-tokens 24 --set eval.batch_size=2";
    let plan = workplace
        .run(format!("{command} --dry-run").split_whitespace())
        .success();
    assert!(
        plan.contains("up to 2 requests remain") || plan.contains("up to 6 requests remain"),
        "{plan}"
    );
    // The weights are random, so the output follows the schema but is cut at the token limit.
    let is_refused = |command: &str| {
        let done = workplace.run(command.split_whitespace());
        assert_eq!(done.status, Some(1), "{}", done.stderr);
        let expected = "stage generate: none of 2 replies can be parsed";
        assert!(done.stderr.contains(expected), "{}", done.stderr);
    };
    is_refused(command);
    let journal = workplace.read("out/journal.jsonl");
    let replies: Vec<Value> = journal
        .lines()
        .skip(1)
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(replies.len(), 4, "two batches, each requested twice");
    for reply in &replies {
        assert_eq!(reply["reply"]["finish_reason"], "length");
        let text = reply["reply"]["text"].as_str().unwrap();
        assert!(text.starts_with("{\"planning\""), "{text}");
    }
    is_refused(command);
    assert_eq!(workplace.read("out/journal.jsonl"), journal);
    // Sampling depends only on the request, not on earlier output.
    let first: String = journal.split_inclusive('\n').take(2).collect();
    std::fs::create_dir(workplace.path("again")).unwrap();
    workplace.write("again/journal.jsonl", first);
    is_refused(&command.replace("--output out", "--output again"));
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
