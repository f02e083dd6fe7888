//! The configs that `init` writes are valid for small data sets.

use serde_json::{Value, json};

use crate::support::{fixture, model};
use crate::workplace::{CommandOutput, Workplace, tooltune};

/// Rows for every preset: 60 for training and 12 for evaluation.
fn workplace() -> Workplace {
    let workplace = Workplace::new();
    for folder in ["data/goat", "data/pairs"] {
        std::fs::create_dir_all(workplace.path(folder)).unwrap();
    }
    for (split, rows) in [("train", "60"), ("dev", "12")] {
        let goat = format!(
            "data synth goat --split {split} --output data/goat/{split}.jsonl --rows {rows}"
        );
        let documents = "--documents data/goat/documents.jsonl";
        let goat = match split {
            "train" => format!("{goat} {documents}"),
            _ => goat,
        };
        workplace.run(goat.split(' ')).success();
        let n_rows: usize = rows.parse().unwrap();
        let pair = |n: usize| {
            let (query, positive) = (format!("{split} question {n}"), format!("{split} text {n}"));
            json!({"query": query, "positive": positive, "negatives": [format!("no {positive}")]})
        };
        workplace.write(&format!("data/pairs/{split}.jsonl"), jsonl(n_rows, pair));
    }
    workplace
}

fn jsonl(n_rows: usize, row: impl Fn(usize) -> Value) -> String {
    (0..n_rows).map(|n| format!("{}\n", row(n))).collect()
}

/// Writes the rows of `data/train.jsonl` and `data/dev.jsonl` for a preset.
fn write_rows(workplace: &Workplace, preset: &str) {
    for (split, n_rows) in [("train", 60), ("dev", 12)] {
        let file = format!("data/{split}.jsonl");
        let chat = |n: usize| {
            json!({"messages": [{"role": "user", "content": format!("{split} question {n}")},
                {"role": "assistant", "content": format!("Answer {n}.")}]})
        };
        let call = |n: usize| {
            let city = format!("{split} {n}");
            let tool = json!({"type": "function", "function": {"name": "weather",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}});
            let call = json!({"type": "function",
                "function": {"name": "weather", "arguments": {"city": city}}});
            json!({"tools": [tool], "messages": [
                {"role": "user", "content": format!("Weather in {city}?")},
                {"role": "assistant", "tool_calls": [call]}]})
        };
        match preset {
            "slot" => {
                let _ = std::fs::remove_file(workplace.path(&file));
                let synth =
                    format!("data synth slot --split {split} --rows {n_rows} --output {file}");
                workplace.run(synth.split(' ')).success();
            }
            "calls" => workplace.write(&file, jsonl(n_rows, call)),
            _ => workplace.write(&file, jsonl(n_rows, chat)),
        }
    }
}

/// Runs `plan` with the tiny language model and the preset's encoder, and prints warnings.
fn plan(workplace: &Workplace, preset: &str, options: &[&str]) -> CommandOutput {
    let retriever = match preset {
        "retriever" | "joint" | "goat" => vec![format!(
            "retriever.model_name_or_path={}",
            model("all-minilm-l6-v2").display()
        )],
        _ => Vec::new(),
    };
    let language = match preset {
        "retriever" => Vec::new(),
        _ => vec![format!(
            "model.model_name_or_path={}",
            fixture("tiny_chat_model").display()
        )],
    };
    let encoder = match preset {
        "slot" => vec![format!(
            "eval.encoder={}",
            model("all-minilm-l6-v2").display()
        )],
        _ => Vec::new(),
    };
    let mut command = tooltune();
    command
        .current_dir(workplace.folder())
        .env("RUST_LOG", "warn");
    command
        .args(["plan", &format!("{preset}.toml")])
        .args(options);
    for setting in language.iter().chain(&retriever).chain(&encoder) {
        command.args(["--set", setting]);
    }
    CommandOutput::from_command(&mut command)
}

/// The lines on standard error, without the message about the row format.
fn warnings(answer: &CommandOutput) -> Vec<&str> {
    let lines = answer.stderr.lines();
    lines
        .filter(|line| !line.starts_with("data.format = \"auto\": detected "))
        .collect()
}

#[test]
fn every_preset_is_planned_for_sixty_rows_without_a_warning() {
    let workplace = workplace();
    for preset in ["slot", "sft", "calls", "goat", "joint", "retriever"] {
        let output = format!("{preset}.toml");
        workplace
            .run(["init", "--preset", preset, "--output", &output])
            .success();
        write_rows(&workplace, preset);
        if preset != "retriever" {
            let offline = plan(&workplace, preset, &["--offline"]);
            assert_eq!(warnings(&offline), [""; 0], "{preset}");
            offline.success();
        }
        let planned = plan(&workplace, preset, &["--format", "json"]);
        let is_warning = planned.stderr.to_lowercase().contains("warn");
        assert!(!is_warning, "{preset}: {}", planned.stderr);
        let planned: Value = serde_json::from_str(&planned.success()).unwrap();
        for key in ["learning_rate_warnings", "unusual"] {
            let warnings = planned.get(key).and_then(Value::as_array);
            assert!(warnings.is_none_or(Vec::is_empty), "{preset}: {planned}");
        }
    }
}
