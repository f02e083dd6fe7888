//! Paths of the wrong kind are reported with their kind, and commands find the files next to a run.

use serde_json::json;

use crate::bad_input::{CONFIG, FILES, ROWS, assert_error, assert_refused};
use crate::support::fixture;
use crate::workplace::{CommandOutput, Workplace, tooltune};

#[test]
fn a_path_that_is_not_a_run_is_described() {
    let workplace = Workplace::new();
    let model = fixture("tiny_chat_model").display().to_string();
    for (command, expected) in [
        (
            vec!["select", &model, "--metric", "loss"],
            "this is a model, not a run",
        ),
        (vec!["report", &model], "this is a model, not a run"),
        (vec!["plan", &model], "this is a folder without a run"),
        (
            vec!["compare", "nowhere", "config.toml"],
            "nowhere: no such file or folder",
        ),
        (vec!["report", "nowhere"], "nowhere: no such run"),
    ] {
        assert_refused(&workplace, &command, CONFIG, &[expected]);
    }
}

#[test]
fn runs_are_selected_by_folder_and_checkpoints_by_step() {
    let workplace = Workplace::new();
    let mut train = tooltune();
    train
        .current_dir(workplace.folder())
        .args(["train", "config.toml"])
        .env_remove("RUST_LOG");
    let trained = CommandOutput::from_command(&mut train);
    // A file has neither colours nor timestamps.
    assert!(!trained.stderr.contains('\u{1b}'), "{}", trained.stderr);
    trained.success();

    for verb in ["inspect", "plan", "doctor"] {
        workplace.run([verb, "run"]).success();
    }
    let again = workplace.run(["train", "run"]);
    assert!(
        again.stderr.contains("nothing to do: all 4 steps are done"),
        "{}",
        again.stderr
    );
    again.success();
    let by_step = ["train", "config.toml", "--resume"];
    let absent = [&by_step[..], &["3"]].concat();
    let expected = ["3: no such checkpoint in run; it has checkpoints at steps 0, 2, 4"];
    assert_refused(&workplace, &absent, CONFIG, &expected);
    let resumed = workplace.run(by_step.into_iter().chain(["2"]));
    assert!(
        resumed
            .stderr
            .contains("resuming from run/checkpoint-000002"),
        "{}",
        resumed.stderr
    );
    resumed.success();

    let dev = workplace.run(["inspect", "run", "--row", "./dev.jsonl:2"]);
    assert!(dev.success().contains("dev.jsonl:2: "));
    let checkpoint = ["report", "run/checkpoint-000004"];
    let expected = ["this is a checkpoint; name its run, run"];
    assert_refused(&workplace, &checkpoint, CONFIG, &expected);

    workplace.write("bad.json", "{\"type\": \"objekt\"}");
    let text = ["generate", "run", "--text", "hi", "--schema", "bad.json"];
    assert_refused(&workplace, &text, ROWS, &["is not a usable JSON schema"]);
    workplace.write("good.json", "{\"type\": \"object\"}");
    let empty = ["generate", "run", "--text", "-", "--schema", "good.json"];
    let empty = workplace.run_with_input(empty, "\n");
    assert_error(&empty, CONFIG, &["--text -: standard input is empty"]);

    let export = |words: &str| {
        let words = format!("export run --checkpoint last {words}");
        workplace.run(words.split(' '))
    };
    export("--to gguf --output x.gguf").success();
    let gguf = ["generate", "x.gguf", "--message", "hi"];
    let expected = ["this file is a llama.cpp LoRA adapter", "not a model"];
    assert_refused(&workplace, &gguf, FILES, &expected);
    let named_output = export("--output named --set model.hub_id=a_name");
    assert_error(&named_output, CONFIG, &["has no owner; write owner/name"]);
    export("--output adapter").success();
    let card = workplace.read("adapter/README.md");
    assert!(card.contains("| at its checkpoint | loss | "), "{card}");
    assert!(card.contains("train.jsonl (24 rows, sha256 "), "{card}");
    let last = "generate adapter --checkpoint last --message hi";
    let last: Vec<&str> = last.split(' ').collect();
    let expected = ["an adapter without a run has no checkpoint"];
    assert_refused(&workplace, &last, CONFIG, &expected);
}

/// The suite calls is refused if the chat template does not render tools.
#[test]
fn calls_need_a_template_with_tools() {
    let workplace = Workplace::new();
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let row = json!({"messages": [{"role": "user", "content": "Rain in Oslo?"},
        {"role": "assistant", "tool_calls": [{"name": "rain", "arguments": {"city": "Oslo"}}]}],
        "tools": [{"type": "function", "function": {"name": "rain", "parameters": parameters}}]});
    workplace.write("calls.jsonl", format!("{row}\n"));
    let model = fixture("tiny_chat_model").display().to_string();
    let eval = ["eval", &model, "--data", "calls.jsonl"];
    assert_refused(
        &workplace,
        &eval,
        ROWS,
        &["the chat template renders no tools"],
    );
    let arguments = eval.into_iter().chain([
        "--set",
        "data.chat_template=chatml-tools",
        "--set",
        "eval.max_new_tokens=4",
    ]);
    workplace.run(arguments).success();
}
