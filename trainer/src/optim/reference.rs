//! The same gradient by plain autodiff through the whole model and all logits at once.
//!
//! Slow and large; kept for ever as what [`super::backward`] is compared with.

use burn::tensor::Tensor;
use tooltune_data::batches::MicroBatch;
use tooltune_kernels::Supervision;
use tooltune_kernels::linear_cross_entropy::reference::linear_cross_entropy;

use super::backward::{BackwardOptions, MicroBatchGradient, StepError, leaf};
use crate::lora::AdapterSlot;
use crate::models::{BatchContext, Decoder};

/// The contract is [`super::backward::backward`]'s; memory options are ignored.
///
/// # Errors
///
/// A factor without a gradient.
pub fn backward(
    decoder: &Decoder,
    slots: &[AdapterSlot],
    batch: &MicroBatch,
    options: BackwardOptions,
) -> Result<MicroBatchGradient, StepError> {
    let device = decoder.device();
    let supervision = Supervision::new(&batch.targets, &batch.loss_weights);
    let context = BatchContext::new(
        &decoder.config,
        &batch.position_ids,
        &batch.cu_seqlens,
        &device,
    );
    let mut tracked = decoder.clone();
    for slot in slots {
        let projection = &mut tracked.blocks[slot.layer].projections[slot.projection];
        if let Some(adapter) = projection.adapter.as_mut() {
            adapter.a = leaf(adapter.a.clone());
            adapter.b = leaf(adapter.b.clone());
        }
    }
    let mut x = tracked.embed(&batch.input_ids);
    for (layer, block) in tracked.blocks.iter().enumerate() {
        x = block.forward(x, &context, options.dropout.map(|key| key.layer(layer)));
    }
    let hidden = tracked
        .final_norm(x)
        .select(0, supervision.row_indices(&device));
    let loss = linear_cross_entropy(hidden, &tracked.lm_head, &supervision);
    let loss_sum = f64::from(loss.clone().into_scalar::<f32>());
    let mut gradients = loss.mul_scalar(options.gradient_scale).backward();
    let mut parts = Vec::with_capacity(2 * slots.len());
    for slot in slots {
        let adapter = tracked.blocks[slot.layer].projections[slot.projection]
            .adapter
            .as_ref();
        let missing = || StepError::NoGradient {
            module: slot.module.clone(),
        };
        let adapter = adapter.ok_or_else(missing)?;
        for factor in [&adapter.a, &adapter.b] {
            let gradient = factor.grad_remove(&mut gradients).ok_or_else(missing)?;
            let n = gradient.dims().iter().product::<usize>();
            parts.push(gradient.reshape([n]));
        }
    }
    Ok(MicroBatchGradient {
        loss_sum,
        gradient: Tensor::cat(parts, 0),
    })
}
