//! The tutorial: each of its commands runs, one after the other, in a folder with its rows and the
//! model. Training is cut to two steps and evaluations to two rows; everything else is as it stands.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use crate::support::{model, root, words};
use crate::workplace::{Answer, tooltune};

/// The commands of the page, word by word.
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

/// What makes a command short.
fn shorter(verb: &str) -> &'static str {
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

#[test]
fn every_command_of_the_tutorial_runs() {
    let place = TempDir::new().unwrap();
    std::fs::create_dir(place.path().join("models")).unwrap();
    let gguf = "smollm2-135m-instruct.gguf";
    symlink(model(gguf), place.path().join("models").join(gguf)).unwrap();
    for folder in ["docs", "configs"] {
        symlink(root().join(folder), place.path().join(folder)).unwrap();
    }
    let page = std::fs::read_to_string(root().join("docs/tutorial.md")).unwrap();
    let commands = commands(&page);
    let mut verbs = Vec::new();
    for command in &commands {
        let (program, rest) = command.split_first().expect("a command");
        assert_eq!(program, "tooltune");
        let verb = rest[0].as_str();
        verbs.push(verb);
        let mut built = tooltune();
        built.current_dir(place.path()).args(rest);
        built.args(shorter(verb).split_whitespace());
        let answer = Answer::of(&mut built);
        assert_eq!(answer.status, Some(0), "{command:?}: {}", answer.stderr);
    }
    for verb in [
        "inspect", "plan", "train", "report", "select", "eval", "compare", "generate", "export",
        "verify",
    ] {
        assert!(verbs.contains(&verb), "the tutorial does without {verb}");
    }
}
