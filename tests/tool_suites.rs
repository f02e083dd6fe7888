//! The suites nestful and toolqa through the program: prompts to texts, and texts to scores.

use serde_json::{Value, json};

use crate::workplace::Workplace;

fn lines(rows: &[Value]) -> String {
    rows.iter().map(|row| format!("{row}\n")).collect()
}

fn metrics(workplace: &Workplace, folder: &str) -> Value {
    serde_json::from_str(&workplace.read(&format!("{folder}/metrics.json"))).unwrap()
}

/// A quay of two berths of 12 metres and a gap of 3, and one whose gold needs a tool in Python.
fn quay() -> [Value; 2] {
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
fn gold_sequences_win_and_those_that_need_python_are_counted() {
    let workplace = Workplace::new();
    let rows = quay();
    workplace.write("nestful.jsonl", lines(&rows));
    let golds = rows
        .each_ref()
        .map(|row| json!({"id": row["sample_id"], "prediction": row["output"].to_string()}));
    workplace.write("golds.jsonl", lines(&golds));
    let eval = "eval config.toml --suite nestful --data nestful.jsonl";
    let said = workplace
        .run(format!("{eval} --predictions golds.jsonl --output golds").split(' '))
        .success();
    assert!(said.contains("| partial %"), "{said}");
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

    // A random model writes something, in each family's prompt, and it is scored.
    for family in ["json_list", "hermes"] {
        let base =
            format!("{eval} --checkpoint base --family {family} --n-examples 1 --output {family}");
        workplace.run(base.split(' ')).success();
        assert_eq!(metrics(&workplace, family)["n"], 2);
    }
    let swapped: Vec<Value> = golds.iter().rev().cloned().collect();
    workplace.write("swapped.jsonl", lines(&swapped));
    let answer = workplace.run(format!("{eval} --predictions swapped.jsonl").split(' '));
    assert_eq!(answer.status, Some(2));
    assert!(
        answer.stderr.contains("not those of the rows"),
        "{}",
        answer.stderr
    );
}

fn hotels(workplace: &Workplace) {
    let response = json!({"status": true, "data": [{"name": "Old Mill", "price": 80}, {"name": "Pier", "price": 120}]});
    let responses = [
        json!({"response_id": "r1", "endpoint": "hotels", "split": "paper", "response": response}),
    ];
    workplace.write("responses.jsonl", lines(&responses));
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
    workplace.write("questions.jsonl", lines(&rows));
}

const TOOLQA: &str =
    "eval config.toml --suite toolqa --data questions.jsonl --responses responses.jsonl";

#[test]
fn code_that_a_model_wrote_answers_from_its_sandbox_and_only_where_that_is_asked_for() {
    let workplace = Workplace::new();
    hotels(&workplace);
    let code = |body: &str| format!("```python\ndef answer(api_response):\n    {body}\n```");
    let outputs = [
        json!({"uid": "a", "model_output": code("return min(api_response['data'], key=lambda hotel: hotel['price'])['name']")}),
        json!({"uid": "b", "model_output": code("open('/etc/passwd').read(); return '120'")}),
    ];
    workplace.write("code.jsonl", lines(&outputs));
    let command = format!("{TOOLQA} --setting code --predictions code.jsonl");
    let refused = workplace.run(command.split(' '));
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("--run-code"), "{}", refused.stderr);
    workplace
        .run(format!("{command} --run-code --output out").split(' '))
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
fn questions_about_outputs_are_asked_and_scored() {
    let workplace = Workplace::new();
    hotels(&workplace);
    workplace
        .run(format!("{TOOLQA} --checkpoint base --output asked").split(' '))
        .success();
    assert_eq!(workplace.read("asked/predictions.jsonl").lines().count(), 2);
    let golds = [
        json!({"uid": "a", "model_output": "old mill."}),
        json!({"uid": "b", "model_output": "It is 120."}),
    ];
    workplace.write("golds.jsonl", lines(&golds));
    let said = workplace
        .run(format!("{TOOLQA} --predictions golds.jsonl --output golds").split(' '))
        .success();
    assert!(said.contains("100.0"), "{said}");
    let answer = workplace.run("eval config.toml --suite toolqa --data questions.jsonl".split(' '));
    assert_eq!(answer.status, Some(2));
    assert!(answer.stderr.contains("--responses"), "{}", answer.stderr);
}
