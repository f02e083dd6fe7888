//! Computes the gradient of [`super::backward`] with plain autodiff through the whole model and all
//! logits.
//!
//! It is slow and needs much memory; tests use it as the reference.

use burn::tensor::{DType, Int, Tensor, TensorData, activation};
use tooltune_kernels::linear_cross_entropy::reference::linear_cross_entropy;
use tooltune_kernels::select_rows;
use tooltune_kernels::{Distillation, Supervision};
use tooltune_rows::batches::MicroBatch;

use super::backward::{BackwardOptions, MicroBatchGradient, StepError, leaf, without_adapters};
use crate::models::{BatchContext, Decoder};

/// Like [`super::backward::backward`], but ignores the memory options.
///
/// # Errors
///
/// A factor has no gradient.
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
        *adapter = adapter.tracked(leaf);
    }
    let rows = supervision.row_numbers();
    let mut x = tracked.embed(&batch.input_ids);
    let embedding = decoder.trained.embed_tokens.clone().map(leaf);
    if let Some(embedding) = &embedding {
        let ids: Vec<i32> = batch.input_ids.iter().map(|&id| id as i32).collect();
        let ids =
            Tensor::<1, Int>::from_data(TensorData::new(ids, [batch.input_ids.len()]), &device);
        let embedded = embedding.clone().select(0, Tensor::from_inner(ids));
        x = embedded.mul_scalar(decoder.embedding_multiplier());
    }
    if let Some(noise) = options.noise {
        x = noise.add_to(x, &batch.cu_seqlens);
    }
    for (layer, block) in tracked.blocks.iter().enumerate() {
        let dropout = options.dropout.map(|key| key.layer(layer));
        // Dropout masks of the last block depend on row numbers, so the supervised rows must be
        // selected at the same operation as in `super::backward`.
        x = match dropout {
            Some(_) if layer + 1 == tracked.blocks.len() => {
                block.forward_rows(x, &context, dropout, &rows)
            }
            _ => block.forward(x, &context, dropout),
        };
    }
    if options.dropout.is_none() {
        x = select_rows::reference::select_rows(x, &rows);
    }
    let hidden = tracked.final_norm(x).cast(DType::F32);
    let trained_head = decoder.trained.lm_head.clone().map(leaf);
    let head = tracked.lm_head.to_tensor();
    let head_weight = trained_head.as_ref().unwrap_or(&head);
    let mut loss = linear_cross_entropy(hidden.clone(), head_weight, &supervision);
    if let Some(how) = options.distillation {
        let teacher = without_adapters(decoder).forward(&batch.input_ids, &context);
        let teacher = select_rows::reference::select_rows(teacher, &rows).cast(DType::F32);
        let divergence = divergence(
            hidden,
            Tensor::from_inner(teacher),
            &head,
            how,
            &supervision,
        );
        loss = loss
            .mul_scalar(1.0 - how.alpha)
            .add(divergence.mul_scalar(how.alpha));
    }
    let loss_sum = f64::from(loss.clone().into_scalar::<f32>());
    let mut gradients = loss.mul_scalar(options.gradient_scale).backward();
    let mut parts = Vec::new();
    for (layer, block) in tracked.blocks.iter().enumerate() {
        for adapter in block
            .stacks
            .iter()
            .filter_map(|stack| stack.adapter.as_ref())
        {
            for trained in adapter.trained() {
                let gradient = trained.grad_remove(&mut gradients);
                parts.push(gradient.ok_or(StepError::NoGradient { layer })?);
            }
        }
    }
    for table in trained_head.iter().chain(&embedding) {
        let gradient = table.grad_remove(&mut gradients);
        let gradient = gradient.expect("the loss depends on head and embedding");
        parts.push(gradient.flatten(0, 1));
    }
    Ok(MicroBatchGradient {
        loss_sum,
        gradient: Tensor::cat(parts, 0),
    })
}

/// Weighted sum of `t² KL(teacher ‖ student)`, `[1]`, over all logits at once.
fn divergence(
    student: Tensor<2>,
    teacher: Tensor<2>,
    head: &Tensor<2>,
    how: Distillation,
    supervision: &Supervision,
) -> Tensor<1> {
    let soft = |hidden: Tensor<2>| {
        let logits = hidden.matmul(Tensor::from_inner(head.clone()).transpose());
        activation::log_softmax(logits.div_scalar(how.temperature), 1)
    };
    let (student, teacher) = (soft(student), soft(teacher));
    let n = supervision.weights.len();
    let weights = TensorData::new(supervision.weights.clone(), [n, 1]);
    let weights = Tensor::from_inner(Tensor::<2>::from_data(weights, &head.device()));
    teacher
        .clone()
        .exp()
        .mul(teacher.sub(student))
        .sum_dim(1)
        .mul(weights)
        .sum()
        .mul_scalar(how.temperature * how.temperature)
}
