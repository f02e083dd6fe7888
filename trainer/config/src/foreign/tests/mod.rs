//! Translation of complete files of other trainers.

mod completeness;
mod steps;

use clap::ValueEnum;
use serde_json::json;

use super::*;
use crate::{LoadedConfig, Preset, Source, schema};

/// All lines of a translation.
fn lines(translation: &Translation<'_>) -> String {
    let results = &translation.results;
    let carried = results.carried.iter().map(|carried| carried.line());
    let lines: Vec<String> = carried
        .chain(results.left_out.clone())
        .chain(results.to_do.clone())
        .collect();
    lines.join("\n")
}

#[test]
fn every_key_of_another_trainer_leads_to_a_setting_and_no_value_is_refused() {
    assert_eq!(ORIGINS.len(), 4);
    for origin in ORIGINS.iter() {
        for (key, rule) in &origin.keys {
            let to = &rule.to;
            let is_known = match to.split_once('.') {
                Some((table, name)) => schema::keys_of(table).contains(&name),
                None => rule.kind == Kind::Settings && !schema::keys_of(to).is_empty(),
            };
            assert!(is_known, "{}: {key}: {to}", origin.name);
            assert!(!origin.left_out.contains_key(key), "{}: {key}", origin.name);
        }
        let completions = origin.defaults_of_completions.keys();
        for to in origin.defaults.keys().chain(completions) {
            let (table, name) = to.split_once('.').expect(to);
            assert!(
                schema::keys_of(table).contains(&name),
                "{}: {to}",
                origin.name
            );
        }
    }
}

/// A name in a field is translated to this field, and not by a rule of the trainer's own file.
#[test]
fn every_name_of_a_field_has_a_trainer_and_one_rule() {
    for (path, field) in schema::settings() {
        let names = field["x-elsewhere"].as_object().into_iter().flatten();
        for (trainer, names) in names {
            let origin = ORIGINS.iter().find(|origin| origin.name == *trainer);
            let origin = origin.unwrap_or_else(|| panic!("{path}: {trainer}"));
            for name in schema::strings(names) {
                assert_eq!(origin.keys[name].to, path, "{trainer}: {name}");
                assert!(!origin.only.contains_key(name), "{trainer}: {name}");
            }
        }
    }
}

#[test]
fn settings_of_the_schedule_are_found_in_their_mapping() {
    for kwargs in [
        json!({"warmup_steps": 7, "num_cycles": 2}),
        json!("{\"warmup_steps\": 7, \"num_cycles\": 2}"),
    ] {
        let theirs = json!({"model_name_or_path": "m", "dataset_name": "t.jsonl", "use_peft": true,
            "lr_scheduler_kwargs": kwargs});
        let theirs = theirs.as_object().unwrap();
        let origin = Origin::detect(theirs.keys().map(String::as_str)).unwrap();
        let translation = translate(origin, theirs, "run", RowFacts::default());
        assert_eq!(translation.settings["train"]["warmup_steps"], 7);
        let lines = lines(&translation);
        for line in [
            "lr_scheduler_kwargs.warmup_steps -> train.warmup_steps = 7",
            "lr_scheduler_kwargs.num_cycles = 2: the schedule has no further settings",
        ] {
            assert!(lines.contains(line), "{line}:\n{lines}");
        }
    }
}

#[test]
fn other_training_methods_are_refused_by_settings_and_command() {
    let trl = |text: &str| {
        let TrainingCommand {
            settings, words, ..
        } = find_training_command(text, None).unwrap().expect(text);
        let origin = Origin::detect(settings.keys().map(String::as_str)).expect(text);
        origin.refusal(&settings, &words).unwrap_or_default()
    };
    let settings = "--model_name_or_path m --dataset_name t.jsonl --use_peft --lora_r 8";
    for (text, expected) in [
        (format!("trl dpo {settings}"), "trl dpo: "),
        (format!("/opt/bin/trl grpo \\\n {settings}"), "trl grpo: "),
        (
            format!("accelerate launch --config_file a.yaml trl/scripts/dpo.py {settings}"),
            "trl/scripts/dpo.py: ",
        ),
        (
            format!("python -m trl.scripts.kto {settings}"),
            "trl.scripts.kto: ",
        ),
        (format!("trl sft {settings} --beta 0.1"), "beta = 0.1: "),
        (
            format!("trl sft {settings} --loss_type sigmoid"),
            "loss_type = \"sigmoid\": ",
        ),
        (format!("trl sft {settings} --loss_type nll"), ""),
        (
            format!("python trl/scripts/sft.py {settings} --output_dir dpo"),
            "",
        ),
        (
            "llamafactory-cli export --model_name_or_path m --stage sft --lora_rank 8 --template x"
                .to_owned(),
            "llamafactory-cli export: ",
        ),
        (
            "swift pt --model m --dataset t.jsonl --train_type lora --lora_rank 8".to_owned(),
            "swift pt: ",
        ),
    ] {
        let refusal = trl(&text);
        assert!(
            refusal.starts_with(expected) && refusal.is_empty() == expected.is_empty(),
            "{text}: {refusal}"
        );
    }
}

/// Missing keys are translated with the other program's defaults.
#[test]
fn the_trained_part_matches_the_other_program() {
    let translated = |settings: Value, has_completions: bool| {
        let theirs = settings.as_object().cloned().unwrap();
        let origin = Origin::detect(theirs.keys().map(String::as_str)).unwrap();
        let facts = RowFacts {
            have_completions: has_completions,
            ..RowFacts::default()
        };
        translate(origin, &theirs, "run", facts)
    };
    let trl = |more: Value| {
        let mut settings = json!({"model_name_or_path": "m", "dataset_name": "t.jsonl",
            "use_peft": true, "lora_r": 8});
        let all = settings.as_object_mut().unwrap();
        all.extend(more.as_object().cloned().unwrap());
        settings
    };
    let llama = json!({"model_name_or_path": "m", "dataset": "t.jsonl", "lora_rank": 8,
        "finetuning_type": "lora", "train_on_prompt": true, "mask_history": false});
    for (settings, has_completions, train_on) in [
        (trl(json!({})), false, "all"),
        (trl(json!({})), true, "completion"),
        (trl(json!({"assistant_only_loss": false})), false, "all"),
        (
            trl(json!({"assistant_only_loss": false})),
            true,
            "completion",
        ),
        (
            trl(json!({"assistant_only_loss": true})),
            false,
            "assistant",
        ),
        (trl(json!({"completion_only_loss": false})), true, "all"),
        (
            trl(json!({"assistant_only_loss": true, "completion_only_loss": false})),
            false,
            "assistant",
        ),
        (llama, false, "all"),
    ] {
        let translation = translated(settings.clone(), has_completions);
        assert_eq!(
            translation.settings["mask"]["train_on"], train_on,
            "{settings}"
        );
        let lines = lines(&translation);
        let expected = format!("mask.train_on = {train_on:?}");
        assert!(lines.contains(&expected), "{settings}: {lines}");
        assert!(!lines.contains("no value of mask.train_on"), "{lines}");
    }
    let silent = json!({"model_name_or_path": "m", "dataset_name": "t.jsonl", "lora_r": 8});
    let translation = translated(silent, false);
    let left_out = translation.results.left_out.iter();
    assert!(
        left_out
            .clone()
            .any(|line| line.starts_with("use_peft is not set"))
    );
}

#[test]
fn presets_are_equal_in_yaml() {
    for preset in Preset::value_variants() {
        let load = |name: &str, text: String| {
            let source = Source {
                name: name.to_owned(),
                text,
            };
            LoadedConfig::parse(source, &[])
                .unwrap_or_else(|e| panic!("{preset:?}: {e}"))
                .config
        };
        let toml = load("a.toml", preset.text().to_owned());
        let yaml = toml_to_yaml(preset.text());
        assert_eq!(load("a.yaml", yaml.clone()), toml, "{yaml}");
    }
}
