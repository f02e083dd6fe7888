//! What a new user names by mistake is told for what it is, and what stands beside a run is found.

use serde_json::json;

use crate::bad_input::{CONFIG, FILES, ROWS, assert_complains, assert_refused};
use crate::support::fixture;
use crate::workplace::{Answer, Workplace, tooltune};

#[test]
fn what_is_no_run_is_told_for_what_it_is() {
    let workplace = Workplace::new();
    let model = fixture("tiny_chat_model").display().to_string();
    for (command, said) in [
        (
            vec!["select", &model, "--metric", "loss"],
            "this is a model, and no run",
        ),
        (vec!["report", &model], "this is a model, and no run"),
        (
            vec!["plan", &model],
            "this is a folder, and it holds no run",
        ),
        (
            vec!["compare", "nowhere", "config.toml"],
            "nowhere: there is no such file or folder",
        ),
        (vec!["report", "nowhere"], "nowhere: there is no such run"),
    ] {
        assert_refused(&workplace, &command, CONFIG, &[said]);
    }
}

#[test]
fn a_run_is_named_by_its_folder_and_its_checkpoints_by_their_steps() {
    let workplace = Workplace::new();
    let mut train = tooltune();
    train
        .current_dir(workplace.folder())
        .args(["train", "config.toml"])
        .env_remove("RUST_LOG");
    let trained = Answer::of(&mut train);
    // In a file there are neither colours nor the times of lines.
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
    let said = ["3: there is no such checkpoint in run; it has those of the steps 0, 2, 4"];
    assert_refused(&workplace, &absent, CONFIG, &said);
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
    let said = ["this is a checkpoint; name its run, run"];
    assert_refused(&workplace, &checkpoint, CONFIG, &said);

    workplace.write("bad.json", "{\"type\": \"objekt\"}");
    let text = ["generate", "run", "--text", "hi", "--schema", "bad.json"];
    assert_refused(&workplace, &text, ROWS, &["is not a usable JSON schema"]);
    workplace.write("good.json", "{\"type\": \"object\"}");
    let empty = ["generate", "run", "--text", "-", "--schema", "good.json"];
    let empty = workplace.run_with_input(empty, "\n");
    assert_complains(&empty, CONFIG, &["--text -: the standard input is empty"]);

    let export = |words: &str| {
        let words = format!("export run --checkpoint last {words}");
        workplace.run(words.split(' '))
    };
    export("--to gguf --output x.gguf").success();
    let gguf = ["generate", "x.gguf", "--message", "hi"];
    let said = ["this is a LoRA adapter for llama.cpp", "and no model"];
    assert_refused(&workplace, &gguf, FILES, &said);
    let named = export("--output named --set model.hub_id=a_name");
    assert_complains(&named, CONFIG, &["has no owner; write owner/name"]);
    export("--output adapter").success();
    let card = workplace.read("adapter/README.md");
    assert!(card.contains("| at its checkpoint | loss | "), "{card}");
    assert!(card.contains("train.jsonl (24 rows, sha256 "), "{card}");
    let last = "generate adapter --checkpoint last --message hi";
    let last: Vec<&str> = last.split(' ').collect();
    let said = ["an adapter of no run has no checkpoints"];
    assert_refused(&workplace, &last, CONFIG, &said);
}

/// Where a template shows a model no tools, it is not scored by its calls.
#[test]
fn calls_are_not_asked_of_a_template_without_tools() {
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
    let with = eval.into_iter().chain([
        "--set",
        "data.chat_template=chatml-tools",
        "--set",
        "eval.max_new_tokens=4",
    ]);
    workplace.run(with).success();
}
