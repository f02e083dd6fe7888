//! QLoRA: runs whose frozen linear layers are stored in NF4.

use std::fs;

use serde_json::Value;
use tooltune_checkpoints::weights::Weights;

use crate::support::fixture;
use crate::workplace::{Workplace, assert_contains, parse_lines};

const NF4: &str = "model.quantization=nf4";
const NONE: &str = "model.quantization=none";

fn tiny() -> String {
    fixture("tiny_chat_model").display().to_string()
}

fn train(workplace: &Workplace, run: &str, set: &[&str]) {
    let output = format!("train.output_dir={run}");
    let sets = set.iter().copied().chain([output.as_str()]);
    let sets = sets.flat_map(|set| ["--set", set]);
    workplace
        .run(["train", "config.toml"].into_iter().chain(sets))
        .success();
}

fn metrics(workplace: &Workplace, run: &str) -> String {
    workplace.read(&format!("{run}/metrics.jsonl"))
}

/// Losses of all steps and evaluations.
fn losses(workplace: &Workplace, run: &str) -> Vec<f64> {
    let lines = parse_lines(&metrics(workplace, run));
    let keys = ["train/loss", "eval/loss"];
    let loss = |line: &Value| keys.iter().find_map(|key| line[*key].as_f64());
    lines.iter().filter_map(loss).collect()
}

/// Writes the tiny chat model in NF4, quantised from this dtype.
fn export_nf4(workplace: &Workplace, dtype: &str, output: &str) {
    let (model, dtype) = (tiny(), format!("model.compute_dtype={dtype}"));
    let arguments = ["export", &model, "--to", "merged", "--dtype", "nf4"];
    let set = ["--set", &dtype, "--output", output];
    workplace.run(arguments.into_iter().chain(set)).success();
}

#[test]
fn a_quantised_run_trains_resumes_and_refuses_other_weights() {
    let workplace = Workplace::with_losses(&tiny(), "f32");
    train(&workplace, "plain", &[]);
    train(&workplace, "nf4", &[NF4]);
    let [plain, nf4] = ["plain", "nf4"].map(|run| losses(&workplace, run));
    assert_eq!(plain.len(), nf4.len());
    assert!(nf4.last() < nf4.first(), "{nf4:?}");
    // Quantisation changes the losses, but not much.
    let changes = plain.iter().zip(&nf4).map(|(a, b)| (a / b - 1.0).abs());
    let most = changes.fold(0.0, f64::max);
    assert!((1e-6..0.05).contains(&most), "{plain:?} {nf4:?}");

    train(&workplace, "dora", &[NF4, "lora.use_dora=true"]);
    let dora = losses(&workplace, "dora");
    assert!(dora.last() < dora.first() && dora != nf4, "{dora:?}");

    let adapter = workplace.path("nf4/checkpoint-000004/adapter_model.safetensors");
    let expected = fs::read(&adapter).unwrap();
    fs::remove_dir_all(workplace.path("nf4/checkpoint-000004")).unwrap();
    train(&workplace, "nf4", &[NF4]);
    assert!(
        expected == fs::read(&adapter).unwrap(),
        "the resumed run differs"
    );

    let output = "train.output_dir=nf4";
    let other = ["train", "config.toml", "--set", NONE, "--set", output];
    let refused = workplace.run(other);
    assert_ne!(refused.status, Some(0));
    assert_contains(&refused.stderr, ["model.quantization"]);
}

/// Invariant: A folder in NF4 is trained with its own codes. The results have the bits of a run
/// with the dequantised values.
#[test]
fn the_codes_of_a_folder_give_the_results_of_its_values() {
    for dtype in ["f32", "bf16"] {
        let workplace = Workplace::with_losses("quantised", dtype);
        export_nf4(&workplace, dtype, "quantised");
        train(&workplace, "default", &[]);
        train(&workplace, "nf4", &[NF4]);
        train(&workplace, "none", &[NONE]);
        let [default, nf4, none] = ["default", "nf4", "none"].map(|run| metrics(&workplace, run));
        assert_eq!(default, nf4, "{dtype}");
        assert_eq!(default, none, "{dtype}");
        // The plain folder gets the same codes.
        let model = format!("model.model_name_or_path={}", tiny());
        train(&workplace, "plain", &[NF4, &model]);
        assert_eq!(metrics(&workplace, "plain"), nf4, "{dtype}");
    }
}

/// The loss of this name in the output of `verify`.
fn verified_loss(output: &str, name: &str) -> f64 {
    let start = format!("loss of {name}: ");
    let line = output.lines().find_map(|line| line.strip_prefix(&start));
    let loss = line.and_then(|line| line.split(' ').next());
    loss.unwrap_or_else(|| panic!("no {start} in {output}"))
        .parse()
        .unwrap()
}

/// Invariant: A merged model of a run with NF4 weights has the loss of the run, unless the original
/// weights are chosen.
#[test]
fn an_adapter_of_nf4_weights_is_merged_onto_either_base() {
    let workplace = Workplace::with_losses(&tiny(), "f32");
    train(&workplace, "run", &[NF4]);
    let trained = parse_lines(&metrics(&workplace, "run"));
    let trained = trained
        .iter()
        .rev()
        .find_map(|line| line["eval/loss"].as_f64());
    let trained = trained.unwrap();
    let export = |output: &str, more: &[&str]| {
        let arguments = ["export", "run", "--checkpoint", "last", "--to", "merged"];
        let output = ["--output", output];
        workplace.run(
            arguments
                .into_iter()
                .chain(output)
                .chain(more.iter().copied()),
        )
    };
    let verify = |export: &str| -> String {
        let arguments = ["verify", "run", "--checkpoint", "last", "--rows", "1000"];
        let against = ["--against", "merged", "--export", export];
        workplace
            .run(arguments.into_iter().chain(against))
            .success()
    };
    let bases = ["dequantised NF4 weights", "original weights"];
    for (output, more, base) in [
        ("default", &[][..], bases[0]),
        ("dequantised", &["--base", "dequantised"], bases[0]),
        ("original", &["--base", "original"], bases[1]),
    ] {
        let exported = export(output, more);
        assert_eq!(exported.status, Some(0), "{}", exported.stderr);
        assert_contains(
            &exported.stderr,
            [format!("merged onto the {base}").as_str()],
        );
        let card = workplace.read(&format!("{output}/README.md"));
        assert_contains(
            &card,
            [&format!("| merged onto | {base} |"), "NF4 with double"],
        );
        let printed = verify(output);
        assert_contains(&printed, [format!("on the {base}: ").as_str()]);
        let of_bases =
            bases.map(|base| verified_loss(&printed, &format!("the adapter on the {base}")));
        let merged = verified_loss(&printed, "the export");
        // Losses are printed with four decimals.
        let is_same = |a: f64, b: f64| (a - b).abs() < 1.5e-4;
        assert!(is_same(of_bases[0], trained), "{printed} {trained}");
        assert!(!is_same(of_bases[0], of_bases[1]), "{printed}");
        let own = of_bases[usize::from(base == bases[1])];
        assert!(is_same(merged, own), "{printed}");
    }
    let weight = "model.layers.0.mlp.down_proj.weight";
    let [default, original] = ["default", "original"].map(|output| {
        let weights = Weights::open(&workplace.path(output)).unwrap();
        weights.read_f32(weight).unwrap()
    });
    assert_ne!(default, original);

    // Merged and quantised again.
    assert_eq!(export("nf4", &["--dtype", "nf4"]).status, Some(0));
    let weights = Weights::open(&workplace.path("nf4")).unwrap();
    assert!(weights.n_nf4() > 0);
    let printed = verify("nf4");
    assert_contains(&printed, ["is rounded to 4 bits"]);
    let [merged, dequantised] = ["the export", "the adapter on the dequantised NF4 weights"]
        .map(|name| verified_loss(&printed, name));
    assert!((merged / dequantised - 1.0).abs() < 0.05, "{printed}");

    // Choices that do not exist.
    export_nf4(&workplace, "f32", "quantised");
    train(
        &workplace,
        "from-codes",
        &["model.model_name_or_path=quantised"],
    );
    train(&workplace, "plain", &[]);
    let onto = |run: &str, base: &str| {
        let arguments = [
            "export", run, "--to", "merged", "--output", "x", "--base", base,
        ];
        let refused = workplace.run(arguments);
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
        refused.stderr
    };
    assert_contains(
        &onto("from-codes", "original"),
        ["contains only NF4 weights"],
    );
    assert_contains(
        &onto("plain", "dequantised"),
        ["were trained with NF4 weights"],
    );
    let gguf = ["export", "run", "--to", "gguf", "--output", "x.gguf"];
    for more in [["--dtype", "nf4"], ["--base", "original"]] {
        let refused = workplace.run(gguf.into_iter().chain(more));
        assert_contains(&refused.stderr, ["only applies to --to merged"]);
    }
}

#[test]
fn an_adapter_export_names_the_nf4_weights_of_its_training() {
    let workplace = Workplace::with_losses(&tiny(), "bf16");
    train(&workplace, "run", &[NF4]);
    train(&workplace, "plain", &[NONE]);
    let export = |run: &str| {
        let exported = workplace.run([
            "export",
            run,
            "--to",
            "peft",
            "--output",
            &format!("{run}-peft"),
        ]);
        assert_eq!(exported.status, Some(0), "{}", exported.stderr);
        let card = workplace.read(&format!("{run}-peft/README.md"));
        (exported.stderr, card)
    };
    let (remarks, card) = export("run");
    assert_contains(
        &remarks,
        ["trained with NF4 weights", "--quantization bitsandbytes"],
    );
    assert_contains(
        &card,
        [
            "linear layers in NF4",
            "load_in_4bit=True",
            "bnb_4bit_compute_dtype=torch.bfloat16",
        ],
    );
    let config = workplace.read("run-peft/adapter_config.json");
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["base_model_name_or_path"], tiny());
    let (remarks, card) = export("plain");
    assert!(
        !remarks.contains("NF4") && !card.contains("4bit"),
        "{remarks} {card}"
    );
}

#[test]
fn generation_and_plans_know_the_quantisation() {
    let workplace = Workplace::with_losses(&tiny(), "f32");
    train(&workplace, "run", &[NF4]);
    workplace
        .run(["generate", "run", "--prompt", "Name a river."])
        .success();

    let plan = |set: &str, extra: &[&str]| -> Value {
        let arguments = ["plan", "config.toml", "--format", "json", "--set", set];
        let output = workplace.run(arguments.into_iter().chain(extra.iter().copied()));
        serde_json::from_str(&output.success()).unwrap()
    };
    for offline in [&["--offline"][..], &[]] {
        let [nf4, none] = [NF4, NONE].map(|set| plan(set, offline));
        assert_eq!(nf4["quantization"], "nf4");
        assert_eq!(none["quantization"], "none");
        let peak = |plan: &Value| plan["memory"]["peak_bytes"].as_u64().unwrap();
        assert!(peak(&nf4) < peak(&none), "{nf4} {none}");
    }
    let pissa = ["lora.init_weights=pissa", NF4].map(|set| ["--set", set]);
    let refused = workplace.run(["plan", "config.toml"].into_iter().chain(pissa.concat()));
    assert_contains(
        &refused.stderr,
        ["cannot be combined with `model.quantization"],
    );
}
