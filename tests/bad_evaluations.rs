//! Evaluations with mismatched inputs: predictions for other rows, adapters for other models, and
//! prompts that exceed the context.

use serde_json::{Value, json};

use crate::bad_input::{CONFIG, FILES, ROWS, assert_refused, edit, row};
use crate::support::fixture;
use crate::workplace::{CommandOutput, Workplace, tooltune};

/// Runs `eval` on saved predictions for the three rows of `dev.jsonl`.
const RESCORE: [&str; 6] = [
    "eval",
    "config.toml",
    "--checkpoint",
    "base",
    "--predictions",
    "predictions.jsonl",
];

#[test]
fn invalid_or_foreign_predictions_are_refused_with_their_location() {
    let workplace = Workplace::new();
    let line = |id: &str| json!({"id": id, "prediction": "{}"}).to_string() + "\n";
    let mut not_utf8 = line("dev.jsonl:1").into_bytes();
    not_utf8.extend(b"\xff\xfe\n");
    let cases: [(Vec<u8>, i32, &[&str]); 5] = [
        (
            Vec::new(),
            CONFIG,
            &["3 of 3 rows have no prediction", "one line"],
        ),
        (
            line("dev.jsonl:1").repeat(4).into_bytes(),
            CONFIG,
            &[
                "predictions.jsonl:2: duplicate id \"dev.jsonl:1\"",
                "first at predictions.jsonl:1",
            ],
        ),
        (not_utf8, ROWS, &["predictions.jsonl:2: ", "UTF-8", "iconv"]),
        (
            "[".repeat(1_000_000).into_bytes(),
            ROWS,
            &["predictions.jsonl:1: ", "the array has no end"],
        ),
        (
            b"{\"id\": \"dev.jsonl:1\"}\n".to_vec(),
            CONFIG,
            &["predictions.jsonl:1: ", "missing field `prediction`"],
        ),
    ];
    for (contents, status, expected) in cases {
        workplace.write("predictions.jsonl", contents);
        assert_refused(&workplace, &RESCORE, status, expected);
    }

    let other = [1, 2, 3, 4].map(|n| line(&format!("elsewhere/test.jsonl:{n}")));
    for n in [3, 4] {
        workplace.write("predictions.jsonl", other[..n].concat());
        let none =
            format!("predictions.jsonl: none of its {n} predictions belongs to these 3 rows: ");
        let expected = [
            none.as_str(),
            "their ids are \"elsewhere/test.jsonl:1\", \"elsewhere/test.jsonl:2\"",
            "the ids of the rows are \"dev.jsonl:1\", \"dev.jsonl:2\", \"dev.jsonl:3\"",
            "--data",
        ];
        assert_refused(&workplace, &RESCORE, CONFIG, &expected);
    }
    let some = [other[0].clone(), line("dev.jsonl:2"), line("dev.jsonl:1")];
    workplace.write("predictions.jsonl", some.concat());
    let expected =
        ["predictions.jsonl:1: \"elsewhere/test.jsonl:1\" is not the id of any of the 3 rows"];
    assert_refused(&workplace, &RESCORE, CONFIG, &expected);
    let calls_prediction = json!({"suite": "calls", "id": "dev.jsonl:1", "prediction": "{}"});
    workplace.write("predictions.jsonl", format!("{calls_prediction}\n"));
    let expected =
        ["predictions.jsonl:1: this line is a prediction for the suite calls, not for slot"];
    assert_refused(&workplace, &RESCORE, CONFIG, &expected);
    // The ids are also joined if the file is in another folder and the rows are in another order.
    let moved = [3, 1, 2].map(|n| line(&format!("elsewhere/dev.jsonl:{n}")));
    workplace.write("predictions.jsonl", moved.concat());
    let answer = workplace.run(RESCORE);
    answer.success();
}

#[test]
fn non_json_and_deeply_nested_predictions_are_scored() {
    let workplace = Workplace::new();
    let texts = [
        "[".repeat(1_000_000),
        "{\"a\":".repeat(500_000),
        format!("{{\"a\": \"{}\"}}", "x".repeat(10_000_000)),
    ];
    let line = |(n, text): (usize, &String)| {
        let id = format!("dev.jsonl:{}", n + 1);
        json!({"id": id, "prediction": text}).to_string() + "\n"
    };
    let lines: Vec<String> = texts.iter().enumerate().map(line).collect();
    workplace.write("predictions.jsonl", lines.concat());
    let output = workplace.run(RESCORE).success();
    let parse_rate = output.lines().find(|line| line.contains("slot.parse_rate"));
    assert!(
        parse_rate.is_some_and(|line| line.split_whitespace().nth(1) == Some("0.3333")),
        "{output}"
    );
}

#[test]
fn a_prompt_beyond_the_context_loses_only_its_row() {
    let workplace = Workplace::new();
    let long = row(&workplace, |row| {
        row["input_text"] = json!("portions of ".repeat(100_000));
    });
    let short = row(&workplace, |_| {});
    workplace.write("long.jsonl", format!("{short}\n{long}\n{short}\n"));
    let evaluate = [
        "eval",
        "config.toml",
        "--checkpoint",
        "base",
        "--data",
        "long.jsonl",
        "--output",
        "scores",
    ];
    let answer = CommandOutput::from_command(
        tooltune()
            .env("RUST_LOG", "warn")
            .current_dir(workplace.folder())
            .args(evaluate),
    );
    for part in ["1 of 3 prompts", "8192 tokens", "such as long.jsonl:2:"] {
        assert!(answer.stderr.contains(part), "{}", answer.stderr);
    }
    answer.success();
    let reasons: Vec<String> = workplace
        .read("scores/predictions.jsonl")
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["finish_reason"].to_string())
        .collect();
    assert_eq!(reasons[1], "\"context\"");
    assert!(
        reasons[0] == reasons[2] && reasons[0] != reasons[1],
        "{reasons:?}"
    );
}

#[test]
fn invalid_adapter_settings_are_refused_and_another_base_is_named() {
    let workplace = Workplace::new();
    let train = ["train", "config.toml", "--set", "train.max_steps=2"];
    workplace.run(train).success();
    let last = workplace.path("run/checkpoint-000002");
    let copy = workplace.path("adapter");
    std::fs::create_dir(&copy).unwrap();
    let file = "adapter_model.safetensors";
    std::fs::copy(last.join(file), copy.join(file)).unwrap();
    let evaluate = [
        "eval",
        "run",
        "--checkpoint",
        "adapter",
        "--max-samples",
        "1",
    ];
    let config_with = |key: &str, value: Value| {
        std::fs::copy(
            last.join("adapter_config.json"),
            copy.join("adapter_config.json"),
        )
        .unwrap();
        edit(&copy.join("adapter_config.json"), key, value);
    };
    let cases: [(&str, Value, i32, &[&str]); 6] = [
        (
            "r",
            json!(0),
            FILES,
            &["adapter_config.json: r: ", "at least 1"],
        ),
        (
            "r",
            json!(1_u64 << 62),
            CONFIG,
            &["is 4611686018427387904", "1 to 65536"],
        ),
        (
            "lora_alpha",
            json!(1e300),
            FILES,
            &["lora_alpha: ", "finite in f32"],
        ),
        (
            "rank_pattern",
            json!({"(((.{1,1000}){1,1000}){1,1000})": 2}),
            CONFIG,
            &["rank_pattern: ", "size limit"],
        ),
        (
            "target_modules",
            json!(["../../etc/passwd"]),
            CONFIG,
            &["../../etc/passwd", "matches no linear layer"],
        ),
        // PEFT rejects `layers_to_transform` together with a pattern as `target_modules`, such as
        // `all-linear`.
        (
            "layers_to_transform",
            json!([0]),
            CONFIG,
            &["layers_to_transform needs a list of target_modules"],
        ),
    ];
    for (key, value, status, expected) in cases {
        config_with(key, value);
        assert_refused(&workplace, &evaluate, status, expected);
    }
    config_with("base_model_name_or_path", json!("org/Another-8B"));
    let answer = workplace.run(evaluate);
    let expected = "adapter names \"org/Another-8B\" as its base model";
    assert!(answer.stderr.contains(expected), "{}", answer.stderr);
    answer.success();
}

#[test]
fn the_suite_slot_refuses_other_row_formats_but_their_loss_is_measured() {
    let workplace = Workplace::new();
    let row = serde_json::json!({"messages": [{"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."}]});
    workplace.write("chats.jsonl", format!("{row}\n"));
    let eval = "eval config.toml --checkpoint base --data chats.jsonl --set data.format=messages \
                --set eval.suites=[] --set eval.metric_for_best_model=loss";
    let eval: Vec<&str> = eval.split_whitespace().collect();
    let expected = ["data.eval has rows of the format messages", "omit --suite"];
    assert_refused(
        &workplace,
        &[&eval[..], &["--suite", "slot"]].concat(),
        CONFIG,
        &expected,
    );
    // Rows without tools cannot be scored by calls.
    let expected = ["the calls suite needs", "the row has no tools"];
    assert_refused(
        &workplace,
        &[&eval[..], &["--suite", "calls"]].concat(),
        CONFIG,
        &expected,
    );
    let answer = workplace.run(eval);
    assert!(
        answer.stderr.contains("; measuring only the loss"),
        "{}",
        answer.stderr
    );
    let output = answer.success();
    assert!(output.starts_with("loss "), "{output}");
    let alpaca = serde_json::json!({"instruction": "Say hi.", "output": "Hi."});
    workplace.write("alpaca.jsonl", format!("{alpaca}\n"));
    let loss = "eval config.toml --checkpoint base --data alpaca.jsonl --set data.format=alpaca \
                --set eval.suites=[] --set eval.metric_for_best_model=loss";
    let output = workplace.run(loss.split_whitespace()).success();
    assert!(output.starts_with("loss "), "{output}");
    // Saved predictions have no loss.
    workplace.write(
        "texts.jsonl",
        "{\"id\": \"alpaca.jsonl:1\", \"prediction\": \"Hi.\"}\n",
    );
    for (option, value) in [
        ("--predictions", "texts.jsonl"),
        ("--endpoint", "http://localhost:9/v1"),
    ] {
        let eval: Vec<&str> = loss.split_whitespace().chain([option, value]).collect();
        let expected = [
            option,
            "no suite scores completions for rows of the format alpaca",
            "--suite",
        ];
        assert_refused(&workplace, &eval, CONFIG, &expected);
    }
}

#[test]
fn rows_without_a_training_format_need_an_explicit_suite() {
    let workplace = Workplace::new();
    workplace.copy_model("base");
    let export = "export base --to gguf --merged --output base.gguf";
    workplace.run(export.split(' ')).success();
    workplace.write(
        "questions.jsonl",
        "{\"question\": \"Where?\", \"answer\": \"Here.\"}\n",
    );
    for target in ["base", "base.gguf"] {
        let refused = workplace.run(["eval", target, "--data", "questions.jsonl"]);
        assert_eq!(refused.status, Some(CONFIG), "{}", refused.stderr);
        for part in [
            "questions.jsonl:1: the format of the rows is unknown",
            "\"question\", \"answer\"",
            "name the suite with --suite: slot, ",
            "toolqa",
        ] {
            assert!(
                refused.stderr.contains(part),
                "{part:?}: {}",
                refused.stderr
            );
        }
        assert!(
            !refused.stderr.contains(&format!("{target}:")),
            "{}",
            refused.stderr
        );
    }
}

#[test]
fn rows_from_the_command_line_replace_missing_rows_of_the_config() {
    let workplace = Workplace::new();
    let config = workplace
        .read("config.toml")
        .replace("eval = [\"dev.jsonl\"]\n", "");
    let (head, rest) = config.split_once("[eval]\n").unwrap();
    let (_, checkpoint) = rest.split_once("[checkpoint]\n").unwrap();
    let encoder = fixture("retriever/model");
    let eval = format!(
        "[eval]\neval_strategy = \"no\"\nmax_new_tokens = 4\nencoder = {:?}\n[checkpoint]\n",
        encoder.display().to_string()
    );
    workplace.write("config.toml", [head, &eval, checkpoint].concat());
    let eval = "eval config.toml --checkpoint base --data dev.jsonl --output results";
    workplace.run(eval.split(' ')).success();
    let metrics: Value = serde_json::from_str(&workplace.read("results/metrics.json")).unwrap();
    assert_eq!(metrics["n"], 3, "{metrics}");
}
