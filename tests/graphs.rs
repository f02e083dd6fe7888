//! `data graph` and `data pairs`: a graph of API documents, its sub-graphs and tasks, and pairs
//! from trajectories.

use serde_json::json;

use crate::support::{fixture, model};
use crate::workplace::{Workplace, parse_lines};

#[test]
fn documents_become_tasks_and_trajectories_become_pairs() {
    let workplace = Workplace::new();
    let synth = "data synth goat --rows 6 --output rows.jsonl --documents documents.jsonl";
    workplace.run(synth.split(' ')).success();
    let encoder = model("all-minilm-l6-v2");
    let encoder = encoder.to_str().unwrap();
    let graph = |more: &[&str]| {
        let graph = ["data", "graph", "documents.jsonl", "--max-calls", "2"];
        let more = [&graph[..], &["--retriever", encoder], more].concat();
        workplace.run(more)
    };
    let result = graph(&[
        "--threshold",
        "0.5",
        "--edges",
        "edges.jsonl",
        "--output",
        "a.jsonl",
    ]);
    let output = result.success();
    assert!(output.contains("63 documents"), "{output}");
    let tasks = parse_lines(&workplace.read("a.jsonl"));
    assert!(tasks.len() > 10, "{}", tasks.len());
    for task in &tasks {
        let apis = task["apis"].as_array().unwrap();
        assert_eq!(apis.len(), 2, "{task}");
        for edge in task["edges"].as_array().unwrap() {
            assert_eq!((&edge["source"], &edge["target"]), (&apis[0], &apis[1]));
        }
    }
    let from_file = graph(&["--from-edges", "edges.jsonl"]).success();
    assert_eq!(
        from_file,
        workplace.read("a.jsonl"),
        "edges are equal after a round trip through the file"
    );
    let stricter = graph(&["--threshold", "0.7"]).success();
    assert!(
        stricter.lines().count() < tasks.len(),
        "a higher threshold keeps fewer"
    );
    for (arguments, expected) in [
        (["--threshold", "2"], "2"),
        (["--min-calls", "3"], "3"),
        (
            ["--from-edges", "bad.jsonl"],
            "bad.jsonl:1: no document is named \"Xyzzy\"",
        ),
    ] {
        let edge = "{\"source\": \"Xyzzy\", \"target\": \"x\", \"parameter\": \"y\"}\n";
        workplace.write("bad.jsonl", edge);
        let refused = graph(&arguments);
        assert_eq!(refused.status, Some(2), "{expected}: {}", refused.stderr);
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }

    let pairs = "data pairs rows.jsonl --documents documents.jsonl --output pairs.jsonl";
    workplace.run(pairs.split(' ')).success();
    let pairs = parse_lines(&workplace.read("pairs.jsonl"));
    let rows = parse_lines(&workplace.read("rows.jsonl"));
    let first = pairs
        .iter()
        .filter(|pair| pair["query"] == rows[0]["query"]);
    let mut called: Vec<&str> = rows[0]["calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["name"].as_str().unwrap())
        .collect();
    called.sort_unstable();
    called.dedup();
    assert_eq!(first.count(), called.len());
    let split = "data pairs rows.jsonl --documents documents.jsonl --sub-queries";
    let split = parse_lines(&workplace.run(split.split(' ')).success());
    let sub_query = &rows[0]["calls"][0]["sub_query"];
    assert!(
        split.iter().any(|pair| &pair["query"] == sub_query),
        "{sub_query}"
    );
}

/// The expected sub-graphs come from networkx (`scripts/fixtures/subgraphs.py`).
#[test]
fn every_sub_graph_is_listed_even_without_an_order_of_calls() {
    let workplace = Workplace::new();
    let folder = fixture("subgraphs");
    let file = |name: &str| folder.join(name).display().to_string();
    let output = workplace.run([
        "data",
        "graph",
        &file("documents.jsonl"),
        "--from-edges",
        &file("edges.jsonl"),
        "--subgraphs",
        "subgraphs.jsonl",
        "--output",
        "tasks.jsonl",
    ]);
    let output = output.success();
    let listed = workplace.read("subgraphs.jsonl");
    let expected = std::fs::read_to_string(folder.join("subgraphs.jsonl")).unwrap();
    assert_eq!(listed, expected);
    let (n_listed, n_tasks) = (
        listed.lines().count(),
        workplace.read("tasks.jsonl").lines().count(),
    );
    assert!(n_tasks < n_listed, "the graph has cycles: {n_tasks}");
    let expected = format!(
        "{n_listed} sub-graphs ({} of them without an order of calls)",
        n_listed - n_tasks
    );
    assert!(output.contains(&expected), "{output}");
}

#[test]
fn request_bodies_of_a_specification_are_left_out_on_request() {
    let workplace = Workplace::new();
    let body = json!({"required": true, "content": {"application/json": {"schema": {
        "type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}}}});
    let user =
        json!({"name": "user", "in": "path", "required": true, "schema": {"type": "string"}});
    let specification = json!({
        "openapi": "3.0.0", "info": {"title": "Lists", "version": "1"},
        "paths": {"/lists/{user}": {"post": {"summary": "Makes a list.", "parameters": [user],
            "requestBody": body, "responses": {"200": {"description": "A list."}}}}},
    });
    workplace.write("lists.json", specification.to_string());
    for (file, expected) in [
        ("documents", ["user", "name"].as_slice()),
        ("path --no-bodies", &["user"]),
    ] {
        let (name, option) = file.split_once(' ').unwrap_or((file, ""));
        let output = format!("{name}.jsonl");
        let import = [
            "data",
            "import",
            "openapi",
            "lists.json",
            "--output",
            &output,
        ];
        let option = Some(option).filter(|option| !option.is_empty());
        workplace.run(import.into_iter().chain(option)).success();
        let documents = parse_lines(&workplace.read(&output));
        let parameters = documents[0]["required_parameters"].as_array().unwrap();
        let names: Vec<&str> = parameters
            .iter()
            .map(|parameter| parameter["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, expected, "{file}");
    }
    let import = "data import stabletoolbench documents.jsonl --no-bodies --output again.jsonl";
    let refused = workplace.run(import.split(' '));
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    assert!(
        refused
            .stderr
            .contains("--no-bodies only applies to the layout openapi")
    );
}
