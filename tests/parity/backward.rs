//! Gradients: the block-wise pass compared with plain autodiff, and both with PyTorch and PEFT.

use tooltune::lora::AdapterSlot;
use tooltune::models::families::SEPARATE;
use tooltune::optim::{BackwardOptions, EmbeddingNoise, backward, reference};
use tooltune_kernels::Distillation;
use tooltune_kernels::{DropoutKey, DropoutRate};
use tooltune_rows::batches::MicroBatch;

use crate::support::bounds::Quantity;
use crate::support::{
    Tensors, attach_adapter, fixture, load_base, micro_batch, relative_difference,
};

/// Options of a step without dropout, noise or distillation.
pub(crate) fn options(batch: &MicroBatch) -> BackwardOptions {
    BackwardOptions {
        gradient_scale: 1.0 / batch.sum_loss_weights(),
        dropout: None,
        noise: None,
        n_kept_blocks: 0,
        offloads_inputs: false,
        chunk_rows: 128,
        distillation: None,
    }
}

fn batch() -> MicroBatch {
    batch_of("llama31")
}

fn batch_of(model: &str) -> MicroBatch {
    let batches = fixture(&format!("models/{model}/lora/batches.safetensors"));
    micro_batch(&Tensors::open(&batches), "step01")
}

/// Invariant: Gradients and twenty training steps match PEFT and PyTorch.
#[test]
fn every_gradient_agrees_with_peft() {
    check_gradients("llama31");
}

/// Compares every gradient of a family's first step with PEFT's.
pub(crate) fn check_gradients(model: &str) {
    let folder = fixture(&format!("models/{model}/lora"));
    let mut decoder = load_base(&fixture(&format!("models/{model}")));
    let adapters = attach_adapter(&mut decoder, &folder.join("adapter"));
    let batch = batch_of(model);
    let ours = backward::backward(&decoder, &adapters.slots, &batch, options(&batch)).unwrap();
    let values: Vec<f32> = ours.gradient.into_data().iter::<f32>().collect();
    let expected = Tensors::open(&folder.join("gradients.safetensors"));
    let mut n_compared = 0;
    for (name, shape, range) in adapters.slots.iter().flat_map(|slot| slot.tensors()) {
        let key = format!("base_model.model.{name}");
        assert_eq!(expected.shape(&key), shape, "{name}");
        let difference = relative_difference(&values[range], &expected.floats(&key));
        assert!(
            difference < Quantity::Gradient.bound(),
            "{model}, {name}: {difference}"
        );
        n_compared += 1;
    }
    assert_eq!(n_compared, expected.names().len());
}

/// Invariant: The block-wise backward pass equals plain autodiff.
#[test]
fn block_wise_backward_equals_plain_autodiff() {
    check_pieces("llama31");
}

/// Compares the gradients of a family with plain autodiff, with and without kept layers, dropout
/// and a teacher.
pub(crate) fn check_pieces(model: &str) {
    let folder = fixture(&format!("models/{model}/lora"));
    let mut decoder = load_base(&fixture(&format!("models/{model}")));
    let adapters = attach_adapter(&mut decoder, &folder.join("adapter"));
    let batch = batch_of(model);
    let rate = DropoutRate::new(0.1).unwrap();
    let teacher = Distillation {
        alpha: 0.4,
        temperature: 2.0,
    };
    let dropout = Some(DropoutKey::new(rate, 3, 1, 0));
    let noise = Some(EmbeddingNoise::new(5.0, 3, 1, 0));
    for (dropout, distillation, noise) in [
        (None, None, None),
        (dropout, None, None),
        (dropout, Some(teacher), noise),
        (None, None, noise),
    ] {
        let options = BackwardOptions {
            dropout,
            distillation,
            noise,
            ..options(&batch)
        };
        let plain = reference::backward(&decoder, &batch, options).unwrap();
        let expected: Vec<f32> = plain.gradient.into_data().iter::<f32>().collect();
        for (n_kept_blocks, chunk_rows) in [(0, 128), (1, 7), (2, 1), (9, 1000)] {
            let options = BackwardOptions {
                n_kept_blocks,
                // Without a CUDA GPU, the inputs stay where they are.
                offloads_inputs: chunk_rows == 7,
                chunk_rows,
                ..options
            };
            let ours = backward::backward(&decoder, &adapters.slots, &batch, options).unwrap();
            let loss_difference = (ours.loss_sum - plain.loss_sum).abs() / plain.loss_sum;
            assert!(
                loss_difference < Quantity::OtherPieces.bound(),
                "{model} {n_kept_blocks} {chunk_rows}: {loss_difference}"
            );
            let values: Vec<f32> = ours.gradient.into_data().iter::<f32>().collect();
            let difference = relative_difference(&values, &expected);
            assert!(
                difference < Quantity::OtherPieces.bound(),
                "{model} {n_kept_blocks} {chunk_rows}: {difference}"
            );
        }
    }
}

#[test]
fn blocks_below_the_first_adapter_do_not_change_gradients() {
    let batch = batch();
    // The first layer with adapters, and its first stack with one.
    for first in [(0, 1), (0, 3), (1, 0), (1, 2)] {
        let mut decoder = load_base(&fixture("models/llama31"));
        let adapters = attach_adapter(&mut decoder, &fixture("models/llama31/lora/adapter"));
        for (layer, block) in decoder.blocks.iter_mut().enumerate() {
            for (stack, linear) in block.stacks.iter_mut().enumerate() {
                if (layer, stack) < first {
                    linear.adapter = None;
                }
            }
        }
        let slots = adapters.slots.into_iter();
        let slots: Vec<AdapterSlot> = slots
            .filter(|slot| {
                (slot.layer, slot.projection) >= (first.0, SEPARATE.stacks[first.1].start)
            })
            .collect();
        let plain = reference::backward(&decoder, &batch, options(&batch)).unwrap();
        let expected: Vec<f32> = plain.gradient.into_data().iter::<f32>().collect();
        for n_kept_blocks in 0..=2 {
            let options = BackwardOptions {
                n_kept_blocks,
                ..options(&batch)
            };
            let ours = backward::backward(&decoder, &slots, &batch, options).unwrap();
            let values: Vec<f32> = ours.gradient.into_data().iter::<f32>().collect();
            let difference = relative_difference(&values, &expected);
            assert!(
                difference < Quantity::OtherPieces.bound(),
                "{first:?} {n_kept_blocks}: {difference}"
            );
        }
    }
}

/// Invariant: A step is the same step however it is split into micro-batches.
#[test]
fn eight_micro_batches_of_one_equal_one_of_eight() {
    let mut decoder = load_base(&fixture("models/llama31"));
    let adapters = attach_adapter(&mut decoder, &fixture("models/llama31/lora/adapter"));
    let file = Tensors::open(&fixture("models/llama31/lora/batches.safetensors"));
    let rows: Vec<MicroBatch> = ["step01", "step02", "step03"]
        .iter()
        .map(|step| micro_batch(&file, step))
        .collect();
    let merged = merge(&rows);
    let scale = 1.0 / merged.sum_loss_weights();
    let gradient = |batch: &MicroBatch| {
        let options = BackwardOptions {
            gradient_scale: scale,
            ..options(batch)
        };
        let result = backward::backward(&decoder, &adapters.slots, batch, options).unwrap();
        result
            .gradient
            .into_data()
            .iter::<f32>()
            .collect::<Vec<f32>>()
    };
    let mut summed = vec![0.0f32; adapters.n_parameters()];
    for row in &rows {
        summed
            .iter_mut()
            .zip(gradient(row))
            .for_each(|(sum, value)| *sum += value);
    }
    let difference = relative_difference(&summed, &gradient(&merged));
    assert!(difference < Quantity::OtherPieces.bound(), "{difference}");
}

fn merge(batches: &[MicroBatch]) -> MicroBatch {
    let mut merged = MicroBatch {
        cu_seqlens: vec![0],
        ..MicroBatch::default()
    };
    for batch in batches {
        let start = merged.input_ids.len();
        merged.input_ids.extend(&batch.input_ids);
        merged.position_ids.extend(&batch.position_ids);
        merged.targets.extend(&batch.targets);
        merged.loss_weights.extend(&batch.loss_weights);
        merged
            .cu_seqlens
            .extend(batch.cu_seqlens[1..].iter().map(|border| border + start));
        merged.example_ids.extend(batch.example_ids.iter().cloned());
    }
    merged
}
