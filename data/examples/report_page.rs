//! Two invented runs to the page of `tooltune report`, for looking at its design.
//!
//! `cargo run -p tooltune-data --example report_page -- two.html` writes both beside each other,
//! `... -- one.html alone` the first of them; `scripts/report-screenshots` takes pictures of either.

use std::error::Error;

use serde_json::{Value, json};
use tooltune_data::report::{
    BestCheckpoint, PreviewRow, PreviewToken, ReportRun, SampleScoreView, SampleView, SuiteResult,
    render,
};

/// Steps of the invented runs.
const N_STEPS: u64 = 600;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: report_page FILE [alone]";
    let path = arguments.next().ok_or(usage)?;
    let runs = match arguments.next().as_deref() {
        None => vec![run("slot-r8", 1.0), run("slot-r32-strict-keys", 0.86)],
        Some("alone") => vec![run("slot-r8", 1.0)],
        Some(_) => return Err(usage.into()),
    };
    std::fs::write(path, render(&runs)?)?;
    Ok(())
}

/// `pace` scales the loss: the lower, the better the run.
fn run(name: &str, pace: f64) -> ReportRun {
    ReportRun {
        name: name.to_owned(),
        date: Some("22 November 2026, 10:12".to_owned()),
        metrics: metrics(pace),
        timing: timing(pace),
        best: Some(BestCheckpoint {
            step: if pace < 1.0 { 500 } else { 400 },
            metric: "slot.mean".to_owned(),
            value: 0.62 / pace,
        }),
        suites: suites(pace),
        mask_preview: mask_preview(),
        samples: samples(pace),
        config_toml: config(pace),
        lock_json: serde_json::to_string_pretty(&json!({
            "tooltune": "0.1.0",
            "device": "cpu",
            "train_sha256": {"data/slot/train.jsonl": "c76d97bd7c45cbe03dc81db62efdbd65c21a48cb352ce1bf"},
            "resume_digest": "35c4dda671156082f5c4c3e4ba6f6611854f7ffcfd07eff25371a81b66b9a81f",
        }))
        .unwrap_or_default(),
    }
}

/// A number in -1..1 that looks drawn.
fn noise(step: u64, salt: f64) -> f64 {
    let turned = (step as f64 * 12.9898 + salt * 78.233).sin() * 43_758.545;
    2.0 * turned.rem_euclid(1.0) - 1.0
}

fn metrics(pace: f64) -> Vec<Value> {
    let mut lines = Vec::new();
    for step in 0..=N_STEPS {
        let share = step as f64 / N_STEPS as f64;
        if step % 100 == 0 {
            let quality = (1.0 - (-4.0 * share).exp()) * (1.0 - 0.06 * share * share) / pace;
            lines.push(json!({
                "step": step,
                "eval/loss": pace * (0.55 + 1.6 * (-4.0 * share).exp() + 0.09 * share * share),
                "eval/slot.mean": 0.04 + 0.6 * quality,
                "eval/slot.schema_accuracy": 0.02 + 0.7 * quality,
                "eval/slot.strict_keys_accuracy": 0.62 * quality,
                "eval/slot.content_similarity": 0.06 + 0.5 * quality,
            }));
        }
        if step > 0 && step % 2 == 0 {
            let warm = (share / 0.05).min(1.0);
            lines.push(json!({
                "step": step,
                "epoch": 3.0 * share,
                "loss": pace * (0.42 + 1.8 * (-5.0 * share).exp()) + 0.08 * noise(step, pace),
                "grad_norm": 0.4 + 1.9 * (-7.0 * share).exp() + 0.12 * noise(step, 2.0 + pace)
                    + if step == 310 { 2.2 } else { 0.0 },
                "learning_rate": 2e-4 * warm * 0.5 * (1.0 + (std::f64::consts::PI * share).cos()),
                "tokens": step * 4_731,
                "trained_tokens": step * 689,
            }));
        }
    }
    lines
}

fn timing(pace: f64) -> Vec<Value> {
    let line = |step| {
        json!({
            "step": step,
            "seconds": 5.2 / pace + 0.4 * noise(step, 3.0),
            "tokens": 4_731,
            "peak_rss_bytes": 1_181_650_944 + (5e7 / pace) as u64 * step.min(8),
        })
    };
    (1..=N_STEPS).map(line).collect()
}

fn suites(pace: f64) -> Vec<SuiteResult> {
    let estimate = |value: f64| {
        let value = value.min(1.0);
        let half = 1.96 * (value * (1.0 - value) / 200.0).sqrt();
        json!({"value": value, "low": (value - half).max(0.0), "high": (value + half).min(1.0)})
    };
    let metrics = |level: f64| {
        let depth = |depth: usize, n: usize| {
            let fall = level * (1.1 - 0.15 * depth as f64);
            json!({"depth": depth, "n": n, "schema_accuracy": estimate(fall),
                   "strict_keys_accuracy": estimate(0.9 * fall),
                   "content_similarity": estimate(0.8 * fall),
                   "exact_match": estimate(0.5 * fall)})
        };
        let third = |range: &str, n: usize, share: f64| {
            json!({"complexity": range, "n": n, "schema_accuracy": estimate(level * share),
                   "content_similarity": estimate(level * share * 0.9)})
        };
        let kind = |n: usize, share: f64| {
            json!({"n": n, "exact_match_f": estimate(level * share),
                   "content_similarity": estimate(level * (share + 0.1))})
        };
        json!({
            "n": 200,
            "parse_rate": estimate((level * 1.35).min(1.0)),
            "schema_accuracy": estimate(level),
            "strict_keys_accuracy": estimate(level * 0.88),
            "content_similarity": estimate(level * 0.81),
            "exact_match": estimate(level * 0.44),
            "mean": estimate(level * 0.9),
            "by_depth": [depth(1, 92), depth(2, 71), depth(3, 37)],
            "by_complexity": [third("4.2 to 11.6", 68, 1.1), third("11.7 to 19.0", 66, 1.0),
                              third("19.3 to 64.8", 66, 0.85)],
            "by_question_type": {"entity": kind(88, 0.7), "date": kind(54, 0.5),
                                 "quantity": kind(58, 0.4)},
            "violations": {"additionalProperties": 14, "json": 3, "required": 9},
        })
    };
    let goat = json!({"goat": {
        "n": 40, "sa": estimate(0.61 / pace), "ia": estimate(0.47 / pace),
        "sr": null, "delta_len": {"value": 0.42, "low": -0.1, "high": 1.05},
    }});
    let result = |suite: &str, label: &str, metrics| SuiteResult {
        suite: suite.to_owned(),
        label: label.to_owned(),
        metrics,
    };
    let mut results = vec![
        result("slot", "best", metrics(0.7 / pace)),
        result("goat", "best", goat),
    ];
    if pace == 1.0 {
        results.insert(0, result("slot", "base", metrics(0.13)));
    }
    results
}

fn mask_preview() -> Vec<PreviewRow> {
    let tokens = |text: &str, weight: f32| -> Vec<PreviewToken> {
        let token = |text: &str| PreviewToken {
            text: text.to_owned(),
            weight,
        };
        text.split_inclusive([' ', '\n', '"', ':'])
            .map(token)
            .collect()
    };
    let prompt = "<|im_start|>system\nAnswer with JSON that fits the schema.<|im_end|>\n\
                  <|im_start|>user\nThe ferry Aurelia leaves berth 4 at 06:40 with 212 on board. ";
    let row = |id: &str, prompt: &str| PreviewRow {
        id: id.to_owned(),
        tokens: [
            tokens(prompt, 0.0),
            tokens("<|im_end|>\n<|im_start|>assistant\n", 0.0),
            tokens("{\"ferry\": \"", 1.0),
            tokens("Aurelia", 0.5),
            tokens("\", \"berth\": 4, \"leaves\": \"06:40\"}<|im_end|>", 1.0),
            tokens("\n", 0.0),
        ]
        .concat(),
    };
    vec![
        row("data/slot/train.jsonl:1", prompt),
        row(
            "data/slot/train.jsonl:2",
            &(prompt.to_owned() + &"The tide is low. ".repeat(90)),
        ),
    ]
}

fn samples(pace: f64) -> Vec<SampleView> {
    let sample = |id: u32, prediction: &str, similarity: f64, notes: &[&str]| SampleView {
        suite: "slot".to_owned(),
        result: "best".to_owned(),
        id: format!("data/slot/test.jsonl:{id}"),
        prompt: "Extract the departure as JSON.\n\nText: The ferry Aurelia leaves berth 4 at \
                 06:40 with 212 passengers on board; the pilot is M. Ostrander.\n\nSchema: \
                 {\"type\": \"object\", \"properties\": {\"ferry\": {\"type\": \"string\"}, \
                 \"berth\": {\"type\": \"integer\"}, \"pilot\": {\"type\": \"string\"}}}"
            .to_owned(),
        prediction: prediction.to_owned(),
        gold: r#"{"ferry": "Aurelia", "berth": 4, "pilot": "M. Ostrander"}"#.to_owned(),
        rank: Some(SampleScoreView {
            name: "mean of schema and content.f".to_owned(),
            value: similarity / 2.0,
        }),
        scores: [("schema", 0.0), ("content.f", similarity)]
            .map(|(name, value)| SampleScoreView {
                name: name.to_owned(),
                value,
            })
            .to_vec(),
        notes: notes.iter().map(|note| (*note).to_owned()).collect(),
    };
    let cut = format!(
        "Sure! Here is the JSON:\n{}",
        "{\"ferry\": \"Aurelia\", ".repeat(260)
    );
    let mut samples = vec![
        sample(
            17,
            &cut,
            0.0,
            &["breaks json: expected `,` or `}` at line 2"],
        ),
        sample(
            42,
            r#"{"ferry": "Aurelia", "berth": "4", "captain": "Ostrander"}"#,
            0.61 / pace,
            &[
                "breaks type at /berth: \"4\" is not of type \"integer\"",
                "breaks required: \"pilot\" is a required property",
            ],
        ),
        sample(
            71,
            r#"{"ferry": "Aurora", "berth": 4, "pilot": "M. Ostrander"}"#,
            0.88,
            &[],
        ),
    ];
    if pace < 1.0 {
        samples.remove(0);
    }
    samples
}

fn config(pace: f64) -> String {
    let r = if pace < 1.0 { 32 } else { 8 };
    format!(
        "# Every setting of the run. Training with this file repeats the run.\n\n\
         device = \"cpu\"\n\n[model]\nmodel_name_or_path = \"models/smollm2-135m-instruct.gguf\"\n\
         compute_dtype = \"bf16\"\n\n[lora]\nr = {r}\nlora_alpha = {}.0\nlora_dropout = 0.0\n\n\
         [train]\nlearning_rate = 0.0002\nlr_scheduler_type = \"cosine\"\nseed = 1\n",
        2 * r
    )
}
