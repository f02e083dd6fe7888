//! Names of the hub in the place of folders, against a server that speaks its protocol: a run by name,
//! its commit in the lock, resuming and evaluating without the server, and an adapter that goes up.

use serde_json::Value;
use tooltune_hub::test_hub::TestHub;

use crate::support::fixture;
use crate::workplace::{Answer, Workplace, tooltune};

const MODEL: &str = "org/tiny-chat";

/// A hub with the tiny chat model and the rows of a workplace, and the workplace, whose config names
/// both.
fn by_name() -> (TestHub, Workplace) {
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

/// Puts a text of the config in the place of another.
fn edit(workplace: &Workplace, from: &str, to: &str) {
    let config = workplace.read("config.toml");
    assert!(config.contains(from), "{config}");
    workplace.write("config.toml", config.replacen(from, to, 1));
}

/// Runs the program with a hub at `url`, and a cache in the workplace.
fn run(workplace: &Workplace, url: &str, arguments: &str) -> Answer {
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
    Answer::of(command.args(arguments.split(' ')))
}

const TOKEN: &str = "hf_test";

/// Where nobody listens.
const NOWHERE: &str = "http://127.0.0.1:9";

#[test]
fn a_run_by_names_keeps_their_commits_and_goes_on_without_the_hub() {
    let (hub, workplace) = by_name();
    let commit = hub.repo("models/org/tiny-chat").commit();
    let answer = run(&workplace, &hub.url(), "train config.toml");
    assert_eq!(answer.status, Some(0), "{}", answer.stderr);
    let said = answer.stderr + &answer.stdout;
    assert!(
        said.contains(&format!("{MODEL}: fetched")) && said.contains(&commit),
        "{said}"
    );

    let lock: Value = serde_json::from_str(&workplace.read("run/run.lock.json")).unwrap();
    let inputs = lock["inputs"].as_array().unwrap();
    let of = |setting: &str| {
        let mut inputs = inputs.iter();
        inputs.find(|input| input["setting"] == setting).unwrap()["hub"].clone()
    };
    assert_eq!(of("model.model_name_or_path")["commit"], commit.as_str());
    assert_eq!(of("model.model_name_or_path")["name"], MODEL);
    assert_eq!(
        of("data.train[0]")["commit"],
        hub.repo("datasets/org/rows").commit().as_str()
    );
    let resolved = workplace.read("run/config.resolved.toml");
    assert!(
        resolved.contains(MODEL) && resolved.contains(&commit),
        "{resolved}"
    );

    // The branch moves on; the run has what it began with, from the cache alone.
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
fn fetch_brings_what_plan_and_train_then_find_and_wrong_names_are_errors() {
    let (hub, workplace) = by_name();
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
        ("fetch tiny", 2, "no name of the hub"),
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

/// Rows in columns, with a weight of one file, and some of both kept back to evaluate on.
#[test]
fn parquet_files_of_the_hub_are_read_with_weights_and_rows_kept_back() {
    let (hub, workplace) = by_name();
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

    let shown = run(
        &workplace,
        &hub.url(),
        "inspect config.toml --row 3 --format json",
    )
    .success();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let row: Value = serde_json::from_str(lines[2]).unwrap();
    let text = shown.to_string();
    let input = row["input_text"].to_string();
    assert!(text.contains(input.trim_matches('"')), "{text}");
    // From here on the cache has all of it: 24 rows, of which six are kept back.
    let plan = run(&workplace, NOWHERE, "plan config.toml --format json").success();
    let plan: Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(plan["examples"], 18, "{plan}");
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
fn an_export_goes_up_with_its_card_and_comes_down_as_it_was() {
    let (hub, workplace) = by_name();
    run(&workplace, &hub.url(), "train config.toml").success();
    hub.take_token(TOKEN);
    let export = "export run --checkpoint last --output adapter --push-to-hub org/mine";
    let said = run(&workplace, &hub.url(), export).success();
    let repo = hub.repo("models/org/mine");
    assert!(said.contains(&repo.commit()), "{said}");
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
    // What is written stays where the upload fails.
    let export = "export run --checkpoint last --output again --push-to-hub org/mine";
    let answer = run(&workplace, NOWHERE, export);
    assert_eq!(answer.status, Some(1), "{}", answer.stderr);
    assert!(
        answer.stderr.contains("again is written"),
        "{}",
        answer.stderr
    );
    assert!(workplace.path("again/adapter_config.json").is_file());
}
