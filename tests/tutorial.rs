//! Runs the commands of the tutorial in order, in a folder with its rows and model. Training is
//! limited to two steps, and evaluations to two rows. The hub is a local test server that serves a
//! tiny model under the name of the page's model. The rest of each command is unchanged.

use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;
use tooltune_hub::test_hub::TestHub;

use crate::support::{fixture, model, root, words};
use crate::workplace::{CommandOutput, tooltune};

/// The commands of the page, each as a list of words.
fn commands(page: &str) -> Vec<Vec<String>> {
    let mut is_shell = false;
    let mut commands = Vec::new();
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(language) => is_shell = language == "sh",
            None if is_shell => commands.push(words(line)),
            None => {}
        }
    }
    commands
}

/// Settings that make a command short.
fn shortening_settings(verb: &str) -> &'static str {
    match verb {
        "train" => {
            "--set train.max_steps=2 --set eval.eval_steps=2 --set checkpoint.save_steps=2 --set \
             eval.max_samples=2 --set eval.max_new_tokens=4 --set train.warmup_ratio=0 --set \
             eval.metric_for_best_model=loss"
        }
        "eval" => "--max-samples 2",
        _ => "",
    }
}

/// A Hub with the models that the page names.
fn hub() -> TestHub {
    let hub = TestHub::start();
    for (name, folder) in [
        (
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            fixture("tiny_chat_model"),
        ),
        (
            "sentence-transformers/all-MiniLM-L6-v2",
            model("all-minilm-l6-v2"),
        ),
    ] {
        add_folder(&hub, &format!("models/{name}"), &folder, "");
    }
    hub
}

/// Adds the files of a folder; `before` is the prefix of their names in the repository.
fn add_folder(hub: &TestHub, repo: &str, folder: &Path, before: &str) {
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name = format!("{before}{}", path.file_name().unwrap().to_string_lossy());
        if path.is_dir() {
            add_folder(hub, repo, &path, &format!("{name}/"));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            hub.add(repo, &name, &bytes, name.ends_with(".safetensors"));
        }
    }
}

#[test]
fn every_command_of_the_tutorial_runs() {
    let dir = TempDir::new().unwrap();
    std::fs::create_dir(dir.path().join("models")).unwrap();
    let gguf = "smollm2-135m-instruct.gguf";
    symlink(model(gguf), dir.path().join("models").join(gguf)).unwrap();
    for folder in ["docs", "configs"] {
        symlink(root().join(folder), dir.path().join(folder)).unwrap();
    }
    let page = std::fs::read_to_string(root().join("docs/tutorial.md")).unwrap();
    let commands = commands(&page);
    let hub = hub();
    let mut verbs = Vec::new();
    for command in &commands {
        let (program, arguments) = command.split_first().expect("a command");
        assert_eq!(program, "tooltune");
        let verb = arguments[0].as_str();
        verbs.push(verb);
        let mut built = tooltune();
        built.current_dir(dir.path()).args(arguments);
        built.args(shortening_settings(verb).split_whitespace());
        for variable in [
            "HF_HUB_CACHE",
            "HF_HUB_OFFLINE",
            "HF_TOKEN_PATH",
            "HF_TOKEN",
        ] {
            built.env_remove(variable);
        }
        built.env("HF_ENDPOINT", hub.url());
        built.env("HF_HOME", dir.path().join("hf"));
        let answer = CommandOutput::from_command(&mut built);
        assert_eq!(answer.status, Some(0), "{command:?}: {}", answer.stderr);
    }
    for verb in [
        "inspect", "plan", "train", "report", "select", "eval", "compare", "generate", "export",
        "verify", "fetch", "data",
    ] {
        assert!(verbs.contains(&verb), "the tutorial does not use {verb}");
    }
    // The inputs of `ollama create` in the page's last block exist.
    let (_, modelfile) = page.split_once("$ ollama create my-model -f ").unwrap();
    let modelfile = dir.path().join(modelfile.lines().next().unwrap());
    let text = std::fs::read_to_string(modelfile).unwrap();
    assert!(text.starts_with("FROM ./model.gguf\nTEMPLATE "), "{text}");
}
