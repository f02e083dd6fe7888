//! Stacked LoRA linear layers in the operations of any backend: it computes the frozen and the
//! low-rank products separately.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, DType, FloatDType, TensorMetadata};
use burn::tensor::{Shape, Slice};

use super::adapter::{AdapterLayout, PartLayout};
use super::backend::{Frozen, Saved, Spec};
use super::cpu::Wants;
use crate::dropout::{Dropout, KeepElements};

/// Same contract as [`super::backend::LinearPasses::linear_forward`].
pub(super) fn forward<B: KeepElements>(
    x: FloatTensor<B>,
    factors: Option<FloatTensor<B>>,
    residual: Option<FloatTensor<B>>,
    frozen: Frozen<B>,
    spec: Spec,
) -> (FloatTensor<B>, Saved<B>) {
    let dense = dense(&frozen);
    let mut y = B::float_matmul(x.clone(), B::float_transpose(dense));
    let mut low = None;
    if let (Some(factors), Some(plan)) = (&factors, &spec.adapter) {
        let layers = LowRankLayers::<B>::new(factors, &plan.layout, spec.part_dropout(), x.dtype());
        let lows: Vec<_> = (0..layers.layout.parts.len())
            .map(|i| layers.lora_a_forward(i, &x))
            .collect();
        let widths = spec.out_features.iter().copied();
        let n = x.shape().dims::<2>()[0];
        y = B::float_add(y, layers.lora_b_forward(&lows, widths, n));
        low = Some(B::float_cat(lows, 1));
    }
    if let Some(bias) = frozen.bias.clone().into_option() {
        let outputs = spec.out_features.iter().sum();
        let bias = B::float_reshape(bias, Shape::new([1, outputs]));
        y = B::float_add(y.clone(), cast::<B>(bias, y.dtype()));
    }
    if let Some(residual) = residual {
        y = B::float_add(cast::<B>(y, DType::F32), residual);
    }
    let saved = Saved {
        x,
        low,
        factors,
        frozen,
        spec,
    };
    (y, saved)
}

/// The weight, `[Σ out, in]`.
fn dense<B: Backend>(frozen: &Frozen<B>) -> FloatTensor<B> {
    let weight = frozen.weight.clone().into_option();
    weight.expect("an unpacked weight is a tensor")
}

/// Same contract as [`super::backend::LinearPasses::linear_backward`].
pub(super) fn backward<B: KeepElements>(
    saved: Saved<B>,
    dy: FloatTensor<B>,
    wants: Wants,
) -> (Option<FloatTensor<B>>, Option<FloatTensor<B>>) {
    let Saved {
        x,
        low,
        factors,
        frozen,
        spec,
    } = saved;
    let dy = cast::<B>(dy, x.dtype());
    let dense = dense(&frozen);
    let mut dx = (wants == Wants::InputAndFactors).then(|| B::float_matmul(dy.clone(), dense));
    let mut d_factors = None;
    if let (Some(factors), Some(plan), Some(low)) = (&factors, &spec.adapter, low) {
        let layers = LowRankLayers::<B>::new(factors, &plan.layout, spec.part_dropout(), x.dtype());
        let mut pieces = Vec::with_capacity(2 * layers.layout.parts.len());
        let mut first_low = 0;
        for (i, part) in layers.layout.parts.iter().enumerate() {
            let dy = columns::<B>(
                &dy,
                part.first_output..part.first_output + part.out_features,
            );
            let low = columns::<B>(&low, first_low..first_low + part.rank);
            first_low += part.rank;
            let d_low = B::float_matmul(dy.clone(), layers.b(part));
            let d_low = B::float_mul_scalar(d_low, layers.scale(i).into());
            let input = layers.apply_dropout(i, x.clone());
            let d_a = B::float_matmul(B::float_transpose(d_low.clone()), input);
            let d_b = B::float_matmul(B::float_transpose(dy), low);
            for gradient in [d_a, d_b] {
                let n = gradient.shape().num_elements();
                let gradient = B::float_reshape(gradient, Shape::new([n]));
                pieces.push(cast::<B>(gradient, DType::F32));
            }
            dx = dx.map(|dx| {
                let own = layers.apply_dropout(i, B::float_matmul(d_low, layers.a(part)));
                B::float_add(dx, own)
            });
        }
        d_factors = Some(B::float_cat(pieces, 0));
    }
    (dx, d_factors)
}

/// The factors of a stack, in the dtype that products read.
struct LowRankLayers<'a, B: Backend> {
    factors: FloatTensor<B>,
    layout: &'a AdapterLayout,
    dropout: Vec<Option<Dropout>>,
}

impl<'a, B: KeepElements> LowRankLayers<'a, B> {
    fn new(
        factors: &FloatTensor<B>,
        layout: &'a AdapterLayout,
        dropout: Vec<Option<Dropout>>,
        dtype: DType,
    ) -> Self {
        Self {
            factors: cast::<B>(factors.clone(), dtype),
            layout,
            dropout,
        }
    }

    /// `[r, in]`.
    fn a(&self, part: &PartLayout) -> FloatTensor<B> {
        let width = self.layout.in_features;
        self.cut(part.a(width), [part.rank, width])
    }

    /// `[out, r]`.
    fn b(&self, part: &PartLayout) -> FloatTensor<B> {
        self.cut(
            part.b(self.layout.in_features),
            [part.out_features, part.rank],
        )
    }

    fn cut(&self, range: std::ops::Range<usize>, shape: [usize; 2]) -> FloatTensor<B> {
        let piece = B::float_slice(self.factors.clone(), &[Slice::from(range)]);
        B::float_reshape(piece, Shape::new(shape))
    }

    fn dropout(&self, part: usize) -> Option<Dropout> {
        self.dropout.get(part).copied().flatten()
    }

    fn scale(&self, part: usize) -> f32 {
        let dropped = self.dropout(part).map_or(1.0, Dropout::scale);
        self.layout.parts[part].scaling * dropped
    }

    /// `x` after a part's dropout.
    fn apply_dropout(&self, part: usize, x: FloatTensor<B>) -> FloatTensor<B> {
        match self.dropout(part) {
            Some(dropout) => B::keep(x, dropout),
            None => x,
        }
    }

    /// `s drop(x) Aᵀ` of a part, `[n, r]`.
    fn lora_a_forward(&self, part: usize, x: &FloatTensor<B>) -> FloatTensor<B> {
        let a = self.a(&self.layout.parts[part]);
        let low = B::float_matmul(self.apply_dropout(part, x.clone()), B::float_transpose(a));
        B::float_mul_scalar(low, self.scale(part).into())
    }

    /// `low Bᵀ` of all layers, concatenated, with zeros for layers without an adapter: `[n, Σ out]`.
    fn lora_b_forward(
        &self,
        lows: &[FloatTensor<B>],
        widths: impl Iterator<Item = usize>,
        n: usize,
    ) -> FloatTensor<B> {
        let mut parts = self.layout.parts.iter().zip(lows).peekable();
        let layers = widths.enumerate().map(|(layer, width)| {
            match parts.next_if(|(part, _)| part.layer == layer) {
                Some((part, low)) => B::float_matmul(low.clone(), B::float_transpose(self.b(part))),
                None => {
                    let shape = Shape::new([n, width]);
                    let dtype = FloatDType::from(self.factors.dtype());
                    B::float_zeros(shape, &self.factors.device(), dtype)
                }
            }
        });
        B::float_cat(layers.collect(), 1)
    }
}

pub(super) fn cast<B: Backend>(x: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    if x.dtype() == dtype {
        x
    } else {
        B::float_cast(x, FloatDType::from(dtype))
    }
}

/// Columns of a matrix.
fn columns<B: Backend>(x: &FloatTensor<B>, range: std::ops::Range<usize>) -> FloatTensor<B> {
    B::float_slice(x.clone(), &[Slice::full(), Slice::from(range)])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn::backend::Flex;
    use burn::backend::flex::FlexTensor;

    use super::super::adapter::{AdapterPart, StackedAdapter};
    use super::super::backend::{LinearPasses, TransformSpec};
    use super::*;
    use crate::ComputeDtype;
    use crate::cpu::buffer::{contiguous, floats, tensor};
    use crate::cpu::pool::Buffer;
    use crate::frozen_weight::Packed;
    use crate::maybe::Maybe;

    /// Values in -1..1 that depend only on `seed`.
    fn numbers(seed: u64, n: usize) -> Buffer<f32> {
        let number = |i| (crate::dropout::mix(seed ^ i) >> 40) as f32 / (1 << 23) as f32 - 1.0;
        let mut numbers = Buffer::repeated(0.0, n);
        for (i, x) in numbers.iter_mut().enumerate() {
            *x = number(i as u64);
        }
        numbers
    }

    fn assert_near(name: &str, ours: FlexTensor, expected: FlexTensor) {
        let (ours, expected) = (contiguous(ours), contiguous(expected));
        let pairs = || floats(&ours).iter().zip(floats(&expected));
        let off: f32 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
        let norm: f32 = pairs().map(|(_, b)| b.powi(2)).sum();
        assert!(off <= 1e-10 * norm, "{name}: {off} of {norm}");
    }

    #[test]
    fn composed_passes_match_the_fused_passes() {
        let (n, inputs, outputs) = (19, 24, [16, 7, 9]);
        for (ranks, dropped) in [([4, 4, 4], false), ([3, 0, 5], false), ([2, 3, 1], true)] {
            let part = |rank| (rank > 0).then_some(AdapterPart { rank, scaling: 1.5 });
            let layout = Arc::new(AdapterLayout::new(inputs, &outputs, &ranks.map(part)));
            let factors = tensor(numbers(1, layout.len()), [layout.len()]);
            let adapter = StackedAdapter::new(
                burn::tensor::Tensor::zeros([layout.len()], &burn::tensor::Device::flex()),
                layout,
            );
            let dropout = |layer| Dropout {
                state: layer,
                threshold: 30_000,
            };
            let spec = Spec {
                out_features: Arc::from(outputs),
                panels: None,
                quantised: None,
                adapter: Some(adapter.plan()),
                transform: TransformSpec::Plain,
                unread: false,
                shared_gradient: None,
                dropout: if dropped {
                    vec![Some(dropout(1)), None, Some(dropout(2))]
                } else {
                    Vec::new()
                },
            };
            let frozen = || Frozen::<Flex> {
                weight: Maybe::Present(tensor(numbers(2, 32 * inputs), [32, inputs])),
                bias: Maybe::Present(tensor(numbers(3, 32), [32])),
                norm: Maybe::Absent,
                rounded: Maybe::Absent,
            };
            let x = || tensor(numbers(4, n * inputs), [n, inputs]);
            let (residual, dy) = (
                tensor(numbers(5, n * 32), [n, 32]),
                tensor(numbers(6, n * 32), [n, 32]),
            );
            let with = || (Some(factors.clone()), Some(residual.clone()));
            let (y, saved) = forward::<Flex>(x(), with().0, with().1, frozen(), spec.clone());
            let weight = numbers(2, 32 * inputs);
            let weight = Packed::new(&weight, [32, inputs], ComputeDtype::F32);
            let spec = Spec {
                panels: Some(weight),
                ..spec
            };
            let (fused_y, fused_saved) =
                Flex::linear_forward(x(), with().0, with().1, frozen(), spec);
            assert_near("y", y, fused_y);
            let wants = Wants::InputAndFactors;
            let ours = backward::<Flex>(saved, dy.clone(), wants);
            let fused = Flex::linear_backward(fused_saved, dy, wants);
            assert_near("dx", ours.0.unwrap(), fused.0.unwrap());
            assert_near("factors", ours.1.unwrap(), fused.1.unwrap());
        }
    }
}
