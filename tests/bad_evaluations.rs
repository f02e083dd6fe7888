//! Evaluations of what does not belong together: predictions of other rows, adapters of other
//! models, prompts that no context holds.

use serde_json::{Value, json};

use crate::bad_input::{CONFIG, FILES, ROWS, assert_refused, edit, row};
use crate::workplace::{Answer, Workplace, tooltune};

/// `eval` of saved predictions for the three rows of `dev.jsonl`.
const RESCORE: [&str; 6] = [
    "eval",
    "config.toml",
    "--checkpoint",
    "base",
    "--predictions",
    "predictions.jsonl",
];

#[test]
fn predictions_that_are_none_or_of_other_rows_are_refused_with_their_place() {
    let workplace = Workplace::new();
    let line = |id: &str| json!({"id": id, "prediction": "{}"}).to_string() + "\n";
    let mut not_utf8 = line("dev.jsonl:1").into_bytes();
    not_utf8.extend(b"\xff\xfe\n");
    let cases: [(Vec<u8>, i32, &[&str]); 5] = [
        (
            Vec::new(),
            CONFIG,
            &["0 predictions for 3 rows", "one line"],
        ),
        (
            line("dev.jsonl:1").repeat(4).into_bytes(),
            CONFIG,
            &["predictions.jsonl: 4 predictions for 3 rows"],
        ),
        (not_utf8, ROWS, &["predictions.jsonl:2: ", "UTF-8", "iconv"]),
        (
            "[".repeat(1_000_000).into_bytes(),
            ROWS,
            &["predictions.jsonl:1: ", "nested deeper than 127 levels"],
        ),
        (
            b"{\"id\": \"dev.jsonl:1\"}\n".to_vec(),
            CONFIG,
            &["predictions.jsonl:1: ", "missing field `prediction`"],
        ),
    ];
    for (contents, status, said) in cases {
        workplace.write("predictions.jsonl", contents);
        assert_refused(&workplace, &RESCORE, status, said);
    }

    let other = [1, 2, 3, 4].map(|n| line(&format!("elsewhere/test.jsonl:{n}")));
    for n in [3, 4] {
        workplace.write("predictions.jsonl", other[..n].concat());
        let none = format!("predictions.jsonl: none of its {n} predictions is of these 3 rows: ");
        let said = [
            none.as_str(),
            "it has \"elsewhere/test.jsonl:1\", \"elsewhere/test.jsonl:2\"",
            "the rows are \"dev.jsonl:1\", \"dev.jsonl:2\", \"dev.jsonl:3\"",
            "--data",
        ];
        assert_refused(&workplace, &RESCORE, CONFIG, &said);
    }
    let some = [other[0].clone(), line("dev.jsonl:2"), line("dev.jsonl:1")];
    workplace.write("predictions.jsonl", some.concat());
    let answer = workplace.run(RESCORE);
    let said = "2 of 3 predictions are named for other rows, such as \"elsewhere/test.jsonl:1\"";
    assert!(answer.stderr.contains(said), "{}", answer.stderr);
    answer.success();
    // The same file at another place is the same rows.
    let moved = [1, 2, 3].map(|n| line(&format!("elsewhere/dev.jsonl:{n}")));
    workplace.write("predictions.jsonl", moved.concat());
    let answer = workplace.run(RESCORE);
    assert!(!answer.stderr.contains("other rows"), "{}", answer.stderr);
    answer.success();
}

#[test]
fn predictions_that_are_no_json_or_nested_without_end_are_scored_as_such() {
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
    let said = workplace.run(RESCORE).success();
    let parse_rate = said.lines().find(|line| line.contains("slot.parse_rate"));
    assert!(
        parse_rate.is_some_and(|line| line.split_whitespace().nth(1) == Some("0.3333")),
        "{said}"
    );
}

#[test]
fn a_prompt_beyond_the_context_costs_its_row_and_not_the_evaluation() {
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
    let answer = Answer::of(
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
fn adapters_with_hostile_settings_are_refused_and_those_of_another_base_are_named() {
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
    let with = |key: &str, value: Value| {
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
        // PEFT refuses layers beside targets that are one pattern, as `all-linear` is.
        (
            "layers_to_transform",
            json!([0]),
            CONFIG,
            &["layers_to_transform needs a list of target_modules"],
        ),
    ];
    for (key, value, status, said) in cases {
        with(key, value);
        assert_refused(&workplace, &evaluate, status, said);
    }
    with("base_model_name_or_path", json!("org/Another-8B"));
    let answer = workplace.run(evaluate);
    let said = "adapter names \"org/Another-8B\" as its base model";
    assert!(answer.stderr.contains(said), "{}", answer.stderr);
    answer.success();
}

#[test]
fn rows_of_another_format_are_refused_by_the_suite_slot_and_have_their_loss() {
    let workplace = Workplace::new();
    let row = serde_json::json!({"messages": [{"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."}]});
    workplace.write("chats.jsonl", format!("{row}\n"));
    let eval = "eval config.toml --checkpoint base --data chats.jsonl --set data.format=messages \
                --set eval.suites=[] --set eval.metric_for_best_model=loss";
    let eval: Vec<&str> = eval.split_whitespace().collect();
    let said = [
        "data.eval has rows of the format messages",
        "leave --suite out",
    ];
    assert_refused(
        &workplace,
        &[&eval[..], &["--suite", "slot"]].concat(),
        CONFIG,
        &said,
    );
    // Nothing can be called without tools.
    let said = ["the suite calls asks", "no tools in the row"];
    assert_refused(
        &workplace,
        &[&eval[..], &["--suite", "calls"]].concat(),
        CONFIG,
        &said,
    );
    let answer = workplace.run(eval);
    assert!(
        answer.stderr.contains("; the loss alone is measured"),
        "{}",
        answer.stderr
    );
    let shown = answer.success();
    assert!(shown.starts_with("loss "), "{shown}");
    let alpaca = serde_json::json!({"instruction": "Say hi.", "output": "Hi."});
    workplace.write("alpaca.jsonl", format!("{alpaca}\n"));
    let loss = "eval config.toml --checkpoint base --data alpaca.jsonl --set data.format=alpaca \
                --set eval.suites=[] --set eval.metric_for_best_model=loss";
    let shown = workplace.run(loss.split_whitespace()).success();
    assert!(shown.starts_with("loss "), "{shown}");
    // Texts of elsewhere have no loss here.
    workplace.write(
        "texts.jsonl",
        "{\"id\": \"alpaca.jsonl:1\", \"prediction\": \"Hi.\"}\n",
    );
    for (option, value) in [
        ("--predictions", "texts.jsonl"),
        ("--endpoint", "http://localhost:9/v1"),
    ] {
        let eval: Vec<&str> = loss.split_whitespace().chain([option, value]).collect();
        let said = [
            option,
            "no suite scores texts of rows of the format alpaca",
            "--suite",
        ];
        assert_refused(&workplace, &eval, CONFIG, &said);
    }
}
