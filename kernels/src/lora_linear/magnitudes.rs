//! DoRA: each output of an adapted map is learned as a magnitude and a direction.
//!
//! A map's weight is `m (W + s B A) / ‖W + s B A‖`, row by row. The norms are those of the present
//! factors and have no gradient, so that the map is the plain adapted one with a factor for each
//! output: the products stay those of [`super::lora_linear`].

use burn::tensor::{DType, Device, Tensor, TensorData};

use super::adapter::PartLayout;
use super::reference::read;
use super::{InputTransform, LinearExtras, StackedAdapter, StackedLinear, lora_linear};

/// Magnitudes of the outputs of adapted maps.
#[derive(Debug, Clone)]
pub struct Magnitudes {
    /// Of each output of the maps that are adapted, one map behind the other; trainable.
    pub values: Tensor<1>,
    /// `‖W + s B A‖` of the same outputs.
    norms: Tensor<1>,
}

impl Magnitudes {
    /// `values` for a stack, whose present factors give the norms.
    ///
    /// # Panics
    ///
    /// If there are not as many values as outputs of adapted maps: a bug of the caller.
    pub fn new(values: Tensor<1>, linear: &StackedLinear) -> Self {
        let norms = linear.direction_norms();
        assert_eq!(values.dims(), norms.dims(), "a magnitude for each output");
        Self { values, norms }
    }

    /// The same values, which `track` gives to autodiff.
    pub(super) fn tracked(&self, track: impl Fn(Tensor<1>) -> Tensor<1>) -> Self {
        Self {
            values: track(self.values.clone()),
            norms: self.norms.clone(),
        }
    }
}

impl StackedLinear {
    /// `‖W + s B A‖` of each output of the adapted maps, one map behind the other; what magnitudes
    /// begin with.
    ///
    /// `‖W‖²` is known of a frozen weight, and the rest needs `W Aᵀ` alone: a product with as many
    /// rows as the ranks together.
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
            let read = a.clone().cast(self.weight.compute_dtype().dtype());
            let shadows = lora_linear(read, &frozen, LinearExtras::default());
            let range = part.first_output..part.first_output + part.out_features;
            let shadows = shadows.narrow(1, range.start, range.len());
            let shadows = shadows.cast(DType::F32).transpose();
            let squares = of_host(&squares[range], device);
            let scaling = f64::from(part.scaling);
            // `2 s W·(B A) + s² (B A)·(B A)`, as B times what it meets.
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

fn of_host(values: &[f32], device: &Device) -> Tensor<1> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), device)
}

/// The contract of [`super::lora_linear`] for a stack with magnitudes: with `g = m / ‖W + s B A‖`,
/// `g (x Wᵀ + s (x Aᵀ) Bᵀ) + bias + residual`.
///
/// With dropout the adapted part alone reads what is kept, `x Wᵀ + (g - 1) drop(x) Wᵀ + g s (drop(x)
/// Aᵀ) Bᵀ`, which takes a second product with W of each map, in plain tensor operations.
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
        y.add(dropped(x, linear, adapter, &gains, &extras))
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

/// A factor for each output of the stack: 1 for maps without an adapter.
fn all_gains(linear: &StackedLinear, adapter: &StackedAdapter, gains: Tensor<1>) -> Tensor<1> {
    let mut parts = Vec::with_capacity(linear.out_features.len());
    let mut first = 0;
    for (map, &out_features) in linear.out_features.iter().enumerate() {
        if part_of(adapter, map).is_some() {
            parts.push(gains.clone().narrow(0, first, out_features));
            first += out_features;
        } else {
            parts.push(Tensor::ones([out_features], &gains.device()));
        }
    }
    Tensor::cat(parts, 0)
}

fn part_of(adapter: &StackedAdapter, map: usize) -> Option<&PartLayout> {
    let mut parts = adapter.layout().parts.iter();
    parts.find(|part| part.map == map)
}

/// What the adapted maps add to `x Wᵀ` where their adapters drop inputs.
fn dropped(
    x: Tensor<2>,
    linear: &StackedLinear,
    adapter: &StackedAdapter,
    gains: &Tensor<1>,
    extras: &LinearExtras,
) -> Tensor<2> {
    let x = match &extras.transform {
        InputTransform::Plain => x,
        transform => read(x, transform, linear),
    };
    let x = x.cast(DType::F32);
    let device = x.device();
    let weight = linear.weight.to_tensor();
    let (mut parts, mut first, mut first_gain) = (Vec::new(), 0, 0);
    for (map, &out_features) in linear.out_features.iter().enumerate() {
        match part_of(adapter, map) {
            Some(part) => {
                let kept = match extras.dropout.get(map).copied().flatten() {
                    Some(dropout) => {
                        let mask = dropout.mask(x.dims(), &device);
                        x.clone().mul(mask.mul_scalar(dropout.scale()))
                    }
                    None => x.clone(),
                };
                let (a, b) = adapter.factors_of(part);
                let gain = gains.clone().narrow(0, first_gain, out_features);
                let rows = weight.clone().narrow(0, first, out_features);
                let base = kept.clone().matmul(rows.transpose());
                let low = kept.matmul(a.transpose()).mul_scalar(part.scaling);
                let learned = low.matmul(b.transpose());
                let gain: Tensor<2> = gain.unsqueeze();
                parts.push(base.clone().add(learned).mul(gain).sub(base));
                first_gain += out_features;
            }
            None => parts.push(Tensor::zeros([x.dims()[0], out_features], &device)),
        }
        first += out_features;
    }
    Tensor::cat(parts, 1)
}
