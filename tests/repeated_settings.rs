//! Model files that contain a setting twice, or set dropout. The expected losses come from a
//! forward pass of the tiny chat model in numpy with 64 bits.

use std::path::Path;

use serde_json::{Value, json};

use crate::bad_input::{CONFIG, FILES, assert_refused};
use crate::support::test_device::TestDevice;
use crate::workplace::{CommandOutput, Workplace, tooltune};

/// Loss of the original model.
const PLAIN: f64 = 7.405_061;
/// With all rotary frequencies divided by 4.
const LINEAR_4: f64 = 7.502_137;
/// With a separate head: the rows of the embedding, shifted by one.
const OWN_HEAD: f64 = 7.006_119;

/// A workplace with a copy of the tiny chat model in `model`, and a config for one step with it.
fn workplace() -> Workplace {
    let workplace = Workplace::with_rows("1");
    workplace.copy_model("model");
    let rows = [
        (
            "Name the tide tables of the north harbour, one after another.",
            "Morning table, evening table, storm table.",
        ),
        (
            "Which ropes lie on the pier?",
            "Two hemp ropes and one chain.",
        ),
        ("Count the gulls.", "Nine."),
    ];
    let row = |(prompt, completion): &(&str, &str)| {
        format!("{}\n", json!({"prompt": prompt, "completion": completion}))
    };
    workplace.write("rows.jsonl", rows.iter().map(row).collect::<String>());
    workplace.write("one.jsonl", row(&("Say reef.", "Reef.")));
    let config = format!(
        r#"device = "{}"
[model]
model_name_or_path = "model"
compute_dtype = "f32"
[lora]
target_modules = ".*q_proj|.*v_proj"
[data]
train = ["one.jsonl"]
eval = ["rows.jsonl"]
format = "prompt-completion"
[train]
output_dir = "run"
max_steps = 1
[eval]
eval_steps = 1
"#,
        TestDevice::from_env()
    );
    workplace.write("run.toml", config);
    workplace
}

/// Changes one of the model's JSON files.
fn change(workplace: &Workplace, file: &str, change: impl FnOnce(&mut Value)) {
    let name = format!("model/{file}");
    let mut value: Value = serde_json::from_str(&workplace.read(&name)).unwrap();
    change(&mut value);
    workplace.write(&name, value.to_string());
}

/// Trains into `run`, and returns the output, including warnings.
fn train(workplace: &Workplace, run: &str) -> CommandOutput {
    let mut command = tooltune();
    let output = format!("train.output_dir={run}");
    command
        .current_dir(workplace.folder())
        .env("RUST_LOG", "warn");
    let answer = CommandOutput::from_command(command.args(["train", "run.toml", "--set", &output]));
    assert_eq!(answer.status, Some(0), "{}", answer.stderr);
    answer
}

/// The loss on the rows before the first step.
fn loss(workplace: &Workplace, run: &str) -> f64 {
    let metrics = workplace.read(&format!("{run}/metrics.jsonl"));
    let lines = metrics
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut losses = lines.filter_map(|line| line["eval/loss"].as_f64());
    losses.next().expect("an evaluation before the first step")
}

fn assert_loss(workplace: &Workplace, run: &str, expected: f64) {
    let actual = loss(workplace, run);
    assert!(
        (actual - expected).abs() < 2e-5,
        "{run}: {actual} and not {expected}"
    );
}

/// Invariant: Conflicting values in model files resolve as in the reference implementation or are
/// an error.
#[test]
fn rope_scaling_and_rope_parameters_combine_as_in_transformers() {
    let workplace = workplace();
    train(&workplace, "plain");
    assert_loss(&workplace, "plain", PLAIN);
    change(&workplace, "config.json", |config| {
        config.as_object_mut().unwrap().remove("rope_theta");
        config["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 1e4});
        config["rope_scaling"] = json!({"type": "linear", "factor": 4.0});
    });
    train(&workplace, "linear");
    assert_loss(&workplace, "linear", LINEAR_4);
    change(&workplace, "config.json", |config| {
        config["rope_scaling"] = json!({"rope_type": "dynamic", "factor": 4.0});
    });
    let expected = ["rope_scaling.rope_type = dynamic is not supported"];
    assert_refused(
        &workplace,
        &["train", "run.toml", "--set", "train.output_dir=dynamic"],
        FILES,
        &expected,
    );
}

/// Adds an `lm_head.weight` to a safetensors file: the rows of the embedding, shifted by `shift`.
fn add_head(path: &Path, shift: usize) {
    let data = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(data[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&data[8..8 + length]).unwrap();
    let mut body = data[8 + length..].to_vec();
    let mut head = header["model.embed_tokens.weight"].clone();
    let [begin, end] = [0, 1].map(|i| head["data_offsets"][i].as_u64().unwrap() as usize);
    let row = (end - begin) / head["shape"][0].as_u64().unwrap() as usize;
    let mut rows = body[begin..end].to_vec();
    rows.rotate_left(shift * row);
    head["data_offsets"] = json!([body.len(), body.len() + rows.len()]);
    header["lm_head.weight"] = head;
    body.extend(rows);
    let mut text = header.to_string();
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    let length = (text.len() as u64).to_le_bytes();
    std::fs::write(path, [length.as_slice(), text.as_bytes(), &body].concat()).unwrap();
}

/// Invariant: Conflicting values in model files resolve as in the reference implementation or are
/// an error.
#[test]
fn a_head_that_contradicts_tie_word_embeddings_is_refused() {
    let workplace = workplace();
    add_head(&workplace.path("model/model.safetensors"), 1);
    let arguments = ["train", "run.toml"];
    let expected = [
        "model/config.json: tie_word_embeddings: is true",
        "set the field to false to keep the head",
    ];
    assert_refused(&workplace, &arguments, FILES, &expected);
    change(&workplace, "config.json", |config| {
        config["tie_word_embeddings"] = false.into();
    });
    train(&workplace, "own");
    assert_loss(&workplace, "own", OWN_HEAD);
    // The exported model has the same setting and the same loss.
    let export = "export own --checkpoint last --to merged --output merged";
    workplace.run(export.split(' ')).success();
    let merged: Value = serde_json::from_str(&workplace.read("merged/config.json")).unwrap();
    assert_eq!(merged["tie_word_embeddings"], false);
    let verify = "verify own --checkpoint last --rows 2 --against merged --export merged";
    assert!(
        workplace
            .run(verify.split(' '))
            .success()
            .contains(" matches ")
    );
    // A head that equals the embedding is treated as tied.
    let copy = workplace.path("copy");
    std::fs::rename(workplace.copy_model("other"), &copy).unwrap();
    add_head(&copy.join("model.safetensors"), 0);
    std::fs::remove_dir_all(workplace.path("model")).unwrap();
    std::fs::rename(copy, workplace.path("model")).unwrap();
    train(&workplace, "same");
    assert_loss(&workplace, "same", PLAIN);
}

/// Invariant: Model files add no randomness to a run.
#[test]
fn dropout_in_model_files_is_ignored_and_reported_once() {
    let workplace = workplace();
    change(&workplace, "tokenizer.json", |tokenizer| {
        tokenizer["model"]["dropout"] = 0.5.into();
    });
    change(&workplace, "config.json", |config| {
        config["attention_dropout"] = 0.25.into();
    });
    let answers = ["one", "two"].map(|run| train(&workplace, run));
    for (answer, run) in answers.iter().zip(["one", "two"]) {
        assert_loss(&workplace, run, PLAIN);
        for expected in [
            "tokenizer.json: model.dropout = 0.5 is ignored",
            "config.json sets attention_dropout = 0.25, which is not applied",
        ] {
            let times = answer.stderr.matches(expected).count();
            assert_eq!(times, 1, "{expected:?} in {}", answer.stderr);
        }
    }
    let metrics = ["one", "two"].map(|run| workplace.read(&format!("{run}/metrics.jsonl")));
    assert_eq!(metrics[0], metrics[1]);
    // The exported model tokenizes text as in training.
    let export = "export one --checkpoint last --to merged --output merged";
    workplace.run(export.split(' ')).success();
    let tokenizer = workplace.read("merged/tokenizer.json");
    let tokenizer: Value = serde_json::from_str(&tokenizer).unwrap();
    assert_eq!(tokenizer["model"]["dropout"], Value::Null);
}

#[test]
fn a_token_of_another_file_is_added_if_it_has_an_embedding() {
    let workplace = workplace();
    change(&workplace, "tokenizer_config.json", |config| {
        config["extra_special_tokens"] = json!(["<|note|>"]);
    });
    let expected = [
        "extra_special_tokens adds \"<|note|>\" as token 1024, but the model has only 1024 \
         embeddings",
    ];
    assert_refused(&workplace, &["train", "run.toml"], CONFIG, &expected);
    change(&workplace, "tokenizer_config.json", |config| {
        config
            .as_object_mut()
            .unwrap()
            .remove("extra_special_tokens");
        config["pad_token"] = "[PAD]".into();
    });
    // A pad token is never read.
    let answer = train(&workplace, "padded");
    assert!(
        answer.stderr.contains("\"[PAD]\" has no embedding"),
        "{}",
        answer.stderr
    );
    assert_loss(&workplace, "padded", PLAIN);
}
