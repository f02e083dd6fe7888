//! Rows in the formats of other programs, from the file to a run, and the messages about rows in
//! every command.

use serde_json::{Value, json};

use crate::bad_input::{CONFIG, ROWS, assert_refused};
use crate::support::fixture;
use crate::workplace::Workplace;

/// The config without `format` and `suites`, and with a chat template that renders tools.
fn workplace(train: &str) -> Workplace {
    let workplace = Workplace::new();
    let config = format!(
        "[model]\nmodel_name_or_path = {:?}\n[lora]\nr = 2\n[data]\ntrain = [\"rows.jsonl\"]\n\
         chat_template = \"chatml-tools\"\n[train]\noutput_dir = \"run\"\nmax_steps = 1\n",
        fixture("tiny_chat_model")
    );
    workplace.write("auto.toml", config);
    workplace.write("rows.jsonl", train);
    workplace
}

fn rows(name: &str) -> String {
    std::fs::read_to_string(fixture(&format!("rows/{name}.jsonl"))).unwrap()
}

const XLAM: &str = r#"{"id": 1, "query": "How deep is Northcove at low tide?", "tools": "[{\"name\": \"harbour_depth\", \"description\": \"Depth of a harbour.\", \"parameters\": {\"harbour\": {\"type\": \"str\", \"description\": \"Name\"}, \"tide\": {\"type\": \"str, optional\", \"description\": \"low or high\", \"default\": \"high\"}}}]", "answers": "[{\"name\": \"harbour_depth\", \"arguments\": {\"harbour\": \"Northcove\", \"tide\": \"low\"}}]"}"#;

#[test]
fn a_run_detects_reports_and_records_the_row_format() {
    for (text, format, train_on) in [
        (rows("sharegpt"), "sharegpt", "assistant"),
        (rows("alpaca"), "alpaca", "assistant"),
        (rows("tools-text"), "messages", "assistant"),
        (format!("{XLAM}\n"), "xlam", "completion"),
    ] {
        let workplace = workplace(&text);
        let answer = workplace.run(["train", "auto.toml"]);
        let expected = format!("data.format = \"auto\": detected \"{format}\" from rows.jsonl:1\n");
        assert!(answer.stderr.contains(&expected), "{}", answer.stderr);
        let out = answer.success();
        let resolved = workplace.read("run/config.resolved.toml");
        assert!(
            resolved.contains(&format!("\nformat = \"{format}\"\n")),
            "{resolved}"
        );
        assert!(
            resolved.contains(&format!("\ntrain_on = \"{train_on}\"\n")),
            "{resolved}"
        );
        assert_eq!(
            out.contains("the field \"id\" of rows.jsonl:1 is not read"),
            format == "xlam"
        );
        // Both the config and the resolved config resume the run.
        for config in ["auto.toml", "run/config.resolved.toml"] {
            workplace
                .run(["train", config, "--set", "train.max_steps=1"])
                .success();
        }
    }
}

#[test]
fn rows_are_inspected_and_prompted_in_their_format() {
    let workplace = workplace(&format!("{XLAM}\n"));
    let output = workplace
        .run(["inspect", "auto.toml", "--format", "json"])
        .success();
    let inspected: Value = serde_json::from_str(&output).unwrap();
    let tokens = inspected["tokens"].as_array().unwrap().iter();
    let text: String = tokens
        .map(|token| token["text"].as_str().unwrap())
        .collect();
    let tool = r#"{"type": "function", "function": {"name": "harbour_depth", "description": "Depth of a harbour.", "parameters": {"type": "object", "properties": {"harbour": {"type": "string", "description": "Name"}, "tide": {"type": "string", "description": "low or high", "default": "high"}}, "required": ["harbour"]}}}"#;
    assert!(text.contains(tool), "{text}");
    let words = "generate auto.toml --data rows.jsonl --checkpoint base --output texts.jsonl \
                 --set eval.max_new_tokens=2 --set eval.eval_strategy=no";
    workplace.run(words.split_whitespace()).success();
    let line: Value = serde_json::from_str(workplace.read("texts.jsonl").trim()).unwrap();
    assert_eq!(
        line["reference"],
        "<tool_call>\n{\"name\": \"harbour_depth\", \"arguments\": {\"harbour\": \"Northcove\", \
         \"tide\": \"low\"}}\n</tool_call>"
    );
    let plan = workplace
        .run(["plan", "auto.toml", "--format", "json"])
        .success();
    let plan: Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(plan["not_read"]["fields"]["id"]["n_rows"], 1);
}

/// Invariant: The row format is recognised by its fields or the file is refused.
#[test]
fn unrecognised_and_mixed_formats_are_refused() {
    let workplace = workplace("{\"text\": \"x\", \"prompts\": \"y\"}\n");
    let train = ["train", "auto.toml"];
    assert_refused(
        &workplace,
        &train,
        CONFIG,
        &[
            "rows.jsonl:1: the format of the rows is unknown",
            "did you mean \"prompts\"?",
        ],
    );
    let messages = json!({"messages": [{"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes."}]});
    let pair = json!({"prompt": "x", "completion": "y"});
    workplace.write("rows.jsonl", format!("{messages}\n{pair}\n"));
    assert_refused(
        &workplace,
        &train,
        ROWS,
        &["rows.jsonl:2: the row has the format prompt-completion"],
    );
    workplace.write("rows.jsonl", format!("{messages}\n"));
    workplace.write("other.jsonl", format!("\n{pair}\n"));
    let two = "train auto.toml --set data.eval=[\"other.jsonl\"]";
    let two: Vec<&str> = two.split_whitespace().collect();
    assert_refused(
        &workplace,
        &two,
        CONFIG,
        &[
            "rows.jsonl:1 is messages",
            "other.jsonl:2 is prompt-completion",
        ],
    );
    workplace.write("rows.jsonl", "");
    assert_refused(
        &workplace,
        &train,
        CONFIG,
        &["rows.jsonl: the file has no rows"],
    );
    std::fs::remove_file(workplace.path("rows.jsonl")).unwrap();
    assert_refused(
        &workplace,
        &train,
        CONFIG,
        &["`data.train` names rows.jsonl, which does not"],
    );
    let generate = "generate auto.toml --data other.jsonl --checkpoint base";
    let generate: Vec<&str> = generate.split_whitespace().collect();
    assert_refused(
        &workplace,
        &generate,
        CONFIG,
        &["for example with --set data.format="],
    );
}

/// Invariant: Dropped and truncated rows are reported in training and evaluation.
#[test]
fn dropped_and_truncated_rows_are_reported_in_training_and_evaluation() {
    let row = |answer: &str| json!({"prompt": "Name a boat.", "completion": answer}).to_string();
    let (short, long) = (row("boat"), row(&"boat ".repeat(90)));
    let workplace = workplace(&format!("{short}\n{long}\n{short}\n"));
    workplace.write("eval.jsonl", format!("{long}\n{short}\n{short}\n"));
    let settings = "--set data.eval=[\"eval.jsonl\"] --set data.max_length=100 \
                    --set eval.eval_steps=1 --set eval.max_samples=2";
    let run = |verb: &str, on_overflow: &str| {
        let words = format!("{verb} auto.toml {settings} --set data.on_overflow={on_overflow}");
        workplace.run(words.split_whitespace()).success()
    };
    for verb in ["plan", "train"] {
        let output = run(verb, "drop");
        for line in [
            "dropped rows.jsonl:2: longer than data.max_length = 100 tokens\n",
            "dropped eval.jsonl:1: longer than data.max_length = 100 tokens\n",
            "data.eval: only the first 2 rows are used (eval.max_samples)\n",
        ] {
            assert!(output.contains(line), "{line:?} is not in {output}");
        }
    }
    let output = run("plan", "truncate --set train.output_dir=other");
    for line in [
        "data.train: 1 of 3 rows, such as rows.jsonl:2, are truncated to data.max_length = 100 \
         tokens",
        "data.eval: 1 of 2 rows, such as eval.jsonl:1, are truncated to data.max_length = 100 \
         tokens",
    ] {
        assert!(output.contains(line), "{line:?} is not in {output}");
    }
}

#[test]
fn a_run_without_supervised_tokens_is_refused_before_it_starts() {
    let workplace = workplace(&rows("alpaca"));
    let nothing = "NOTHING WILL BE LEARNED: the learning rate is 0 in every step";
    for verb in ["plan", "train"] {
        let output = workplace
            .run([verb, "auto.toml", "--set", "train.warmup_ratio=0.1"])
            .success();
        assert!(output.contains(nothing), "{output}");
    }
    let other = "plan auto.toml --set train.output_dir=other";
    let output = workplace.run(other.split_whitespace()).success();
    assert!(!output.contains("LEARNED"), "{output}");
}

/// `train`, `plan` and `inspect` each report calls and results that do not match.
#[test]
fn results_without_their_calls_are_reported() {
    let call = |id: &str| {
        json!({"role": "assistant", "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "tide", "arguments": {}}}]})
    };
    let user = json!({"role": "user", "content": "Tide?"});
    let answer = json!({"role": "assistant", "content": "Low."});
    let tagged = json!({"role": "tool", "tool_call_id": "b",
        "content": "<tool_response>\nlow\n</tool_response>"});
    let tools = json!([{"type": "function", "function": {"name": "tide",
        "parameters": {"type": "object", "properties": {}}}}]);
    let valid_row = json!({"messages": [user, answer], "tools": tools});
    let row = json!({"messages": [user, call("a"), tagged, answer], "tools": tools});
    let workplace = workplace(&format!("{valid_row}\n{row}\n{row}\n"));
    let expected = [
        "data.train: tool results that contain <tool_response> tags: 2, the first \
         rows.jsonl:2, messages[2];",
        "data.train: tool results whose tool_call_id matches no earlier call: 2, the first \
         rows.jsonl:2, messages[2];",
        "data.train: calls without a result in conversations that continue: 2, the first \
         rows.jsonl:2, messages[1].tool_calls[0];",
    ];
    for verb in ["inspect", "plan", "train"] {
        let refused = workplace.run([verb, "auto.toml"]);
        let location = "rows.jsonl:2: messages[2].tool_call_id is \"b\"";
        assert!(
            refused.stderr.contains(location),
            "{verb}: {}",
            refused.stderr
        );
        let answer = workplace.run([verb, "auto.toml", "--set", "data.check_calls=false"]);
        assert_eq!(answer.status, Some(0), "{verb}: {}", answer.stderr);
        let all = answer.stdout + &answer.stderr;
        let words: Vec<&str> = all.split_whitespace().collect();
        let all = words.join(" ");
        for line in expected {
            assert!(all.contains(line), "{verb}: {line:?} is not in {all}");
        }
    }
    let plan = "plan auto.toml --format json --set data.check_calls=false";
    let plan = workplace.run(plan.split(' '));
    let plan: Value = serde_json::from_str(&plan.success()).unwrap();
    assert_eq!(plan["tools"]["tagged_results"]["n"], 2);
}

/// Files whose rows are in other formats give a one-line error with a remedy.
#[test]
fn tables_and_folders_instead_of_rows_are_reported() {
    let workplace = workplace(&rows("alpaca"));
    workplace.write("table.csv", "instruction,output\nx,y\n");
    std::fs::create_dir(workplace.path("folder")).unwrap();
    workplace.write("folder/b.jsonl", rows("alpaca"));
    for (file, expected) in [
        (
            "table.csv",
            "table.csv: the file is CSV, but rows must be JSON Lines, one object per \
                       line; convert it with `python3 -c",
        ),
        (
            "folder",
            "folder: expected a file of rows, found a folder; pass the files to read: \
                       folder/b.jsonl",
        ),
    ] {
        let set = format!("data.train=[{file:?}]");
        for format in ["auto", "alpaca"] {
            let format = format!("data.format={format}");
            let words = ["plan", "auto.toml", "--set", &set, "--set", &format];
            let refused = workplace.run(words);
            assert_ne!(refused.status, Some(0), "{file}");
            let words: Vec<&str> = refused
                .stderr
                .split_whitespace()
                .filter(|word| *word != "│")
                .collect();
            assert!(
                words.join(" ").contains(expected),
                "{file}: {}",
                refused.stderr
            );
        }
        let refused = workplace.run(["data", "stats", file]);
        assert_eq!(refused.status, Some(ROWS), "{}", refused.stderr);
        assert!(
            refused.stderr.contains(expected),
            "{file}: {}",
            refused.stderr
        );
    }
    // The suggested command converts the file to rows.
    let refused = workplace.run(["data", "stats", "table.csv"]).stderr;
    let command = refused.split('`').nth(1).unwrap();
    let status = std::process::Command::new("sh")
        .args(["-c", command])
        .current_dir(workplace.folder())
        .status()
        .unwrap();
    assert!(status.success(), "{command}");
    assert_eq!(
        workplace.read("rows.jsonl"),
        "{\"instruction\": \"x\", \"output\": \"y\"}\n"
    );
}

/// `inspect` shows a row without supervised tokens, and fails with the exit code of training.
#[test]
fn a_row_without_supervised_tokens_is_shown_and_refused() {
    let turns = json!([
        {"role": "user", "content": "Tide?"},
        {"role": "assistant", "content": "Low.", "train": false},
    ]);
    let rows = format!("{}\n", json!({"messages": turns}));
    let workplace = workplace(&rows);
    let words = ["inspect", "auto.toml", "--row", "rows.jsonl:1"];
    let output = workplace.run(words);
    assert_eq!(output.status, Some(ROWS), "{}", output.stderr);
    assert!(output.stdout.contains("0 supervised"), "{}", output.stdout);
    assert!(
        output
            .stderr
            .contains("rows.jsonl:1: no token of the row is supervised"),
        "{}",
        output.stderr
    );
}

/// `data stats` reads a JSON array with the result of JSON Lines, for every kind of rows.
#[test]
fn statistics_of_a_json_array_are_those_of_json_lines() {
    let workplace = workplace(&rows("alpaca"));
    let slot = json!({"input_text": "Ida", "json_schema": {"type": "object"}, "gold": {}});
    let trajectory = json!({"query": "Tide?", "calls": [], "response": "Low."});
    let pair = json!({"query": "q", "positive": "d"});
    let of_alpaca: Vec<Value> = rows("alpaca")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for rows in [
        vec![slot.clone(), slot],
        vec![trajectory],
        vec![pair],
        of_alpaca,
    ] {
        workplace.write("lines.jsonl", crate::workplace::json_lines(&rows));
        workplace.write("array.json", json!(rows).to_string());
        let stats = |file: &str| {
            let output = workplace.run(["data", "stats", file]).success();
            output.replace(file, "FILE")
        };
        let expected = stats("lines.jsonl");
        assert!(expected.contains(&format!("{} ", rows.len())), "{expected}");
        assert_eq!(stats("array.json"), expected);
    }
    workplace.write("unknown.json", "[{\"text\": \"a\"}]");
    let refused = workplace.run(["data", "stats", "unknown.json"]);
    assert_eq!(refused.status, Some(ROWS), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("unknown.json:1: "),
        "{}",
        refused.stderr
    );
}
