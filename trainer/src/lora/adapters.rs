//! Stores all trainable parameters in one flat buffer.
//!
//! The optimizer, the gradient norm and the checkpoint use the whole buffer; the decoder uses
//! slices of it. The buffer is ordered by layer and projection stack. For each stack, it contains
//! the factors of the projections, A before B, followed by their DoRA magnitudes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};
use tooltune_checkpoints::weights::HostTensor;
use tooltune_kernels::{
    AdapterLayout, AdapterPart, Magnitudes, StackedAdapter, StackedLinear, is_cpu,
};
use tooltune_rows::batches::SeededRandom;

use super::matching::LoraError;
use super::principal::{split_doubled, with_doubled_rank};
use crate::models::Decoder;

/// An adapted projection, with its position in the flat buffer.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterSlot {
    /// Index of the block.
    pub layer: usize,
    /// Index among the [projections](crate::models::families::Projections) of its block.
    pub projection: usize,
    /// Index of the projection stack that contains the projection.
    pub stack: usize,
    /// Index of the first projection in that stack.
    pub first_projection: usize,
    /// Path as in Hugging Face checkpoints: `model.layers.0.self_attn.q_proj`.
    pub module: String,
    /// Rank of this module.
    pub rank: usize,
    /// Input features.
    pub in_features: usize,
    /// Output features.
    pub out_features: usize,
    /// Factor on `B A`.
    pub scaling: f64,
    /// Index of the first element of A, `[rank, in]`, in the flat buffer. B, `[out, rank]`, follows
    /// A.
    pub offset: usize,
    /// With DoRA, index of the first element of the magnitudes, `[out]`.
    pub magnitudes: Option<usize>,
}

impl AdapterSlot {
    /// Number of elements in both factors.
    pub fn len(&self) -> usize {
        self.rank * (self.in_features + self.out_features)
    }

    /// Number of trained values.
    pub fn n_values(&self) -> usize {
        self.len() + self.magnitudes.map_or(0, |_| self.out_features)
    }

    /// Always false: a rank is at least 1.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Name of the adapted weight.
    pub fn weight(&self) -> String {
        format!("{}.weight", self.module)
    }

    /// The same slot with twice the rank and no offset, as saved in a PiSSA checkpoint.
    pub(crate) fn with_doubled_rank(&self) -> Self {
        Self {
            rank: 2 * self.rank,
            offset: 0,
            ..self.clone()
        }
    }

    /// Indices of the block and of the stack.
    pub(crate) fn location(&self) -> (usize, usize) {
        (self.layer, self.stack)
    }

    fn a_len(&self) -> usize {
        self.rank * self.in_features
    }

    /// The tensors with their PEFT names (without the prefix), shapes and ranges.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>, Range<usize>)> {
        let magnitudes = self.magnitudes.map(|first| {
            let name = format!("{}.lora_magnitude_vector", self.module);
            let range = first..first + self.out_features;
            (name, vec![self.out_features], range)
        });
        self.factors().into_iter().chain(magnitudes).collect()
    }

    /// Like [`Self::tensors`], for A and B only.
    pub fn factors(&self) -> [(String, Vec<usize>, Range<usize>); 2] {
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

/// A fully trained weight, `[v, d]`, with its position in the flat buffer.
#[derive(Debug, Clone, PartialEq)]
pub struct WholeWeight {
    /// Name in the model and in PEFT files.
    pub name: &'static str,
    /// Rows and columns.
    pub shape: [usize; 2],
    /// Index of the first element in the flat buffer.
    pub offset: usize,
}

impl WholeWeight {
    /// Number of values.
    pub fn n_values(&self) -> usize {
        self.shape[0] * self.shape[1]
    }

    /// Name, shape and range in the flat buffer.
    pub fn tensor(&self) -> (String, Vec<usize>, Range<usize>) {
        let range = self.offset..self.offset + self.n_values();
        (self.name.to_owned(), self.shape.to_vec(), range)
    }
}

/// The trainable parameters of a run.
#[derive(Debug, Clone)]
pub struct Adapters {
    /// Position of each factor.
    pub slots: Vec<AdapterSlot>,
    /// Fully trained weights, after all slots.
    pub whole: Vec<WholeWeight>,
    /// All trained values, `[p]`, f32, without autodiff.
    pub flat: Tensor<1>,
    /// With PiSSA, the initial factors that were subtracted from the base weights, in the order of
    /// the slots.
    pub initial: Option<Arc<[f32]>>,
}

impl Adapters {
    /// Creates a new adapter: A is uniform in `±1/√in`, and B is zero, so the model equals its
    /// base.
    ///
    /// # Source
    ///
    /// `LoraLayer.reset_lora_parameters`, peft 0.21: `kaiming_uniform_(A, a=√5)`, whose bound is
    /// `√(6 / ((1 + 5) in))`.
    pub fn new(slots: Vec<AdapterSlot>, seed: u64, device: &Device) -> Self {
        let mut values = vec![0.0; n_values(&slots)];
        for (i, slot) in slots.iter().enumerate() {
            let mut random = SeededRandom::new(seed, ADAPTER_INIT_STREAM + i as u64);
            let bound = 1.0 / (slot.in_features as f64).sqrt();
            let [(_, _, a), _] = slot.factors();
            for value in &mut values[a] {
                *value = ((random.uniform_f64() * 2.0 - 1.0) * bound) as f32;
            }
        }
        Self::from_values(slots, values, device)
    }

    /// Creates adapters from values in the order of the buffer.
    pub fn from_values(slots: Vec<AdapterSlot>, values: Vec<f32>, device: &Device) -> Self {
        let n = values.len();
        Self {
            slots,
            flat: Tensor::from_data(TensorData::new(values, [n]), device),
            whole: Vec::new(),
            initial: None,
        }
    }

    /// Adds fully trained weights with their values in `tensors`.
    pub fn with_whole(
        self,
        whole_weights: Vec<WholeWeight>,
        tensors: &BTreeMap<String, HostTensor>,
    ) -> Self {
        if whole_weights.is_empty() {
            return self;
        }
        let device = self.flat.device();
        let mut values = self.to_values();
        for weight in &whole_weights {
            values.extend_from_slice(&tensors[weight.name].values);
        }
        let n = values.len();
        Self {
            whole: whole_weights,
            flat: Tensor::from_data(TensorData::new(values, [n]), &device),
            ..self
        }
    }

    /// Creates PiSSA adapters, whose initial factors are subtracted from the base weights.
    pub fn new_pissa(slots: Vec<AdapterSlot>, values: Vec<f32>, device: &Device) -> Self {
        Self {
            initial: Some(values.as_slice().into()),
            ..Self::from_values(slots, values, device)
        }
    }

    /// Loads the adapters of a PiSSA checkpoint, whose tensors have twice the rank of `slots`.
    /// Check names and shapes against the doubled slots first.
    pub fn from_doubled(
        slots: Vec<AdapterSlot>,
        tensors: &BTreeMap<String, HostTensor>,
        device: &Device,
    ) -> Self {
        let [values, initial] = split_doubled(&slots, tensors);
        Self {
            initial: Some(initial.into()),
            ..Self::from_values(slots, values, device)
        }
    }

    /// Tensors for a checkpoint, by name. With PiSSA they have twice the rank and apply to the
    /// original base weights.
    pub fn to_saved_tensors(&self) -> BTreeMap<String, HostTensor> {
        match &self.initial {
            Some(initial) => {
                let mut tensors = with_doubled_rank(&self.slots, &self.to_values(), initial);
                tensors.extend(self.to_tensors().into_iter().filter(|(name, _)| {
                    let mut whole_weights = self.whole.iter();
                    whole_weights.any(|weight| weight.name == name)
                }));
                tensors
            }
            None => self.to_tensors(),
        }
    }

    /// Creates adapters from named tensors. Check names and shapes against [`AdapterSlot::tensors`]
    /// first.
    pub fn from_tensors(
        slots: Vec<AdapterSlot>,
        tensors: &BTreeMap<String, HostTensor>,
        device: &Device,
    ) -> Self {
        let mut values = vec![0.0; n_values(&slots)];
        for (name, _, range) in slots.iter().flat_map(AdapterSlot::tensors) {
            values[range].copy_from_slice(&tensors[&name].values);
        }
        Self::from_values(slots, values, device)
    }

    /// Name, shape and range of all trained tensors, in the order of slots.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>, Range<usize>)> {
        let whole_tensors = self.whole.iter().map(WholeWeight::tensor);
        let slots = self.slots.iter().flat_map(AdapterSlot::tensors);
        slots.chain(whole_tensors).collect()
    }

    /// All tensors on the host, by name.
    pub fn to_tensors(&self) -> BTreeMap<String, HostTensor> {
        let values = self.to_values();
        self.tensors()
            .into_iter()
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

    /// LoRA+ factor on each parameter's learning rate, `[p]`: `ratio` for B and for magnitudes, 1
    /// for A and for fully trained weights.
    ///
    /// # Source
    ///
    /// Hayou et al. 2024 ("LoRA+: Efficient Low Rank Adaptation of Large Models"), as in
    /// `create_loraplus_optimizer` of peft 0.21.
    pub fn rate_scales(&self, ratio: f64) -> Tensor<1> {
        let mut scales = vec![1.0; self.n_parameters()];
        for tensors in self.slots.iter().map(AdapterSlot::tensors) {
            for (_, _, range) in tensors.into_iter().skip(1) {
                scales[range].fill(ratio as f32);
            }
        }
        let n = scales.len();
        Tensor::from_data(TensorData::new(scales, [n]), &self.flat.device())
    }

    /// Number of trainable parameters.
    pub fn n_parameters(&self) -> usize {
        n_values(&self.slots) + self.whole.iter().map(WholeWeight::n_values).sum::<usize>()
    }

    /// Sets the DoRA magnitudes to the row norms of the weights in `decoder`, so that DoRA does not
    /// change the initial model.
    ///
    /// # Errors
    ///
    /// A row is zero, so it has no direction.
    pub fn init_dora_magnitudes(&mut self, decoder: &mut Decoder) -> Result<(), LoraError> {
        if self.slots.iter().all(|slot| slot.magnitudes.is_none()) {
            return Ok(());
        }
        let mut values = self.to_values();
        for slots in self.slots.chunk_by(|a, b| a.location() == b.location()) {
            let (layer, stack) = slots[0].location();
            let linear = &mut decoder.blocks[layer].stacks[stack];
            linear.adapter = Some(self.stack_factors(slots, linear));
            let norms = linear.direction_norms().into_data();
            let rows = slots.iter().flat_map(|slot| {
                let first = slot.magnitudes.unwrap_or_default();
                (0..slot.out_features).map(move |row| (slot, row, first + row))
            });
            for ((slot, row, to), norm) in rows.zip(norms.iter::<f32>()) {
                if norm == 0.0 {
                    let module = slot.module.clone();
                    return Err(LoraError::NoDirection { module, row });
                }
                values[to] = norm;
            }
        }
        let n = values.len();
        self.flat = Tensor::from_data(TensorData::new(values, [n]), &self.flat.device());
        Ok(())
    }

    /// The factors of a stack; `slots` are all slots of the stack.
    fn stack_factors(&self, slots: &[AdapterSlot], linear: &StackedLinear) -> StackedAdapter {
        let n_maps = linear.out_features.len();
        let first = slots[0].first_projection;
        let part = |map: usize| {
            let slot = slots.iter().find(|slot| slot.projection == first + map)?;
            Some(AdapterPart {
                rank: slot.rank,
                scaling: slot.scaling,
            })
        };
        let parts: Vec<_> = (0..n_maps).map(part).collect();
        let layout = AdapterLayout::new(slots[0].in_features, &linear.out_features, &parts);
        let factors = self.flat.clone().narrow(0, slots[0].offset, layout.len());
        StackedAdapter::new(factors, Arc::new(layout))
    }

    /// Sets the current factors and fully trained weights in `decoder`.
    pub fn attach(&self, decoder: &mut Decoder) {
        // Only a GPU needs rounded factors: the CPU packs them for its matmuls anyway.
        let dtype = decoder.compute_dtype().dtype();
        let rounds = !is_cpu(&decoder.device()) && dtype != self.flat.dtype();
        // Fully trained weights come after the factors and are not used here.
        let factors = n_values(&self.slots);
        let rounded = rounds.then(|| self.flat.clone().narrow(0, 0, factors).cast(dtype));
        for slots in self.slots.chunk_by(|a, b| a.location() == b.location()) {
            let (layer, stack) = slots[0].location();
            let linear = &mut decoder.blocks[layer].stacks[stack];
            let mut adapter = self.stack_factors(slots, linear);
            if let Some(rounded) = &rounded {
                let n = adapter.factors.dims()[0];
                adapter = adapter.with_rounded(rounded.clone().narrow(0, slots[0].offset, n));
            }
            linear.adapter = Some(adapter.clone());
            if let Some(first) = slots[0].magnitudes {
                let n = slots.iter().map(|slot| slot.out_features).sum();
                let values = self.flat.clone().narrow(0, first, n);
                let magnitudes = Some(Magnitudes::new(values, linear));
                linear.adapter = Some(adapter.with_magnitudes(magnitudes));
            }
        }
        for weight in &self.whole {
            let values = self
                .flat
                .clone()
                .narrow(0, weight.offset, weight.n_values());
            decoder.replace(weight.name, values.reshape(weight.shape));
        }
    }
}

/// Number of trained values in all slots.
fn n_values(slots: &[AdapterSlot]) -> usize {
    slots.iter().map(AdapterSlot::n_values).sum()
}

/// First stream of the seeded generator for adapter initialisation.
const ADAPTER_INIT_STREAM: u64 = 1 << 32;
