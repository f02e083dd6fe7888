//! The trained parameters of the encoder: all parameters, or LoRA factors.
//!
//! With factors, each step computes the sum `W + s B A`, which is small compared with the
//! activations of a batch. A checkpoint also contains this sum, so evaluation and export do not
//! need the factors.

use burn::tensor::{Device, Tensor, TensorData};
use tooltune_rows::batches::SeededRandom;

use crate::error::Error;
use crate::models::minilm::encoder::cut;
use crate::models::minilm::parameters::{ParameterLayout, ParameterSlot};
use crate::optim::backward::leaf;

/// First random stream for initialising factors.
const INIT_STREAM: u64 = 3 << 32;

/// The position of a matrix and its factors.
#[derive(Debug, Clone, PartialEq)]
pub struct AdaptedMatrix {
    /// Index of the matrix in [`ParameterLayout::slots`].
    pub slot: usize,
    /// Index of the first element in the trained buffer: A `[r, in]`, then B `[out, r]`.
    pub offset: usize,
    outputs: usize,
    inputs: usize,
}

/// LoRA factors of several matrices.
#[derive(Debug, Clone)]
pub struct RetrieverLora {
    /// Factors in the order of the encoder's matrices.
    pub matrices: Vec<AdaptedMatrix>,
    /// Common rank.
    pub r: usize,
    /// Factor on `B A`.
    pub scaling: f64,
    /// All parameters of the untrained encoder, `[p]`.
    base: Tensor<1>,
}

/// Which parameters are trained.
#[derive(Debug, Clone)]
pub enum Trained {
    /// All parameters.
    All,
    /// LoRA factors.
    Lora(Box<RetrieverLora>),
}

/// Autodiff leaves, and the encoder's pieces computed from them.
pub(super) struct Tracked {
    pub(super) leaves: Vec<Tensor<2>>,
    pub(super) pieces: Vec<Tensor<2>>,
}

impl RetrieverLora {
    /// Creates factors for the linear layers whose path ends with one of `targets`.
    ///
    /// # Errors
    ///
    /// A target has no match.
    pub fn new(
        layout: &ParameterLayout,
        base: Tensor<1>,
        r: usize,
        lora_alpha: f64,
        targets: &[String],
    ) -> Result<Self, Error> {
        let module = |slot: &ParameterSlot| -> Option<String> {
            let path = slot
                .name
                .strip_prefix("encoder.")?
                .strip_suffix(".weight")?;
            (slot.shape.len() == 2).then(|| path.to_owned())
        };
        let is_target =
            |path: &str, target: &str| path == target || path.ends_with(&format!(".{target}"));
        for target in targets {
            let modules = layout.slots.iter().filter_map(module);
            if !modules.into_iter().any(|path| is_target(&path, target)) {
                return Err(Error::Usage(format!(
                    "retriever.lora.target_modules: the encoder has no linear layer {target:?}; use \
                     query, key, value or dense"
                )));
            }
        }
        let mut matrices = Vec::new();
        let mut offset = 0;
        for (slot, described) in layout.slots.iter().enumerate() {
            let path = module(described);
            if !path.is_some_and(|path| targets.iter().any(|target| is_target(&path, target))) {
                continue;
            }
            let (outputs, inputs) = (described.shape[0], described.shape[1]);
            matrices.push(AdaptedMatrix {
                slot,
                offset,
                outputs,
                inputs,
            });
            offset += r * (outputs + inputs);
        }
        Ok(Self {
            matrices,
            r,
            scaling: lora_alpha / r as f64,
            base,
        })
    }

    /// Initial factors, `[q]`: A uniform in `±1/√in`, B zero, as in PEFT.
    pub fn initial_factors(&self, seed: u64, device: &Device) -> Tensor<1> {
        let mut values = Vec::new();
        for (i, map) in self.matrices.iter().enumerate() {
            let mut random = SeededRandom::new(seed, INIT_STREAM + i as u64);
            let bound = 1.0 / (map.inputs as f64).sqrt();
            let n = self.r * map.inputs;
            values.extend((0..n).map(|_| ((random.uniform_f64() * 2.0 - 1.0) * bound) as f32));
            values.resize(values.len() + map.outputs * self.r, 0.0);
        }
        let n = values.len();
        Tensor::from_data(TensorData::new(values, [n]), device)
    }

    /// A `[r, in]` and B `[out, r]` of each matrix.
    fn factors(&self, flat: &Tensor<1>) -> Vec<[Tensor<2>; 2]> {
        let r = self.r;
        let part = |start: usize, shape: [usize; 2]| {
            flat.clone()
                .narrow(0, start, shape[0] * shape[1])
                .reshape(shape)
        };
        let matrices = self.matrices.iter();
        matrices
            .map(|map| {
                let a = part(map.offset, [r, map.inputs]);
                [a, part(map.offset + r * map.inputs, [map.outputs, r])]
            })
            .collect()
    }

    /// The frozen pieces plus `s B A`. Either all factors have autodiff, or none.
    fn pieces(&self, layout: &ParameterLayout, factors: &[[Tensor<2>; 2]]) -> Vec<Tensor<2>> {
        let tracked = factors.first().is_some_and(|[a, _]| a.is_autodiff());
        let pieces = cut(layout, &self.base).into_iter();
        let pieces = pieces.map(|piece| {
            if tracked {
                Tensor::from_inner(piece)
            } else {
                piece
            }
        });
        layout
            .pieces
            .iter()
            .zip(pieces)
            .map(|(piece_slot, piece)| {
                let first = piece_slot.range.start;
                let inside = |map: &AdaptedMatrix| {
                    let slot = &layout.slots[map.slot].range;
                    slot.start >= first && slot.end <= piece_slot.range.end
                };
                let columns = piece_slot.shape[1];
                let matrices = self
                    .matrices
                    .iter()
                    .zip(factors)
                    .filter(|(map, _)| inside(map));
                matrices.fold(piece, |piece, (map, [a, b])| {
                    let row = (layout.slots[map.slot].range.start - first) / columns;
                    let delta = b.clone().matmul(a.clone()).mul_scalar(self.scaling);
                    let rows = row..row + map.outputs;
                    let own = piece.clone().narrow(0, row, map.outputs).add(delta);
                    piece.slice_assign([rows, 0..columns], own)
                })
            })
            .collect()
    }
}

impl Trained {
    /// All parameters of the encoder, `[p]`, computed from the trained ones.
    pub fn merged_parameters(&self, layout: &ParameterLayout, flat: &Tensor<1>) -> Tensor<1> {
        match self {
            Self::All => flat.clone(),
            Self::Lora(lora) => {
                let pieces = lora.pieces(layout, &lora.factors(flat));
                Tensor::cat(
                    pieces
                        .into_iter()
                        .map(|piece| piece.flatten(0, 1))
                        .collect(),
                    0,
                )
            }
        }
    }

    /// Leaves and pieces for a backward pass. The leaves are in the order of `flat`.
    pub(super) fn tracked(&self, layout: &ParameterLayout, flat: &Tensor<1>) -> Tracked {
        match self {
            Self::All => {
                let leaves: Vec<Tensor<2>> = cut(layout, flat).into_iter().map(leaf).collect();
                Tracked {
                    pieces: leaves.clone(),
                    leaves,
                }
            }
            Self::Lora(lora) => {
                let factors = lora.factors(flat).into_iter();
                let factors: Vec<[Tensor<2>; 2]> = factors.map(|pair| pair.map(leaf)).collect();
                Tracked {
                    pieces: lora.pieces(layout, &factors),
                    leaves: factors.into_iter().flatten().collect(),
                }
            }
        }
    }
}
