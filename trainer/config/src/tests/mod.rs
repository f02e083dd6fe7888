//! Loads valid and invalid configs through the program's own entry point.

mod blanks;
mod every_setting;
mod files;
mod guide;
mod prompts;
mod truncation;
mod written;

use std::fs;
use std::path::Path;

use super::*;

const SLOT: &str = include_str!("../presets/slot.toml");
const QUICKSTART: &str = include_str!("../../../../configs/quickstart.toml");
const SLOT_E2E: &str = include_str!("../../../../configs/slot-e2e.toml");

const MINIMAL: &str = "\
[model]
model_name_or_path = \"m\"
[lora]
[data]
train = [\"t.jsonl\"]
format = \"messages\"
[train]
output_dir = \"runs/x\"
";

fn parse(name: &str, text: &str, overrides: &[&str]) -> Result<LoadedConfig, ConfigError> {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    LoadedConfig::parse(
        Source {
            name: name.to_owned(),
            text: text.to_owned(),
        },
        &overrides,
    )
}

fn parse_valid(text: &str, overrides: &[&str]) -> Config {
    match parse("c.toml", text, overrides) {
        Ok(loaded) => loaded.config,
        Err(error) => panic!("refused:\n{error}"),
    }
}

/// Compact lines of all mistakes.
fn mistakes(text: &str, overrides: &[&str]) -> Vec<String> {
    match parse("c.toml", text, overrides) {
        Ok(_) => Vec::new(),
        Err(error) => error.to_string().lines().map(str::to_owned).collect(),
    }
}

/// Checks that the config has exactly one mistake, with these words.
#[track_caller]
fn check_mistake(text: &str, overrides: &[&str], words: &[&str]) {
    let problems = mistakes(text, overrides);
    assert_eq!(problems.len(), 1, "{problems:#?}");
    for word in words {
        assert!(
            problems[0].contains(word),
            "{word:?} is not in {:?}",
            problems[0]
        );
    }
}

fn with_minimal(lines: &str) -> String {
    MINIMAL.to_owned() + lines
}

#[test]
fn every_preset_is_a_valid_config() {
    for preset in [Preset::Slot, Preset::Sft] {
        parse_valid(preset.text(), &[]);
    }
}

#[test]
fn every_config_of_the_repository_is_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let files = entries.flatten().filter(|entry| entry.path().is_file());
    for entry in files {
        let loaded = LoadedConfig::load(&entry.path(), &[]);
        assert!(
            loaded.is_ok(),
            "{}",
            loaded.err().map(|e| e.to_string()).unwrap_or_default()
        );
    }
    let quickstart = parse_valid(QUICKSTART, &[]);
    assert_eq!(quickstart.train.warmup(), Warmup::Ratio(0.05));
    assert_eq!(quickstart.eval.metric_for_best_model, "slot.mean");
    let e2e = parse_valid(SLOT_E2E, &[]);
    assert_eq!(e2e.train.length(), RunLength::Steps(40));
    assert_eq!(e2e.lora.lora_dropout, 0.0);
}

#[test]
fn missing_settings_have_defaults() {
    let config = parse_valid(MINIMAL, &[]);
    assert_eq!(config.device, Device::Cpu);
    assert_eq!(
        config.lora.target_modules,
        TargetModules::Pattern("all-linear".to_owned())
    );
    assert_eq!(config.mask.train_on, TrainOn::Assistant);
    assert_eq!(config.eval.eval_strategy, EvalStrategy::No);
    assert_eq!(config.eval.metric_for_best_model, "loss");
    assert!(!config.eval.greater_is_better);
    assert_eq!(config.train.max_grad_norm, 1.0);
    assert_eq!(config.checkpoint.save_steps, 100);
}

/// Invariant: A config error reports all mistakes at once, each with its line.
#[test]
fn all_mistakes_are_found_in_one_pass_each_with_its_line() {
    let text = "\
[model]
model_name_or_pth = \"m\"
[lora]
r = \"8\"
lora_dropout = 1.5
lora_rank = 8
[data]
train = \"t.jsonl\"
format = \"slots\"
learning_rate = 1e-4
[train]
output_dir = \"runs/x\"
seed = -1
max_steps = 10
num_train_epochs = 2
[evaluate]
eval_steps = 10
";
    let problems = mistakes(text, &[]);
    let expected = [
        (
            "c.toml:2:1: unknown key `model_name_or_pth`",
            "did you mean `model_name_or_path`?",
        ),
        (
            "c.toml:4:5: `lora.r` must be a whole number",
            "remove the quotes: 8",
        ),
        ("c.toml:5:16: `lora.lora_dropout` is 1.5", "below 1"),
        (
            "c.toml:6:1: unknown key `lora_rank`",
            "tooltune calls it `r`",
        ),
        ("c.toml:8:9: `data.train` must be a list", "[\"t.jsonl\"]"),
        (
            "c.toml:9:10: `data.format` cannot be the text \"slots\"",
            "did you mean \"slot\"?",
        ),
        (
            "c.toml:10:1: unknown key `learning_rate`",
            "belongs to [train]",
        ),
        ("c.toml:13:8: `train.seed` must be a whole number", ""),
        (
            "c.toml:15:20: `train.num_train_epochs` and `train.max_steps`",
            "delete one",
        ),
        (
            "c.toml:16:2: unknown table or key `evaluate`",
            "did you mean `eval`?",
        ),
    ];
    for (start, help) in expected {
        assert!(
            problems
                .iter()
                .any(|line| line.starts_with(start) && line.contains(help)),
            "{start:?} with {help:?} is not in {problems:#?}"
        );
    }
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
}

#[test]
fn setting_names_of_other_trainers_suggest_ours() {
    let rows = [
        ("[lora]", "lora_rank = 8", "`r`"),
        (
            "[lora]",
            "lora_target_linear = true",
            "target_modules = \"all-linear\"",
        ),
        ("[data]", "cutoff_len = 100", "`max_length`"),
        ("[data]", "sequence_len = 100", "`max_length`"),
        ("[data]", "max_seq_length = 100", "`max_length`"),
        (
            "[train]",
            "micro_batch_size = 1",
            "`per_device_train_batch_size`",
        ),
        ("[train]", "batch_size = 1", "`per_device_train_batch_size`"),
        ("[train]", "num_epochs = 1", "`num_train_epochs`"),
        ("[model]", "base_model = \"m\"", "`model_name_or_path`"),
        ("[train]", "lora_r = 8", "`r`, in [lora]"),
        ("[model]", "load_in_8bits = true", "the keys here are"),
        ("[train]", "device = \"cuda\"", "top of the file"),
    ];
    for (table, line, answer) in rows {
        let text = MINIMAL.replace(table, &format!("{table}\n{line}"));
        check_mistake(&text, &[], &["unknown key", answer]);
    }
}

#[test]
fn a_foreign_name_does_not_also_count_as_missing() {
    let text = MINIMAL.replace("model_name_or_path", "base_model");
    check_mistake(&text, &[], &["tooltune calls it `model_name_or_path`"]);
}

#[test]
fn values_out_of_range_are_refused() {
    let rows = [
        ("lora.r=0", "at least 1"),
        ("lora.lora_alpha=0", "above 0"),
        ("lora.lora_dropout=1.0", "below 1"),
        ("lora.rank_pattern.q_proj=0", "at least 1"),
        ("lora.target_modules=[]", "empty list"),
        ("lora.target_modules=q_proj", "write [\"q_proj\"]"),
        (
            "lora.target_modules=all_linear",
            "did you mean \"all-linear\"",
        ),
        ("data.max_length=1", "at least 2"),
        ("data.train=[]", "at least one file"),
        (
            "mask.weights=[{span=\"assistant\",weight=-1.0}]",
            "at least 0.0",
        ),
        (
            "mask.weights=[{span=\"assistant\"}]",
            "`mask.weights[0].weight` is missing",
        ),
        (
            "mask.weights=[{spam=\"content\",weight=1}]",
            "did you mean `span`?",
        ),
        ("train.learning_rate=0", "above 0"),
        ("train.learning_rate=2", "at most 1.0"),
        ("train.learning_rate=nan", "finite"),
        ("train.warmup_ratio=1.1", "from 0.0 to 1.0"),
        ("train.adam_beta2=1.0", "below 1"),
        ("train.max_grad_norm=-1", "at least 0.0"),
        ("train.num_train_epochs=0", "above 0"),
        (
            "train.gradient_checkpointing=true",
            "write \"full\" for true",
        ),
        ("train.gradient_checkpointing=0", "write \"full\""),
        ("train.gradient_checkpointing=-2", "whole number"),
        ("train.seed=99999999999999999999", "whole number"),
        (
            "train.seed=9223372036854775808",
            "the largest number is 9223372036854775807",
        ),
        (
            "train.max_steps=1e3",
            "write it without decimal point and exponent: 1000",
        ),
        ("checkpoint.save_total_limit=0", "at least 1"),
        ("device=gpu", "it can be \"cpu\""),
        ("log.report_to=[\"wandb\"]", "\"tensorboard\""),
        (
            "log.report_to=wandb",
            "it is a list of \"tensorboard\", \"jsonl\"",
        ),
        ("log.report_to=[\"jsonl\",\"jsonl\"]", "twice"),
        ("data.train=", "not a TOML value"),
        ("data.train=[\"a\"", "not a TOML value"),
        ("learning_rate", "write --set table.key=value"),
        ("a b=1", "not the path of a setting"),
        ("train.lerning_rate=1", "did you mean `learning_rate`?"),
        ("lora.load_in_4bit=true", "quantization = \"nf4\""),
        (
            "lora.modules_to_save=[\"norm\"]",
            "`lora.modules_to_save` names",
        ),
        (
            "checkpoint.save_strategy=\"steps\"",
            "checkpoint.save_steps",
        ),
        ("train.seed.x=1", "not a table"),
    ];
    for (set, answer) in rows {
        check_mistake(MINIMAL, &[set], &[answer, "--set:1:"]);
    }
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let rows = [
        (
            "lr_scheduler_type = \"constant\"\nwarmup_steps = 3",
            "constant_with_warmup",
        ),
        ("max_steps = 5\nwarmup_steps = 6", "longer than `max_steps`"),
        ("warmup_ratio = 0.1\nwarmup_steps = 6", "exclude each other"),
        ("[eval]", "nothing to evaluate on"),
        (
            "[eval]\neval_strategy = \"no\"\nsuites = [\"slot\"]",
            "needs slot rows",
        ),
        (
            "[eval]\neval_strategy = \"no\"\nmetric_for_best_model = \"slot.mean\"",
            "no suite",
        ),
    ];
    for (lines, answer) in rows {
        check_mistake(&with_minimal(lines), &[], &[answer]);
    }
    let slot = |set| check_mistake(SLOT, &[set, "train.seed=1"], &["--set:1:"]);
    slot("eval.metric_for_best_model=slot.men");
    // No schema is flattened, so no output is malformed.
    slot("eval.metric_for_best_model=slot.malformed_rate");
    slot("eval.early_stopping_patience=0");
    slot("eval.early_stopping_threshold=0.1");
    slot("eval.early_stopping_threshold=-1");
    check_mistake(
        SLOT,
        &["eval.early_stopping_patience=3", "eval.eval_strategy=no"],
        &[
            "has no effect: `eval.eval_strategy` is \"no\"",
            "write eval_strategy = \"steps\"",
        ],
    );
    check_mistake(
        &SLOT.replace("encoder = ", "# "),
        &[],
        &[
            "`eval.encoder` is missing",
            "scripts/fetch-models",
            "all-minilm",
        ],
    );
    let packed = ["data.packing=block-diagonal", "train.group_by_length=true"];
    check_mistake(MINIMAL, &packed, &["group_by_length = false"]);
    check_mistake(
        MINIMAL,
        &["data.eval=[\"t.jsonl\"]"],
        &["which is also in `data.train`"],
    );
    check_mistake(&MINIMAL.replace("[lora]", ""), &[], &["[lora] is missing"]);
    check_mistake(
        &with_minimal("[eval]\neval_strategy = \"epoch\""),
        &[],
        &["\"no\", \"steps\""],
    );
}

#[test]
fn an_override_replaces_settings_that_it_excludes() {
    let config = parse_valid(SLOT, &["train.max_steps=7", "train.warmup_steps=2"]);
    assert_eq!(config.train.length(), RunLength::Steps(7));
    assert_eq!(config.train.warmup(), Warmup::Steps(2));
    check_mistake(
        SLOT,
        &["train.max_steps=7", "train.num_train_epochs=2"],
        &["exclude"],
    );
}

#[test]
fn overrides_accept_toml_and_bare_words_and_the_last_wins() {
    let sets = [
        "train.learning_rate=2e-4",
        "train.learning_rate = 3e-4",
        "device=cuda:1",
        "train.output_dir=runs/other",
        "lora.target_modules=[\"q_proj\", \"v_proj\"]",
        "lora.rank_pattern={ q_proj = 4, \"layers.0\" = 2 }",
        "lora.rank_pattern.v_proj=16",
        "train.gradient_checkpointing=4",
        "mask.weights=[{ span = \"assistant\", weight = 0.5 }]",
    ];
    let config = parse_valid(MINIMAL, &sets);
    assert_eq!(config.train.learning_rate, 3e-4);
    assert_eq!(config.device, Device::Cuda(1));
    assert_eq!(config.train.output_dir, Path::new("runs/other"));
    let ranks: Vec<_> = config
        .lora
        .rank_pattern
        .0
        .iter()
        .map(|(p, rank)| (p.as_str(), *rank))
        .collect();
    assert_eq!(ranks, [("q_proj", 4), ("layers.0", 2), ("v_proj", 16)]);
    assert_eq!(
        config.train.gradient_checkpointing,
        GradientCheckpointing::KeepBlocks(4)
    );
    assert_eq!(
        config.mask.weights,
        [SpanWeight {
            span: Span::Assistant,
            weight: 0.5
        }]
    );
}

#[test]
fn every_setting_keeps_its_origin() {
    let loaded = parse("c.toml", MINIMAL, &["train.seed=3"]).map_err(|error| error.to_string());
    let Ok(loaded) = loaded else {
        panic!("{loaded:?}")
    };
    assert_eq!(loaded.origin("train.output_dir"), "c.toml:8:14");
    assert_eq!(loaded.origin("train.seed"), "--set train.seed=3");
    assert_eq!(loaded.origin("train.learning_rate"), "default");
}

#[test]
fn yaml_means_the_same_as_toml() {
    let yaml = "\
device: cuda
model:
  model_name_or_path: m
lora:
  r: 4
  rank_pattern: {q_proj: 2}
data:
  train: [t.jsonl]
  format: messages
train:
  output_dir: runs/x
  learning_rate: 1e-4
  gradient_checkpointing: none
  group_by_length: true
eval:
  eval_strategy: no
";
    let toml = "device = \"cuda\"\n".to_owned()
        + &MINIMAL.replace("[lora]", "[lora]\nr = 4\nrank_pattern = { q_proj = 2 }")
        + "learning_rate = 1e-4\ngradient_checkpointing = \"none\"\ngroup_by_length = true\n\
           [eval]\neval_strategy = \"no\"\n";
    for name in ["c.yaml", "c.yml"] {
        let loaded = parse(name, yaml, &[]);
        let config = loaded
            .map(|loaded| loaded.config)
            .map_err(|error| error.to_string());
        assert_eq!(config, Ok(parse_valid(&toml, &[])));
    }
}

#[test]
fn mistakes_in_yaml_have_line_and_column() {
    let yaml = "\
model:
  model_name_or_path: mödel
lora:
  lora_rank: 4
  r: vier
data:
  train: [t.jsonl]
  format: messages
train:
  output_dir: runs/x
  seed:
";
    let error = parse("c.yaml", yaml, &[])
        .map(|_| ())
        .map_err(|error| error.to_string());
    let Err(error) = error else {
        panic!("accepted")
    };
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 3, "{error}");
    assert!(
        lines[0].starts_with("c.yaml:4:3: unknown key `lora_rank`"),
        "{error}"
    );
    assert!(
        lines[1].starts_with("c.yaml:5:6: `lora.r` must be a whole number"),
        "{error}"
    );
    assert!(lines[2].starts_with("c.yaml:11:"), "{error}");
    assert!(lines[2].contains("not empty"), "{error}");
    for (text, answer) in [
        ("- 1\n", "must be a mapping"),
        ("a: [1\n", "not YAML"),
        ("lora: 1\nlora: 2\n", "not YAML"),
        ("", "missing"),
    ] {
        let error = parse("c.yaml", text, &[])
            .map(|_| ())
            .map_err(|error| error.to_string());
        assert!(
            error.as_ref().is_err_and(|error| error.contains(answer)),
            "{error:?}"
        );
    }
}

#[test]
fn syntax_errors_neither_hide_nor_invent_mistakes() {
    let text = MINIMAL.replace("[lora]", "[lora]\nr =\nlora_rank = 4");
    let problems = mistakes(&text, &[]);
    assert_eq!(problems.len(), 2, "{problems:#?}");
    assert!(problems[0].starts_with("c.toml:4:"), "{problems:#?}");
    assert!(problems[0].contains("not TOML"), "{problems:#?}");
    assert!(problems[1].contains("lora_rank"), "{problems:#?}");
    check_mistake(
        &with_minimal("seed = 1\nseed = 2"),
        &[],
        &["c.toml:10:", "duplicate key"],
    );
}

#[test]
fn unreadable_files_are_errors_without_a_panic() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("c.toml");
    let load = || {
        LoadedConfig::load(&path, &[])
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    assert!(load().is_err_and(|error| error.contains("cannot read the config")));
    fs::write(&path, "")?;
    assert!(load().is_err_and(|error| error.contains("`train.output_dir` is missing")));
    fs::write(&path, b"device = \"cpu\"\n# caf\xe9\n")?;
    assert!(load().is_err_and(|error| error.contains("c.toml:2:6: the config is not valid UTF-8")));
    Ok(())
}

#[test]
fn huge_lines_and_deep_nesting_give_short_errors() {
    for text in [
        "a".repeat(5_000_000) + " = 1",
        "x = ".to_owned() + &"[".repeat(100_000),
    ] {
        for name in ["c.toml", "c.yaml"] {
            let Err(error) = parse(name, &text, &[]) else {
                panic!("accepted")
            };
            assert!(error.render(Colors::Off).len() < 20_000, "{name}");
        }
    }
}

#[test]
fn rendered_errors_show_the_line_and_stay_plain_without_a_terminal() {
    let error = parse("c.toml", &with_minimal("seed = \"x\"\n"), &["lora.rr=2"]);
    let Err(error) = error else {
        panic!("accepted")
    };
    let plain = error.render(Colors::Off);
    for part in [
        "c.toml:9:8",
        "seed = \"x\"",
        "`train.seed` must be",
        "lora.rr=2",
        "2 mistakes",
    ] {
        assert!(plain.contains(part), "{part:?} is not in\n{plain}");
    }
    assert!(!plain.contains('\u{1b}'), "{plain}");
    assert!(error.render(Colors::On).contains('\u{1b}'));
}

#[test]
fn all_missing_files_are_named_with_their_lines() {
    let loaded = parse(
        "c.toml",
        MINIMAL,
        &["data.eval=[\"no.jsonl\", \"Cargo.toml\"]"],
    );
    let Ok(loaded) = loaded else {
        panic!("{loaded:?}")
    };
    let Err(error) = loaded.check_files() else {
        panic!("accepted")
    };
    let text = error.to_string();
    assert_eq!(error.problems().len(), 3, "{text}");
    assert!(
        text.contains("c.toml:2:22: `model.model_name_or_path` names m"),
        "{text}"
    );
    assert!(
        text.contains("c.toml:5:9: `data.train` names t.jsonl"),
        "{text}"
    );
    assert!(
        text.contains("--set:1:11: `data.eval` names no.jsonl"),
        "{text}"
    );
}
