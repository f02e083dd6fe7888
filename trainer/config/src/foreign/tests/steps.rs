//! Translation of evaluation and saving schedules to optimizer steps.

use super::*;

fn translate_with_rows(theirs: Value, n_rows: Option<u64>) -> (Value, String) {
    let theirs = theirs.as_object().unwrap();
    let origin = Origin::detect(theirs.keys().map(String::as_str)).unwrap();
    let facts = RowFacts {
        have_completions: false,
        n_rows,
        n_in_epoch: n_rows.map(|n_rows| n_rows as f64),
    };
    let translation = translate(origin, theirs, "run", facts);
    let report = lines(&translation);
    (Value::Object(translation.settings), report)
}

fn with_settings(base: &Value, more: Value) -> Value {
    let mut all = base.as_object().unwrap().clone();
    all.extend(more.as_object().unwrap().clone());
    Value::Object(all)
}

#[test]
fn evaluations_have_the_schedule_of_the_other_trainer() {
    let axolotl = json!({"base_model": "m", "datasets": [{"path": "t.jsonl"}], "lora_r": 8,
        "micro_batch_size": 2, "gradient_accumulation_steps": 4, "num_epochs": 3});
    let with_held_out = with_settings(&axolotl, json!({"val_set_size": 0.05}));
    let trl = json!({"model_name_or_path": "m", "datasets": [{"path": "t.jsonl"}], "use_peft": true,
        "lora_r": 8, "test_split_size": 0.2, "per_device_train_batch_size": 8, "num_train_epochs": 1});
    let swift = json!({"model": "m", "dataset": "t.jsonl", "train_type": "lora", "lora_rank": 8,
        "split_dataset_ratio": 0.1, "lora_alpha": 32});
    // 760 of 800 rows are for training: 95 steps per epoch.
    for (theirs, steps) in [
        (
            with_settings(&with_held_out, json!({"evals_per_epoch": 4})),
            Some(24),
        ),
        (
            with_settings(&with_held_out, json!({"eval_steps": 7})),
            Some(7),
        ),
        (
            with_settings(&with_held_out, json!({"eval_steps": 0.1})),
            Some(29),
        ),
        (with_held_out.clone(), Some(95)),
        (
            with_settings(&with_held_out, json!({"eval_strategy": "no"})),
            None,
        ),
        (with_settings(&axolotl, json!({"evals_per_epoch": 4})), None),
        (trl.clone(), None),
        (
            with_settings(&trl, json!({"eval_strategy": "epoch"})),
            Some(80),
        ),
        (
            with_settings(&trl, json!({"eval_strategy": "steps", "eval_steps": 10})),
            Some(10),
        ),
        (with_settings(&trl, json!({"eval_steps": 10})), None),
        (with_settings(&swift, json!({"eval_steps": 50})), Some(50)),
        (swift.clone(), Some(500)),
    ] {
        let (settings, report) = translate_with_rows(theirs.clone(), Some(800));
        assert_eq!(
            settings["eval"]["eval_steps"].as_u64(),
            steps,
            "{theirs}: {report}"
        );
        for key in ["evals_per_epoch", "eval_steps", "eval_strategy"] {
            if let Some(value) = theirs.get(key) {
                assert!(
                    report.contains(&format!("{key} = {value}")),
                    "{theirs}: {report}"
                );
            }
        }
        if steps.is_none() {
            assert!(settings.get("eval").is_none(), "{settings}");
        }
    }
    // Without the rows, the table exists and the missing setting is reported.
    let (settings, report) = translate_with_rows(
        with_settings(&with_held_out, json!({"evals_per_epoch": 4})),
        None,
    );
    assert_eq!(settings["eval"], json!({}));
    let expected =
        "evals_per_epoch = 4: set eval.eval_steps to the steps of an epoch divided by 4, which";
    assert!(report.contains(expected), "{report}");
}

#[test]
fn checkpoints_and_held_out_rows_are_translated() {
    let axolotl = json!({"base_model": "m", "datasets": [{"path": "t.jsonl"}], "lora_r": 8,
        "micro_batch_size": 2, "val_set_size": 100, "saves_per_epoch": 2});
    let (settings, report) = translate_with_rows(axolotl.clone(), Some(1000));
    assert_eq!(settings["data"]["validation_split"], 0.1, "{report}");
    assert_eq!(settings["checkpoint"]["save_steps"], 225, "{report}");
    let (settings, report) = translate_with_rows(axolotl, None);
    assert!(settings["data"].get("validation_split").is_none());
    assert!(report.contains("(from val_set_size)"), "{report}");
    let config = json!({"base_model": "m", "datasets": [{"path": "t.jsonl"}], "lora_r": 8,
        "test_datasets": [{"path": "e.jsonl"}], "save_steps": 500.0, "warmup_steps": 0.03,
        "logging_steps": 0.1});
    let (settings, report) = translate_with_rows(config, None);
    assert_eq!(settings["checkpoint"]["save_steps"], json!(500));
    assert_eq!(settings["train"]["warmup_ratio"], json!(0.03));
    assert!(
        report.contains("logging_steps = 0.1: a share of the run; train.logging_steps is a number"),
        "{report}"
    );
}
