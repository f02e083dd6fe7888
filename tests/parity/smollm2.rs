//! The real SmolLM2-135M from its GGUF file, compared with transformers and PEFT.

use burn::tensor::DType;
use serde_json::Value;
use tooltune::config::LoraConfig;
use tooltune::eval::generate::{GenerationOptions, generate};
use tooltune::lora::Adapters;
use tooltune::lora::LoraLayout as _;
use tooltune::models::load::Projections;
use tooltune::models::{BatchContext, Decoder};
use tooltune_kernels::ComputeDtype;

use super::peft::{replay, replay_within};
use crate::support::bounds::Quantity;
use crate::support::{
    Tensors, fixture, load_base, load_base_with, model, relative_difference, test_device,
};

const GGUF: &str = "smollm2-135m-instruct.gguf";

#[test]
fn logits_and_greedy_tokens_agree_with_transformers() {
    let decoder = load_base(&model(GGUF));
    let expected = Tensors::open(&fixture("smollm2/forward.safetensors"));
    let ids = expected.ids("input_ids");
    let positions: Vec<u32> = (0..ids.len() as u32).collect();
    let context = BatchContext::new(&decoder, &positions, &[0, ids.len()]);
    let logits = decoder.logits(decoder.forward(&ids, &context));
    let values: Vec<f32> = logits.into_data().iter::<f32>().collect();
    let vocab_size = decoder.config.vocab_size;
    let last = &values[values.len() - vocab_size..];
    // The fixture's f32 logits differ from its f64 logits by up to 1e-4. Our logits may be near
    // either of them, so the smaller difference is used.
    let nearest = |ours: &[f32], name: &str| {
        let f32_side = expected.floats(name);
        let f64_side = expected.floats(&format!("f64.{name}"));
        let distances = ours.iter().zip(f32_side.iter().zip(&f64_side));
        let nearest = distances.map(|(o, (a, b))| (o - a).abs().min((o - b).abs()));
        f64::from(nearest.fold(0.0f32, f32::max))
    };
    let worst = nearest(last, "logits_last");
    assert!(worst < Quantity::Logits.bound(), "last position: {worst}");
    let sampled: Vec<f32> = values.iter().copied().step_by(64).collect();
    let worst = nearest(&sampled, "logits_every_64th");
    assert!(
        worst < Quantity::Logits.bound(),
        "every 64th column: {worst}"
    );

    let greedy: Value =
        serde_json::from_slice(&std::fs::read(fixture("smollm2/greedy.json")).unwrap()).unwrap();
    let ids_of = |value: &Value| -> Vec<u32> {
        value
            .as_array()
            .unwrap()
            .iter()
            .map(|id| id.as_u64().unwrap() as u32)
            .collect()
    };
    let rows = greedy.as_array().unwrap();
    let prompts: Vec<Vec<u32>> = rows.iter().map(|row| ids_of(&row["input_ids"])).collect();
    let options = GenerationOptions::greedy(32, 3, vec![]);
    let generations = generate(&decoder, &prompts, &options, &mut |_| true).unwrap();
    let generations = generations.unwrap();
    for (row, generation) in rows.iter().zip(&generations) {
        assert_eq!(generation.ids, ids_of(&row["new_ids"]), "{}", row["prompt"]);
    }
}

/// Values of an initial A; `scripts/fixtures/smollm2.py` documents the formula.
fn initial_factor(tensor_number: u64, in_features: usize, count: usize) -> Vec<f32> {
    let start = 20_240_607u64
        .wrapping_add(tensor_number << 32)
        .wrapping_add(0x9E37_79B9_7F4A_7C15);
    (0..count as u64)
        .map(|i| {
            let z = start.wrapping_add(i);
            let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            let uniform = ((z ^ (z >> 31)) >> 40) as f64 / f64::from(1u32 << 24);
            ((uniform * 2.0 - 1.0) / (in_features as f64).sqrt()) as f32
        })
        .collect()
}

/// The adapters that the fixture starts with, attached.
fn initial_adapters(decoder: &mut Decoder) -> Adapters {
    let spec = LoraConfig {
        r: 8,
        lora_alpha: 16.0,
        lora_dropout: 0.0,
        ..LoraConfig::default()
    };
    let slots = spec.slots(&decoder.config).unwrap();
    let mut adapters = Adapters::new(slots, 0, &test_device());
    let mut tensors = adapters.to_tensors();
    let factors = tensors
        .iter_mut()
        .filter(|(name, _)| name.ends_with("lora_A.weight"));
    for (number, (_, tensor)) in factors.enumerate() {
        let in_features = tensor.shape[1];
        tensor.values = initial_factor(number as u64, in_features, tensor.values.len());
    }
    adapters = Adapters::from_tensors(adapters.slots, &tensors, &test_device());
    adapters.attach(decoder);
    adapters
}

/// Invariant: Training in bf16 follows the losses of f32.
#[test]
#[allow(
    clippy::print_stdout,
    reason = "a reader of the test wants to see how close the losses are"
)]
fn bf16_losses_of_twenty_steps_stay_near_f32_losses() {
    let mut decoder = load_base_with(ComputeDtype::Bf16, Projections::AsIs, &model(GGUF));
    let mut adapters = initial_adapters(&mut decoder);
    let losses = replay(
        &mut decoder,
        &mut adapters,
        &fixture("smollm2/sft_steps.json"),
        &fixture("smollm2/sft_batches.safetensors"),
    );
    // PEFT's losses replace our f32 losses, because the next test shows that they agree.
    let shares = losses
        .iter()
        .map(|(ours, f32_loss)| (ours - f32_loss).abs() / f32_loss);
    let worst = shares.fold(0.0, f64::max);
    let sum = |pick: fn(&(f64, f64)) -> f64| losses.iter().map(pick).sum::<f64>();
    let mean = (sum(|l| l.0) / sum(|l| l.1) - 1.0).abs();
    println!(
        "parity: bf16 differs from f32 by at most {:.2} %, in the mean by {:.2} %",
        100.0 * worst,
        100.0 * mean
    );
    assert!(
        mean < Quantity::MeanLossShare.bound_in(DType::BF16),
        "{losses:?}"
    );
    assert!(
        worst < Quantity::StepLossShare.bound_in(DType::BF16),
        "{losses:?}"
    );
}

/// Invariant: Twenty steps of QLoRA match PEFT and bitsandbytes.
#[test]
#[allow(
    clippy::print_stdout,
    reason = "a reader of the test wants to see how close the losses are"
)]
fn qlora_losses_agree_with_peft_and_bitsandbytes() {
    let mut decoder = load_base_with(ComputeDtype::F32, Projections::Nf4, &model(GGUF));
    let mut adapters = initial_adapters(&mut decoder);
    let losses = replay_within(
        // Not the bounds of f32: bitsandbytes' CPU kernel rounds an absmax before it looks for the
        // nearest code, so a few codes of absmax values differ by one.
        DType::BF16,
        &mut decoder,
        &mut adapters,
        &fixture("smollm2_nf4/sft_steps.json"),
        &fixture("smollm2/sft_batches.safetensors"),
    );
    let shares = losses
        .iter()
        .map(|(ours, theirs)| (ours / theirs - 1.0).abs());
    let worst = shares.fold(0.0, f64::max);
    println!(
        "parity: QLoRA differs from PEFT by at most {:.3} %",
        100.0 * worst
    );
    let bound = Quantity::QuantisedStepLossShare.bound();
    assert!(worst < bound, "{losses:?}");
}

/// Invariant: Gradients and twenty training steps match PEFT and PyTorch.
#[test]
fn twenty_steps_agree_with_peft() {
    let mut decoder = load_base(&model(GGUF));
    let mut adapters = initial_adapters(&mut decoder);
    let steps = fixture("smollm2/sft_steps.json");
    replay(
        &mut decoder,
        &mut adapters,
        &steps,
        &fixture("smollm2/sft_batches.safetensors"),
    );

    let finals = adapters.to_tensors();
    let expected_tensors = Tensors::open(&fixture("smollm2/sft_final.safetensors"));
    for key in expected_tensors.names() {
        let name = key.strip_prefix("base_model.model.").unwrap();
        let difference = relative_difference(&finals[name].values, &expected_tensors.floats(&key));
        assert!(
            difference < Quantity::TrainedAdapter.bound(),
            "{name}: {difference}"
        );
    }
    let log: Value = serde_json::from_slice(&std::fs::read(&steps).unwrap()).unwrap();
    let norms = log["final_norms"].as_object().unwrap();
    assert_eq!(norms.len(), finals.len());
    for (key, expected) in norms {
        let name = key.strip_prefix("base_model.model.").unwrap();
        let ours = finals[name]
            .values
            .iter()
            .map(|v| f64::from(*v).powi(2))
            .sum::<f64>()
            .sqrt();
        let theirs = expected["norm"].as_f64().unwrap();
        assert!(
            (ours - theirs).abs() / theirs < Quantity::TrainedAdapter.bound(),
            "{name}: {ours} {theirs}"
        );
    }
}
