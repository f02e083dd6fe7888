//! Questions about tool outputs that the program makes: the shipped set, resized sets, an independent
//! computation of their answers, the routed setting and the projection.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::root;
use crate::support::server::{TestServer, chat};
use crate::tool_suites::metrics;
use crate::workplace::{Workplace, json_lines};

const SHIPPED: &str = "tests/fixtures/toolqa";

fn shipped(name: &str) -> String {
    root().join(SHIPPED).join(name).display().to_string()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The last line of `scripts/toolqa_golds.py`, which computes every answer in plain Python.
fn recomputed(questions: &Path, responses: &Path) -> String {
    let script = root().join("scripts/toolqa_golds.py");
    let output = Command::new("python3")
        .arg(script)
        .arg(questions)
        .arg(responses)
        .output();
    let output = output.expect("python3");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    printed.lines().last().unwrap_or_default().to_owned()
}

/// Invariant: Plain Python computes the same answers as the programs of generated questions.
#[test]
fn the_shipped_questions_are_made_again_and_python_agrees() {
    let workplace = Workplace::new();
    let responses = shipped("responses.jsonl");
    let made = |options: &str| {
        let command = format!("data synth toolqa --responses {responses} {options}");
        workplace.run(command.split(' ')).success()
    };
    let printed =
        made("--rows 150 --seed 7 --output questions.jsonl --output-responses used.jsonl");
    assert!(printed.contains("dropped: records tie"), "{printed}");
    let questions = std::fs::read_to_string(shipped("questions.jsonl")).unwrap();
    assert_eq!(workplace.read("questions.jsonl"), questions);
    let n = questions.lines().count();
    let report = recomputed(
        &root().join(SHIPPED).join("questions.jsonl"),
        responses.as_ref(),
    );
    assert!(
        report.starts_with(&format!("{n} questions, ")) && report.ends_with(" 0 differ"),
        "{report}"
    );

    made(
        "--n 24 --seed 3 --target-tokens 900,2500 --answer-position 1,4,8 --output sized.jsonl \
         --output-responses sized-responses.jsonl",
    );
    let report = recomputed(
        &workplace.path("sized.jsonl"),
        &workplace.path("sized-responses.jsonl"),
    );
    assert_eq!(report, "24 questions, 24 with a position, 0 differ");
    for response in lines(&workplace.read("sized-responses.jsonl")) {
        let n_tokens = response["response"].to_string().len() / 4;
        assert!(n_tokens < 2500, "{n_tokens}");
    }
    // Existing files are kept.
    let again = format!(
        "data synth toolqa --responses {responses} --output sized.jsonl --output-responses x.jsonl"
    );
    assert_eq!(workplace.run(again.split(' ')).status, Some(2));
}

#[test]
fn the_answers_of_a_generated_set_are_right_in_the_suite_by_every_group() {
    let workplace = Workplace::new();
    let questions = lines(&std::fs::read_to_string(shipped("questions.jsonl")).unwrap());
    let golds = questions
        .iter()
        .map(|row| json!({"id": row["uid"], "prediction": row["gold_answer"]}));
    workplace.write("golds.jsonl", json_lines(golds.collect::<Vec<_>>()));
    let command = format!(
        "eval config.toml --suite toolqa --data {} --set eval.toolqa.responses={} --predictions golds.jsonl --output golds",
        shipped("questions.jsonl"),
        shipped("responses.jsonl")
    );
    workplace.run(command.split(' ')).success();
    let report = metrics(&workplace, "golds");
    for metric in ["exact_match", "exact_match_strict", "contains"] {
        assert_eq!(report[metric]["value"], 1.0, "{metric}");
    }
    assert_eq!(report["wrong_by_code_failure"], Value::Null);
    let sizes = |group: &str, field: &str| {
        let groups = report[group]
            .as_object()
            .unwrap_or_else(|| panic!("{group}"));
        for (name, numbers) in groups {
            let n = questions
                .iter()
                .map(|row| row[field].to_string())
                .filter(|value| value == name)
                .count();
            assert_eq!(numbers["n"], n, "{group} {name}");
        }
        groups.len()
    };
    assert!(sizes("by_depth", "answer_depth") >= 3);
    assert_eq!(sizes("by_position", "answer_position"), 8);
    assert!(report.get("by_target_tokens").is_none() && report.get("by_setting").is_none());
}

/// Two questions about one response: the first extractive, the second an aggregation.
fn write_questions(workplace: &Workplace) {
    let boats: Vec<Value> = [("Ada", 7), ("Bob", 9), ("Cy", 4)]
        .iter()
        .map(|(name, length)| json!({"name": name, "length": length, "secret": "zzz"}))
        .collect();
    let response = json!({"response_id": "r", "endpoint": "boats", "split": "x", "response": {"boats": boats, "other": 5}});
    workplace.write("responses.jsonl", json_lines(&[response]));
    let row = |uid: &str, task_type: &str, question: &str, gold: &str| {
        json!({"uid": uid, "response_id": "r", "endpoint": "boats", "task": "t", "task_type": task_type,
            "metric": "accuracy_string", "question": question, "gold_answer": gold,
            "read_keys": [["boats", "name"], ["boats", "length"]]})
    };
    let rows = [
        row("a", "EXTRACTIVE", "How long is Ada?", "7"),
        row("b", "AGGREGATION", "Which boat is longest?", "Bob"),
        row("c", "FILTERING", "Which boats are short?", "Cy"),
    ];
    workplace.write("questions.jsonl", json_lines(&rows));
}

const ROUTED: &str = "eval config.toml --suite toolqa --data questions.jsonl --set eval.toolqa.responses=responses.jsonl --set eval.toolqa.setting=routed --set eval.toolqa.run_code=true";

#[test]
fn questions_are_classified_and_then_answered_or_solved_by_code() {
    let workplace = Workplace::new();
    write_questions(&workplace);
    // The classifier names the first two types, and nothing for the third.
    let server = TestServer::start(|request, _| {
        let body = request.body.to_lowercase();
        let is_classifier = body.contains("category");
        let writes_code = body.contains("python");
        chat(match () {
            () if is_classifier && body.contains("how long") => "category: extractive",
            () if is_classifier && body.contains("longest") => "category: aggregation",
            () if is_classifier => "I cannot tell",
            () if writes_code && body.contains("longest") => {
                "```python\ndef f(data):\n    return max(data['boats'], key=lambda b: b['length'])['name']\n```"
            }
            () if writes_code => "```python\ndef f(data):\n    return data['none']\n```",
            () => "7",
        })
    });
    let url = format!("{}/v1", server.url());
    let command = format!("{ROUTED} --endpoint {url} --endpoint-model scripted --output routed");
    workplace.run(command.split(' ')).success();
    assert_eq!(server.received().len(), 6);
    let report = metrics(&workplace, "routed");
    assert!((report["exact_match"]["value"].as_f64().unwrap() - 2.0 / 3.0).abs() < 1e-12);
    assert_eq!(report["by_setting"]["answer_schema"]["n"], 1);
    assert_eq!(report["by_setting"]["code_schema"]["n"], 2);
    assert_eq!(report["classifier"]["n_parse_errors"], 1);
    assert!(
        (report["classifier"]["accuracy"]["value"].as_f64().unwrap() - 2.0 / 3.0).abs() < 1e-12
    );
    // The only wrong answer is the code that failed.
    assert_eq!(report["n_code_errors"], 1);
    assert_eq!(report["wrong_by_code_failure"]["value"], 1.0);
    let predictions = lines(&workplace.read("routed/predictions.jsonl"));
    let settings: Vec<&Value> = predictions.iter().map(|line| &line["setting"]).collect();
    assert_eq!(settings, ["answer_schema", "code_schema", "code_schema"]);
    assert_eq!(predictions[2]["classifier_output"], "I cannot tell");

    // Saved predictions keep their setting.
    let command = format!("{ROUTED} --predictions routed/predictions.jsonl --output again");
    workplace.run(command.split(' ')).success();
    let again = metrics(&workplace, "again");
    for field in [
        "exact_match",
        "by_setting",
        "classifier",
        "wrong_by_code_failure",
    ] {
        assert_eq!(again[field], report[field], "{field}");
    }
    let without = json_lines(["a", "b", "c"].map(|id| json!({"id": id, "prediction": "7"})));
    workplace.write("without.jsonl", without);
    let refused = workplace.run(format!("{ROUTED} --predictions without.jsonl").split(' '));
    assert_eq!(refused.status, Some(3));
    assert!(
        refused.stderr.contains("has no `setting`"),
        "{}",
        refused.stderr
    );

    // Other routes; without code no sandbox is needed.
    let routes = "--set eval.toolqa.run_code=false --set eval.toolqa.route_filtering=answer --set eval.toolqa.route_aggregation=cot_answer_schema";
    let command =
        format!("{ROUTED} {routes} --endpoint {url} --endpoint-model scripted --output answers");
    workplace.run(command.split(' ')).success();
    let report = metrics(&workplace, "answers");
    let settings: Vec<&String> = report["by_setting"].as_object().unwrap().keys().collect();
    assert_eq!(settings, ["answer_schema", "cot_answer_schema"]);
    // A route without the routed setting has no effect and is refused.
    let command = ROUTED.replace("setting=routed", "route_filtering=answer");
    assert_eq!(workplace.run(command.split(' ')).status, Some(2));
}

#[test]
fn the_projection_shows_only_the_keys_that_the_program_reads() {
    let workplace = Workplace::new();
    write_questions(&workplace);
    let server = TestServer::start(|_, _| chat("7"));
    let url = format!("{}/v1", server.url());
    let command = ROUTED.replace("setting=routed", "setting=answer_schema");
    for (projection, shows_all) in [("false", true), ("true", false)] {
        let options = format!(
            "--set eval.toolqa.oracle_projection={projection} --endpoint {url} --endpoint-model scripted --output out-{projection}"
        );
        let n_before = server.received().len();
        workplace
            .run(format!("{command} {options}").split(' '))
            .success();
        let received = server.received();
        assert_eq!(received.len() - n_before, 3);
        for request in &received[n_before..] {
            assert_eq!(
                request.body.contains("secret"),
                shows_all,
                "{}",
                request.body
            );
            assert_eq!(
                request.body.contains("other"),
                shows_all,
                "{}",
                request.body
            );
            assert!(request.body.contains("Bob"), "{}", request.body);
        }
    }
    let rows = workplace
        .read("questions.jsonl")
        .replace("read_keys", "unrelated");
    workplace.write("questions.jsonl", rows);
    let options = format!(
        "--set eval.toolqa.oracle_projection=true --endpoint {url} --endpoint-model scripted"
    );
    let refused = workplace.run(format!("{command} {options}").split(' '));
    assert_eq!(refused.status, Some(3));
    assert!(
        refused.stderr.contains("has no read_keys"),
        "{}",
        refused.stderr
    );
}

#[test]
fn the_published_layout_is_imported() {
    let workplace = Workplace::new();
    let question = |uid: &str, query: &str| {
        json!({"uid": uid, "question": "How many boats?", "gold_answer": "3", "api_response_path": "api_responses/api.json",
            "app": "harbour", "endpoint": "boats", "api_query": query, "task": "CountBoats", "task_type": "AGGREGATION",
            "metrics": {"exact_match_metric": "approx_number_match"}})
    };
    let pairs = json!([question("q1", "{}"), question("q2", "absent")]);
    workplace.write("pairs.json", pairs.to_string());
    let api = json!({"harbour": {"boats": {"{}": {"boats": [1, 2, 3]}}}});
    workplace.write("api.json", api.to_string());
    let command = "data import toolqa pairs.json api.json --output questions.jsonl --responses responses.jsonl";
    let printed = workplace.run(command.split(' ')).success();
    assert!(
        printed.contains("1 dropped: no response has the question's query"),
        "{printed}"
    );
    workplace.write(
        "golds.jsonl",
        json_lines(&[json!({"id": "q1", "prediction": "3"})]),
    );
    let command = "eval config.toml --suite toolqa --data questions.jsonl --set eval.toolqa.responses=responses.jsonl --predictions golds.jsonl --output out";
    workplace.run(command.split(' ')).success();
    assert_eq!(metrics(&workplace, "out")["exact_match"]["value"], 1.0);
    let refused =
        workplace.run("data import toolqa pairs.json --output a --responses b".split(' '));
    assert_eq!(refused.status, Some(2));
    let refused = workplace.run("data import toolqa pairs.json api.json --output a".split(' '));
    assert!(refused.stderr.contains("--responses"), "{}", refused.stderr);
}
