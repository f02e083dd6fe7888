//! `data goat` of the program, asked of a server that answers by rule about the invented world.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::suites::lines;
use crate::support::model;
use crate::support::server::{Response, TestServer, chat};
use crate::workplace::{Answer, tooltune};

#[path = "../data/pipelines/src/goat/tests/oracle.rs"]
mod oracle;

/// Tools enough that one can be held out.
const TOOLS: [&str; 4] = ["RoomKey", "TownDesk", "SkyLedger", "FerryLine"];

/// What an oracle says to a prompt.
pub(crate) fn oracle_says() -> impl Fn(&str, u64) -> Value {
    let oracle = oracle::Oracle::new();
    move |text, seed| oracle.says(text, seed)
}

/// A folder with the documents of these tools.
pub(crate) fn folder() -> TempDir {
    let dir = TempDir::new().unwrap();
    let all = "data synth goat --rows 1 --output row.jsonl --documents all.jsonl";
    Answer::of(tooltune().current_dir(dir.path()).args(all.split(' '))).success();
    let all = std::fs::read_to_string(dir.path().join("all.jsonl")).unwrap();
    let ours: Vec<&str> = all
        .lines()
        .filter(|line| {
            let document: Value = serde_json::from_str(line).unwrap();
            TOOLS.contains(&document["tool_name"].as_str().unwrap())
        })
        .collect();
    std::fs::write(dir.path().join("documents.jsonl"), ours.join("\n")).unwrap();
    dir
}

fn server() -> TestServer {
    let oracle = oracle::Oracle::new();
    TestServer::start(move |request, _| answered(&oracle, &request.body))
}

fn answered(oracle: &oracle::Oracle, body: &str) -> Response {
    let request: Value = serde_json::from_str(body).unwrap();
    let text = request["messages"][0]["content"].as_str().unwrap();
    let seed = request["seed"].as_u64().unwrap_or_default();
    chat(&oracle.says(text, seed).to_string())
}

pub(crate) fn command(server: &TestServer, output: &str, rest: &str) -> Vec<String> {
    let encoder = model("all-minilm-l6-v2");
    let line = format!(
        "data goat documents.jsonl --output {output} --rows 20 --threshold 0.4 --retriever {} \
         --endpoint {}/v1 --endpoint-model m --concurrency 4 {rest}",
        encoder.display(),
        server.url()
    );
    line.split_whitespace().map(str::to_owned).collect()
}

fn run(dir: &TempDir, arguments: &[String]) -> Answer {
    Answer::of(tooltune().current_dir(dir.path()).args(arguments))
}

/// The files of a pipeline but for its journal, whose lines have the order of the replies.
fn files(dir: &TempDir, output: &str) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(dir.path().join(output)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| !path.ends_with("journal.jsonl"))
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&path).unwrap();
            (name, text.replace(output, "OUT"))
        })
        .collect()
}

#[test]
fn documents_become_splits_pairs_statistics_and_a_graph() {
    let (dir, server) = (folder(), server());
    let plan = run(&dir, &command(&server, "out", "--dry-run --max-edges 150")).success();
    for part in [
        "| parse ",
        "| at most 450 |",
        "calls of APIs",
        "at most 300 |",
        "Nothing was sent",
    ] {
        assert!(plan.contains(part), "{part}: {plan}");
    }
    assert!(server.received().is_empty() && !dir.path().join("out").exists());

    let done = run(
        &dir,
        &command(&server, "out", "--unseen-share 0.3 --seen-share 0.2"),
    )
    .success();
    for part in [
        "graph dropped",
        "filter dropped",
        "execute calls of APIs:",
        "trajectories in out/trajectories.jsonl",
        "APIs called",
        "sub-graphs of size 2",
        "pairs in pairs.jsonl",
        "test_unseen alone calls",
        "the graph of the APIs in out/graph.html",
    ] {
        assert!(done.contains(part), "{part}: {done}");
    }
    let files = files(&dir, "out");
    assert!(files["graph.html"].contains("<svg viewBox"));
    let rows = lines(&files["trajectories.jsonl"]);
    assert!(rows.len() > 10, "{done}");
    assert!(
        rows.iter()
            .any(|row| row["calls"].to_string().contains("\"derived\""))
    );

    let names: BTreeSet<String> =
        lines(&std::fs::read_to_string(dir.path().join("documents.jsonl")).unwrap())
            .iter()
            .map(|document| {
                let name = |field: &str| document[field].as_str().unwrap().to_owned();
                format!("{}/{}", name("tool_name"), name("api_name"))
            })
            .collect();
    let truth = oracle::Oracle::new().true_edges(&names);
    let executed = lines(&files["executed.jsonl"]);
    let label = |edge: &Value| {
        let name = |field: &str| edge[field].as_str().unwrap().to_owned();
        format!(
            "{} > {} > {}",
            name("source"),
            name("target"),
            name("parameter")
        )
    };
    let n_right = executed
        .iter()
        .filter(|edge| truth.contains(&label(edge)))
        .count();
    assert!(
        n_right * 10 >= executed.len() * 8,
        "{n_right} of {}",
        executed.len()
    );

    // The verbs that exist read all of it.
    let check = |line: &str| {
        let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        run(&dir, &arguments).success()
    };
    let stats = check("data stats out/train.jsonl --documents documents.jsonl");
    assert!(stats.contains("trajectories in out/train.jsonl"), "{stats}");
    check("data pairs out/train.jsonl --documents documents.jsonl --output again.jsonl");
    let again = std::fs::read_to_string(dir.path().join("again.jsonl")).unwrap();
    assert_eq!(again, files["pairs.jsonl"]);
    let tasks = "data graph documents.jsonl --from-edges out/executed.jsonl --max-calls 2";
    let tasks = lines(&check(tasks));
    assert!(
        tasks
            .iter()
            .all(|task| !task["edges"][0]["reason"].is_null()),
        "{tasks:?}"
    );

    let n_requests = server.received().len();
    run(
        &dir,
        &command(&server, "out", "--unseen-share 0.3 --seen-share 0.2"),
    )
    .success();
    assert_eq!(server.received().len(), n_requests);
}

#[test]
fn executors_are_chosen_by_their_keys_and_what_is_wrong_is_said_before_anything_is_sent() {
    let (dir, server) = (folder(), server());
    let one: String = std::fs::read_to_string(dir.path().join("documents.jsonl"))
        .unwrap()
        .lines()
        .map(|line| {
            let document: Value = serde_json::from_str(line).unwrap();
            let name = |field: &str| document[field].as_str().unwrap().to_owned();
            let api = format!("{}/{}", name("tool_name"), name("api_name"));
            format!(
                "{}\n",
                json!({"api": api, "response": {"town": "Aldmouth", "inn_id": 7}})
            )
        })
        .collect();
    std::fs::write(dir.path().join("responses.jsonl"), one).unwrap();
    let canned = "--executor kind=canned --executor responses=responses.jsonl --rows 3";
    let done = run(&dir, &command(&server, "canned", canned)).success();
    assert!(done.contains("execute calls of APIs:"), "{done}");
    let n_requests = server.received().len();
    for (rest, expected) in [
        ("--threshold nan", "--threshold NaN: give a cosine"),
        ("--min-calls 5", "--min-calls 5 and --max-calls 4"),
        ("--min-calls 0", "at least 1"),
        ("--max-edges 0", "--max-edges 0"),
        ("--reply-tokens 0", "--reply-tokens 0"),
        ("--temperature nan", "--temperature NaN"),
        ("--executor kind=cannd", "kind"),
        ("--executor kind=canned", "responses"),
        (
            "--executor kind=replay --executor recorded=none.jsonl",
            "none.jsonl",
        ),
        ("--unseen-share 0.9 --seen-share 0.9", "at most 1 together"),
        (
            "--stage call",
            "the stages are parse, graph, filter, execute",
        ),
    ] {
        let refused = run(&dir, &command(&server, "refused", rest));
        assert!(
            matches!(refused.status, Some(2 | 3)),
            "{rest}: {}",
            refused.stderr
        );
        assert!(
            refused.stderr.contains(expected),
            "{rest}: {}",
            refused.stderr
        );
    }
    let other = run(&dir, &command(&server, "canned", "--rows 3"));
    assert_eq!(other.status, Some(2));
    assert!(other.stderr.contains("executor was"), "{}", other.stderr);
    assert_eq!(server.received().len(), n_requests);
}
