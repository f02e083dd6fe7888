//! Bad input gives an error with the problem, its location and a remedy, and changes no file.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::model;
use crate::workplace::{CommandOutput, Workplace, tooltune};

/// Exit statuses.
pub(crate) const FILES: i32 = 1;
pub(crate) const CONFIG: i32 = 2;
pub(crate) const ROWS: i32 = 3;

/// Returns the bytes of every file below a folder.
fn snapshot(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path)
            } else {
                let bytes = std::fs::read(&path).unwrap();
                files.insert(path, bytes);
            }
        }
    }
    // Lock files are empty, and have no meaning after their process has ended.
    files.retain(|path, _| !path.ends_with(".lock"));
    files
}

/// Asserts that the command exits with `status`, prints each of `said`, and changes no file.
pub(crate) fn assert_refused(
    workplace: &Workplace,
    arguments: &[&str],
    status: i32,
    expected: &[&str],
) {
    let before = snapshot(workplace.folder());
    let answer = workplace.run(arguments.iter().copied());
    assert_error(&answer, status, expected);
    let after = snapshot(workplace.folder());
    assert!(
        before == after,
        "{arguments:?} changed files; they were {:?} and are {:?}",
        before.keys(),
        after.keys()
    );
}

pub(crate) fn assert_error(answer: &CommandOutput, status: i32, expected: &[&str]) {
    let errors = &answer.stderr;
    assert!(!errors.contains("panicked"), "{errors}");
    assert_eq!(answer.status, Some(status), "{errors}");
    for part in expected {
        assert!(
            errors.contains(part),
            "the errors do not contain {part:?}:\n{errors}"
        );
    }
}

/// The first row of `train.jsonl`, changed.
pub(crate) fn row(workplace: &Workplace, change: impl Fn(&mut Value)) -> String {
    let rows = workplace.read("train.jsonl");
    let mut row = serde_json::from_str(rows.lines().next().unwrap()).unwrap();
    change(&mut row);
    row.to_string()
}

/// A schema of forty definitions, each of which uses the previous one twice, so that naive
/// validation takes 2^40 steps.
fn doubling_schema() -> Value {
    let mut definitions = json!({"d0": {"type": "string"}});
    for i in 1..=40 {
        let before = json!({"$ref": format!("#/$defs/d{}", i - 1)});
        definitions[format!("d{i}")] = json!({"anyOf": [before, before]});
    }
    json!({"$defs": definitions, "additionalProperties": {"$ref": "#/$defs/d40"}})
}

#[test]
fn invalid_rows_are_refused_with_line_field_and_remedy() {
    let workplace = Workplace::new();
    let good = row(&workplace, |_| {});
    let second = |line: String| format!("{good}\n{line}\n").into_bytes();
    let changed = |change: fn(&mut Value)| second(row(&workplace, change));
    let mut not_utf8 = second(good.clone());
    not_utf8[good.len() + 41] = 0xff;
    let cases: Vec<(Vec<u8>, &[&str])> = vec![
        (
            Vec::new(),
            &["rows.jsonl: ", "has no rows", "each line must be"],
        ),
        (
            changed(|row| drop(row.as_object_mut().unwrap().remove("gold"))),
            &["rows.jsonl:2: ", "\"gold\" is missing", "a slot row needs"],
        ),
        (
            changed(|row| row["gold"] = json!({"unknown": 1})),
            &[
                "rows.jsonl:2: ",
                "gold does not satisfy json_schema",
                "fix the row",
            ],
        ),
        (
            changed(|row| row["input_text"] = json!(5)),
            &[
                "rows.jsonl:2: ",
                "input_text is a number",
                "must be a string",
            ],
        ),
        (
            changed(|row| row["json_schema"] = json!({"type": "objekt"})),
            &["rows.jsonl:2: ", "json_schema/type", "objekt"],
        ),
        (
            changed(|row| row["json_schema"] = doubling_schema()),
            &["rows.jsonl:2: ", "100000 ways", "remove duplicate branches"],
        ),
        (
            changed(|row| row["json_schema"] = json!({"$ref": "http://127.0.0.1:9/schema.json"})),
            &["rows.jsonl:2: ", "http://127.0.0.1:9/schema.json"],
        ),
        (not_utf8, &["rows.jsonl:2: ", "UTF-8 at byte 40", "iconv"]),
        (
            second(good[..90].to_string()),
            &["rows.jsonl:2: ", "column 90", "must be one JSON object"],
        ),
        (
            second("[".repeat(1_000_000)),
            &["rows.jsonl:2: ", "nested deeper than 127 levels"],
        ),
    ];
    for (contents, expected) in cases {
        workplace.write("rows.jsonl", contents);
        let train = [
            "train",
            "config.toml",
            "--set",
            "data.train=[\"rows.jsonl\"]",
        ];
        assert_refused(&workplace, &train, ROWS, expected);
    }
}

#[test]
fn calls_that_do_not_match_their_tools_are_reported_together() {
    let workplace = Workplace::new();
    let row = |arguments: Value| {
        let tool = json!({"name": "weather", "parameters": {"type": "object",
            "properties": {"city": {"type": "string"}}, "required": ["city"]}});
        let call = json!({"name": "weather", "arguments": arguments});
        let answer = json!({"role": "assistant", "content": "", "tool_calls": [call]});
        json!({"messages": [{"role": "user", "content": "?"}, answer], "tools": [tool]})
    };
    let rows = [
        json!({"city": 1}),
        json!({"city": "Oslo"}),
        json!({"town": 1}),
    ]
    .map(row);
    workplace.write("good.jsonl", rows[1].to_string());
    workplace.write("rows.jsonl", rows.map(|row| format!("{row}\n")).concat());
    let arguments = |verb| {
        let set = |setting: &str| ["--set".to_string(), setting.to_string()];
        let settings = [
            "data.train=[\"rows.jsonl\"]",
            "data.eval=[\"good.jsonl\"]",
            "data.format=messages",
            "eval.suites=[]",
            "eval.metric_for_best_model=loss",
            "data.chat_template=chatml-tools",
        ]
        .map(set);
        let begin = [verb, "config.toml"].map(str::to_string);
        [begin.to_vec(), settings.concat()].concat()
    };
    let expected = [
        "rows.jsonl:1: messages[1].tool_calls[0].arguments.city: weather does not accept this value: \
         1 is not of type \"string\"; fix the call",
        "\nrows.jsonl:3: messages[1].tool_calls[0].arguments.town: weather has no such parameter; \
         known parameters: city; ",
        "data.check_calls = false",
    ];
    for verb in ["train", "plan", "inspect"] {
        let arguments = arguments(verb);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        assert_refused(&workplace, &arguments, ROWS, &expected);
    }
    let mut unchecked = arguments("plan");
    unchecked.extend(["--set", "data.check_calls=false"].map(str::to_string));
    let plan = workplace.run(unchecked.iter().map(String::as_str));
    assert!(plan.success().contains("3 of 3 rows"));
}

#[test]
fn a_row_longer_than_the_model_context_is_refused_with_the_setting_that_truncates_it() {
    let workplace = Workplace::new();
    let model = workplace.copy_model("short");
    let config = std::fs::read_to_string(model.join("config.json")).unwrap();
    let short = config.replace("8192", "64");
    assert_ne!(short, config);
    std::fs::write(model.join("config.json"), short).unwrap();
    let set = "model.model_name_or_path=short";
    for verb in ["plan", "train"] {
        let arguments = [verb, "config.toml", "--set", set];
        let expected = ["train.jsonl:", "64 positions", "data.max_length"];
        assert_refused(&workplace, &arguments, CONFIG, &expected);
    }
}

#[test]
fn a_row_of_five_megabytes_is_refused_with_its_number_of_tokens() {
    let workplace = Workplace::new();
    let long = row(&workplace, |row| {
        row["input_text"] = json!("portions of ".repeat(5_000_000 / 12));
    });
    workplace.write("rows.jsonl", long);
    let started = Instant::now();
    let train = [
        "train",
        "config.toml",
        "--set",
        "data.train=[\"rows.jsonl\"]",
    ];
    let expected = [
        "rows.jsonl:1: ",
        " tokens, but max_length is 4096",
        "raise max_length",
        "on_overflow = \"drop\"",
    ];
    assert_refused(&workplace, &train, ROWS, &expected);
    assert!(started.elapsed() < Duration::from_secs(60));
}

fn truncate(path: &Path, length: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(length).unwrap();
}

/// Changes a JSON file of the model.
pub(crate) fn edit(path: &Path, key: &str, value: Value) {
    let mut json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    json[key] = value;
    std::fs::write(path, json.to_string()).unwrap();
}

#[test]
fn damaged_model_folders_are_refused_with_file_tensor_and_remedy() {
    type Damage = fn(&Path);
    let cases: [(&str, Damage, i32, &[&str]); 8] = [
        (
            "half",
            |model| truncate(&model.join("model.safetensors"), 100_000),
            FILES,
            &[
                "half/model.safetensors",
                "tensor model.",
                "truncated",
                "fetch it again",
            ],
        ),
        (
            "headless",
            |model| truncate(&model.join("model.safetensors"), 500),
            FILES,
            &["headless/model.safetensors", "truncated", "again"],
        ),
        (
            "narrow",
            |model| edit(&model.join("config.json"), "intermediate_size", json!(48)),
            FILES,
            &[
                "narrow does not fit the model",
                "layers.0.mlp.down_proj.weight is [32, 64] instead of [32, 48]",
                "fetch both",
            ],
        ),
        (
            "tall",
            |model| {
                let path = model.join("config.json");
                edit(&path, "num_hidden_layers", json!(4_000_000_000_u64));
            },
            FILES,
            &["tall: ", "num_hidden_layers = 4000000000", "10000 blocks"],
        ),
        (
            "small",
            |model| edit(&model.join("config.json"), "vocab_size", json!(1000)),
            CONFIG,
            &[
                "small: ",
                "1024 tokens",
                "1000 embeddings",
                "different models",
            ],
        ),
        (
            "shards",
            |model| {
                std::fs::remove_file(model.join("model.safetensors")).unwrap();
                let index = json!({"weight_map": {"model.norm.weight": "second.safetensors"}});
                let path = model.join("model.safetensors.index.json");
                std::fs::write(path, index.to_string()).unwrap();
            },
            FILES,
            &[
                "shards/model.safetensors.index.json",
                "second.safetensors",
                "model.norm.weight",
                "fetch them",
            ],
        ),
        (
            "speechless",
            |model| std::fs::remove_file(model.join("chat_template.jinja")).unwrap(),
            CONFIG,
            &["speechless: ", "no chat template", "data.chat_template"],
        ),
        (
            "empty",
            |model| {
                std::fs::remove_dir_all(model).unwrap();
                std::fs::create_dir(model).unwrap();
            },
            FILES,
            &["empty ", "no weights", "model.safetensors"],
        ),
    ];
    let workplace = Workplace::new();
    for (name, damage, status, expected) in cases {
        damage(&workplace.copy_model(name));
        let set = format!("model.model_name_or_path=\"{name}\"");
        let train = ["train", "config.toml", "--set", &set];
        assert_refused(&workplace, &train, status, expected);
    }
}

#[test]
fn a_gguf_file_truncated_anywhere_is_refused() {
    let workplace = Workplace::new();
    let model_file = model("smollm2-135m-instruct.gguf");
    let n_bytes = std::fs::metadata(&model_file).unwrap().len();
    let copy = workplace.path("cut.gguf");
    std::fs::copy(&model_file, &copy).unwrap();
    // From the end, because each cut shortens the previous one: tensors, metadata, magic number.
    let cuts: [(u64, &[&str]); 4] = [
        (
            n_bytes - 1,
            &["cut.gguf", "tensor ", "truncated", "fetch it again"],
        ),
        (
            n_bytes / 2,
            &["cut.gguf", "tensor blk.", "truncated", "fetch it again"],
        ),
        (1_000_000, &["cut.gguf is truncated", "tokenizer.", "again"]),
        (3, &["cut.gguf is truncated", "has 3", "again"]),
    ];
    for (length, expected) in cuts {
        truncate(&copy, length);
        let set = "model.model_name_or_path=\"cut.gguf\"";
        assert_refused(
            &workplace,
            &["train", "config.toml", "--set", set],
            FILES,
            expected,
        );
    }
}

#[test]
fn all_mistakes_of_a_config_are_shown_at_once_with_line_and_column() {
    let workplace = Workplace::new();
    let config = workplace.read("config.toml");
    let config = config
        .replace("lora_alpha = 4", "lora_alhpa = 4")
        .replace("learning_rate = 1e-2", "learning_rate = \"fast\"")
        .replace("save_steps = 2", "save_stepz = 2")
        .replace("max_length = 4096", "max_length = -1");
    workplace.write("config.toml", config);
    let expected = [
        "[config.toml:6:1]",
        "did you mean `lora_alpha`?",
        "[config.toml:12:14]",
        "`data.max_length`",
        "[config.toml:17:17]",
        "`train.learning_rate` must be a finite number",
        "[config.toml:26:1]",
        "did you mean `save_steps`?",
        "4 mistakes in config.toml",
    ];
    for verb in ["train", "plan", "inspect", "eval"] {
        assert_refused(&workplace, &[verb, "config.toml"], CONFIG, &expected);
    }
}

#[test]
fn existing_output_is_never_overwritten() {
    let workplace = Workplace::new();
    workplace.run(["train", "config.toml"]).success();
    let evaluate = ["eval", "run", "--checkpoint", "base", "--output", "scores"];
    workplace.run(evaluate).success();
    let export = [
        "export",
        "run",
        "--checkpoint",
        "last",
        "--output",
        "adapter",
    ];
    workplace.run(export).success();
    workplace.write("file", "of another kind");

    let init = ["init", "--output", "config.toml"];
    assert_refused(
        &workplace,
        &init,
        CONFIG,
        &["config.toml", "exists", "--output"],
    );
    assert_refused(&workplace, &evaluate, CONFIG, &["scores", "--output"]);
    assert_refused(
        &workplace,
        &export,
        FILES,
        &["adapter already exists", "another name"],
    );
    let train = ["train", "config.toml", "--set", "train.output_dir=\"file\""];
    assert_refused(&workplace, &train, CONFIG, &["file is a file"]);
}

/// Settings of a run whose adapters have 266 kB, whose optimizer states have 525 kB, and whose
/// other files have less than 100 kB.
fn long_run(name: &str) -> Vec<String> {
    let settings = [
        "lora.r=64".to_string(),
        "train.max_steps=40".to_string(),
        "eval.eval_steps=20".to_string(),
        "checkpoint.save_steps=8".to_string(),
        format!("train.output_dir=\"{name}\""),
    ];
    let set = settings
        .into_iter()
        .flat_map(|set| ["--set".to_string(), set]);
    ["train", "config.toml"]
        .map(str::to_string)
        .into_iter()
        .chain(set)
        .collect()
}

/// Starts `long_run` and interrupts it after its first steps.
fn interrupt(workplace: &Workplace, name: &str) {
    let mut command = tooltune();
    command
        .current_dir(workplace.folder())
        .args(long_run(name))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let saved = workplace.path(name).join("checkpoint-000008");
    let started = Instant::now();
    while !saved.exists() {
        assert_eq!(
            child.try_wait().unwrap(),
            None,
            "the run ended before step 8"
        );
        assert!(started.elapsed() < Duration::from_secs(120), "no step 8");
        std::thread::sleep(Duration::from_millis(1));
    }
    let signalled = Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status();
    assert!(signalled.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(75));
}

/// Runs with a file size limit of 300 blocks, so that a larger write fails as on a full disk. A
/// block has 512 or 1,024 bytes, depending on the shell.
#[cfg(unix)]
fn run_on_a_full_disk(workplace: &Workplace, arguments: &[String]) -> CommandOutput {
    let program = tooltune();
    let settings = program
        .get_envs()
        .filter_map(|(key, value)| Some((key, value?)));
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "trap '' XFSZ; ulimit -f 300; exec \"$0\" \"$@\""])
        .arg(program.get_program())
        .args(arguments)
        .envs(settings)
        .current_dir(workplace.folder());
    CommandOutput::from_command(&mut shell)
}

#[cfg(unix)]
#[test]
fn a_full_disk_during_a_checkpoint_loses_no_saved_state() {
    let workplace = Workplace::new();
    let run = |arguments: &[String]| workplace.run(arguments.iter().map(String::as_str));
    run(&long_run("whole")).success();
    interrupt(&workplace, "run");

    let checkpoints = || {
        let mut files = snapshot(&workplace.path("run"));
        files.retain(|path, _| path.to_string_lossy().contains("checkpoint-"));
        files
    };
    let saved = checkpoints();
    let arguments = long_run("run");
    let expected = [
        "cannot write run/",
        "/adapter_model.safetensors",
        "does not allow a larger file",
        "unchanged",
    ];
    let output = run_on_a_full_disk(&workplace, &arguments);
    assert_error(&output, FILES, &expected);
    assert!(
        saved == checkpoints(),
        "checkpoints were lost or half written"
    );
    // The newest checkpoint in the folder is still complete.
    let newest = [
        "verify",
        "run",
        "--checkpoint",
        "last",
        "--logits",
        "l.safetensors",
    ];
    workplace.run(newest).success();

    run(&arguments).success();
    for file in [
        "metrics.jsonl",
        "checkpoint-000040/adapter_model.safetensors",
    ] {
        let bytes = |run: &str| std::fs::read(workplace.path(run).join(file)).unwrap();
        assert!(bytes("run") == bytes("whole"), "{file} differs");
    }
    // A run that cannot start does not prevent the next one from starting.
    let arguments = long_run("late");
    assert_error(
        &run_on_a_full_disk(&workplace, &arguments),
        FILES,
        &["cannot write late/", "does not allow a larger file"],
    );
    run(&arguments).success();
    assert_eq!(
        workplace.read("late/metrics.jsonl"),
        workplace.read("whole/metrics.jsonl")
    );
}

#[test]
fn a_run_directory_in_place_of_a_file_is_refused_with_the_setting() {
    let workplace = Workplace::new();
    for verb in ["train", "plan"] {
        for dir in ["dev.jsonl", "dev.jsonl/run"] {
            let set = format!("train.output_dir=\"{dir}\"");
            let expected = [
                &*format!("`train.output_dir` names {dir}, and dev.jsonl is a file"),
                "name a folder",
            ];
            assert_refused(
                &workplace,
                &[verb, "config.toml", "--set", &set],
                CONFIG,
                &expected,
            );
        }
    }
}

#[test]
fn invalid_thread_counts_are_refused() {
    let workplace = Workplace::new();
    for threads in ["0", "1000000"] {
        let arguments = ["plan", "config.toml", "--threads", threads];
        let option = format!("--threads {threads}: ");
        assert_refused(&workplace, &arguments, CONFIG, &[&option, "omit --threads"]);
    }
}
