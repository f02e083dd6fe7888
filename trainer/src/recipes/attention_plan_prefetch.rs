//! Compiles the attention plans of a run's micro-batches in background threads, while weights load
//! and steps run.

use burn::tensor::Device;
use tooltune_kernels::{Causality, ComputeDtype};

use super::preparation::Training;
use crate::device::{PlanPrefetch, plan_attention};
use crate::models::layers::Mixer;

/// Starts compiling plans for all steps of the first epoch. Later epochs have hardly any new
/// shapes.
pub(super) fn begin(training: &Training, dtype: ComputeDtype, device: &Device) -> PlanPrefetch {
    if dtype != ComputeDtype::Bf16 {
        return PlanPrefetch::default();
    }
    let model = &training.base.config;
    let mut causalities = Vec::new();
    let attending = model.layers.iter();
    for layer in attending.filter(|layer| layer.mixer == Mixer::Attention) {
        let causality = layer.window.map_or(Causality::Causal, Causality::Sliding);
        if !causalities.contains(&causality) {
            causalities.push(causality);
        }
    }
    let heads = [
        model.num_attention_heads,
        model.num_key_value_heads,
        model.head_dim,
    ];
    let order = &training.order;
    let n_steps = (order.steps_in_epoch(0) as u64).min(training.total_steps) as usize;
    let micro_batches = (0..n_steps).flat_map(|step| order.step(0, step));
    let lengths = |ids: Vec<usize>| ids.into_iter().map(|id| order.length(id)).collect();
    plan_attention(device, heads, causalities, micro_batches.map(lengths))
}
