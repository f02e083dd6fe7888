//! The suites nestful and toolqa through the program: from prompts to completions and scores.

use serde_json::{Value, json};

use crate::support::server::{Response, TestServer, chat};
use crate::workplace::{Workplace, json_lines};

pub(crate) fn metrics(workplace: &Workplace, folder: &str) -> Value {
    serde_json::from_str(&workplace.read(&format!("{folder}/metrics.json"))).unwrap()
}

/// Two samples of NESTFUL: one on the length of a quay, and one whose gold calls need a Python
/// tool.
pub(crate) fn nestful_samples() -> [Value; 2] {
    let spec = |name: &str| json!({"name": name, "parameters": {"arg_0": {}, "arg_1": {}}, "output_parameters": {"result": {}}});
    let berths = json!([
        {"name": "multiply", "label": "$var_1", "arguments": {"arg_0": 2, "arg_1": 12}},
        {"name": "add", "label": "$var_2", "arguments": {"arg_0": "$var_1.result$", "arg_1": 3}},
    ]);
    let tide =
        json!([{"name": "tide_at", "label": "$var_1", "arguments": {"arg_0": 4, "arg_1": 1}}]);
    [
        json!({"sample_id": "quay", "input": "How long is it?", "output": berths,
            "tools": [spec("add"), spec("multiply")], "gold_answer": 27}),
        json!({"sample_id": "tide", "input": "How high?", "output": tide,
            "tools": [spec("tide_at")], "gold_answer": 2}),
    ]
}

#[test]
fn gold_sequences_win_and_python_tools_are_counted() {
    let workplace = Workplace::new();
    let rows = nestful_samples();
    workplace.write("nestful.jsonl", json_lines(&rows));
    let golds = rows
        .each_ref()
        .map(|row| json!({"id": row["sample_id"], "prediction": row["output"].to_string()}));
    workplace.write("golds.jsonl", json_lines(&golds));
    let eval = "eval config.toml --suite nestful --data nestful.jsonl";
    let output = workplace
        .run(format!("{eval} --predictions golds.jsonl --output golds").split(' '))
        .success();
    assert!(output.contains("| partial %"), "{output}");
    let report = metrics(&workplace, "golds");
    assert_eq!(report["n"], 2);
    assert_eq!(report["n_need_tools"], 1);
    assert_eq!(report["n_run"], 1);
    let scored = workplace.read("golds/predictions.jsonl");
    let first: Value = serde_json::from_str(scored.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&first["score"]["partial"], &first["score"]["full"]),
        (&json!(1.0), &json!(true))
    );

    // A random model generates a completion for each family's prompt, and it is scored.
    for family in ["json_list", "hermes"] {
        let base = format!(
            "{eval} --checkpoint base --set eval.nestful.family={family} --set eval.nestful.n_examples=1 --output {family}"
        );
        workplace.run(base.split(' ')).success();
        assert_eq!(metrics(&workplace, family)["n"], 2);
    }
    // With a constraint, it generates lists of calls to the available tools, within the token
    // limit.
    let constrained = format!("{eval} --checkpoint base --output held --set eval.constrained=true");
    workplace.run(constrained.split(' ')).success();
    for line in workplace.read("held/predictions.jsonl").lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = line["prediction"].as_str().unwrap();
        assert!(text.starts_with("[{\"name\": \""), "{text}");
    }
    let refused = |predictions: &str, expected: &[&str]| {
        workplace.write("refused.jsonl", predictions);
        let answer = workplace.run(format!("{eval} --predictions refused.jsonl").split(' '));
        assert_eq!(answer.status, Some(2), "{}", answer.stderr);
        for part in expected {
            assert!(answer.stderr.contains(part), "{part}: {}", answer.stderr);
        }
    };
    let foreign = json!({"id": "harbour", "prediction": "[]"});
    let expected = [
        "none of its 1 predictions",
        "\"harbour\"",
        "\"quay\"",
        "--data",
    ];
    refused(&json_lines(&[foreign]), &expected);
    let twice = [golds[0].clone(), golds[0].clone()];
    refused(&json_lines(&twice), &["refused.jsonl:2: duplicate id"]);
    refused(
        &json_lines(&golds[..1]),
        &["1 of 2 rows have no prediction"],
    );
    for (family, opening) in [
        ("hermes", "<tool_call>"),
        ("xlam", "{\"tool_calls\": [{\"name\": \""),
        ("llama", "[{\"name\": \""),
    ] {
        let constrained = format!(
            "{eval} --checkpoint base --set eval.nestful.family={family} \
             --set eval.nestful.n_examples=1 --output held-{family} \
             --set eval.constrained=true"
        );
        workplace.run(constrained.split(' ')).success();
        let predictions = workplace.read(&format!("held-{family}/predictions.jsonl"));
        for line in predictions.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let text = line["prediction"].as_str().unwrap();
            // A completion may be cut before its first name.
            let is_prefix = text.starts_with(opening) || opening.starts_with(text);
            assert!(is_prefix && !text.is_empty(), "{family}: {text}");
        }
    }
}

pub(crate) fn write_toolqa_files(workplace: &Workplace) {
    let response = json!({"status": true, "data": [{"name": "Old Mill", "price": 80}, {"name": "Pier", "price": 120}]});
    let responses = [
        json!({"response_id": "r1", "endpoint": "hotels", "split": "paper", "response": response}),
    ];
    workplace.write("responses.jsonl", json_lines(&responses));
    let question = |uid: &str, metric: &str, question: &str, gold: &str| {
        json!({"uid": uid, "response_id": "r1", "endpoint": "hotels", "task": "t", "task_type": "EXTRACTIVE",
            "metric": metric, "question": question, "gold_answer": gold})
    };
    let rows = [
        question("a", "accuracy_string", "Which is cheapest?", "Old Mill"),
        question(
            "b",
            "approx_number_match",
            "What does the Pier cost?",
            "120",
        ),
    ];
    workplace.write("questions.jsonl", json_lines(&rows));
}

pub(crate) const TOOLQA: &str = "eval config.toml --suite toolqa --data questions.jsonl --set eval.toolqa.responses=responses.jsonl";

#[test]
fn generated_code_runs_in_its_sandbox_and_only_on_request() {
    let workplace = Workplace::new();
    write_toolqa_files(&workplace);
    let code = |body: &str| format!("```python\ndef answer(api_response):\n    {body}\n```");
    let outputs = [
        json!({"uid": "a", "model_output": code("return min(api_response['data'], key=lambda hotel: hotel['price'])['name']")}),
        json!({"uid": "b", "model_output": code("open('/etc/passwd').read(); return '120'")}),
    ];
    workplace.write("code.jsonl", json_lines(&outputs));
    let command = format!("{TOOLQA} --set eval.toolqa.setting=code --predictions code.jsonl");
    let refused = workplace.run(command.split(' '));
    assert_eq!(refused.status, Some(2));
    assert!(
        refused.stderr.contains("eval.toolqa.run_code = true"),
        "{}",
        refused.stderr
    );
    workplace
        .run(format!("{command} --set eval.toolqa.run_code=true --output out").split(' '))
        .success();
    let samples: Vec<Value> = workplace
        .read("out/predictions.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(samples[0]["answer"], "Old Mill");
    assert_eq!(samples[1]["answer"], Value::Null);
    let failure = samples[1]["failure"].as_str().unwrap();
    assert!(failure.contains("Error"), "{failure}");
}

#[test]
fn a_server_reply_without_text_is_saved_and_counted() {
    let workplace = Workplace::new();
    write_toolqa_files(&workplace);
    let server = TestServer::start(|_, _| {
        let message = json!({"role": "assistant", "content": null, "reasoning_content": "Hm"});
        let choice = json!({"index": 0, "message": message, "finish_reason": "length"});
        Response::json(200, &json!({"choices": [choice]}))
    });
    let url = server.url();
    let command = format!(
        "{TOOLQA} --checkpoint base --endpoint {url}/v1 --endpoint-model m --output served"
    );
    let answer = workplace.run(command.split(' '));
    let expected = "2 of 2 server answers have no text and are scored as empty";
    assert!(answer.stderr.contains(expected), "{}", answer.stderr);
    answer.success();
    for line in workplace.read("served/predictions.jsonl").lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(
            (&line["prediction"], &line["without_text"]),
            (&json!(""), &json!("reasoning"))
        );
    }
    let command = format!("{TOOLQA} --predictions served/predictions.jsonl --output again");
    workplace.run(command.split(' ')).success();
    let again = workplace.read("again/predictions.jsonl");
    assert_eq!(again, workplace.read("served/predictions.jsonl"));
}

#[test]
fn questions_about_outputs_are_asked_and_scored() {
    let workplace = Workplace::new();
    write_toolqa_files(&workplace);
    workplace
        .run(
            format!(
                "{TOOLQA} --checkpoint base --set eval.toolqa.max_new_tokens=12 --output asked"
            )
            .split(' '),
        )
        .success();
    assert_eq!(workplace.read("asked/predictions.jsonl").lines().count(), 2);
    let golds = [
        json!({"id": "b", "prediction": "It is 120."}),
        json!({"uid": "a", "model_output": "old mill."}),
    ];
    workplace.write("golds.jsonl", json_lines(&golds));
    let output = workplace
        .run(format!("{TOOLQA} --predictions golds.jsonl --output golds").split(' '))
        .success();
    assert!(output.contains("100.0"), "{output}");
    workplace.write(
        "foreign.jsonl",
        json_lines(&[json!({"uid": "z", "model_output": "1"})]),
    );
    let answer = workplace.run(format!("{TOOLQA} --predictions foreign.jsonl").split(' '));
    assert_eq!(answer.status, Some(2), "{}", answer.stderr);
    for part in ["none of its 1 predictions", "\"z\"", "\"a\", \"b\""] {
        assert!(answer.stderr.contains(part), "{}", answer.stderr);
    }
    // Only the suite slot prints the change of each score.
    for suite in ["toolqa", "nestful", "goat", "retrieval"] {
        let compare = format!("eval config.toml --suite {suite} --compare golds/metrics.json");
        let answer = workplace.run(compare.split(' '));
        assert_eq!(answer.status, Some(2), "{suite}: {}", answer.stderr);
        let message = "`tooltune compare BEFORE AFTER`";
        assert!(
            answer.stderr.contains(message),
            "{suite}: {}",
            answer.stderr
        );
    }
    let answer = workplace.run("eval config.toml --suite toolqa --data questions.jsonl".split(' '));
    assert_eq!(answer.status, Some(2));
    assert!(
        answer.stderr.contains("eval.toolqa.responses"),
        "{}",
        answer.stderr
    );
}

const TABLES: &str = r#"
[eval.nestful]
data = ["nestful.jsonl"]
n_examples = 0
[eval.toolqa]
data = ["questions.jsonl"]
responses = "responses.jsonl"
max_new_tokens = 12
"#;

/// Extends the workplace's config by both suites and their tables.
fn write_suite_config(workplace: &Workplace, metric: &str) {
    let config = workplace.read("config.toml");
    let config = config
        .replace("suites = [\"slot\"]", "suites = [\"nestful\", \"toolqa\"]")
        .replace("slot.mean", metric)
        .replace("[checkpoint]", &format!("{TABLES}[checkpoint]"));
    workplace.write("config.toml", config);
}

#[test]
fn a_run_selects_by_both_suites() {
    let workplace = Workplace::new();
    write_toolqa_files(&workplace);
    workplace.write("nestful.jsonl", json_lines(nestful_samples()));
    let metric = "0.5*nestful.win_strict - 0.5*toolqa.parse_error_rate";
    write_suite_config(&workplace, metric);
    workplace.run(["train", "config.toml"]).success();
    let evaluated: Vec<Value> = workplace
        .read("run/metrics.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &Value| line.to_string().contains("nestful.win_strict"))
        .collect();
    // Evaluations before the first step, in the middle and at the end.
    assert_eq!(evaluated.len(), 3, "{evaluated:?}");
    for name in ["nestful.partial", "toolqa.exact_match_strict"] {
        assert!(evaluated[0].to_string().contains(name), "{name}");
    }
    for suite in ["nestful", "toolqa"] {
        let predictions = format!("run/checkpoint-000004/eval.{suite}.predictions.jsonl");
        assert_eq!(workplace.read(&predictions).lines().count(), 2);
    }
    let output = workplace
        .run(["select", "run", "--metric", "toolqa.contains"])
        .success();
    assert!(output.contains("checkpoint-"), "{output}");
    workplace.run(["report", "run"]).success();
    let page = workplace.read("run/report.html");
    for expected in [
        "How long is it?",
        "What does the Pier cost?",
        "alternate",
        "EXTRACTIVE",
    ] {
        assert!(page.contains(expected), "{expected}");
    }

    // Missing inputs of an evaluation are detected before the run.
    for (set, expected) in [
        (
            "eval.nestful.react=true",
            "no suite of this config measures",
        ),
        ("eval.nestful.data=[]", "eval.nestful.data"),
        ("eval.toolqa.setting=code", "run_code = true"),
        ("eval.toolqa.setting=anser", "did you mean \"answer\""),
        ("eval.nestful.exec_dir=nowhere", "nowhere"),
    ] {
        let answer = workplace.run([
            "train",
            "config.toml",
            "--set",
            "eval.metric_for_best_model=nestful.partial",
            "--set",
            "train.output_dir=other",
            "--set",
            set,
        ]);
        assert_eq!(answer.status, Some(2), "{set}");
        assert!(answer.stderr.contains(expected), "{set}: {}", answer.stderr);
    }
}

/// Writes a folder of functions in the benchmark's layout.
fn write_functions(workplace: &Workplace) {
    let tools = workplace.path("functions");
    std::fs::create_dir(&tools).unwrap();
    let code = "def tide_at(hour, berth):\n    return [hour, berth][berth] * 2\n";
    std::fs::write(tools.join("tides.py"), code).unwrap();
    std::fs::write(tools.join("basic_functions.py"), "").unwrap();
    std::fs::write(
        tools.join("func_file_map.json"),
        r#"{"tide_at": "tides.py"}"#,
    )
    .unwrap();
}

#[test]
fn score_computes_wins_with_the_benchmarks_functions() {
    let workplace = Workplace::new();
    write_functions(&workplace);
    let tide = &nestful_samples()[1];
    let input = json!({"gold": tide["output"], "gold_answer": 2, "tools": tide["tools"],
        "prediction": tide["output"].to_string(), "parser": "json_list"});
    let line = json!({"id": 1, "op": "nestful.sample", "input": input});
    workplace.write("line.jsonl", json_lines(&[line]));
    let scored = |more: &str| -> Value {
        let command = format!("score line.jsonl{more}");
        let output = workplace.run(command.split(' ')).success();
        serde_json::from_str(&output).unwrap()
    };
    let alone = scored("");
    assert_eq!(alone["value"]["win_strict"], Value::Null, "{alone}");
    assert_eq!(alone["value"]["full"], 1, "{alone}");
    let executed = scored(" --exec-dir functions");
    assert_eq!(executed["value"]["win_strict"], true, "{executed}");
    assert_eq!(executed["value"]["win_official"], true, "{executed}");

    let absent = workplace.run("score line.jsonl --exec-dir nowhere".split(' '));
    assert_eq!(absent.status, Some(3), "{}", absent.stderr);
    assert!(absent.stderr.contains("nowhere"), "{}", absent.stderr);
}

#[test]
fn a_react_loop_wins_with_the_benchmarks_functions() {
    let workplace = Workplace::new();
    write_functions(&workplace);
    workplace.write("nestful.jsonl", json_lines(nestful_samples()));
    // The server's model calls `multiply`, then `add` with its result, and so on.
    let server = TestServer::start(|request, _| {
        let action = |name: &str, left: i32, right: i32| {
            let arguments = json!({"arg_0": left, "arg_1": right});
            format!(
                "Thought: next\nAction: {}",
                json!({"name": name, "arguments": arguments})
            )
        };
        let body = &request.body;
        chat(&match () {
            () if body.contains("Observation: 27") => "Finish: 27".to_owned(),
            () if body.contains("Observation: 24") => action("add", 24, 3),
            () if body.contains("Observation: 2") => "Finish: 2".to_owned(),
            () if body.contains("How long") => action("multiply", 2, 12),
            () => action("tide_at", 4, 1),
        })
    });
    let eval = format!(
        "eval config.toml --suite nestful --data nestful.jsonl --set eval.nestful.react=true \
         --set eval.nestful.exec_dir=functions --endpoint {}/v1 --endpoint-model scripted --output looped",
        server.url()
    );
    workplace
        .run(eval.split(' ').filter(|word| !word.is_empty()))
        .success();
    let report = metrics(&workplace, "looped");
    assert_eq!(report["n_run"], 2);
    assert_eq!(report["win_strict"]["value"], 1.0, "{report}");
    assert_eq!(report["steps"]["value"], 2.5);
    let predictions = workplace.read("looped/predictions.jsonl");
    let first: Value = serde_json::from_str(predictions.lines().next().unwrap()).unwrap();
    assert_eq!(first["answer"], "27");
    assert_eq!(first["steps"][1]["result"], "27");

    // Without the folder, the second row has no win. A random model generates no call.
    let random = "eval config.toml --suite nestful --data nestful.jsonl --set eval.nestful.react=true --checkpoint base \
                  --output random --set eval.nestful.max_steps=2";
    workplace
        .run(random.split(' ').filter(|word| !word.is_empty()))
        .success();
    let report = metrics(&workplace, "random");
    assert_eq!((&report["n"], &report["n_run"]), (&json!(2), &json!(1)));
    assert_eq!(report["win_strict"]["value"], 0.0);
    assert_eq!(report["steps"]["value"], 2.0);

    // The published comparison rounds a gold answer of 1.5e-07 to five digits, so no result equals
    // it.
    let divide = json!([{"name": "divide", "label": "$var_1",
        "arguments": {"arg_0": 3, "arg_1": 20_000_000}}]);
    let mut share = nestful_samples()[0].clone();
    share["tools"] = json!([{"name": "divide", "parameters": {"arg_0": {}, "arg_1": {}},
        "output_parameters": {"result": {}}}]);
    (share["output"], share["gold_answer"]) = (divide, json!(1.5e-7));
    workplace.write("nestful.jsonl", json_lines(&[share]));
    let ceiling = random.replace("--output random", "--output share");
    let output = workplace.run(ceiling.split(' ').filter(|word| !word.is_empty()));
    let noted = "nestful.win_official: the reference answers themselves score 0.0000 on these rows";
    assert!(
        (output.stderr.clone() + &output.stdout).contains(noted),
        "{output:?}"
    );
    assert_eq!(
        metrics(&workplace, "share")["ceilings"],
        json!([{"metric": "win_official", "value": 0.0}])
    );
}

/// Imports three word problems of MathQA, of which one has a wrong formula.
fn import_word_problems(workplace: &Workplace) -> String {
    let entry = |problem: &str, formula: &str, correct: &str| {
        json!({"Problem": problem, "options": "a ) 12 , b ) 27 , c ) 30 , d ) 3 , e ) none",
            "correct": correct, "annotated_formula": formula, "linear_formula": ""})
    };
    let berths = "a quay has 2 berths of 12 metres and a gap of 3 metres . how long is it ?";
    let crates = "6 boats have 5 crates each . how many crates ?";
    let entries = json!([
        entry(berths, "add(multiply(2, 12), 3)", "b"),
        entry(berths, "multiply(2, 12)", "b"),
        entry(crates, "multiply(n0, n1)", "c"),
    ]);
    workplace.write("train.json", entries.to_string());
    let import = "data import mathqa train.json --output rows.jsonl \
                  --prompt-completion pairs.jsonl --tools-output tools.jsonl --tools-per-row 5..6 \
                  --n-examples 0";
    workplace.run(import.split_whitespace()).success()
}

fn read_lines(workplace: &Workplace, file: &str) -> Vec<Value> {
    let text = workplace.read(file);
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

#[test]
fn imported_word_problems_have_executable_answers() {
    let workplace = Workplace::new();
    let output = import_word_problems(&workplace);
    for expected in [
        "2 rows in rows.jsonl, of 3 entries\n",
        "1 dropped: a result that is not the correct option; the first is train.json:2: \
         the formula computes 24, and the correct option is \"27\"\n",
        "1 rows have a single call\n",
        "2 prompt-completion rows in pairs.jsonl\n",
        "40 tools in tools.jsonl\n",
    ] {
        assert!(output.contains(expected), "{expected}: {output}");
    }
    let [rows, pairs, tools] =
        ["rows.jsonl", "pairs.jsonl", "tools.jsonl"].map(|file| read_lines(&workplace, file));
    assert_eq!(rows[0]["gold_answer"], 27);
    for row in &rows {
        let offered = row["tools"].as_array().unwrap();
        assert!((5..=6).contains(&offered.len()));
        assert!(offered.iter().all(|tool| tools.contains(tool)));
    }
    let golds = rows
        .iter()
        .zip(&pairs)
        .map(|(row, pair)| json!({"id": row["sample_id"], "prediction": pair["completion"]}));
    workplace.write("golds.jsonl", json_lines(golds));
    let eval = "eval config.toml --suite nestful --data rows.jsonl --predictions golds.jsonl \
                --set eval.nestful.n_examples=0 --output golds";
    workplace.run(eval.split_whitespace()).success();
    let report = metrics(&workplace, "golds");
    assert_eq!((&report["n"], &report["n_run"]), (&json!(2), &json!(2)));
    for metric in ["win_strict", "win_official", "full"] {
        assert_eq!(report[metric]["value"], 1.0, "{metric}");
    }
}

#[test]
fn imported_word_problems_train_and_other_options_are_refused() {
    let workplace = Workplace::new();
    import_word_problems(&workplace);
    let config = format!(
        "[model]\nmodel_name_or_path = {:?}\n[lora]\nr = 2\n[data]\ntrain = [\"pairs.jsonl\"]\n\
         max_length = 8192\n[train]\noutput_dir = \"trained\"\nmax_steps = 1\n",
        crate::support::fixture("tiny_chat_model")
    );
    workplace.write("pairs.toml", config);
    let output = workplace.run(["train", "pairs.toml"]);
    let detected = "detected \"prompt-completion\" from pairs.jsonl:1";
    assert!(output.stderr.contains(detected), "{}", output.stderr);
    output.success();
    for (arguments, expected) in [
        ("mathqa train.json dev.json", "import each split by itself"),
        (
            "mathqa train.json --family herms",
            "did you mean \"hermes\"",
        ),
        (
            "mathqa train.json --tools-per-row 9..7",
            "at most the second",
        ),
        ("mathqa tools.jsonl", "tools.jsonl:1: no field Problem"),
        (
            "totto train.json --prompt-completion other.jsonl",
            "--prompt-completion only applies to the layout mathqa",
        ),
    ] {
        let refused = format!("data import {arguments} --output new.jsonl");
        let refused = workplace.run(refused.split(' '));
        assert_ne!(refused.status, Some(0), "{arguments}");
        let message = refused
            .stderr
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(message.contains(expected), "{arguments}: {message}");
        assert!(!workplace.path("new.jsonl").exists(), "{arguments}");
    }
}
