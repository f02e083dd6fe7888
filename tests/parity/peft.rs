//! Replays recorded optimizer steps of PEFT with PyTorch's AdamW.

use std::path::Path;

use burn::tensor::DType;

use serde_json::Value;
use tooltune::lora::Adapters;
use tooltune::models::Decoder;
use tooltune::optim::{Optimizer, StepOutcome, backward};
use tooltune_kernels::AdamW;

use super::backward::options;
use crate::support::bounds::Quantity;
use crate::support::{
    Tensors, attach_adapter, fixture, load_base, micro_batch, relative_difference,
};

/// Replays the steps of `steps.json`, compares each loss and gradient norm, and returns our loss
/// and PEFT's loss of each step.
pub(crate) fn replay(
    decoder: &mut Decoder,
    adapters: &mut Adapters,
    steps: &Path,
    batches: &Path,
) -> Vec<(f64, f64)> {
    let dtype = decoder.compute_dtype().dtype();
    replay_within(dtype, decoder, adapters, steps, batches)
}

/// [`replay`] with the tolerances of `dtype`.
pub(crate) fn replay_within(
    dtype: DType,
    decoder: &mut Decoder,
    adapters: &mut Adapters,
    steps: &Path,
    batches: &Path,
) -> Vec<(f64, f64)> {
    let log: Value = serde_json::from_slice(&std::fs::read(steps).unwrap()).unwrap();
    let batches = Tensors::open(batches);
    let adamw = AdamW {
        beta1: log["betas"][0].as_f64().unwrap(),
        beta2: log["betas"][1].as_f64().unwrap(),
        eps: log["eps"].as_f64().unwrap(),
        weight_decay: log["weight_decay"].as_f64().unwrap(),
    };
    let max_grad_norm = log["max_grad_norm"].as_f64().unwrap();
    let mut optimizer = Optimizer::new(adamw, max_grad_norm, &adapters.flat);
    let ratio = log["loraplus_lr_ratio"].as_f64();
    optimizer.rate_scales = ratio.map(|ratio| adapters.rate_scales(ratio));
    let expected = log["steps"].as_array().unwrap();
    let mut losses = Vec::with_capacity(expected.len());
    for (i, row) in expected.iter().enumerate() {
        let batch = micro_batch(&batches, &format!("step{:02}", i + 1));
        let options = options(&batch);
        let result = backward::backward(decoder, &adapters.slots, &batch, options).unwrap();
        let loss = result.loss_sum * options.gradient_scale;
        let outcome = optimizer.step(
            &mut adapters.flat,
            result.gradient,
            loss,
            row["lr"].as_f64().unwrap(),
        );
        adapters.attach(decoder);
        let StepOutcome::Updated { grad_norm } = outcome else {
            panic!("{outcome:?}")
        };
        let (their_loss, their_norm) = (
            row["loss"].as_f64().unwrap(),
            row["grad_norm"].as_f64().unwrap(),
        );
        assert!(
            (loss - their_loss).abs() < Quantity::StepLoss.bound_in(dtype),
            "step {}: {loss} {their_loss}",
            i + 1
        );
        let norm_difference = (grad_norm - their_norm).abs() / their_norm;
        assert!(
            norm_difference < Quantity::StepNorm.bound_in(dtype),
            "step {}: {grad_norm} {their_norm}",
            i + 1
        );
        losses.push((loss, their_loss));
    }
    losses
}

#[test]
fn twenty_steps_on_a_tiny_model_agree_with_peft() {
    let plain = check_steps("llama31", 20);
    let with_ratio = StepFiles {
        steps: "loraplus_steps.json",
        result: "loraplus_final.safetensors",
    };
    let faster = trained_as_peft("llama31", &with_ratio, 20);
    assert!(
        relative_difference(&plain, &faster) > 0.01,
        "LoRA+ changes nothing"
    );
}

/// Compares losses, norms and the trained adapter after `n_steps` steps.
pub(crate) fn check_steps(model: &str, n_steps: usize) -> Vec<f32> {
    let plain = StepFiles {
        steps: "steps.json",
        result: "final.safetensors",
    };
    trained_as_peft(model, &plain, n_steps)
}

/// Names of the files with PEFT's steps and with the trained adapter.
struct StepFiles {
    steps: &'static str,
    result: &'static str,
}

/// Trains the recorded steps, compares the results with PEFT's, and returns our adapter.
fn trained_as_peft(model: &str, files: &StepFiles, n_steps: usize) -> Vec<f32> {
    let StepFiles { steps, result } = files;
    let folder = fixture(&format!("models/{model}/lora"));
    let mut decoder = load_base(&fixture(&format!("models/{model}")));
    let mut adapters = attach_adapter(&mut decoder, &folder.join("adapter"));
    let before = adapters.to_values();
    let losses = replay(
        &mut decoder,
        &mut adapters,
        &folder.join(steps),
        &folder.join("batches.safetensors"),
    );
    assert_eq!(losses.len(), n_steps);
    let expected = Tensors::open(&folder.join(result));
    for (name, tensor) in adapters.to_tensors() {
        let theirs = expected.floats(&format!("base_model.model.{name}"));
        let difference = relative_difference(&tensor.values, &theirs);
        assert!(
            difference < Quantity::TrainedAdapter.bound(),
            "{model}, {steps}, {name}: {difference}"
        );
    }
    let after = adapters.to_values();
    assert!(
        relative_difference(&after, &before) > 0.01,
        "{model}: training did not change the adapter"
    );
    after
}
