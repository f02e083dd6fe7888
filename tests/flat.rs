//! Nested schemas: training and prompts use flattened schemas, and scoring uses the nested ones.

use serde_json::{Value, json};

use crate::support::fixture;
use crate::workplace::{Workplace, json_lines, parse_lines};

const RUN_FLAT: [&str; 2] = ["--set", "data.flatten=advised"];

fn object(properties: Value) -> Value {
    json!({"type": "object", "properties": properties})
}

/// A person, where they live, and their dogs.
fn nested_schema() -> Value {
    let address = object(json!({"street": {"type": "string"}, "city": {"type": "string"}}));
    let dog = object(json!({"name": {"type": "string"}, "age": {"type": "integer"}}));
    let mut schema = object(json!({
        "who": object(json!({"name": {"type": "string"}, "home": address})),
        "dogs": {"type": "array", "items": dog},
        "open": {"type": "boolean"},
    }));
    schema["required"] = json!(["who"]);
    schema
}

/// A recursive schema has no flat form.
fn recursive_schema() -> Value {
    object(json!({"next": {"$ref": "#"}, "n": {"type": "integer"}}))
}

fn person_row(n: usize) -> Value {
    let dogs: Vec<Value> = (0..n % 3)
        .map(|age| json!({"name": format!("Rex {age}"), "age": age}))
        .collect();
    let mut person =
        json!({"who": {"name": format!("Ida {n}"), "home": {"city": "Oslo"}}, "open": true});
    if !dogs.is_empty() {
        person["dogs"] = dogs.into();
    }
    person
}

fn slot_row(json_schema: &Value, gold: &Value) -> Value {
    json!({"input_text": format!("Say {gold}."), "json_schema": json_schema, "gold": gold})
}

/// A workplace with eight training rows and six evaluation rows. The schema of the last row of each
/// cannot be flattened.
fn workplace() -> Workplace {
    let workplace = Workplace::new();
    let rows = |range: std::ops::Range<usize>| {
        let nested = nested_schema();
        let rows = range.map(move |n| slot_row(&nested, &person_row(n)));
        rows.chain([slot_row(&recursive_schema(), &json!({"next": {"n": 1}}))])
    };
    workplace.write("train.jsonl", json_lines(rows(0..7)));
    workplace.write("dev.jsonl", json_lines(rows(10..15)));
    workplace
}

fn predictions(texts: &[String]) -> String {
    let line = |(n, text): (usize, &String)| json!({"id": format!("dev.jsonl:{}", n + 1), "prediction": text});
    json_lines(texts.iter().enumerate().map(line))
}

#[test]
fn a_run_with_flatten_prompts_with_flat_schemas_and_scores_nested_answers() {
    let workplace = workplace();
    let inspect = ["inspect", "config.toml", "--format", "json", "-n", "2"];
    let output = workplace.run(inspect.into_iter().chain(RUN_FLAT)).success();
    let row = &parse_lines(&output)[1];
    let text = |only_supervised: bool| -> String {
        let tokens = row["tokens"].as_array().unwrap().iter();
        let selected = tokens.filter(|token| !only_supervised || token["weight"] == 1.0);
        selected
            .map(|token| token["text"].as_str().unwrap())
            .collect()
    };
    assert!(text(false).contains("\"who_home_city\":{\"type\":\"string\"}"));
    let flat = "{\"who_name\": \"Ida 1\", \"who_home_city\": \"Oslo\", \"dogs_0_name\": \"Rex 0\", \
                \"dogs_0_age\": 0, \"open\": true}";
    assert!(text(true).starts_with(flat), "{}", text(true));

    let by_malformed = "eval.metric_for_best_model=slot.malformed_rate";
    let train = ["train", "config.toml", "--set", by_malformed];
    let output = workplace.run(train.into_iter().chain(RUN_FLAT)).success();
    for line in [
        "data.train: 7 of 8 schemas were flattened",
        "data.train: 2 of them have additional slots for the longest list in their row",
        "data.train: 1 stay nested, recursive: train.jsonl:8",
        "data.eval: 1 stay nested, recursive: dev.jsonl:6",
    ] {
        assert!(output.contains(line), "{line} is not in\n{output}");
    }
    let report: Value = serde_json::from_str(&workplace.read("run/flatten.json")).unwrap();
    assert_eq!(report["train"]["schemas"]["kept"], json!({"recursive": 1}));
    assert_eq!(
        report["eval"]["nested"],
        json!([{"id": "dev.jsonl:6", "reason": "recursive"}])
    );
    let resolved = workplace.read("run/config.resolved.toml");
    for setting in ["flatten = \"advised\"", "greater_is_better = false"] {
        assert!(
            resolved.contains(setting),
            "{setting} is not in\n{resolved}"
        );
    }
    let measured = workplace.read("run/checkpoint-000004/eval.slot.metrics.json");
    let measured: Value = serde_json::from_str(&measured).unwrap();
    assert_eq!(measured["flat"]["predictions"]["n_predictions"], 6);
    let evaluated = parse_lines(&workplace.read("run/metrics.jsonl"));
    let rate = |line: &Value| line["eval/slot.malformed_rate"].as_f64();
    assert!(evaluated.iter().any(|line| rate(line).is_some()));
}

#[test]
fn flat_golds_score_one_and_malformed_completions_zero() {
    let workplace = workplace();
    let train = ["train", "config.toml", "--set", "train.max_steps=1"];
    let train = train.into_iter().chain(RUN_FLAT);
    workplace
        .run(train.chain(["--set", "eval.eval_strategy=no"]))
        .success();
    let flatten = "data flatten dev.jsonl --output flat.jsonl";
    workplace.run(flatten.split(' ')).success();
    let flat = parse_lines(&workplace.read("flat.jsonl"));
    let mut texts: Vec<String> = flat.iter().map(|row| row["gold"].to_string()).collect();
    workplace.write("golds.jsonl", predictions(&texts));

    // `flatten` comes from the run's config.
    let golds = "eval run --predictions golds.jsonl --output golds";
    let output = workplace.run(golds.split(' '));
    assert!(
        output.stderr.contains("5 of 6 schemas were flattened"),
        "{}",
        output.stderr
    );
    let output = output.success();
    let value = |name: &str| -> f64 {
        let line = output.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    for name in ["schema_accuracy", "content_similarity", "exact_match "] {
        assert_eq!(value(&format!("slot.{name}")), 1.0, "{name}\n{output}");
    }
    assert_eq!(value("slot.malformed_rate"), 0.0);
    let scored = &parse_lines(&workplace.read("golds/predictions.jsonl"))[1];
    assert_eq!(scored["prediction"], texts[1]);
    let nested: Value = serde_json::from_str(scored["scored"]["text"].as_str().unwrap()).unwrap();
    assert_eq!(nested, person_row(11));
    assert_eq!(
        parse_lines(&workplace.read("golds/nested_schemas.jsonl")),
        [json!({"id": "dev.jsonl:6", "reason": "recursive"})]
    );

    // A completion with fields outside the mapping is malformed, even if it is the nested gold.
    texts[0] = person_row(10).to_string();
    texts[1] = "{\"who_name\": \"Ida 11\"".to_owned();
    workplace.write("faults.jsonl", predictions(&texts));
    let faults = "eval run --predictions faults.jsonl --output faults";
    workplace.run(faults.split(' ')).success();
    let metrics: Value = serde_json::from_str(&workplace.read("faults/metrics.json")).unwrap();
    assert_eq!(
        metrics["flat"]["predictions"],
        json!({"n_predictions": 6, "n_malformed": 2,
            "malformed": {"not_json": 1, "unknown_key": 1}})
    );
    assert_eq!(metrics["exact_match"]["value"], json!(4.0 / 6.0));
    let compared = "eval run --predictions golds.jsonl --compare faults/metrics.json";
    workplace.run(compared.split(' ')).success();

    // Without flattening, the same flat completions violate the nested schemas.
    let nested = format!("{golds}-nested --set data.flatten=none");
    workplace.run(nested.split(' ')).success();
    let metrics = workplace.read("golds-nested/metrics.json");
    let metrics: Value = serde_json::from_str(&metrics).unwrap();
    assert_eq!(metrics["exact_match"]["value"], json!(1.0 / 6.0));
    assert_eq!(metrics["flat"], Value::Null);
}

#[test]
fn constrained_answers_to_flat_schemas_are_never_malformed() {
    let workplace = workplace();
    let all = |properties: Value| -> Value {
        let names: Vec<&String> = properties.as_object().unwrap().keys().collect();
        json!({"type": "object", "properties": properties, "required": names})
    };
    let inner = all(json!({"d": {"enum": [1, 2]}}));
    let schema = all(json!({"a": all(json!({"b": {"type": "boolean"}, "c": inner}))}));
    let row = |n: usize| slot_row(&schema, &json!({"a": {"b": true, "c": {"d": n}}}));
    workplace.write("dev.jsonl", json_lines([row(1), row(2)]));
    let eval = "eval config.toml --checkpoint base --output out --set data.flatten=always \
                --set eval.constrained=true --set eval.max_new_tokens=64";
    workplace.run(eval.split_whitespace()).success();
    let metrics: Value = serde_json::from_str(&workplace.read("out/metrics.json")).unwrap();
    assert_eq!(metrics["flat"]["schemas"]["n_flattened"], 2);
    assert_eq!(
        metrics["flat"]["predictions"]["n_malformed"], 0,
        "{metrics}"
    );
    assert_eq!(metrics["schema_accuracy"]["value"], 1.0);
    for line in parse_lines(&workplace.read("out/predictions.jsonl")) {
        let prediction: Value = serde_json::from_str(line["prediction"].as_str().unwrap()).unwrap();
        let flat = |key: &String| ["a_b", "a_c_d"].contains(&key.as_str());
        assert!(prediction.as_object().unwrap().keys().all(flat), "{line}");
    }
}

#[test]
fn tools_and_calls_are_flattened_in_prompts() {
    let workplace = workplace();
    let tool = json!({"type": "function",
        "function": {"name": "register", "parameters": nested_schema()}});
    let call = json!({"name": "register", "arguments": person_row(2)});
    let row = json!({
        "messages": [
            {"role": "user", "content": "Register Ida."},
            {"role": "assistant", "tool_calls": [call]},
        ],
        "tools": [tool],
    });
    workplace.write("calls.jsonl", json_lines([row]));
    let template = fixture("chat_templates/templates/hermes.jinja");
    let template = format!("data.chat_template=\"{}\"", template.display());
    let inspect = [
        "inspect",
        "config.toml",
        "--format",
        "json",
        "--set",
        &template,
    ];
    let calls = "--set data.format=messages --set data.train=[\"calls.jsonl\"] --set eval.suites=[] \
                 --set eval.metric_for_best_model=loss --set eval.eval_strategy=no --set data.eval=[] \
                 --set train.output_dir=other";
    let output = workplace.run(
        inspect
            .into_iter()
            .chain(calls.split_whitespace())
            .chain(RUN_FLAT),
    );
    let row = &parse_lines(&output.success())[0];
    let tokens = row["tokens"].as_array().unwrap().iter();
    let text: String = tokens
        .map(|token| token["text"].as_str().unwrap())
        .collect();
    assert!(
        text.contains("\"dogs_1_age\": {\"type\": \"integer\"}"),
        "{text}"
    );
    assert!(
        text.contains("\"arguments\": {\"who_name\": \"Ida 2\", "),
        "{text}"
    );
}
