//! QLoRA: runs whose frozen linear layers are stored in NF4.

use std::fs;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tooltune_checkpoints::weights::{
    FloatDtype, HostTensor, NF4_TABLE, Nf4Absmax, Nf4Tensor, Weights,
};

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

/// Writes the tiny chat model to `folder` as bitsandbytes would save it after quantisation.
fn write_nf4_folder(folder: &Path) {
    let source = fixture("tiny_chat_model");
    fs::create_dir(folder).unwrap();
    for name in [
        "chat_template.jinja",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        fs::copy(source.join(name), folder.join(name)).unwrap();
    }
    let config = fs::read_to_string(source.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["quantization_config"] = json!({
        "quant_method": "bitsandbytes", "load_in_4bit": true, "load_in_8bit": false,
        "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": true,
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();

    let weights = Weights::open(&source).unwrap();
    let mut parts: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for name in weights.names() {
        let tensor = weights.read_f32(name).unwrap();
        if name.ends_with("_proj.weight") {
            parts.extend(nf4_parts(name, &tensor));
        } else {
            let shape = tensor.shape.clone();
            parts.push((name.to_owned(), Dtype::F32, shape, floats(&tensor.values)));
        }
    }
    let views = parts.iter().map(|(name, dtype, shape, bytes)| {
        let view = TensorView::new(*dtype, shape.clone(), bytes).unwrap();
        (name.clone(), view)
    });
    let file = safetensors::serialize(views, None).unwrap();
    fs::write(folder.join("model.safetensors"), file).unwrap();
}

fn floats(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

fn nf4_parts(name: &str, tensor: &HostTensor) -> Vec<(String, Dtype, Vec<usize>, Vec<u8>)> {
    let nf4 = Nf4Tensor::quantise(tensor, FloatDtype::F32, true).unwrap();
    let Nf4Absmax::Nested {
        codes,
        scales,
        offset,
        map,
    } = nf4.absmax
    else {
        panic!("nested absmax values");
    };
    let state = json!({
        "quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": nf4.shape,
        "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset,
    });
    let state = state.to_string().into_bytes();
    let part =
        |suffix: &str, dtype, n: usize, bytes| (format!("{name}{suffix}"), dtype, vec![n], bytes);
    let n_bytes = nf4.codes.len();
    vec![
        (name.to_owned(), Dtype::U8, vec![n_bytes, 1], nf4.codes),
        part(".absmax", Dtype::U8, codes.len(), codes),
        part(".quant_map", Dtype::F32, 16, floats(&NF4_TABLE)),
        part(".nested_absmax", Dtype::F32, scales.len(), floats(&scales)),
        part(".nested_quant_map", Dtype::F32, 256, floats(&map[..])),
        part(
            ".quant_state.bitsandbytes__nf4",
            Dtype::U8,
            state.len(),
            state,
        ),
    ]
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
        write_nf4_folder(&workplace.path("quantised"));
        train(&workplace, "default", &[]);
        train(&workplace, "nf4", &[NF4]);
        train(&workplace, "none", &[NONE]);
        let [default, nf4, none] = ["default", "nf4", "none"].map(|run| metrics(&workplace, run));
        assert_eq!(default, nf4, "{dtype}");
        assert_eq!(default, none, "{dtype}");
        if dtype == "f32" {
            // The plain folder gets the same codes.
            let model = format!("model.model_name_or_path={}", tiny());
            train(&workplace, "plain", &[NF4, &model]);
            assert_eq!(metrics(&workplace, "plain"), nf4);
        }
    }
}

#[test]
fn exports_evaluations_and_plans_know_the_quantisation() {
    let workplace = Workplace::with_losses(&tiny(), "f32");
    train(&workplace, "run", &[NF4]);
    let merged = ["export", "run", "--to", "merged", "--output", "merged"];
    let merged = workplace.run(merged);
    assert_contains(&merged.stderr, ["merged onto the original weights", "NF4"]);
    assert_eq!(merged.status, Some(0), "{}", merged.stderr);
    workplace
        .run(["verify", "run", "--against", "merged", "--export", "merged"])
        .success();
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
