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
