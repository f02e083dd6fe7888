//! Other initial adapters and training methods: `init_from`, PiSSA, DoRA, whole trained modules,
//! LoRA+ and NEFTune.

use std::collections::BTreeMap;

use serde_json::Value;
use tooltune_checkpoints::weights::{HostTensor, Weights, write_tensors};

use crate::support::bounds::Quantity;
use crate::support::fixture;
use crate::workplace::{Workplace, parse_lines};

fn workplace() -> Workplace {
    let model = fixture("tiny_chat_model").display().to_string();
    Workplace::with_losses(&model, "f32")
}

fn train(workplace: &Workplace, set: &[&str]) {
    let sets = set.iter().flat_map(|set| ["--set", set]);
    workplace
        .run(["train", "config.toml"].into_iter().chain(sets))
        .success();
}

/// The loss of each evaluation, by step.
fn losses(workplace: &Workplace, run: &str) -> BTreeMap<u64, f64> {
    let metrics = parse_lines(&workplace.read(&format!("{run}/metrics.jsonl")));
    let loss = |line: &Value| Some((line["step"].as_u64()?, line["eval/loss"].as_f64()?));
    metrics.iter().filter_map(loss).collect()
}

#[test]
fn a_run_continues_from_another_adapter() {
    let workplace = workplace();
    train(&workplace, &[]);
    let first = losses(&workplace, "first");
    let best = first.values().copied().fold(f64::INFINITY, f64::min);
    assert!(best < first[&0], "{first:?}");
    let from_run = "lora.init_from=first";
    train(&workplace, &[from_run, "train.output_dir=second"]);
    let second = losses(&workplace, "second");
    assert_eq!(second[&0], best, "{first:?} {second:?}");
    assert!(second[&4] < best, "{first:?} {second:?}");
    // The exported PEFT folder gives the same run as the run directory.
    workplace
        .run(["export", "first", "--to", "peft", "--output", "exported"])
        .success();
    let from_folder = "lora.init_from=exported";
    train(&workplace, &[from_folder, "train.output_dir=third"]);
    assert_eq!(losses(&workplace, "third"), second);
    let lock = workplace.read("third/run.lock.json");
    assert!(lock.contains("\"lora.init_from\""), "{lock}");
    // A run refuses a changed initial adapter.
    let weights = workplace.path("exported/adapter_model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let changed = workplace.run([
        "train",
        "config.toml",
        "--set",
        from_folder,
        "--set",
        "train.output_dir=third",
    ]);
    assert_ne!(changed.status, Some(0));
    assert!(
        changed.stderr.contains("adapter_model.safetensors"),
        "{}",
        changed.stderr
    );
}

#[test]
fn an_initial_adapter_of_another_shape_is_refused_with_the_settings_to_change() {
    let workplace = workplace();
    train(&workplace, &[]);
    for (set, parts) in [
        ("lora.r=4", &["its rank of", "set lora.r = 2"][..]),
        (
            "lora.lora_alpha=8",
            &["is 2, but [lora] sets 4", "lora.lora_alpha = 4"],
        ),
        (
            "lora.target_modules=[\"q_proj\"]",
            &[
                "[lora] does not include its",
                "and 9 more",
                "lora.target_modules = ",
            ],
        ),
        ("lora.init_from=\"train.jsonl\"", &["is not a folder"]),
        ("lora.init_from=\".\"", &["has no adapter_config.json"]),
    ] {
        let arguments = ["plan", "config.toml", "--set", "train.output_dir=second"];
        let arguments = arguments
            .into_iter()
            .chain(["--set", "lora.init_from=first"]);
        let answer = workplace.run(arguments.chain(["--set", set]));
        assert_ne!(answer.status, Some(0), "{set}");
        for part in parts {
            assert!(answer.stderr.contains(part), "{set}: {}", answer.stderr);
        }
    }
}

#[test]
fn the_remedies_for_an_initial_adapter_work() {
    let workplace = workplace();
    let first_layer = "lora.target_modules=\".*[.]layers[.]0[.].*\"";
    train(&workplace, &[first_layer]);
    let plan = |sets: &[&str]| {
        let arguments = "plan config.toml --set train.output_dir=second --set".split(' ');
        let sets = sets.iter().flat_map(|set| ["--set", set]).skip(1);
        workplace.run(arguments.chain(sets))
    };
    let refused = plan(&["lora.init_from=first"]).stderr;
    assert!(refused.contains("it has no factors for"), "{refused}");
    let (_, remedy) = refused.split_once("set lora.target_modules = ").unwrap();
    let end = remedy.find(']').unwrap() + 1;
    let targets = format!("lora.target_modules={}", &remedy[..end]);
    plan(&["lora.init_from=first", &targets]).success();

    workplace
        .run(["export", "first", "--to", "peft", "--output", "exported"])
        .success();
    let path = workplace.path("exported/adapter_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["lora_alpha"] = 0.into();
    std::fs::write(&path, config.to_string()).unwrap();
    let refused = plan(&["lora.init_from=exported", &targets]).stderr;
    let expected = "its lora_alpha is 0, but must be above 0 for training: set another adapter";
    assert!(refused.contains(expected), "{refused}");
}

#[test]
fn a_resumed_run_has_the_same_noise_and_learning_rates() {
    let workplace = workplace();
    let adapter = |run: &str| {
        let path = format!("{run}/checkpoint-000004/adapter_model.safetensors");
        std::fs::read(workplace.path(&path)).unwrap()
    };
    train(&workplace, &[]);
    let mut adapters = vec![adapter("first")];
    for (run, set) in [
        ("noisy", "train.neftune_noise_alpha=5"),
        ("faster", "train.loraplus_lr_ratio=16"),
        ("principal", "lora.init_weights=pissa"),
        ("sketched", "lora.init_weights=pissa_niter_4"),
        ("decomposed", "lora.use_dora=true"),
    ] {
        let output = format!("train.output_dir={run}");
        train(&workplace, &[set, &output]);
        let expected = adapter(run);
        std::fs::remove_dir_all(workplace.path(&format!("{run}/checkpoint-000004"))).unwrap();
        train(&workplace, &[set, &output]);
        assert!(expected == adapter(run), "the resumed {run} differs");
        adapters.push(expected);
    }
    for (i, one) in adapters.iter().enumerate() {
        assert!(!adapters[..i].contains(one), "run {i} differs");
    }
}

#[test]
fn an_adapter_with_any_initialization_continues_on_the_original_base() {
    let workplace = workplace();
    for (run, set, continuation) in [
        (
            "principal",
            "lora.init_weights=pissa",
            &["lora.r=4", "lora.lora_alpha=8"][..],
        ),
        ("decomposed", "lora.use_dora=true", &["lora.use_dora=true"]),
    ] {
        let output = format!("train.output_dir={run}");
        train(&workplace, &[set, &output]);
        let first = losses(&workplace, run);
        assert!(first[&4] < first[&0], "{run}: {first:?}");
        let exported = format!("{run}-peft");
        workplace
            .run(["export", run, "--to", "peft", "--output", &exported])
            .success();
        let from = format!("lora.init_from={exported}");
        let output = format!("train.output_dir={run}-2");
        let sets = [
            &[from.as_str(), output.as_str(), "train.max_steps=2"],
            continuation,
        ]
        .concat();
        train(&workplace, &sets);
        let second = losses(&workplace, &format!("{run}-2"));
        let best = first.values().copied().fold(f64::INFINITY, f64::min);
        let difference = (second[&0] - best).abs();
        let bound = Quantity::StepLoss.bound();
        assert!(difference < bound, "{run}: {first:?} {second:?}");
        // The export computes the same logits as the checkpoint.
        let against = ["--against", "peft-rules", "--export", &exported];
        workplace
            .run(["verify", run].into_iter().chain(against))
            .success();
        let card = workplace.read(&format!("{exported}/README.md"));
        let kind = if run == "principal" { "PiSSA" } else { "DoRA" };
        assert!(card.contains(kind), "{card}");
        let merged = format!("{run}-merged");
        workplace
            .run(["export", run, "--to", "merged", "--output", &merged])
            .success();
        assert!(workplace.path(&merged).join("model.safetensors").exists());
    }
    let refused = workplace.run(["export", "decomposed", "--to", "gguf", "--output", "a.gguf"]);
    assert_ne!(refused.status, Some(0));
    assert!(refused.stderr.contains("--merged"), "{}", refused.stderr);
    workplace
        .run(["export", "principal", "--to", "gguf", "--output", "p.gguf"])
        .success();
}

#[test]
fn contradictory_initializations_are_refused() {
    let workplace = workplace();
    for (sets, part) in [
        (&["lora.init_weights=svd"][..], "pissa_niter_4"),
        (
            &["lora.init_weights=pissa", "lora.init_from=first"],
            "exclude each other",
        ),
        (
            &[
                "lora.init_weights=pissa",
                "lora.use_rslora=true",
                "lora.rank_pattern={ q_proj = 4 }",
            ],
            "remove use_rslora",
        ),
        (
            &["lora.init_weights=pissa", "lora.use_dora=true"],
            "lora.use_dora",
        ),
        (
            &[
                "lora.init_weights=pissa",
                "train.self_distillation_alpha=0.5",
            ],
            "which are the teacher",
        ),
        (&["lora.init_weights=pissa", "lora.r=33"], "lower lora.r"),
    ] {
        // `plan` and `train` refuse the same settings.
        for verb in ["plan", "train"] {
            let sets = sets.iter().flat_map(|set| ["--set", set]);
            let answer = workplace.run([verb, "config.toml"].into_iter().chain(sets));
            assert_ne!(answer.status, Some(0), "{verb}: {part}");
            assert!(answer.stderr.contains(part), "{part}: {}", answer.stderr);
        }
    }
}

#[test]
fn dora_refuses_a_weight_with_a_row_of_zeros() {
    let workplace = workplace();
    write_untied_model(&workplace);
    let path = workplace.path("untied/model.safetensors");
    let weights = Weights::open(&path).unwrap();
    let read = |name: &str| (name.to_owned(), weights.read_f32(name).unwrap());
    let mut tensors: BTreeMap<String, HostTensor> = weights.names().map(read).collect();
    let name = "model.layers.1.self_attn.k_proj.weight";
    let weight = tensors.get_mut(name).unwrap();
    let columns = weight.shape[1];
    weight.values[3 * columns..4 * columns].fill(0.0);
    drop(weights);
    std::fs::remove_file(&path).unwrap();
    write_tensors(&path, &tensors).unwrap();
    let dora = |more: &[&str]| {
        let mut arguments = vec!["train", "config.toml", "--set", "lora.use_dora=true"];
        arguments.extend(["--set", "model.model_name_or_path=\"untied\""]);
        arguments.extend(more.iter().flat_map(|set| ["--set", set]));
        workplace.run(arguments)
    };
    let answer = dora(&[]);
    assert_ne!(answer.status, Some(0));
    let expected = "row 3 of the weight of model.layers.1.self_attn.k_proj is zero";
    assert!(answer.stderr.contains(expected), "{}", answer.stderr);
    let exclude = "lora.exclude_modules=[\"model.layers.1.self_attn.k_proj\"]";
    dora(&[exclude, "train.output_dir=without"]).success();
}

#[test]
fn the_untrained_checkpoint_is_never_exported() {
    let workplace = workplace();
    write_untied_model(&workplace);
    for (run, sets) in [
        ("plain", &[][..]),
        ("principal", &["lora.init_weights=pissa"]),
        (
            "whole",
            &[
                "lora.init_weights=pissa",
                "lora.modules_to_save=[\"lm_head\"]",
            ],
        ),
        ("decomposed", &["lora.use_dora=true"]),
    ] {
        let output = format!("train.output_dir={run}");
        // The steps are so small that no later checkpoint is better.
        let still = ["train.learning_rate=1e-12", output.as_str()];
        let model = ["model.model_name_or_path=\"untied\""];
        train(&workplace, &[&still[..], &model, sets].concat());
        let answer = workplace.run(["export", run, "--output", "exported"]);
        assert_ne!(answer.status, Some(0), "{run}");
        let expected = "the adapter changes nothing";
        assert!(answer.stderr.contains(expected), "{run}: {}", answer.stderr);
    }
}

/// Writes the tiny chat model with a separate head to `untied`.
fn write_untied_model(workplace: &Workplace) {
    let from = fixture("tiny_chat_model");
    let to = workplace.path("untied");
    std::fs::create_dir(&to).unwrap();
    for name in [
        "chat_template.jinja",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    let tied = "\"tie_word_embeddings\": true";
    assert!(config.contains(tied));
    let config = config.replace(tied, "\"tie_word_embeddings\": false");
    std::fs::write(to.join("config.json"), config).unwrap();
    let weights = Weights::open(&from).unwrap();
    let read = |name: &str| (name.to_owned(), weights.read_f32(name).unwrap());
    let mut tensors: BTreeMap<String, HostTensor> = weights.names().map(read).collect();
    let mut head = tensors["model.embed_tokens.weight"].clone();
    head.values.iter_mut().for_each(|value| *value *= 0.9);
    tensors.insert("lm_head.weight".to_owned(), head);
    write_tensors(&to.join("model.safetensors"), &tensors).unwrap();
}

#[test]
fn whole_modules_are_trained_saved_resumed_and_merged() {
    let workplace = workplace();
    let both = "lora.modules_to_save=[\"lm_head\", \"embed_tokens\"]";
    let refused = workplace.run(["train", "config.toml", "--set", both]);
    assert_ne!(refused.status, Some(0));
    assert!(
        refused.stderr.contains("tie_word_embeddings"),
        "{}",
        refused.stderr
    );

    write_untied_model(&workplace);
    let model = "model.model_name_or_path=\"untied\"";
    let sets = [model, both, "train.output_dir=whole"];
    train(&workplace, &sets);
    let first = losses(&workplace, "whole");
    assert!(first[&4] < first[&0], "{first:?}");
    let adapter = "whole/checkpoint-000004/adapter_model.safetensors";
    let trained = std::fs::read(workplace.path(adapter)).unwrap();
    std::fs::remove_dir_all(workplace.path("whole/checkpoint-000004")).unwrap();
    train(&workplace, &sets);
    assert!(trained == std::fs::read(workplace.path(adapter)).unwrap());
    // Training has changed both weights.
    let [saved, base] = [adapter, "untied/model.safetensors"]
        .map(|file| Weights::open(&workplace.path(file)).unwrap());
    for name in ["lm_head.weight", "model.embed_tokens.weight"] {
        let saved_weight = saved.read_f32(&format!("base_model.model.{name}")).unwrap();
        assert_ne!(saved_weight, base.read_f32(name).unwrap(), "{name}");
    }

    let export = ["export", "whole", "--to", "peft", "--output", "whole-peft"];
    workplace.run(export).success();
    let against = ["--against", "peft-rules", "--export", "whole-peft"];
    workplace
        .run(["verify", "whole"].into_iter().chain(against))
        .success();
    // The merged model, as a folder and as a GGUF file, has the trained weights.
    for (to, output, options) in [
        ("merged", "merged", &[][..]),
        ("gguf", "merged.gguf", &["--merged", "--dtype", "f32"]),
    ] {
        let export = ["export", "whole", "--to", to, "--output", output];
        workplace
            .run(export.iter().chain(options).copied())
            .success();
        let weights = Weights::open(&workplace.path(output)).unwrap();
        let best: Value = serde_json::from_str(&workplace.read("whole/BEST")).unwrap();
        let best = best["checkpoint"].as_str().unwrap();
        let best = format!("whole/{best}/adapter_model.safetensors");
        let adapter = Weights::open(&workplace.path(&best)).unwrap();
        for name in ["lm_head.weight", "model.embed_tokens.weight"] {
            let trained_weight = adapter
                .read_f32(&format!("base_model.model.{name}"))
                .unwrap();
            assert_eq!(
                weights.read_f32(name).unwrap(),
                trained_weight,
                "{to}, {name}"
            );
        }
    }
    let refused = workplace.run(["export", "whole", "--to", "gguf", "--output", "a.gguf"]);
    assert_ne!(refused.status, Some(0));
    assert!(refused.stderr.contains("--merged"), "{}", refused.stderr);

    // Another run can start from the trained weights.
    let from = "lora.init_from=whole";
    let sets = [
        model,
        both,
        from,
        "train.output_dir=second",
        "train.max_steps=2",
    ];
    train(&workplace, &sets);
    let best = first.values().copied().fold(f64::INFINITY, f64::min);
    assert_eq!(losses(&workplace, "second")[&0], best);
    let refused_without = workplace.run([
        "plan",
        "config.toml",
        "--set",
        model,
        "--set",
        from,
        "--set",
        "train.output_dir=third",
    ]);
    assert!(
        refused_without.stderr.contains("set lora.modules_to_save"),
        "{}",
        refused_without.stderr
    );
}
