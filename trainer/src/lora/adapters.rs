//! All trainable parameters as one flat buffer, and their places in it.
//!
//! The optimizer, the norm and the checkpoint see one vector; the decoder sees factors cut from
//! it. Order: by layer, then as the projections of a block, A before B.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};
use tooltune_checkpoints::weights::HostTensor;
use tooltune_kernels::{AdapterLayout, AdapterPart, StackedAdapter};
use tooltune_rows::batches::SeededRandom;

use crate::models::Decoder;

/// One adapted projection and its place in the flat buffer.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterSlot {
    /// Block number.
    pub layer: usize,
    /// Its place among the [projections](crate::models::families::Projections) of its block.
    pub projection: usize,
    /// The stack of projections that holds it.
    pub stack: usize,
    /// Path as in Hugging Face checkpoints: `model.layers.0.self_attn.q_proj`.
    pub module: String,
    /// Rank of this module.
    pub rank: usize,
    /// Input features.
    pub in_features: usize,
    /// Output features.
    pub out_features: usize,
    /// Multiplier of `B A`.
    pub scaling: f64,
    /// First element in the flat buffer: A `[rank, in]`, then B `[out, rank]`.
    pub offset: usize,
}

impl AdapterSlot {
    /// Elements of both factors.
    pub fn len(&self) -> usize {
        self.rank * (self.in_features + self.out_features)
    }

    /// Never: a rank is at least 1.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn a_len(&self) -> usize {
        self.rank * self.in_features
    }

    /// Tensor names as in a PEFT checkpoint, less its prefix, with their shapes and ranges.
    pub fn tensors(&self) -> [(String, Vec<usize>, std::ops::Range<usize>); 2] {
        let middle = self.offset + self.a_len();
        [
            (
                format!("{}.lora_A.weight", self.module),
                vec![self.rank, self.in_features],
                self.offset..middle,
            ),
            (
                format!("{}.lora_B.weight", self.module),
                vec![self.out_features, self.rank],
                middle..self.offset + self.len(),
            ),
        ]
    }
}

/// The trainable parameters of a run.
#[derive(Debug, Clone)]
pub struct Adapters {
    /// Where each factor lies.
    pub slots: Vec<AdapterSlot>,
    /// All factors, `[p]`, f32, without autodiff.
    pub flat: Tensor<1>,
}

impl Adapters {
    /// A fresh adapter: A uniform in `±1/√in`, B zero, so that the model starts as its base.
    ///
    /// # Source
    ///
    /// `LoraLayer.reset_lora_parameters`, peft 0.21: `kaiming_uniform_(A, a=√5)`, whose bound is
    /// `√(6 / ((1 + 5) in))`.
    pub fn new(slots: Vec<AdapterSlot>, seed: u64, device: &Device) -> Self {
        let mut values = Vec::new();
        for (i, slot) in slots.iter().enumerate() {
            let mut random = SeededRandom::new(seed, ADAPTER_INIT_STREAM + i as u64);
            let bound = 1.0 / (slot.in_features as f64).sqrt();
            values.extend(
                (0..slot.a_len()).map(|_| ((random.uniform_f64() * 2.0 - 1.0) * bound) as f32),
            );
            values.resize(slot.offset + slot.len(), 0.0);
        }
        Self::from_values(slots, values, device)
    }

    /// Adapters with the given contents, in the order of the buffer.
    pub fn from_values(slots: Vec<AdapterSlot>, values: Vec<f32>, device: &Device) -> Self {
        let n = values.len();
        Self {
            slots,
            flat: Tensor::from_data(TensorData::new(values, [n]), device),
        }
    }

    /// Adapters from tensors by name; names and shapes must have been checked against
    /// [`AdapterSlot::tensors`].
    pub fn from_tensors(
        slots: Vec<AdapterSlot>,
        tensors: &BTreeMap<String, HostTensor>,
        device: &Device,
    ) -> Self {
        let values = slots
            .iter()
            .flat_map(AdapterSlot::tensors)
            .flat_map(|(name, _, _)| tensors[&name].values.iter().copied())
            .collect();
        Self::from_values(slots, values, device)
    }

    /// Every factor on the host, by name.
    pub fn to_tensors(&self) -> BTreeMap<String, HostTensor> {
        let values = self.to_values();
        self.slots
            .iter()
            .flat_map(AdapterSlot::tensors)
            .map(|(name, shape, range)| {
                (
                    name,
                    HostTensor {
                        shape,
                        values: values[range].to_vec(),
                    },
                )
            })
            .collect()
    }

    /// The flat buffer on the host.
    pub fn to_values(&self) -> Vec<f32> {
        self.flat.to_data().iter::<f32>().collect()
    }

    /// What LoRA+ multiplies the learning rate of each parameter by, `[p]`: 1 for A, `ratio` for B.
    ///
    /// # Source
    ///
    /// Hayou et al. 2024 ("LoRA+: Efficient Low Rank Adaptation of Large Models"), as
    /// `create_loraplus_optimizer` of peft 0.21 has it.
    pub fn rate_scales(&self, ratio: f64) -> Tensor<1> {
        let mut scales = vec![1.0; self.n_parameters()];
        for [_, (_, _, b)] in self.slots.iter().map(AdapterSlot::tensors) {
            scales[b].fill(ratio as f32);
        }
        let n = scales.len();
        Tensor::from_data(TensorData::new(scales, [n]), &self.flat.device())
    }

    /// Number of trainable parameters.
    pub fn n_parameters(&self) -> usize {
        self.slots.iter().map(AdapterSlot::len).sum()
    }

    /// Puts the present factors into the stacks of `decoder`.
    pub fn attach(&self, decoder: &mut Decoder) {
        let place = |slot: &AdapterSlot| (slot.layer, slot.stack);
        for slots in self.slots.chunk_by(|a, b| place(a) == place(b)) {
            let (layer, stack) = place(&slots[0]);
            let range = decoder.config.projections(layer).stacks[stack].clone();
            let linear = &mut decoder.blocks[layer].stacks[stack];
            let part = |index: usize| {
                let slot = slots.iter().find(|slot| slot.projection == index)?;
                Some(AdapterPart {
                    rank: slot.rank,
                    scaling: slot.scaling,
                })
            };
            let parts: Vec<_> = range.map(part).collect();
            let layout = AdapterLayout::new(slots[0].in_features, &linear.out_features, &parts);
            let factors = self.flat.clone().narrow(0, slots[0].offset, layout.len());
            linear.adapter = Some(StackedAdapter::new(factors, Arc::new(layout)));
        }
    }
}

/// Streams of the seeded generator from this number on initialise the adapters.
const ADAPTER_INIT_STREAM: u64 = 1 << 32;
