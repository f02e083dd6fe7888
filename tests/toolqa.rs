//! The suite toolqa through the program: its judge, its classifier, and truncated responses.

use serde_json::{Value, json};

use crate::support::server::{TestServer, chat};
use crate::tool_suites::{TOOLQA, metrics, write_toolqa_files};
use crate::workplace::{Workplace, json_lines};

#[test]
fn answers_are_judged_and_questions_classified() {
    let workplace = Workplace::new();
    write_toolqa_files(&workplace);
    let golds = [
        json!({"uid": "a", "model_output": "It is the Old Mill, of course"}),
        json!({"uid": "b", "model_output": "no idea"}),
    ];
    workplace.write("answers.jsonl", json_lines(&golds));
    let server = TestServer::start(|request, _| {
        let body = &request.body;
        chat(match () {
            () if body.contains("of course") => "True, both name the mill.",
            () if body.contains("no idea") => "False",
            () => "category: extractive",
        })
    });
    let judge = format!(
        "eval.toolqa.judge={{ base_url = \"{}/v1\", model = \"scripted\" }}",
        server.url()
    );
    let judged = TOOLQA.split(' ').chain([
        "--predictions",
        "answers.jsonl",
        "--output",
        "judged",
        "--set",
        &judge,
    ]);
    let output = workplace.run(judged).success();
    assert!(output.contains("scripted judged 2 answers"), "{output}");
    let report = metrics(&workplace, "judged");
    assert_eq!(report["judged"]["value"], 0.5);
    assert_eq!(report["judge"]["n_unparsed"], 0);
    assert_eq!(workplace.read("judged/judge.jsonl").lines().count(), 2);

    let url = format!("{}/v1", server.url());
    let classified = TOOLQA.split(' ').chain([
        "--set",
        "eval.toolqa.classify=true",
        "--endpoint",
        &url,
        "--endpoint-model",
        "scripted",
        "--output",
        "classified",
    ]);
    let output = workplace.run(classified).success();
    assert!(
        output.contains("accuracy                         1.0000"),
        "{output}"
    );
    let report = workplace.read("classified/metrics.json");
    let keys = report.lines().filter(|line| line.starts_with("  \""));
    let keys: Vec<&str> = keys.filter_map(|line| line.split('"').nth(1)).collect();
    // The origin of the evaluation follows.
    let expected = ["n", "accuracy", "by_type", "n_parse_errors", "suite"];
    assert!(keys.starts_with(&expected), "{report}");
    let line = |id: &str, output: &str| {
        format!(
            "{{\"suite\":\"toolqa\",\"type\":\"classification\",\"id\":\"{id}\",\
             \"task_type\":\"EXTRACTIVE\",\"prediction\":\"{output}\"}}\n"
        )
    };
    let expected = ["a", "b"].map(|id| line(id, "category: extractive"));
    assert_eq!(
        workplace.read("classified/predictions.jsonl"),
        expected.concat()
    );
    // Saved outputs are classified by the same rules, also without an output.
    let saved = [
        json!({"uid": "a", "model_output": null}),
        json!({"uid": "b", "model_output": "category: extractive"}),
    ];
    workplace.write("outputs.jsonl", json_lines(&saved));
    let again = "--set eval.toolqa.classify=true --predictions outputs.jsonl --output again";
    let output = workplace.run(TOOLQA.split(' ').chain(again.split(' ')));
    let table = "accuracy                         0.5000\n\
                 accuracy, EXTRACTIVE             0.5000\n\
                 outputs without a type           1\n\
                 n                                2";
    let output = output.success();
    assert!(output.contains(table), "{output}");
    let expected = [line("a", ""), line("b", "category: extractive")];
    assert_eq!(workplace.read("again/predictions.jsonl"), expected.concat());
}

#[test]
fn truncated_responses_in_prompts_note_the_omission() {
    let workplace = Workplace::new();
    write_toolqa_files(&workplace);
    let server = TestServer::start(|_, _| chat("Old Mill"));
    let url = format!("{}/v1", server.url());
    let prompt = |options: &[&str]| {
        let output = format!("out-{}", server.received().len());
        let endpoint = ["--endpoint", &url, "--endpoint-model", "scripted"];
        let arguments = TOOLQA.split(' ').chain(endpoint);
        let arguments = arguments.chain(["--output", &output]);
        workplace
            .run(arguments.chain(options.iter().copied()))
            .success();
        let received = server.received();
        let body: Value = serde_json::from_str(&received.last().unwrap().body).unwrap();
        body["messages"][0]["content"].as_str().unwrap().to_string()
    };
    let full_prompt = prompt(&[]);
    assert!(
        full_prompt.contains("Pier") && !full_prompt.contains("_meta"),
        "{full_prompt}"
    );
    let truncate = "eval.toolqa.reduce=truncate";
    let first = prompt(&["--set", truncate, "--set", "eval.toolqa.max_items=1"]);
    assert!(
        first.contains("\"_meta\": \"showing 1 of 2 items."),
        "{first}"
    );
    assert!(
        first.contains("\"price\": 80") && !first.contains("120"),
        "{first}"
    );
    let names_only = "eval.toolqa.jmespath=data[].name";
    let names = prompt(&["--set", truncate, "--set", names_only]);
    assert!(
        names.contains("\"Pier\"") && !names.contains("price"),
        "{names}"
    );
    let max_chars = "eval.toolqa.max_chars=12";
    let cut = prompt(&["--set", truncate, "--set", names_only, "--set", max_chars]);
    assert!(cut.contains("... [truncated, "), "{cut}");
    let nothing = prompt(&["--set", truncate, "--set", "eval.toolqa.jmespath=rooms"]);
    let message = "\"_meta\": \"the filter rooms finds nothing in this output.\"";
    assert!(nothing.contains(message), "{nothing}");

    let n_asked = server.received().len();
    for (options, expected) in [
        (
            ["--set", "eval.toolqa.max_items=1"].as_slice(),
            "reduce = \"truncate\"",
        ),
        (
            &[
                "--set",
                "eval.toolqa.reduce=paths",
                "--set",
                "eval.toolqa.jmespath=data",
            ],
            "`eval.toolqa.jmespath` is for",
        ),
        (
            &["--set", truncate, "--set", "eval.toolqa.jmespath=data["],
            "eval.toolqa.jmespath",
        ),
        (
            &[
                "--set",
                truncate,
                "--set",
                "eval.toolqa.jmespath=length(rooms)",
            ],
            "question \"a\"",
        ),
    ] {
        let endpoint = ["--endpoint", &url, "--endpoint-model", "scripted"];
        let arguments = TOOLQA.split(' ').chain(endpoint);
        let refused = workplace.run(arguments.chain(options.iter().copied()));
        assert_ne!(refused.status, Some(0), "{options:?}");
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
    assert_eq!(server.received().len(), n_asked, "no request was sent");
}
