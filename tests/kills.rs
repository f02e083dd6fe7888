//! Both data pipelines killed at random moments: what a resumed one ends with, and what it has paid.
//!
//! A request is in flight at a kill if the server has it whole and its reply is not in the journal.
//! These alone are sent again, and there are never more of them than requests at once: a worker
//! begins no request before the reply of its last one is in the journal. Calls of APIs are made one
//! after the other, so that one of them is in flight at most.
//!
//! `TOOLTUNE_KILLS` sets the number of kills of each pipeline; `scripts/pipeline-kills` makes more of
//! them, at moments of other seeds (`TOOLTUNE_KILLS_SEED`).

use std::collections::BTreeSet;
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tooltune_agents::executors::Executor;
use tooltune_rows::batches::SeededRandom;
use tooltune_synth::goat::{self, GoatExecutor};

use crate::support::server::{Received, Response, TestServer, chat};
use crate::workplace::{Answer, tooltune};
use crate::{goat_pipeline, pipelines};

/// Requests at once.
const CONCURRENCY: usize = 4;

/// Longer than anything here takes that is not waited for in vain.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long a server takes, so that requests meet the kill.
const SERVICE: Duration = Duration::from_millis(2);

/// What the environment sets, or what is usual.
fn chosen(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |text| text.parse().expect("a number"))
}

/// A pipeline that asks servers.
struct Pipeline<'a> {
    /// Where it runs.
    dir: &'a TempDir,
    /// Its arguments, with the server's address and the folder.
    arguments: &'a dyn Fn(&TestServer, &str) -> Vec<String>,
    /// A new server.
    server: &'a dyn Fn() -> TestServer,
}

/// A request by which it is known again: the body, which follows from its item alone.
fn marker(request: &Received) -> String {
    let mut digest: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in format!("{} {}", request.target, request.body).bytes() {
        digest = (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    format!("{digest:016x}")
}

/// A chat completion whose text tells the request that it answers; pipelines pass over such a key.
fn marked(mut said: Value, request: &Received) -> Response {
    said["request"] = marker(request).into();
    std::thread::sleep(SERVICE);
    chat(&said.to_string())
}

/// Requests that came whole, chats and calls of APIs.
fn whole(server: &TestServer) -> Vec<Received> {
    let is_whole = |request: &Received| serde_json::from_str::<Value>(&request.body).is_ok();
    server.received().into_iter().filter(is_whole).collect()
}

/// What the journal of a folder has: the markers of its replies, and its calls of APIs.
fn journaled(dir: &TempDir, output: &str) -> (BTreeSet<String>, usize) {
    let path = dir.path().join(output).join("journal.jsonl");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().skip(1);
    let lines: Vec<Value> = lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let marker = |line: &Value| {
        let reply: Value = serde_json::from_str(line["reply"]["text"].as_str()?).ok()?;
        Some(reply["request"].as_str()?.to_owned())
    };
    let keys: BTreeSet<&str> = lines
        .iter()
        .filter_map(|line| line["key"].as_str())
        .collect();
    assert_eq!(keys.len(), lines.len(), "a key stands twice in the journal");
    let n_calls = keys.iter().filter(|key| key.starts_with("api/")).count();
    (lines.iter().filter_map(marker).collect(), n_calls)
}

fn is_call(request: &Received) -> bool {
    request.target == "/virtual"
}

impl Pipeline<'_> {
    fn start(&self, server: &TestServer, output: &str) -> Child {
        tooltune()
            .current_dir(self.dir.path())
            .args((self.arguments)(server, output))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn end(&self, server: &TestServer, output: &str) {
        let arguments = (self.arguments)(server, output);
        Answer::of(tooltune().current_dir(self.dir.path()).args(arguments)).success();
    }

    /// Kills it so often, each time at a random moment of what is left of its work, and resumes.
    #[allow(
        clippy::print_stdout,
        reason = "scripts/pipeline-kills shows what was lost"
    )]
    fn is_killed(&self, n_kills: usize, seed: u64) {
        let well = (self.server)();
        let begun = Instant::now();
        self.end(&well, "whole");
        let whole_span = begun.elapsed();
        let mut span = whole_span;
        let all: BTreeSet<String> = whole(&well).iter().map(marker).collect();
        assert_eq!(all.len(), whole(&well).len(), "a request is sent twice");

        let mut random = SeededRandom::new(seed, 0);
        let (mut n_killed, mut n_lost, mut n_folders) = (0, 0, 0);
        while n_killed < n_kills {
            let output = format!("killed-{n_folders}");
            n_folders += 1;
            let server = (self.server)();
            let mut paid = (BTreeSet::new(), 0);
            let mut n_sent = 0;
            while n_killed < n_kills {
                let mut child = self.start(&server, &output);
                std::thread::sleep(span.mul_f64(random.uniform_f64()));
                // The machine may have become faster or slower since the first one.
                if child.try_wait().unwrap().is_some() {
                    span = span.mul_f64(0.8);
                    break;
                }
                span = span.mul_f64(1.05).min(whole_span);
                child.kill().unwrap();
                child.wait().unwrap();
                n_killed += 1;
                // What had come whole is answered into the void.
                let sent = settled(&server);
                let now = journaled(self.dir, &output);
                let of_life = &sent[n_sent..];
                n_lost += lost_in_one_life(of_life, &paid, &now);
                n_sent = sent.len();
                paid = now;
            }
            self.end(&server, &output);
            let made = pipelines::files(self.dir, &output);
            assert_eq!(made, pipelines::files(self.dir, "whole"));
            let sent = whole(&server);
            let again: BTreeSet<String> = sent[n_sent..].iter().map(marker).collect();
            assert!(
                again.is_disjoint(&paid.0),
                "a journaled request is sent again"
            );
            let sent: BTreeSet<String> = sent.iter().map(marker).collect();
            assert_eq!(sent, all, "{output} has asked for something else");
            std::fs::remove_dir_all(self.dir.path().join(&output)).unwrap();
        }
        println!(
            "{n_killed} kills in {n_folders} folders: {n_lost} requests in flight were sent again"
        );
        assert!(n_lost <= CONCURRENCY * n_killed);
        // Moments without work would show nothing.
        assert!(n_folders < n_killed && n_lost > 0, "{n_folders} {n_lost}");
    }
}

/// All requests, once no further one arrives.
fn settled(server: &TestServer) -> Vec<Received> {
    let begun = Instant::now();
    let mut n_before = usize::MAX;
    loop {
        let sent = server.received();
        if sent.len() == n_before {
            return whole(server);
        }
        assert!(begun.elapsed() < PATIENCE);
        n_before = sent.len();
        std::thread::sleep(5 * SERVICE);
    }
}

/// How many requests of one life of the process are lost; none of them was paid for before.
fn lost_in_one_life(
    sent: &[Received],
    before: &(BTreeSet<String>, usize),
    now: &(BTreeSet<String>, usize),
) -> usize {
    let (calls, chats): (Vec<&Received>, Vec<&Received>) =
        sent.iter().partition(|request| is_call(request));
    let mut lost = 0;
    for request in &chats {
        let marker = marker(request);
        assert!(
            !before.0.contains(&marker),
            "a journaled request is sent again"
        );
        lost += usize::from(!now.0.contains(&marker));
    }
    assert!(lost <= CONCURRENCY, "{lost} requests in flight");
    let lost_calls = calls.len() - (now.1 - before.1);
    assert!(lost_calls <= 1, "{lost_calls} calls of APIs in flight");
    lost + lost_calls
}

#[test]
fn a_slot_pipeline_that_is_killed_at_random_moments_ends_the_same_and_pays_once() {
    let dir = TempDir::new().unwrap();
    Pipeline {
        dir: &dir,
        arguments: &|server, output| pipelines::command(server, output, ""),
        server: &|| {
            TestServer::start(|request, _| {
                let said = pipelines::said(&pipelines::prompt(&request.body));
                marked(serde_json::from_str(&said).unwrap(), request)
            })
        },
    }
    .is_killed(
        chosen("TOOLTUNE_KILLS", 50),
        chosen("TOOLTUNE_KILLS_SEED", 17) as u64,
    );
}

/// The invented APIs behind a server of StableToolBench's form.
fn answered_call(executor: &Mutex<GoatExecutor>, request: &Value) -> Response {
    let standard = |name: &str| name.to_lowercase().replace(' ', "_");
    let named = goat::documents().into_iter().find(|document| {
        request["tool_name"] == standard(&document.tool_name)
            && request["api_name"] == standard(&document.api_name)
    });
    let name = named.expect("a tool of the world").call_name();
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

#[test]
fn a_goat_pipeline_that_is_killed_at_random_moments_ends_the_same_and_pays_once() {
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
            let says = goat_pipeline::oracle_says();
            let executor = Mutex::new(GoatExecutor::new());
            TestServer::start(move |request, _| {
                // A process that is killed leaves half a request.
                let Ok(body) = serde_json::from_str::<Value>(&request.body) else {
                    return Response::json(400, &json!({"error": "half a request"}));
                };
                if is_call(request) {
                    std::thread::sleep(SERVICE);
                    return answered_call(&executor, &body);
                }
                let text = body["messages"][0]["content"].as_str().unwrap_or_default();
                let seed = body["seed"].as_u64().unwrap_or_default();
                marked(says(text, seed), request)
            })
        },
    }
    .is_killed(
        chosen("TOOLTUNE_KILLS", 50),
        chosen("TOOLTUNE_KILLS_SEED", 17) as u64,
    );
}
