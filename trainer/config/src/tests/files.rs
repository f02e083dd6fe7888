//! File checks of a config, and settings that an override removes.

use super::*;

#[test]
fn a_wrong_path_is_reported_with_the_other_mistakes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    std::fs::write(
        &path,
        MINIMAL.replace("[train]", "[train]\nlerning_rate = 1"),
    )
    .unwrap();
    let error = LoadedConfig::load_with_files(&path, &[]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("lerning_rate"), "{text}");
    assert!(
        text.contains("`model.model_name_or_path` names m"),
        "{text}"
    );
    assert!(text.contains("`data.train` names t.jsonl"), "{text}");
    // Without file checks, only settings are checked.
    let error = LoadedConfig::load(&path, &[]).unwrap_err();
    assert_eq!(error.problems().len(), 1, "{error}");
}

#[test]
fn settings_replaced_by_an_override_are_reported() {
    let text = MINIMAL.replace("[train]", "[train]\nwarmup_ratio = 0.1");
    let lines = |overrides: &[&str]| -> Vec<String> {
        let loaded = parse("c.toml", &text, overrides).unwrap();
        loaded.contradictions().collect()
    };
    let line = text
        .lines()
        .position(|line| line.contains("warmup_ratio"))
        .unwrap()
        + 1;
    assert_eq!(
        lines(&["train.warmup_steps=7"]),
        [format!(
            "--set train.warmup_steps=7 overrides `train.warmup_ratio` at c.toml:{line}:1"
        )]
    );
    assert!(lines(&["train.warmup_ratio=0.2"]).is_empty());
}

/// The command line of `eval` names the rows.
#[test]
fn a_config_without_evaluation_rows_can_be_evaluated_on_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("c.toml");
    for lines in [
        "[eval]",
        "[eval]\neval_strategy = \"steps\"\neval_steps = 3",
    ] {
        std::fs::write(&path, with_minimal(lines)).expect("written");
        let load = |names| LoadedConfig::load_with(&path, &[], names);
        if let Err(error) = load(Names::ForEvaluation) {
            panic!("{lines}: {error}");
        }
        let error = load(Names::Cached).expect_err("training has no rows to evaluate on");
        assert!(
            error.to_string().contains("nothing to evaluate on"),
            "{error}"
        );
    }
}
