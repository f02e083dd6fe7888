//! `data goat` with a rule-based server instead of a model, on the synthetic APIs.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::pipelines::{check_dry_run, files, run};
use crate::support::model;
use crate::support::server::{Response, TestServer, chat};
use crate::workplace::{CommandOutput, assert_contains, parse_lines, tooltune};

#[path = "../data/pipelines/src/goat/tests/oracle.rs"]
mod oracle;

/// The tools of the documents; there are enough of them to hold one out.
const TOOLS: [&str; 4] = ["RoomKey", "TownDesk", "SkyLedger", "FerryLine"];

/// The oracle's reply to a prompt.
pub(crate) fn oracle_reply() -> impl Fn(&str, u64) -> Value {
    let oracle = oracle::Oracle::new();
    move |text, seed| oracle.reply_for(text, seed)
}

/// A folder with the documents of these tools.
pub(crate) fn folder() -> TempDir {
    let dir = TempDir::new().unwrap();
    let all = "data synth goat --rows 1 --output row.jsonl --documents all.jsonl";
    CommandOutput::from_command(tooltune().current_dir(dir.path()).args(all.split(' '))).success();
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
    TestServer::start(move |request, _| oracle_response(&oracle, &request.body))
}

fn oracle_response(oracle: &oracle::Oracle, body: &str) -> Response {
    let request: Value = serde_json::from_str(body).unwrap();
    let text = request["messages"][0]["content"].as_str().unwrap();
    let seed = request["seed"].as_u64().unwrap_or_default();
    chat(&oracle.reply_for(text, seed).to_string())
}

pub(crate) fn command(server: &TestServer, output: &str, options: &str) -> Vec<String> {
    let encoder = model("all-minilm-l6-v2");
    let defaults = [("--rows", "20"), ("--threshold", "0.4")];
    let is_again = options.contains("--seen-from");
    let is_not_overridden = |(option, _): &&(&str, &str)| {
        !(options.contains(option) || is_again && *option == "--threshold")
    };
    let defaults: Vec<String> = defaults
        .iter()
        .filter(is_not_overridden)
        .map(|(option, value)| format!("{option} {value}"))
        .collect();
    let line = format!(
        "data goat documents.jsonl --output {output} {} --retriever {} --endpoint {}/v1 \
         --endpoint-model m --concurrency 4 {options}",
        defaults.join(" "),
        encoder.display(),
        server.url()
    );
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_pipeline_writes_splits_pairs_statistics_and_a_graph() {
    let (dir, server) = (folder(), server());
    let dry_run = command(&server, "out", "--dry-run --max-edges 150");
    let expected = ["| parse ", "| at most 450 |", "API calls", "at most 300 |"];
    check_dry_run(&dir, &server, &dry_run, &expected);

    let done = run(
        &dir,
        &command(&server, "out", "--unseen-share 0.3 --seen-share 0.2"),
    )
    .success();
    let expected = [
        "graph dropped",
        "filter dropped",
        "execute API calls:",
        "trajectories in out/trajectories.jsonl",
        "APIs called",
        "sub-graphs of size 2",
        "pairs in pairs.jsonl",
        "only test_unseen calls",
        "API graph in out/graph.html",
    ];
    assert_contains(&done, expected);
    let files = files(&dir, "out");
    assert!(files["graph.html"].contains("<svg viewBox"));
    let rows = parse_lines(&files["trajectories.jsonl"]);
    assert!(rows.len() > 10, "{done}");
    assert!(
        rows.iter()
            .any(|row| row["calls"].to_string().contains("\"derived\""))
    );

    let names: BTreeSet<String> =
        parse_lines(&std::fs::read_to_string(dir.path().join("documents.jsonl")).unwrap())
            .iter()
            .map(|document| {
                let name = |field: &str| document[field].as_str().unwrap().to_owned();
                format!("{}/{}", name("tool_name"), name("api_name"))
            })
            .collect();
    let truth = oracle::Oracle::new().true_edges(&names);
    let executed = parse_lines(&files["executed.jsonl"]);
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

    // Other commands can read every output file.
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
    let tasks = parse_lines(&check(tasks));
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
fn executors_are_chosen_by_their_keys_and_errors_precede_requests() {
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
    assert!(done.contains("execute API calls:"), "{done}");
    let n_requests = server.received().len();
    for (options, expected) in [
        ("--threshold nan", "--threshold NaN: set it to a cosine"),
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
        ("--unseen-share 0.9 --seen-share 0.9", "their sum at most 1"),
        (
            "--stage call",
            "the stages are parse, graph, filter, execute",
        ),
    ] {
        let refused = run(&dir, &command(&server, "refused", options));
        assert!(
            matches!(refused.status, Some(1..=3)),
            "{options}: {}",
            refused.stderr
        );
        assert_contains(&refused.stderr, [expected]);
    }
    let other = run(&dir, &command(&server, "canned", "--rows 3"));
    assert_eq!(other.status, Some(2));
    assert!(other.stderr.contains("executor was"), "{}", other.stderr);
    assert_eq!(server.received().len(), n_requests);
}

/// Writes the edges that are valid according to the oracle, for `--true-edges`.
fn write_true_edges(dir: &TempDir) {
    let edges = "data synth goat --rows 1 --output again.row.jsonl --edges edges.jsonl";
    run(dir, &words(edges)).success();
    let ours = |line: &&str| {
        let edge: Value = serde_json::from_str(line).unwrap();
        ["source", "target"].iter().all(|end| {
            let tool = edge[end].as_str().unwrap().split('/').next().unwrap();
            TOOLS.contains(&tool)
        })
    };
    let all = std::fs::read_to_string(dir.path().join("edges.jsonl")).unwrap();
    let ours: Vec<&str> = all.lines().filter(ours).collect();
    std::fs::write(dir.path().join("edges.jsonl"), ours.join("\n")).unwrap();
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn edge_precision_is_measured_and_rows_become_a_reviewed_benchmark() {
    let (dir, server) = (folder(), server());
    write_true_edges(&dir);
    let options = "--global-functions --hold-out RoomKey --true-edges edges.jsonl";
    let done = run(&dir, &command(&server, "out", options)).success();
    for part in [
        "| edges   | kept | settled | right | precision | recall |",
        "| execute |",
        "only test_unseen calls RoomKey",
    ] {
        assert!(done.contains(part), "{part}: {done}");
    }
    let outputs = files(&dir, "out");
    let scores: Value = serde_json::from_str(&outputs["edge_scores.json"]).unwrap();
    let precision: Vec<f64> = (0..4)
        .map(|stage| scores[stage]["precision"].as_f64().unwrap())
        .collect();
    assert!(precision.is_sorted(), "{scores}");
    assert!(precision[3] > 0.7, "{scores}");
    let documents = std::fs::read_to_string(dir.path().join("documents.jsonl")).unwrap();
    let n_documents = documents.lines().count();
    assert_eq!(outputs["documents.jsonl"].lines().count(), n_documents + 2);

    let seen_options = "--global-functions --seen-from out --rows 8 --seed 5";
    let done = run(&dir, &command(&server, "seen", seen_options)).success();
    assert!(
        done.contains("in test_seen.jsonl") && !done.contains("in train.jsonl"),
        "{done}"
    );
    let rows = files(&dir, "seen")["test_seen.jsonl"].clone();
    let train_rows = parse_lines(&outputs["train.jsonl"]);
    for row in parse_lines(&rows) {
        let earlier = train_rows.iter().find(|earlier| earlier["id"] == row["id"]);
        let earlier = earlier.unwrap();
        assert_eq!(row["subgraph"], earlier["subgraph"]);
        assert_ne!(row["query"], earlier["query"]);
    }

    let file = "data goat review-file out/test_unseen.jsonl --output review.jsonl";
    run(&dir, &words(file)).success();
    let again = run(&dir, &words(file));
    assert_eq!(again.status, Some(2), "{}", again.stderr);
    assert!(again.stderr.contains("already exists"), "{}", again.stderr);
    let mut review =
        parse_lines(&std::fs::read_to_string(dir.path().join("review.jsonl")).unwrap());
    assert!(review.len() > 2);
    for line in &mut review {
        line["verdict"] = json!("accept");
    }
    review[0]["verdict"] = json!("reject");
    review[0]["reason"] = json!("not natural");
    review[1]["verdict"] = json!("edit");
    review[1]["query"] = json!("What else?");
    let text: Vec<String> = review.iter().map(Value::to_string).collect();
    std::fs::write(dir.path().join("review.jsonl"), text.join("\n")).unwrap();
    let apply = "data goat apply-review out/test_unseen.jsonl --documents out/documents.jsonl \
                 --review review.jsonl --output bench.jsonl";
    let done = run(&dir, &words(apply)).success();
    assert!(
        done.contains("1 edited, 1 rejected, 0 dropped without a verdict"),
        "{done}"
    );
    assert!(done.contains("rejected 1: not natural"), "{done}");
    let bench = parse_lines(&std::fs::read_to_string(dir.path().join("bench.jsonl")).unwrap());
    assert_eq!(bench.len(), review.len() - 1);
    assert_eq!(bench[0]["query"], "What else?");
    // The suite goat can evaluate both benchmarks.
    let stats = "data stats bench.jsonl --documents out/documents.jsonl";
    run(&dir, &words(stats)).success();

    assert!(
        outputs["trajectories.jsonl"].contains("\"name\":\"global/compare\""),
        "no row compares"
    );
    for (options, expected) in [
        ("--hold-out RoomKye", "the tools are FerryLine"),
        ("--seen-from out --max-edges 3", "cannot be used with"),
        ("--seen-from none", "not a completed run of `data goat`"),
        ("--true-edges documents.jsonl", "unknown field"),
    ] {
        let refused = run(&dir, &command(&server, "refused", options));
        assert_eq!(refused.status, Some(2), "{options}: {}", refused.stderr);
        assert_contains(&refused.stderr, [expected]);
    }
    let bare = run(&dir, &words("data goat"));
    assert!(bare.stderr.contains("<DOCUMENTS>"), "{}", bare.stderr);
}
