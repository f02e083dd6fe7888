//! The agent suites with external services: a server that executes calls, a judge on a server,
//! recorded calls, and saved outcomes that are scored again without a model.

use serde_json::{Value, json};

use crate::support::server::{Response, TestServer, chat};
use crate::support::test_device::TestDevice;
use crate::support::{fixture, model};
use crate::workplace::{CommandOutput, Workplace, parse_lines, tooltune};

pub(crate) fn config(extra: &str) -> String {
    format!(
        r#"device = "{device}"
[model]
model_name_or_path = "{model}"
[lora]
r = 16
lora_alpha = 32
[data]
train = ["none.jsonl"]
eval = ["queries.json"]
format = "goat"
max_length = 4096
[goat]
documents = "documents.jsonl"
method = "react"
{extra}
[retriever]
model_name_or_path = "{retriever}"
[train]
output_dir = "run"
[eval]
max_new_tokens = 64
"#,
        device = TestDevice::from_env(),
        model = model("smollm2-135m-instruct.gguf").display(),
        retriever = model("all-minilm-l6-v2").display(),
    )
}

/// A workplace with a specification of two operations, its documents, and queries in RestBench's
/// layout.
pub(crate) fn workplace() -> Workplace {
    let workplace = Workplace::new();
    let parameter = |name: &str, location: &str| {
        json!({"name": name, "in": location, "required": true, "schema": {"type": "string"},
            "description": "Name of the city."})
    };
    let operation = |summary: &str, parameter: Value| {
        json!({"get": {"summary": summary, "parameters": [parameter],
            "responses": {"200": {"description": "Degrees and sky."}}}})
    };
    let specification = json!({
        "openapi": "3.0.0", "info": {"title": "Sky", "version": "1"},
        "paths": {
            "/weather": operation("Weather of a city.", parameter("city", "query")),
            "/tides/{city}": operation("Tides of a city.", parameter("city", "path")),
        },
    });
    workplace.write("sky.json", specification.to_string());
    let import = "data import openapi sky.json --output documents.jsonl";
    workplace.run(import.split(' ')).success();
    let queries = json!([
        {"query": "How cold is Oslo?", "solution": ["GET /weather"]},
        {"query": "When is low water in Oslo?", "solution": ["GET /weather", "GET /tides/{town}"]},
    ]);
    workplace.write("queries.json", queries.to_string());
    workplace
}

/// Trains SmolLM2 for a few seconds to repeat the same call. The training row repeats it more often
/// than a loop allows, so that the result does not depend on the model ending the loop.
pub(crate) fn train_to_call(workplace: &Workplace) {
    write_calls(workplace);
    workplace.write("teach.toml", training_config("taught"));
    let train = "train teach.toml --set data.eval=[]";
    workplace.run(train.split(' ')).success();
}

pub(crate) fn write_calls(workplace: &Workplace) {
    let call = json!({"sub_query": "Ask.", "name": "GET /weather", "arguments": {"city": "Oslo"},
        "output": {"degrees": -3}});
    let row = json!({"id": "a", "query": "How cold is Oslo?", "calls": vec![call; 12],
        "response": "It is -3."});
    workplace.write("calls.jsonl", format!("{row}\n"));
}

/// The config of a run on `calls.jsonl` without evaluations.
pub(crate) fn training_config(run: &str) -> String {
    let steps = "max_steps = 12\nper_device_train_batch_size = 2\nlearning_rate = 1e-3\n\
                 lr_scheduler_type = \"constant\"";
    let config = config("").replace("none.jsonl", "calls.jsonl").replace(
        "output_dir = \"run\"",
        &format!("output_dir = \"{run}\"\n{steps}"),
    );
    config + "eval_strategy = \"no\"\n"
}

pub(crate) const TRAINED_CHECKPOINT: [&str; 2] = ["--checkpoint", "taught/checkpoint-000012"];

pub(crate) fn metrics(workplace: &Workplace, folder: &str) -> Value {
    serde_json::from_str(&workplace.read(&format!("{folder}/metrics.json"))).unwrap()
}

/// Runs the program with additional environment variables.
pub(crate) fn run_with(
    workplace: &Workplace,
    variables: &[(&str, &str)],
    arguments: &[&str],
) -> CommandOutput {
    let mut command = tooltune();
    command.envs(variables.iter().copied());
    CommandOutput::from_command(command.current_dir(workplace.folder()).args(arguments))
}

#[test]
fn calls_reach_a_server_and_its_errors_are_failed_calls() {
    let workplace = workplace();
    train_to_call(&workplace);
    // The first two are from a loop of two steps.
    let server = TestServer::start(|_, number| match number {
        3 => Response::json(500, &json!({"message": "down"})),
        4 => Response::html(200, "<html>Sign in</html>"),
        5 => Response::Hang,
        _ => Response::json(200, &json!({"degrees": -3})),
    });
    let executor = format!(
        "[goat.executor]\nkind = \"http\"\nspecification = \"sky.json\"\nbase_url = \"{}/v1\"\n\
         headers = {{ X-Key = \"SKY_KEY\" }}\ntimeout_secs = 0.5\n",
        server.url()
    );
    workplace.write("sky.toml", config(&executor));
    let mut eval = vec![
        "eval",
        "sky.toml",
        "--suite",
        "restbench",
        "--output",
        "out",
    ];
    eval.extend(TRAINED_CHECKPOINT);
    eval.extend(["--max-samples", "1"]);
    let unset = run_with(&workplace, &[], &eval);
    assert_eq!(unset.status, Some(2), "{}", unset.stderr);
    assert!(unset.stderr.contains("SKY_KEY"), "{}", unset.stderr);

    let fewer = [
        "--set",
        "goat.limits.max_steps=2",
        "--set",
        "train.output_dir=fewer",
    ];
    let mut short = eval.clone();
    short[5] = "short";
    short.extend(fewer);
    run_with(&workplace, &[("SKY_KEY", "x")], &short).success();
    let outcome = &parse_lines(&workplace.read("short/predictions.jsonl"))[0]["outcome"];
    assert_eq!(outcome["calls"].as_array().unwrap().len(), 2, "{outcome}");
    let none = workplace.run(["plan", "sky.toml", "--set", "goat.limits.call_tokens=0"]);
    assert_eq!(none.status, Some(2), "{}", none.stderr);
    assert!(
        none.stderr.contains("goat.limits.call_tokens"),
        "{}",
        none.stderr
    );

    let n_before = server.received().len();
    run_with(&workplace, &[("SKY_KEY", "s3cret-0123")], &eval).success();
    let received = server.received().split_off(n_before);
    let saved = workplace.read("out/predictions.jsonl");
    assert_eq!(received.len(), 10, "{saved}");
    assert_eq!(received[0].method, "GET");
    assert_eq!(received[0].target, "/v1/weather?city=Oslo");
    assert_eq!(received[0].headers["x-key"], "s3cret-0123");
    assert!(!saved.contains("s3cret"), "{saved}");
    let prediction = &parse_lines(&saved)[0];
    let calls = prediction["outcome"]["calls"].as_array().unwrap();
    assert_eq!(calls[0]["output"], json!({"degrees": -3}));
    for (call, expected) in calls[1..4].iter().zip(["500", "not in JSON", "500ms"]) {
        let message = call["exception"].as_str().unwrap();
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(prediction["score"]["correct_path"], true);
    assert_eq!(prediction["score"]["delta_len"], 9);
    let report = metrics(&workplace, "out");
    assert_eq!(report["restbench"]["correct_path"]["value"], 1.0);
    assert_eq!(report["restbench"]["sr"], Value::Null);

    // A document whose operation is not in the specification is refused.
    let documents = workplace
        .read("documents.jsonl")
        .replace("/tides", "/floods");
    workplace.write("documents.jsonl", documents);
    let foreign = run_with(&workplace, &[("SKY_KEY", "x")], &{
        let mut eval = eval.clone();
        eval[5] = "elsewhere";
        eval
    });
    assert_eq!(foreign.status, Some(2), "{}", foreign.stderr);
    assert!(
        foreign.stderr.contains("GET /floods/{city}"),
        "{}",
        foreign.stderr
    );
}

/// Saved outcomes with the right calls for both queries.
pub(crate) fn saved_outcomes() -> String {
    let outcome = |id: &str, names: &[&str]| {
        let call =
            |name: &&str| json!({"name": name, "arguments": {}, "output": 1, "exception": null});
        let calls: Vec<Value> = names.iter().map(call).collect();
        let outcome = json!({"method": "react", "path": names, "calls": calls, "response": "-3.",
            "retrievals": [], "end": "answered"});
        format!("{}\n", json!({"id": id, "outcome": outcome}))
    };
    let second = ["GET /weather", "GET /weather", "GET /tides/Oslo"];
    outcome("queries[1]", &second) + &outcome("queries[0]", &["GET /tides/Oslo"])
}

#[test]
fn saved_outcomes_are_scored_without_a_model() {
    let workplace = workplace();
    workplace.write("saved.jsonl", saved_outcomes());
    workplace.write("sky.toml", config("").replace("smollm2", "no_such_model"));
    let eval = "eval sky.toml --suite restbench --predictions saved.jsonl --output out";
    let table = workplace.run(eval.split(' ')).success();
    assert!(table.contains("| predictions | 2 | 50.0"), "{table}");
    let scored = parse_lines(&workplace.read("out/predictions.jsonl"));
    assert_eq!(
        scored[1]["score"]["correct_path"], true,
        "placeholders have no names"
    );
    assert_eq!(scored[0]["score"]["sa"], 0.0);
    let again = "eval sky.toml --suite restbench --predictions out/predictions.jsonl --output out2";
    workplace.run(again.split(' ')).success();
    let without_origin = |folder: &str, file: &str| {
        let mut metrics = metrics(&workplace, folder);
        let origin = metrics.as_object_mut().unwrap().remove("origin").unwrap();
        assert_eq!(origin["predictions"]["file"], file);
        metrics
    };
    assert_eq!(
        without_origin("out", "saved.jsonl"),
        without_origin("out2", "out/predictions.jsonl")
    );

    let all = saved_outcomes();
    let first = all.lines().next().unwrap();
    for (text, expected) in [
        (
            first.to_string(),
            "1 of 2 queries have no prediction, such as \"queries[0]\"",
        ),
        (
            format!("{first}\n{first}\n"),
            "saved.jsonl:2: duplicate id \"queries[1]\" (first at saved.jsonl:1)",
        ),
        (
            "{\"id\": \"queries[0]\"}\n".to_string(),
            "saved.jsonl:1: missing field `outcome`",
        ),
    ] {
        workplace.write("saved.jsonl", text);
        let eval = "eval sky.toml --suite restbench --predictions saved.jsonl";
        let refused = workplace.run(eval.split(' '));
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
}

fn judge(server: &TestServer, more: &str) -> String {
    config(&format!(
        "[goat.judge]\nbase_url = \"{}/v1\"\nmodel = \"judge-1\"\napi_key_env = \"JUDGE_KEY\"\n{more}\n",
        server.url()
    ))
}

#[test]
fn a_judge_decides_success_and_its_replies_are_saved() {
    let workplace = workplace();
    workplace.write("saved.jsonl", saved_outcomes());
    let server = TestServer::start(|request, _| {
        if request.body.contains("low water") {
            chat("It is.\n{\"content\": \"found\", \"answer_status\": \"Solved\"}")
        } else {
            chat("I cannot say.")
        }
    });
    workplace.write("judged.toml", judge(&server, "attempts = 2"));
    let key = [("JUDGE_KEY", "sk-abcdef-0123")];
    let eval = "eval judged.toml --suite restbench --predictions saved.jsonl --output out";
    let eval: Vec<&str> = eval.split(' ').collect();
    let output = run_with(&workplace, &key, &eval).success();
    assert!(
        output.contains("judge-1 judged 2 queries; 1 replies could not be parsed"),
        "{output}"
    );
    let report = metrics(&workplace, "out");
    assert_eq!(report["restbench"]["sr"]["value"], 0.5);
    assert_eq!(
        report["restbench"]["delta_len"]["value"], 1.0,
        "only of the solved query"
    );
    assert_eq!(
        report["judge"],
        json!({"model": "judge-1", "n": 2, "n_unparsed": 1})
    );
    let verdicts = parse_lines(&workplace.read("out/judge.jsonl"));
    assert_eq!(
        (&verdicts[0]["verdict"], &verdicts[1]["verdict"]),
        (&Value::Null, &json!(true))
    );
    assert_eq!(verdicts[0]["replies"].as_array().unwrap().len(), 2);
    let received = server.received();
    assert!(
        received
            .iter()
            .all(|r| r.headers["authorization"] == "Bearer sk-abcdef-0123")
    );
    assert!(
        received[0].body.contains("Tool execution details"),
        "{}",
        received[0].body
    );
}

#[test]
fn people_decide_success_in_place_of_a_judge() {
    let workplace = workplace();
    workplace.write("saved.jsonl", saved_outcomes());
    let server = TestServer::start(|_, _| Response::json(500, &json!({})));
    workplace.write("judged.toml", judge(&server, ""));
    let eval = |verdicts: &str, output: &str| {
        workplace.write("verdicts.jsonl", verdicts);
        let eval = format!(
            "eval judged.toml --suite restbench --predictions saved.jsonl --verdicts \
             verdicts.jsonl --output {output}"
        );
        workplace.run(eval.split(' '))
    };
    let first = "{\"id\": \"queries[0]\", \"solved\": true}\n";
    let both = format!("{{\"id\": \"queries[1]\", \"solved\": false}}\n{first}");
    let output = eval(&both, "out").success();
    assert!(
        output.contains("2 verdicts of people: verdicts.jsonl"),
        "{output}"
    );
    let report = metrics(&workplace, "out");
    assert_eq!(report["restbench"]["sr"]["value"], 0.5);
    // Of the solved query, which makes one call as its reference.
    assert_eq!(report["restbench"]["delta_len"]["value"], 0.0);
    assert_eq!(report["n_verdicts_of_people"], 2);
    assert_eq!(server.received().len(), 0, "the judge is not asked");
    for (verdicts, expected) in [
        (
            first.to_owned(),
            "1 of 2 predictions have no verdict: \"queries[1]\"",
        ),
        (
            first.repeat(2),
            "verdicts.jsonl:2: duplicate id \"queries[0]\"",
        ),
    ] {
        let refused = eval(&verdicts, "refused");
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
    let other = "eval judged.toml --suite retrieval --predictions saved.jsonl --verdicts v.jsonl";
    let refused = workplace.run(other.split(' '));
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    let expected = "it applies to goat, toolqa, restbench, apibank";
    assert!(refused.stderr.contains(expected), "{}", refused.stderr);
}

#[test]
fn a_failing_judge_loses_no_outcome() {
    let workplace = workplace();
    for (name, reply, expected) in [
        (
            "error",
            Response::json(500, &json!({"error": "overloaded"})),
            "500",
        ),
        (
            "page",
            Response::html(200, "<html>Sign in</html>"),
            "chat completion server",
        ),
        ("silence", Response::Hang, "no answer"),
    ] {
        workplace.write("saved.jsonl", saved_outcomes());
        let server = TestServer::start(move |_, _| reply.clone());
        workplace.write(
            "judged.toml",
            judge(&server, "retries = 0\ntimeout_secs = 0.4"),
        );
        let eval = [
            "eval",
            "judged.toml",
            "--suite",
            "restbench",
            "--predictions",
            "saved.jsonl",
        ];
        let eval = [&eval[..], &["--output", name]].concat();
        let failed = run_with(&workplace, &[("JUDGE_KEY", "sk-abcdef-0123")], &eval);
        assert_eq!(failed.status, Some(1), "{name}: {}", failed.stderr);
        for part in [expected, server.url().as_str(), "--predictions"] {
            assert!(
                failed.stderr.contains(part),
                "{name}: {part}: {}",
                failed.stderr
            );
        }
        assert!(!failed.stderr.contains("sk-abcdef"), "{}", failed.stderr);
        assert!(!workplace.path(&format!("{name}/metrics.json")).exists());
        workplace.write("plain.toml", config(""));
        let path = format!("{name}/predictions.jsonl");
        let again = [
            "eval",
            "plain.toml",
            "--suite",
            "restbench",
            "--predictions",
            &path,
        ];
        workplace.run(again).success();
    }
    let unset = TestServer::start(|_, _| Response::Hang);
    workplace.write("judged.toml", judge(&unset, ""));
    let eval = "eval judged.toml --suite restbench --predictions saved.jsonl";
    let refused = workplace.run(eval.split(' '));
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("JUDGE_KEY"), "{}", refused.stderr);
    assert!(unset.received().is_empty());
}

/// Writes documents, a recording and samples in API-Bank's layouts.
pub(crate) fn write_api_bank(workplace: &Workplace) {
    let answer = json!({"degrees": -3});
    workplace.write(
        "recorded.jsonl",
        json!({"set": "lv3", "api_name": "GET /weather", "input": {"city": "Oslo"},
            "output": answer, "exception": null})
        .to_string(),
    );
    let result = json!({"output": answer, "exception": null});
    let call = json!({"api_name": "GET /weather", "input": {"city": "Oslo"}, "output": result});
    workplace.write(
        "level3.json",
        json!([{"requirement": "How cold is Oslo?", "response": "It is -3.", "apis": [call]}])
            .to_string(),
    );
    let turns = json!([
        {"role": "User", "text": "How cold is Oslo?"},
        {"role": "API", "api_name": "GET /weather", "param_dict": {"city": "Oslo"}, "result": result},
        {"role": "AI", "text": "It is -3 degrees."},
        {"role": "User", "text": "Ask again."},
        {"role": "API", "api_name": "GET /weather", "param_dict": {"city": "Oslo"}, "result": result},
    ]);
    workplace.write(
        "dialogues.jsonl",
        json!({"file": "sky", "turns": turns}).to_string(),
    );
}

#[test]
fn api_bank_runs_on_recorded_calls() {
    let workplace = workplace();
    train_to_call(&workplace);
    write_api_bank(&workplace);
    let replay =
        "[goat.executor]\nkind = \"replay\"\nrecorded = \"recorded.jsonl\"\nset = \"lv3\"\n";
    workplace.write("bank.toml", config(replay));
    let eval = |data: &str, output: &str| {
        let eval = [
            "eval",
            "bank.toml",
            "--suite",
            "apibank",
            "--data",
            data,
            "--output",
            output,
        ];
        workplace
            .run(eval.into_iter().chain(TRAINED_CHECKPOINT))
            .success();
        metrics(&workplace, output)["apibank"].clone()
    };
    let steps = eval("dialogues.jsonl", "steps");
    assert_eq!(
        (&steps["n"], &steps["n_call_samples"]),
        (&json!(3), &json!(2))
    );
    assert_eq!(steps["correctness"]["value"], 1.0);
    assert_eq!(steps["sample_accuracy"]["value"], 1.0);
    // One of ten equal calls is right.
    let loops = eval("level3.json", "loops");
    assert_eq!(loops["correctness"]["value"], 0.1);
    assert_eq!(loops["sample_accuracy"]["value"], 0.0);
    assert_eq!(loops["n_response_samples"], 1);

    // Some published samples do not match their documents; they are scored unchanged.
    let misfit =
        workplace
            .read("dialogues.jsonl")
            .replacen("{\"city\":\"Oslo\"}", "{\"town\":\"Oslo\"}", 1);
    workplace.write("misfit.jsonl", misfit);
    workplace.write("saved.jsonl", workplace.read("steps/predictions.jsonl"));
    let eval = "eval bank.toml --suite apibank --data misfit.jsonl --predictions saved.jsonl";
    let output = workplace.run(eval.split(' ')).success();
    assert!(
        output.contains("1 of 2 reference calls do not match the documents of their APIs"),
        "{output}"
    );
    assert!(
        output.contains("GET /weather has no such parameter"),
        "{output}"
    );

    let both = "eval bank.toml --suite apibank --data level3.json --data dialogues.jsonl";
    let refused = workplace.run(both.split(' '));
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("separately with --data"),
        "{}",
        refused.stderr
    );
}

#[test]
fn all_mistakes_in_the_suite_tables_are_found_at_once() {
    let workplace = workplace();
    let tables = "[goat.executor]\nkind = \"replay\"\nresponses = \"x.jsonl\"\n[goat.judge]\n\
                  base_url = \"localhost:8000\"\nattempts = 0\napi_key_env = \"sk-abc-123\"\nmodle = \"x\"\n";
    workplace.write("wrong.toml", config(tables));
    let refused = workplace.run(["eval", "wrong.toml", "--suite", "goat"]);
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    for part in [
        "`goat.executor.recorded` is missing",
        "`goat.executor.responses` is for kind = \"canned\", but the kind is \"replay\"",
        "`goat.judge.base_url` is \"localhost:8000\", which is not a URL",
        "`goat.judge.attempts` is 0",
        "`goat.judge.api_key_env` is not the name of an environment variable",
        "unknown key `modle` in [goat.judge]",
        "did you mean `model`?",
        "wrong.toml:15:7",
    ] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
}

#[test]
fn a_run_uses_the_judge_only_if_enabled() {
    let workplace = workplace();
    let synth = "data synth goat --output rows.jsonl --documents goat.jsonl --rows 4";
    workplace.run(synth.split(' ')).success();
    let synth = "data synth goat --split dev --output dev.goat.jsonl --rows 2";
    workplace.run(synth.split(' ')).success();
    let server = TestServer::start(|_, _| chat("{\"answer_status\": \"Solved\"}"));
    let key = [("JUDGE_KEY", "sk-abcdef-0123")];
    for in_loop in [false, true] {
        let tiny = fixture("tiny_chat_model").display().to_string();
        let run = format!("run-{in_loop}");
        let config = judge(&server, &format!("in_loop = {in_loop}"))
            .replace(
                &model("smollm2-135m-instruct.gguf").display().to_string(),
                &tiny,
            )
            .replace("none.jsonl", "rows.jsonl")
            .replace("queries.json", "dev.goat.jsonl")
            .replace("documents.jsonl", "goat.jsonl")
            .replace("max_length = 4096", "max_length = 8192")
            .replace("\"run\"", &format!("\"{run}\"\nmax_steps = 1"))
            .replace(
                "max_new_tokens = 64",
                "max_new_tokens = 8\nsuites = [\"goat\"]\neval_steps = 1",
            );
        workplace.write("run.toml", config);
        run_with(&workplace, &key, &["train", "run.toml"]).success();
        let metrics = workplace.read(&format!("{run}/metrics.jsonl"));
        // Completions of eight tokens are truncated, and a truncated answer never solves a query,
        // even if the judge decides otherwise.
        assert!(!metrics.contains("\"eval/goat.sr\":1.0"), "{metrics}");
        if in_loop {
            assert!(metrics.contains("\"eval/goat.sr\":0.0"), "{metrics}");
        }
        // Two queries are judged before the step and two after it.
        assert_eq!(server.received().len(), if in_loop { 4 } else { 0 });
        let path = format!("{run}/checkpoint-000001/eval.goat.judge.jsonl");
        assert_eq!(workplace.path(&path).exists(), in_loop);
    }
}
