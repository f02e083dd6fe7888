//! Both data pipelines are killed at random moments and resumed; the tests compare their results
//! and the number of requests with an uninterrupted run.
//!
//! At a kill, a request is in flight if the server has received it completely and its reply is not
//! in the journal. Only requests in flight are sent again, and their number never exceeds the
//! concurrency, because a worker sends a request only after the reply to its previous one is in the
//! journal. API calls are made one after the other, so at most one of them is in flight.
//!
//! `TOOLTUNE_KILLS` sets the number of kills per pipeline; `scripts/pipeline-kills` runs more
//! kills, at moments from other seeds (`TOOLTUNE_KILLS_SEED`).

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tooltune_agents::executors::Executor;
use tooltune_rows::batches::SeededRandom;
use tooltune_synth::goat::{self, GoatExecutor};

use crate::support::server::{Received, Response, TestServer, chat};
use crate::workplace::{CommandOutput, tooltune};
use crate::{goat_pipeline, pipelines};

/// Concurrent requests.
const CONCURRENCY: usize = 4;

/// A time limit longer than any successful wait here.
const PATIENCE: Duration = Duration::from_secs(120);

/// The server's response time, so that requests are in flight at the kill.
const RESPONSE_TIME: Duration = Duration::from_millis(2);

/// The value of the environment variable, or the default.
fn env_or(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// A pipeline that sends requests to servers.
struct Pipeline<'a> {
    /// Working directory of the pipeline.
    dir: &'a TempDir,
    /// Returns the arguments for a server and an output folder.
    arguments: &'a dyn Fn(&TestServer, &str) -> Vec<String>,
    /// Starts a new server.
    server: &'a dyn Fn() -> TestServer,
}

/// Returns a hash of a request's address and body. Two items may send the same request, so tests
/// count how often each hash occurs.
fn marker(request: &Received) -> String {
    let mut digest: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in format!("{} {}", request.target, request.body).bytes() {
        digest = (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    format!("{digest:016x}")
}

/// How often each marker occurs.
type Counts = BTreeMap<String, usize>;

fn count_markers(markers: impl IntoIterator<Item = String>) -> Counts {
    let mut counts = Counts::new();
    for marker in markers {
        *counts.entry(marker).or_default() += 1;
    }
    counts
}

/// How often a marker occurs.
fn count_of(counts: &Counts, marker: &str) -> usize {
    counts.get(marker).copied().unwrap_or_default()
}

/// Separates the JSON of a reply from the marker of its request.
const MARK: &str = "\nrequest ";

/// Returns a chat completion whose text ends with the request's marker. Pipelines parse only the
/// JSON before it.
fn marked_response(reply: &Value, request: &Received) -> Response {
    std::thread::sleep(RESPONSE_TIME);
    chat(&format!("{reply}{MARK}{}", marker(request)))
}

/// Requests that arrived completely: chats and API calls.
fn complete_requests(server: &TestServer) -> Vec<Received> {
    let is_complete = |request: &Received| serde_json::from_str::<Value>(&request.body).is_ok();
    server.received().into_iter().filter(is_complete).collect()
}

/// The contents of a pipeline's journal.
#[derive(Default)]
struct JournalContents {
    /// Replies by the markers of their requests.
    chats: Counts,
    /// Calls of APIs.
    n_calls: usize,
}

fn read_journal(dir: &TempDir, output: &str) -> JournalContents {
    let path = dir.path().join(output).join("journal.jsonl");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().skip(1);
    let lines: Vec<Value> = lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let marker = |line: &Value| {
        let (_, marker) = line["reply"]["text"].as_str()?.rsplit_once(MARK)?;
        Some(marker.to_owned())
    };
    let keys: BTreeSet<&str> = lines
        .iter()
        .filter_map(|line| line["key"].as_str())
        .collect();
    assert_eq!(keys.len(), lines.len(), "the journal contains a key twice");
    let n_calls = keys.iter().filter(|key| key.starts_with("api/")).count();
    JournalContents {
        chats: count_markers(lines.iter().filter_map(marker)),
        n_calls,
    }
}

fn is_call(request: &Received) -> bool {
    request.target == "/virtual"
}

impl Pipeline<'_> {
    fn spawn(&self, server: &TestServer, output: &str) -> Child {
        tooltune()
            .current_dir(self.dir.path())
            .args((self.arguments)(server, output))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn finish(&self, server: &TestServer, output: &str) {
        let arguments = (self.arguments)(server, output);
        CommandOutput::from_command(tooltune().current_dir(self.dir.path()).args(arguments))
            .success();
    }

    /// Kills the pipeline this number of times, each at a random moment of its remaining work, and
    /// resumes it.
    #[allow(
        clippy::print_stdout,
        reason = "scripts/pipeline-kills shows what was lost"
    )]
    fn kill_repeatedly(&self, n_kills: usize, seed: u64) {
        let reference_server = (self.server)();
        let started = Instant::now();
        self.finish(&reference_server, "whole");
        let whole_span = started.elapsed();
        let mut span = whole_span;
        let all = count_markers(complete_requests(&reference_server).iter().map(marker));
        let (chats, calls): (Vec<_>, Vec<_>) = complete_requests(&reference_server)
            .into_iter()
            .partition(|request| !is_call(request));
        let now = read_journal(self.dir, "whole");
        let journaled_chats: usize = now.chats.values().sum();
        assert_eq!(
            (chats.len(), calls.len()),
            (journaled_chats, now.n_calls),
            "an item sends a request twice"
        );

        let mut random = SeededRandom::new(seed, 0);
        let (mut n_killed, mut n_lost, mut n_folders) = (0, 0, 0);
        while n_killed < n_kills {
            let output = format!("killed-{n_folders}");
            n_folders += 1;
            let server = (self.server)();
            let mut paid = JournalContents::default();
            let mut n_sent = 0;
            while n_killed < n_kills {
                let mut child = self.spawn(&server, &output);
                std::thread::sleep(span.mul_f64(random.uniform_f64()));
                // If the pipeline ended before the kill, kill earlier next time: the speed of the
                // machine may have changed since the first run.
                if child.try_wait().unwrap().is_some() {
                    span = span.mul_f64(0.8);
                    break;
                }
                span = span.mul_f64(1.05).min(whole_span);
                child.kill().unwrap();
                child.wait().unwrap();
                n_killed += 1;
                // The server also answers requests that arrived completely before the kill.
                let sent = requests_after_quiet(&server);
                let now = read_journal(self.dir, &output);
                let sent_before_kill = &sent[n_sent..];
                n_lost += count_lost_requests(sent_before_kill, &paid, &now, &all);
                n_sent = sent.len();
                paid = now;
            }
            self.finish(&server, &output);
            let files = pipelines::files(self.dir, &output);
            assert_eq!(files, pipelines::files(self.dir, "whole"));
            let sent = complete_requests(&server);
            let (chats, _): (Vec<&Received>, Vec<&Received>) =
                sent[n_sent..].iter().partition(|request| !is_call(request));
            for (marker, n_again) in count_markers(chats.into_iter().map(marker)) {
                assert!(
                    n_again + count_of(&paid.chats, &marker) <= count_of(&all, &marker),
                    "a journaled request is sent again"
                );
            }
            let sent = count_markers(sent.iter().map(marker));
            let is_sent_often_enough =
                |(marker, n): (&String, &usize)| count_of(&sent, marker) >= *n;
            assert!(
                all.iter().all(is_sent_often_enough),
                "{output} has fewer requests"
            );
            assert!(
                sent.keys().all(|marker| all.contains_key(marker)),
                "{output} has other requests"
            );
            std::fs::remove_dir_all(self.dir.path().join(&output)).unwrap();
        }
        println!(
            "{n_killed} kills in {n_folders} folders: {n_lost} requests in flight were sent again"
        );
        assert!(n_lost <= CONCURRENCY * n_killed);
        // Kills that lose no request would prove nothing.
        assert!(n_folders < n_killed && n_lost > 0, "{n_folders} {n_lost}");
    }
}

/// Waits until no more requests arrive, and returns all of them.
fn requests_after_quiet(server: &TestServer) -> Vec<Received> {
    let started = Instant::now();
    let mut n_before = usize::MAX;
    loop {
        let sent = server.received();
        if sent.len() == n_before {
            return complete_requests(server);
        }
        assert!(started.elapsed() < PATIENCE);
        n_before = sent.len();
        std::thread::sleep(5 * RESPONSE_TIME);
    }
}

/// Number of requests of one process that got no reply before the kill. Asserts that no journaled
/// request was sent again.
fn count_lost_requests(
    sent: &[Received],
    before: &JournalContents,
    now: &JournalContents,
    all: &Counts,
) -> usize {
    let (calls, chats): (Vec<&Received>, Vec<&Received>) =
        sent.iter().partition(|request| is_call(request));
    let mut lost = 0;
    for (marker, n_sent) in count_markers(chats.into_iter().map(marker)) {
        let n_before = count_of(&before.chats, &marker);
        assert!(
            n_before + n_sent <= count_of(all, &marker),
            "a journaled request is sent again"
        );
        lost += n_sent - (count_of(&now.chats, &marker) - n_before);
    }
    assert!(lost <= CONCURRENCY, "{lost} requests in flight");
    let lost_calls = calls.len() - (now.n_calls - before.n_calls);
    assert!(lost_calls <= 1, "{lost_calls} API calls in flight");
    lost + lost_calls
}

/// Invariant: A pipeline never repeats a request that has its reply, and ends the same after any
/// interruption.
#[test]
fn a_slot_pipeline_killed_at_random_moments_gives_the_same_result_and_repeats_no_paid_request() {
    let dir = TempDir::new().unwrap();
    Pipeline {
        dir: &dir,
        arguments: &|server, output| pipelines::command(server, output, ""),
        server: &|| {
            TestServer::start(|request, _| {
                let reply = pipelines::rule_based_reply(&pipelines::prompt(&request.body));
                marked_response(&serde_json::from_str(&reply).unwrap(), request)
            })
        },
    }
    .kill_repeatedly(
        env_or("TOOLTUNE_KILLS", 50),
        env_or("TOOLTUNE_KILLS_SEED", 17) as u64,
    );
}

/// Serves the synthetic APIs with StableToolBench's protocol.
fn answered_call(executor: &Mutex<GoatExecutor>, request: &Value) -> Response {
    let standard = |name: &str| name.to_lowercase().replace(' ', "_");
    let document = goat::documents().into_iter().find(|document| {
        request["tool_name"] == standard(&document.tool_name)
            && request["api_name"] == standard(&document.api_name)
    });
    let name = document.expect("a tool of the world").call_name();
    let input = request["tool_input"].as_str().expect("a JSON text");
    let input: Value = serde_json::from_str(input).expect("JSON");
    let input = input.as_object().expect("an object");
    let result = executor.lock().unwrap().call(&name, input);
    let error = result.exception.unwrap_or_default();
    Response::json(
        200,
        &json!({"error": error, "response": result.output.to_string()}),
    )
}

/// Invariant: A pipeline never repeats a request that has its reply, and ends the same after any
/// interruption.
#[test]
fn a_goat_pipeline_killed_at_random_moments_gives_the_same_result_and_repeats_no_paid_request() {
    let dir = goat_pipeline::folder();
    Pipeline {
        dir: &dir,
        arguments: &|server, output| {
            let executor = format!(
                "--executor kind=stabletoolbench --executor service_url={}/virtual",
                server.url()
            );
            goat_pipeline::command(server, output, &executor)
        },
        server: &|| {
            let reply = goat_pipeline::oracle_reply();
            let executor = Mutex::new(GoatExecutor::new());
            TestServer::start(move |request, _| {
                // A killed process leaves half a request.
                let Ok(body) = serde_json::from_str::<Value>(&request.body) else {
                    return Response::json(400, &json!({"error": "half a request"}));
                };
                if is_call(request) {
                    std::thread::sleep(RESPONSE_TIME);
                    return answered_call(&executor, &body);
                }
                let text = body["messages"][0]["content"].as_str().unwrap_or_default();
                let seed = body["seed"].as_u64().unwrap_or_default();
                marked_response(&reply(text, seed), request)
            })
        },
    }
    .kill_repeatedly(
        env_or("TOOLTUNE_KILLS", 50),
        env_or("TOOLTUNE_KILLS_SEED", 17) as u64,
    );
}
