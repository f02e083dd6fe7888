//! DoRA: each output of an adapted layer is trained as a magnitude and a direction.
//!
//! A layer's weight is `m (W + s B A) / ‖W + s B A‖`, row by row. The norms are computed from the
//! current factors and have no gradient. The layer is therefore the plain LoRA layer with a factor per
//! output, and uses the products of [`super::lora_linear`].

use burn::tensor::{DType, Device, Tensor, TensorData};

use super::adapter::PartLayout;
use super::reference::transform_input;
use super::{InputTransform, LinearExtras, StackedAdapter, StackedLinear, lora_linear};

/// Magnitudes of the outputs of adapted layers.
#[derive(Debug, Clone)]
pub struct Magnitudes {
    /// Magnitude of each output of the adapted layers, concatenated; trainable.
    pub values: Tensor<1>,
    /// `‖W + s B A‖` of the same outputs.
    norms: Tensor<1>,
}

impl Magnitudes {
    /// Magnitudes `values` for a stack; the norms are computed from its current factors.
    ///
    /// # Panics
    ///
    /// If the number of values differs from the number of adapted outputs: a bug of the caller.
    pub fn new(values: Tensor<1>, linear: &StackedLinear) -> Self {
        let norms = linear.direction_norms();
        assert_eq!(
            values.dims(),
            norms.dims(),
            "there must be one magnitude per adapted output"
        );
        Self { values, norms }
    }

    /// The same values, registered with autodiff by `track`.
    pub(super) fn tracked(&self, track: impl Fn(Tensor<1>) -> Tensor<1>) -> Self {
        Self {
            values: track(self.values.clone()),
            norms: self.norms.clone(),
        }
    }
}

impl StackedLinear {
    /// `‖W + s B A‖` of each output of the adapted layers, concatenated: the initial magnitudes.
    ///
    /// `‖W‖²` is cached per frozen weight, so the only large product is `W Aᵀ`, whose width is the
    /// sum of the ranks.
    pub fn direction_norms(&self) -> Tensor<1> {
        let device = self.weight.device();
        let Some(adapter) = &self.adapter else {
            return Tensor::zeros([0], device);
        };
        let squares = self.weight.row_squares();
        let frozen = Self {
            bias: None,
            adapter: None,
            ..self.clone()
        };
        let parts = adapter.layout().parts.iter().map(|part| {
            let (a, b) = adapter.factors_of(part);
            let rounded_a = a.clone().cast(self.weight.compute_dtype().dtype());
            let shadows = lora_linear(rounded_a, &frozen, LinearExtras::default());
            let range = part.first_output..part.first_output + part.out_features;
            let shadows = shadows.narrow(1, range.start, range.len());
            let shadows = shadows.cast(DType::F32).transpose();
            let squares = to_device_vector(&squares[range], device);
            let scaling = f64::from(part.scaling);
            // `2 s W·(B A) + s² (B A)·(B A)`, computed as the dot product of B with one combined
            // matrix.
            let met = b.clone().matmul(a.clone().matmul(a.transpose()));
            let met = met
                .mul_scalar(scaling * scaling)
                .add(shadows.mul_scalar(2.0 * scaling));
            let changes = b.mul(met).sum_dim(1).flatten(0, 1);
            squares.add(changes).clamp_min(0.0).sqrt()
        });
        Tensor::cat(parts.collect(), 0)
    }
}

fn to_device_vector(values: &[f32], device: &Device) -> Tensor<1> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), device)
}

/// The contract of [`super::lora_linear`] for a stack with magnitudes: with `g = m / ‖W + s B A‖`,
/// `g (x Wᵀ + s (x Aᵀ) Bᵀ) + bias + residual`.
///
/// With dropout, only the adapted part uses the masked input: `x Wᵀ + (g - 1) drop(x) Wᵀ + g s
/// (drop(x) Aᵀ) Bᵀ`. This needs a second product with W per layer, in plain tensor operations.
///
/// # Source
///
/// Liu et al. 2024 ("DoRA: Weight-Decomposed Low-Rank Adaptation"), sections 4.1 and 4.3;
/// `DoraLinearVariant.forward` and `DoraLinearLayer.forward`, peft 0.21.
pub(super) fn weighed_linear(
    x: Tensor<2>,
    linear: &StackedLinear,
    adapter: &StackedAdapter,
    magnitudes: &Magnitudes,
    extras: LinearExtras,
) -> Tensor<2> {
    let gains = magnitudes.values.clone().div(magnitudes.norms.clone());
    let drops = extras.dropout.iter().any(Option::is_some);
    let directions = StackedLinear {
        bias: None,
        adapter: (!drops).then(|| adapter.with_magnitudes(None)),
        ..linear.clone()
    };
    let plain = LinearExtras {
        transform: extras.transform.clone(),
        residual: None,
        ..LinearExtras::default()
    };
    let y = lora_linear(x.clone(), &directions, plain);
    let output = y.dtype();
    let y = y.cast(DType::F32);
    let y = if drops {
        y.add(dropout_path(x, linear, adapter, &gains, &extras))
    } else {
        y.mul(all_gains(linear, adapter, gains).unsqueeze())
    };
    let y = match &linear.bias {
        Some(bias) => y.add(bias.clone().unsqueeze()),
        None => y,
    };
    match extras.residual {
        Some(residual) => y.add(residual),
        None => y.cast(output),
    }
}

/// A factor per output of the stack: 1 for layers without an adapter.
fn all_gains(linear: &StackedLinear, adapter: &StackedAdapter, gains: Tensor<1>) -> Tensor<1> {
    let mut parts = Vec::with_capacity(linear.out_features.len());
    let mut first = 0;
    for (layer, &out_features) in linear.out_features.iter().enumerate() {
        if part_of(adapter, layer).is_some() {
            parts.push(gains.clone().narrow(0, first, out_features));
            first += out_features;
        } else {
            parts.push(Tensor::ones([out_features], &gains.device()));
        }
    }
    Tensor::cat(parts, 0)
}

fn part_of(adapter: &StackedAdapter, layer: usize) -> Option<&PartLayout> {
    let mut parts = adapter.layout().parts.iter();
    parts.find(|part| part.layer == layer)
}

/// The contribution of the adapted layers in addition to `x Wᵀ`, with dropout.
fn dropout_path(
    x: Tensor<2>,
    linear: &StackedLinear,
    adapter: &StackedAdapter,
    gains: &Tensor<1>,
    extras: &LinearExtras,
) -> Tensor<2> {
    let x = match &extras.transform {
        InputTransform::Plain => x,
        transform => transform_input(x, transform, linear),
    };
    let x = x.cast(DType::F32);
    let device = x.device();
    let weight = linear.weight.to_tensor();
    let (mut parts, mut first, mut first_gain) = (Vec::new(), 0, 0);
    for (layer, &out_features) in linear.out_features.iter().enumerate() {
        match part_of(adapter, layer) {
            Some(part) => {
                let dropped = match extras.dropout.get(layer).copied().flatten() {
                    Some(dropout) => {
                        let mask = dropout.mask(x.dims(), &device);
                        x.clone().mul(mask.mul_scalar(dropout.scale()))
                    }
                    None => x.clone(),
                };
                let (a, b) = adapter.factors_of(part);
                let gain = gains.clone().narrow(0, first_gain, out_features);
                let rows = weight.clone().narrow(0, first, out_features);
                let base = dropped.clone().matmul(rows.transpose());
                let low = dropped.matmul(a.transpose()).mul_scalar(part.scaling);
                let update = low.matmul(b.transpose());
                let gain: Tensor<2> = gain.unsqueeze();
                parts.push(base.clone().add(update).mul(gain).sub(base));
                first_gain += out_features;
            }
            None => parts.push(Tensor::zeros([x.dims()[0], out_features], &device)),
        }
        first += out_features;
    }
    Tensor::cat(parts, 1)
}
