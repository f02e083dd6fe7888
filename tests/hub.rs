//! Hub names in place of folders, with a server that implements the Hub's protocol: training by
//! name, the commit in the lock, resuming and evaluating without the server, and uploading an
//! adapter.

use serde_json::{Value, json};
use tooltune_hub::test_hub::{Fault, TestHub};

use crate::support::fixture;
use crate::workplace::{CommandOutput, Workplace, tooltune};

const MODEL: &str = "org/tiny-chat";

/// A Hub that serves the tiny chat model and rows, and a workplace whose config uses their names.
fn hub_workplace() -> (TestHub, Workplace) {
    let workplace = Workplace::new();
    let hub = TestHub::start();
    for file in std::fs::read_dir(fixture("tiny_chat_model")).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        let is_large = name.ends_with(".safetensors");
        hub.add(&format!("models/{MODEL}"), &name, &bytes, is_large);
    }
    let rows = workplace.read("train.jsonl");
    hub.add(
        "datasets/org/rows",
        "data/train.jsonl",
        rows.as_bytes(),
        false,
    );
    let model = fixture("tiny_chat_model").display().to_string();
    edit(&workplace, &model, MODEL);
    let rows = "hf://datasets/org/rows/data/train.jsonl";
    edit(
        &workplace,
        "train = [\"train.jsonl\"]",
        &format!("train = [\"{rows}\"]"),
    );
    (hub, workplace)
}

/// Replaces a string in the config.
fn edit(workplace: &Workplace, from: &str, to: &str) {
    let config = workplace.read("config.toml");
    assert!(config.contains(from), "{config}");
    workplace.write("config.toml", config.replacen(from, to, 1));
}

/// Runs the program with a hub at `url`, and a cache in the workplace.
fn run(workplace: &Workplace, url: &str, arguments: &str) -> CommandOutput {
    let mut command = tooltune();

    command.current_dir(workplace.folder());
    for variable in [
        "HF_HUB_CACHE",
        "HF_HUB_OFFLINE",
        "HF_TOKEN_PATH",
        "HF_TOKEN",
    ] {
        command.env_remove(variable);
    }
    command.env("HF_ENDPOINT", url);
    command.env("HF_HOME", workplace.path("hf"));
    if arguments.contains("--push-to-hub") {
        command.env("HF_TOKEN", TOKEN);
    }
    CommandOutput::from_command(command.args(arguments.split(' ')))
}

const TOKEN: &str = "hf_test";

/// An address without a server.
const NOWHERE: &str = "http://127.0.0.1:9";

#[test]
fn a_run_with_hub_names_keeps_commits_and_resumes_offline() {
    let (hub, workplace) = hub_workplace();
    let commit = hub.repo("models/org/tiny-chat").commit();
    let answer = run(&workplace, &hub.url(), "train config.toml");
    assert_eq!(answer.status, Some(0), "{}", answer.stderr);
    let stderr = answer.stderr + &answer.stdout;
    assert!(
        stderr.contains(&format!("{MODEL}: fetched")) && stderr.contains(&commit),
        "{stderr}"
    );

    let lock: Value = serde_json::from_str(&workplace.read("run/run.lock.json")).unwrap();
    let inputs = lock["inputs"].as_array().unwrap();
    let value_of = |setting: &str| {
        let mut inputs = inputs.iter();
        inputs.find(|input| input["setting"] == setting).unwrap()["hub"].clone()
    };
    assert_eq!(
        value_of("model.model_name_or_path")["commit"],
        commit.as_str()
    );
    assert_eq!(value_of("model.model_name_or_path")["name"], MODEL);
    assert_eq!(
        value_of("data.train[0]")["commit"],
        hub.repo("datasets/org/rows").commit().as_str()
    );
    let resolved = workplace.read("run/config.resolved.toml");
    assert!(
        resolved.contains(MODEL) && resolved.contains(&commit),
        "{resolved}"
    );

    // After the branch moves, the run still uses its original commit, without network access.
    hub.add("models/org/tiny-chat", "config.json", b"{}", false);
    for arguments in [
        "train config.toml --set train.max_steps=6",
        "eval run --checkpoint last --output after --max-samples 2",
        "generate run --checkpoint base --max-samples 1",
    ] {
        let answer = run(&workplace, NOWHERE, arguments);
        assert_eq!(answer.status, Some(0), "{arguments}: {}", answer.stderr);
    }
}

#[test]
fn fetch_downloads_files_for_plan_and_train_and_refuses_wrong_names() {
    let (hub, workplace) = hub_workplace();
    let rows = "hf://datasets/org/rows/data/train.jsonl";
    let answer = run(&workplace, &hub.url(), &format!("fetch {MODEL} {rows}"));
    let paths = answer.success();
    let paths: Vec<&str> = paths.lines().collect();
    assert_eq!(paths.len(), 2, "{paths:?}");
    assert!(std::path::Path::new(paths[0]).join("config.json").is_file());
    assert!(std::path::Path::new(paths[1]).is_file());
    run(&workplace, NOWHERE, "plan config.toml").success();

    for (arguments, status, expected) in [
        ("fetch org/tiny-chaat", 1, "org/tiny-chaat"),
        ("fetch tiny", 2, "is not a Hugging Face Hub name"),
        (
            "fetch hf://datasets/org/rows/data/tain.jsonl",
            1,
            "tain.jsonl",
        ),
    ] {
        let answer = run(&workplace, &hub.url(), arguments);
        assert_eq!(
            answer.status,
            Some(status),
            "{arguments}: {}",
            answer.stderr
        );
        assert!(answer.stderr.contains(expected), "{}", answer.stderr);
    }
    edit(&workplace, MODEL, "org/absent");
    let answer = run(&workplace, &hub.url(), "train config.toml");
    assert_eq!(answer.status, Some(2), "{}", answer.stderr);
    assert!(answer.stderr.contains("org/absent"), "{}", answer.stderr);
}

/// Parquet files from the Hub, one with a weight, and held-out rows from both.
#[test]
fn hub_parquet_files_support_weights_and_held_out_rows() {
    let (hub, workplace) = hub_workplace();
    let lines = workplace.read("train.jsonl");
    let lines: Vec<&str> = lines.split_inclusive('\n').collect();
    for (name, lines) in [("train-00000", &lines[..16]), ("train-00001", &lines[16..])] {
        workplace.write("part.jsonl", lines.concat());
        let convert = format!("data convert part.jsonl --output {name}.parquet");
        run(&workplace, NOWHERE, &convert).success();
        let bytes = std::fs::read(workplace.path(&format!("{name}.parquet"))).unwrap();
        assert!(bytes.starts_with(b"PAR1"));
        hub.add(
            "datasets/org/rows",
            &format!("data/{name}.parquet"),
            &bytes,
            true,
        );
    }
    let name = |part: &str| format!("hf://datasets/org/rows/data/train-{part}.parquet");
    let (first, second) = (name("00000"), name("00001"));
    edit(
        &workplace,
        "train = [\"hf://datasets/org/rows/data/train.jsonl\"]",
        &format!(
            "train = [\"{first}\", {{ path = \"{second}\", weight = 0.5 }}]\nvalidation_split = 0.25"
        ),
    );
    edit(&workplace, "eval = [\"dev.jsonl\"]\n", "");

    let output = run(
        &workplace,
        &hub.url(),
        "inspect config.toml --row 3 --format json",
    )
    .success();
    // The third row of each file, unless it is held out.
    let inspected: Vec<Value> = output
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let row: Value = serde_json::from_str(lines[2]).unwrap();
    let text = json!(inspected).to_string();
    let input = row["input_text"].to_string();
    assert!(text.contains(input.trim_matches('"')), "{text}");
    // The files have 24 rows. About a quarter is held out; the exact number depends on their
    // contents.
    let plan = run(&workplace, NOWHERE, "plan config.toml --format json").success();
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let n_examples = plan["examples"].as_u64().unwrap();
    assert!((14..=22).contains(&n_examples), "{plan}");
    run(&workplace, NOWHERE, "train config.toml").success();
    let lock: Value = serde_json::from_str(&workplace.read("run/run.lock.json")).unwrap();
    let inputs = lock["inputs"].as_array().unwrap();
    let commit = hub.repo("datasets/org/rows").commit();
    for (setting, name) in [("data.train[0]", first), ("data.train[1]", second)] {
        let input = inputs
            .iter()
            .find(|input| input["setting"] == setting)
            .unwrap();
        assert_eq!(input["hub"]["name"], name, "{input}");
        assert_eq!(input["hub"]["commit"], commit.as_str(), "{input}");
    }
    assert!(
        workplace
            .read("run/metrics.jsonl")
            .contains("eval/slot.mean")
    );
}

#[test]
fn an_export_is_pushed_with_its_card_and_fetched_unchanged() {
    let (hub, workplace) = hub_workplace();
    run(&workplace, &hub.url(), "train config.toml").success();
    hub.require_token(TOKEN);
    let export = "export run --checkpoint last --output adapter --push-to-hub org/mine";
    let output = run(&workplace, &hub.url(), export).success();
    let repo = hub.repo("models/org/mine");
    assert!(output.contains(&repo.commit()), "{output}");
    for file in [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ] {
        let local = std::fs::read(workplace.path("adapter").join(file)).unwrap();
        assert_eq!(repo.files[file].bytes, local, "{file}");
    }
    assert!(repo.files["adapter_model.safetensors"].is_large);
    let adapter: Value =
        serde_json::from_str(&workplace.read("adapter/adapter_config.json")).unwrap();
    assert_eq!(adapter["base_model_name_or_path"], MODEL);
    // If the Hub is unreachable, the command fails before it writes a file.
    let export = "export run --checkpoint last --output again --push-to-hub org/mine";
    let answer = run(&workplace, NOWHERE, export);
    assert_eq!(answer.status, Some(1), "{}", answer.stderr);
    assert!(answer.stderr.contains("no connection"), "{}", answer.stderr);
    assert!(!workplace.path("again").exists());
    // The same command repeats a failed upload without exporting again.
    hub.add("models/org/mine", "model.safetensors", b"merged", true);
    hub.fail("/commit/", 1, Fault::Status(500, vec![]));
    let answer = run(&workplace, &hub.url(), export);
    assert_eq!(answer.status, Some(1), "{}", answer.stderr);
    let path = workplace.path("again/adapter_config.json");
    let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
    let answer = run(&workplace, &hub.url(), export);
    assert_eq!(answer.status, Some(0), "{}", answer.stderr);
    assert!(
        answer
            .stderr
            .contains("was already written, but not uploaded"),
        "{}",
        answer.stderr
    );
    assert!(
        answer
            .stdout
            .contains("deletes 1 file of an earlier export: model.safetensors"),
        "{}",
        answer.stdout
    );
    assert_eq!(
        std::fs::metadata(&path).unwrap().modified().unwrap(),
        modified
    );
    // A pending upload does not upload a different export, and is cleared after the upload.
    let answer = run(&workplace, &hub.url(), export);
    assert_eq!(answer.status, Some(1), "{}", answer.stderr);
    assert!(answer.stderr.contains("exists"), "{}", answer.stderr);
}

#[test]
fn an_export_is_uploaded_after_a_kill_and_not_if_its_base_was_replaced() {
    let hub = TestHub::start();
    hub.require_token(TOKEN);
    let workplace = Workplace::new();
    workplace.copy_model("base");
    let export = "export base --to merged --output merged --push-to-hub org/merged";
    hub.fail("/commit/", 1, Fault::Status(500, vec![]));
    let failed = run(&workplace, &hub.url(), export);
    assert_eq!(failed.status, Some(1), "{}", failed.stderr);
    let record = workplace.read("merged.upload.json");

    // A file of the same name and size, but with other weights.
    let weights = workplace.path("base/model.safetensors");
    let original = std::fs::read(&weights).unwrap();
    let mut others = original.clone();
    *others.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, others).unwrap();
    let refused = run(&workplace, &hub.url(), export);
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("another checkpoint or base model"),
        "{}",
        refused.stderr
    );
    std::fs::write(&weights, original).unwrap();

    // The record after a kill between the last file of the export and its digests.
    let mut unfinished: Value = serde_json::from_str(&record).unwrap();
    unfinished["files"] = Value::Null;
    workplace.write("merged.upload.json", unfinished.to_string());
    let uploaded = run(&workplace, &hub.url(), export);
    assert!(
        uploaded
            .stderr
            .contains("was already written, but not uploaded"),
        "{}",
        uploaded.stderr
    );
    uploaded.success();
    assert!(
        hub.repo("models/org/merged")
            .files
            .contains_key("model.safetensors")
    );
    assert!(!workplace.path("merged.upload.json").exists());
}
