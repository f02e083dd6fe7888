//! The same gradient by plain autodiff through the whole model and all logits at once.
//!
//! Slow and large; kept for ever as what [`super::backward`] is compared with.

use burn::tensor::{DType, Tensor};
use tooltune_data::batches::MicroBatch;
use tooltune_kernels::Supervision;
use tooltune_kernels::linear_cross_entropy::reference::linear_cross_entropy;

use super::backward::{BackwardOptions, MicroBatchGradient, StepError, leaf};
use crate::models::{BatchContext, Decoder};

/// The contract is [`super::backward::backward`]'s; memory options are ignored.
///
/// # Errors
///
/// A factor without a gradient.
pub fn backward(
    decoder: &Decoder,
    batch: &MicroBatch,
    options: BackwardOptions,
) -> Result<MicroBatchGradient, StepError> {
    let device = decoder.device();
    let supervision = Supervision::new(&batch.targets, &batch.loss_weights);
    let context = BatchContext::new(decoder, &batch.position_ids, &batch.cu_seqlens);
    let mut tracked = decoder.clone();
    let blocks = tracked.blocks.iter_mut();
    for adapter in blocks
        .flat_map(|block| &mut block.stacks)
        .filter_map(|s| s.adapter.as_mut())
    {
        *adapter = adapter.map(leaf);
    }
    let mut x = tracked.embed(&batch.input_ids);
    for (layer, block) in tracked.blocks.iter().enumerate() {
        x = block.forward(x, &context, options.dropout.map(|key| key.layer(layer)));
    }
    let hidden = tracked
        .final_norm(x)
        .select(0, supervision.row_indices(&device))
        .cast(DType::F32);
    let loss = linear_cross_entropy(hidden, &tracked.lm_head.to_tensor(), &supervision);
    let loss_sum = f64::from(loss.clone().into_scalar::<f32>());
    let mut gradients = loss.mul_scalar(options.gradient_scale).backward();
    let mut parts = Vec::new();
    for (layer, block) in tracked.blocks.iter().enumerate() {
        for adapter in block
            .stacks
            .iter()
            .filter_map(|stack| stack.adapter.as_ref())
        {
            let gradient = adapter.factors.grad_remove(&mut gradients);
            parts.push(gradient.ok_or(StepError::NoGradient { layer })?);
        }
    }
    Ok(MicroBatchGradient {
        loss_sum,
        gradient: Tensor::cat(parts, 0),
    })
}
