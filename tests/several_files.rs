//! Evaluations on several files, token limits per suite, and `data stats` for every file format.

use serde_json::{Value, json};

use crate::support::server::{TestServer, chat};
use crate::workplace::{Workplace, json_lines};

fn metrics(workplace: &Workplace, folder: &str) -> Value {
    serde_json::from_str(&workplace.read(&format!("{folder}/metrics.json"))).unwrap()
}

/// Writes two files with two SLOT rows and one SLOT row, and predictions; the first and the last of
/// them are right.
fn slot(workplace: &Workplace) {
    let row = |n: usize| {
        json!({"input_text": format!("Quay {n}"), "gold": {"n": n},
            "json_schema": {"type": "object", "properties": {"n": {"type": "integer"}}}})
    };
    workplace.write("quays.jsonl", json_lines(&[row(1), row(2)]));
    workplace.write("tides.jsonl", json_lines(&[row(3)]));
    let answer = |id: &str, text: &str| json!({"id": id, "prediction": text});
    let answers = [
        answer("quays.jsonl:1", "{\"n\": 1}"),
        answer("quays.jsonl:2", "Two"),
        answer("tides.jsonl:1", "{\"n\": 3}"),
    ];
    workplace.write("answers.jsonl", json_lines(&answers));
}

#[test]
fn each_file_has_metrics_and_equal_weight_in_the_mean() {
    let workplace = Workplace::new();
    slot(&workplace);
    let eval = "eval config.toml --data quays.jsonl --data tides.jsonl --predictions answers.jsonl";
    let output = workplace
        .run(format!("{eval} --output both").split(' '))
        .success();
    let report = metrics(&workplace, "both");
    assert_eq!(report["by_file"][0]["file"], "quays.jsonl");
    assert_eq!(report["by_file"][0]["n"], 2);
    assert_eq!(report["by_file"][0]["schema_accuracy"]["value"], 0.5);
    assert_eq!(report["by_file"][1]["schema_accuracy"]["value"], 1.0);
    assert_eq!(report["macro_mean"]["schema_accuracy"], 0.75);
    let pooled = report["schema_accuracy"]["value"].as_f64().unwrap();
    assert!((pooled - 2.0 / 3.0).abs() < 1e-12, "{pooled}");
    for line in [
        "| tides.jsonl | 1 | 1.0000 |",
        "| macro mean of the files |  | 0.7500 |",
        "| all samples | 3 | 0.6667 |",
    ] {
        assert!(output.contains(line), "{line}: {output}");
    }
    // For a single file, no table of files is printed.
    let one = "eval config.toml --data tides.jsonl --predictions last.jsonl --output one";
    let last = workplace.read("answers.jsonl");
    workplace.write("last.jsonl", last.lines().last().unwrap());
    let output = workplace.run(one.split(' ')).success();
    assert!(!output.contains("macro mean"), "{output}");
    assert_eq!(metrics(&workplace, "one")["by_file"], Value::Null);
    // Commands that read evaluations also accept evaluations on several files.
    workplace.run("compare both both".split(' ')).success();
    let change = format!("{eval} --compare both/metrics.json");
    workplace.run(change.split(' ')).success();
    workplace.run("train config.toml".split(' ')).success();
    workplace
        .run("report run --eval both --output page.html".split(' '))
        .success();
    let page = workplace.read("page.html");
    assert!(
        page.contains("quays.jsonl"),
        "the numbers of files are shown"
    );
}

fn question(uid: &str, gold: &str) -> Value {
    json!({"uid": uid, "response_id": "r", "endpoint": "quays", "task": "t",
        "task_type": "FILTERING", "metric": "accuracy_string", "question": "Which?",
        "gold_answer": gold})
}

/// Questions in two files about one response.
fn toolqa(workplace: &Workplace) {
    let response = json!({"response_id": "r", "endpoint": "quays", "split": "s",
        "response": {"name": "Old Quay"}});
    workplace.write("responses.jsonl", json_lines(&[response]));
    workplace.write(
        "a.jsonl",
        json_lines(&[question("1", "Old Quay"), question("2", "New Quay")]),
    );
    workplace.write("b.jsonl", json_lines(&[question("3", "Old Quay")]));
}

const TOOLQA: &str = "eval config.toml --suite toolqa --set eval.toolqa.responses=responses.jsonl --data a.jsonl --data b.jsonl";

#[test]
fn questions_and_sequences_have_metrics_by_file() {
    let workplace = Workplace::new();
    toolqa(&workplace);
    let outputs = [
        json!({"uid": "1", "model_output": "Old Quay"}),
        json!({"uid": "2", "model_output": null}),
        json!({"uid": "3", "model_output": "none"}),
    ];
    workplace.write("outputs.jsonl", json_lines(&outputs));
    let eval = format!("{TOOLQA} --predictions outputs.jsonl --output scored");
    let output = workplace.run(eval.split(' ')).success();
    let report = metrics(&workplace, "scored");
    assert_eq!(report["exact_match"]["value"], 0.5);
    assert_eq!(report["by_file"][0]["exact_match"]["value"], 1.0);
    assert_eq!(report["macro_mean"]["exact_match"], 0.5);
    assert!(
        output.contains("1 questions have neither an answer nor an output"),
        "{output}"
    );

    let spec = |name: &str| json!({"name": name, "parameters": {"arg_0": {}, "arg_1": {}}, "output_parameters": {"result": {}}});
    let row = |id: &str, answer: usize| {
        let call = json!({"name": "add", "label": "$var_1", "arguments": {"arg_0": 1, "arg_1": 2}});
        json!({"sample_id": id, "input": "?", "output": [call], "tools": [spec("add")],
            "gold_answer": answer})
    };
    // The gold calls of the second file do not give its gold answer.
    workplace.write("c.jsonl", json_lines(&[row("c", 3)]));
    workplace.write("d.jsonl", json_lines(&[row("d", 4)]));
    let gold = row("c", 3)["output"].to_string();
    let golds = ["c", "d"].map(|id| json!({"id": id, "prediction": gold}));
    workplace.write("golds.jsonl", json_lines(&golds));
    let eval = "eval config.toml --suite nestful --data c.jsonl --data d.jsonl --predictions \
                golds.jsonl --output calls";
    let output = workplace.run(eval.split(' ')).success();
    let report = metrics(&workplace, "calls");
    assert_eq!(report["by_file"][0]["win_strict"]["value"], 1.0);
    assert_eq!(report["by_file"][1]["win_strict"], Value::Null);
    assert_eq!(report["macro_mean"]["full"], 1.0);
    for part in [
        "1 reference sequences do not compute",
        "f1_function %",
        "| d.jsonl | 1 |",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
}

#[test]
fn answers_about_outputs_have_their_own_token_limit() {
    let workplace = Workplace::new();
    toolqa(&workplace);
    let requested_max_tokens = |more: &str| {
        let server = TestServer::start(|_, _| chat("Old Quay"));
        let url = format!("{}/v1", server.url());
        let eval = format!("{TOOLQA} --endpoint {url} --endpoint-model m{more}");
        workplace.run(eval.split(' ')).success();
        let received = server.received();
        let bodies = received.iter().map(|request| &request.body);
        let body = bodies.map(|body| serde_json::from_str::<Value>(body).unwrap());
        body.map(|body| body["max_tokens"].clone())
            .collect::<Vec<_>>()
    };
    // eval.max_new_tokens = 12 in the config does not apply to this suite.
    assert_eq!(requested_max_tokens(""), vec![json!(1000); 3]);
    assert_eq!(
        requested_max_tokens(" --set eval.toolqa.setting=cot_answer_schema"),
        vec![json!(1000); 3]
    );
    assert_eq!(
        requested_max_tokens(" --set eval.toolqa.max_new_tokens=1500"),
        vec![json!(1500); 3]
    );
    let config = workplace.read("config.toml");
    let table = "[eval.toolqa]\nmax_new_tokens = 700\n[checkpoint]";
    workplace.write("config.toml", config.replace("[checkpoint]", table));
    assert_eq!(
        requested_max_tokens(" --set eval.toolqa.classify=true"),
        vec![json!(700); 3]
    );
    let refused = workplace.run([
        "train",
        "config.toml",
        "--set",
        "eval.toolqa.max_new_tokens=0",
    ]);
    assert_eq!(refused.status, Some(2));
    let stderr = refused.stderr;
    assert!(stderr.contains("eval.toolqa.max_new_tokens"), "{stderr}");
}

#[test]
fn families_in_error_messages_exist() {
    let workplace = Workplace::new();
    let schema = workplace.run(["schema"]).success();
    let guide = std::fs::read_to_string(crate::support::root().join("docs/config.md")).unwrap();
    let families = "json_list, granite31, llama, hammer, hermes, xlam, toolace";
    assert!(schema.contains(families), "{schema}");
    assert!(guide.contains(families));
    for text in [schema, guide] {
        assert!(!text.contains("tool_ace"));
    }
    let set = "eval.nestful.family=tool_ace";
    let refused = workplace.run(["train", "config.toml", "--set", set]);
    assert_eq!(refused.status, Some(2));
    let stderr = refused.stderr;
    assert!(stderr.contains("did you mean \"toolace\"?"), "{stderr}");
}

#[test]
fn data_stats_detects_rows_by_their_fields() {
    let workplace = Workplace::new();
    let synth = "data synth goat --rows 20 --output goat.jsonl --documents apis.jsonl";
    workplace.run(synth.split(' ')).success();
    let stats = |arguments: &str| {
        let command = format!("data stats {arguments}");
        workplace.run(command.split(' ')).success()
    };
    let table = stats("goat.jsonl --documents apis.jsonl");
    for part in [
        "20 trajectories in goat.jsonl",
        "domains of the APIs called",
        "sub-graphs of size",
        "| calls ",
        "| query_characters ",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    toolqa(&workplace);
    let table = stats("a.jsonl --responses responses.jsonl");
    assert!(table.starts_with("2 questions in a.jsonl"), "{table}");
    // In Python's format, {'name': 'Old Quay'} has 20 characters.
    assert!(table.contains("20.0"), "{table}");
    let table = stats("responses.jsonl");
    assert!(
        table.starts_with("1 responses in responses.jsonl"),
        "{table}"
    );
    let message = |role: &str, text: &str| json!({"role": role, "content": text});
    let chat = json!({"messages": [message("user", "Where?"), message("assistant", "Here.")]});
    workplace.write("chat.jsonl", json_lines(&[chat]));
    let table = stats("chat.jsonl");
    for part in [
        "1 rows in chat.jsonl",
        "1 user messages",
        "| prompt_characters ",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let pair = json!({"anchor": "tide", "positive": "harbour depth", "negatives": ["wind"]});
    workplace.write("pairs.jsonl", json_lines(&[pair]));
    let table = stats("pairs.jsonl");
    for part in [
        "1 pairs in pairs.jsonl",
        "1 distinct queries",
        "2 distinct documents",
        "| document_characters ",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    for (arguments, expected) in [
        ("data stats a.jsonl", "--responses"),
        (
            "data stats chat.jsonl --documents apis.jsonl",
            "--documents only applies to trajectories",
        ),
    ] {
        let refused = workplace.run(arguments.split(' '));
        assert_eq!(refused.status, Some(2), "{arguments}: {}", refused.stderr);
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
}
