//! Stacked LoRA linear layers as an operation of backends: slices for the CPU, and one backward pass
//! for every backend that implements its parts.

use std::sync::Arc;

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, DType, ExtensionType, Flex, TensorMetadata, backend_extension};
use burn::tensor::bf16;

use super::adapter::{AdapterPlan, PackedIn};
use super::cpu::{self, FewRows, Forward, ForwardWeight, OutputGradient, Values, Wants};
use super::cpu_factors::Factors;
use super::shared_gradient::SharedGradient;
use crate::ComputeDtype;
use crate::cpu::buffer::{self, contiguous, dims, floats, numbers};
use crate::cpu::packed::panels::Panels;
use crate::dropout::Dropout;
#[cfg(feature = "cube")]
use crate::frozen_weight::Supply;
use crate::frozen_weight::quantised::Quantised;
use crate::frozen_weight::{Packed, with_matrix};
use crate::maybe::Maybe;
use crate::rms_norm::RmsNormGradients;
use crate::swiglu::SwigluGradients;

/// Tensors without gradients.
#[derive(Debug, Clone, ExtensionType)]
pub(crate) struct Frozen<B: Backend> {
    /// `[Σ out, in]`; absent if the weight is packed, quantised or supplied.
    #[extension_type]
    pub(crate) weight: Maybe<B>,
    /// `[Σ out]`.
    #[extension_type]
    pub(crate) bias: Maybe<B>,
    /// Norm weight, `[in]`, if the input is normalised.
    #[extension_type]
    pub(crate) norm: Maybe<B>,
    /// The factors in the dtype that products read, if already cast.
    #[extension_type]
    pub(crate) rounded: Maybe<B>,
}

/// Tensors other than the input.
#[derive(Debug, Clone, ExtensionType)]
pub(crate) struct Operands<B: Backend> {
    /// The factors of the adapters, flat.
    #[extension_type]
    pub(crate) factors: Maybe<B>,
    /// An f32 summand of the output.
    #[extension_type]
    pub(crate) residual: Maybe<B>,
    #[extension_type]
    pub(crate) frozen: Frozen<B>,
}

/// How the layers read their input; see [`super::InputTransform`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum TransformSpec {
    Plain,
    Normed { eps: f32, output: DType },
    Gated,
}

/// Arguments other than tensors.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) out_features: Arc<[usize]>,
    /// The weight, if packed.
    pub(crate) panels: Option<Packed>,
    /// The weight, if quantised. The backward pass keeps its codes and dequantises them again.
    pub(crate) quantised: Option<Arc<Quantised>>,
    /// The source of the weight on a GPU, if it is not stored as a matrix there. The backward pass
    /// keeps the source and computes the matrix again.
    #[cfg(feature = "cube")]
    pub(crate) supply: Option<Supply>,
    pub(crate) adapter: Option<AdapterPlan>,
    /// Dropout of each layer; empty if there is none.
    pub(crate) dropout: Vec<Option<Dropout>>,
    pub(crate) transform: TransformSpec,
    /// If set, the output is not used and not computed.
    pub(crate) unread: bool,
    /// See [`super::LinearExtras`].
    pub(crate) shared_gradient: Option<SharedGradient>,
}

impl Spec {
    /// Dropout of each adapted layer; empty if there is none.
    pub(super) fn part_dropout(&self) -> Vec<Option<Dropout>> {
        let parts = self
            .adapter
            .iter()
            .flat_map(|adapter| &adapter.layout.parts);
        let dropout: Vec<_> = parts
            .map(|part| self.dropout.get(part.layer).copied().flatten())
            .collect();
        if dropout.iter().any(Option::is_some) {
            dropout
        } else {
            Vec::new()
        }
    }
}

/// State of the forward pass that the backward pass needs.
#[derive(Debug, Clone)]
pub(crate) struct Saved<B: Backend> {
    /// `[n, in]`.
    pub(crate) x: FloatTensor<B>,
    /// `[n, low_width]`; `None` without an adapter.
    pub(crate) low: Option<FloatTensor<B>>,
    pub(crate) factors: Option<FloatTensor<B>>,
    pub(crate) frozen: Frozen<B>,
    pub(crate) spec: Spec,
}

/// Stacked layers, differentiable if the backend is.
#[backend_extension(Autodiff, Flex, Cube: cfg(feature = "cube"))]
pub(crate) trait LinearOps: Backend {
    /// Same contract as [`super::lora_linear`].
    fn stacked_linear(
        x: FloatTensor<Self>,
        #[extension_type] operands: Operands<Self>,
        spec: Spec,
    ) -> FloatTensor<Self>;
}

/// Both passes on tensors that are not part of an autodiff graph.
pub(crate) trait LinearPasses: LinearOps + RmsNormGradients + SwigluGradients {
    /// The transformed input of the layers.
    fn transform_input(
        x: FloatTensor<Self>,
        norm: Option<FloatTensor<Self>>,
        transform: TransformSpec,
    ) -> FloatTensor<Self> {
        match (transform, norm) {
            (TransformSpec::Normed { eps, output }, Some(norm)) => {
                Self::frozen_rms_norm(x, norm, eps, output)
            }
            (TransformSpec::Gated, _) => Self::gated_silu(x),
            (TransformSpec::Plain | TransformSpec::Normed { .. }, _) => x,
        }
    }

    /// Gradient of `x` from the gradient of the transformed input.
    fn transform_input_gradient(
        x: FloatTensor<Self>,
        norm: Option<FloatTensor<Self>>,
        transform: TransformSpec,
        d_input: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        match (transform, norm) {
            (TransformSpec::Normed { eps, .. }, Some(norm)) => {
                Self::rms_norm_gradient(x, norm, eps, d_input)
            }
            (TransformSpec::Gated, _) => Self::gated_silu_gradient(x, d_input),
            (TransformSpec::Plain | TransformSpec::Normed { .. }, _) => d_input,
        }
    }

    /// The output for a transformed input, and the state for the backward pass.
    fn linear_forward(
        x: FloatTensor<Self>,
        factors: Option<FloatTensor<Self>>,
        residual: Option<FloatTensor<Self>>,
        frozen: Frozen<Self>,
        spec: Spec,
    ) -> (FloatTensor<Self>, Saved<Self>);

    /// The output only, if no backward pass follows.
    fn linear_output(
        x: FloatTensor<Self>,
        operands: Operands<Self>,
        spec: Spec,
    ) -> FloatTensor<Self> {
        let frozen = operands.frozen;
        let x = Self::transform_input(x, frozen.norm.clone().into_option(), spec.transform);
        let [factors, residual] = [operands.factors, operands.residual].map(Maybe::into_option);
        Self::linear_forward(x, factors, residual, frozen, spec).0
    }

    /// Gradients of the transformed input, if requested, and of the factors, if there are any;
    /// `saved.x` is the transformed input.
    fn linear_backward(
        saved: Saved<Self>,
        dy: FloatTensor<Self>,
        wants: Wants,
    ) -> (Option<FloatTensor<Self>>, Option<FloatTensor<Self>>);

    /// Like `linear_backward`, for the original input in `saved.x`; `added` is another summand of
    /// its gradient.
    fn input_backward(
        saved: Saved<Self>,
        dy: FloatTensor<Self>,
        added: Option<FloatTensor<Self>>,
        wants: Wants,
    ) -> (Option<FloatTensor<Self>>, Option<FloatTensor<Self>>) {
        piecewise_backward::<Self>(saved, dy, added, wants)
    }
}

/// [`LinearPasses::input_backward`] composed of the backend's other functions.
pub(super) fn piecewise_backward<B: LinearPasses>(
    mut saved: Saved<B>,
    dy: FloatTensor<B>,
    added: Option<FloatTensor<B>>,
    wants: Wants,
) -> (Option<FloatTensor<B>>, Option<FloatTensor<B>>) {
    let transform = saved.spec.transform;
    let norm = saved.frozen.norm.clone().into_option();
    let input = saved.x.clone();
    saved.x = B::transform_input(saved.x, norm.clone(), transform);
    let (d_input, d_factors) = B::linear_backward(saved, dy, wants);
    let dx = d_input.map(|d_input| {
        let dx = B::transform_input_gradient(input, norm, transform, d_input);
        match added {
            Some(added) => B::float_add(dx, added),
            None => dx,
        }
    });
    (dx, d_factors)
}

/// Parents: x, factors, residual; missing ones repeat x.
#[derive(Debug)]
struct StackedBackward;

/// Saved state of [`StackedBackward`].
#[derive(Debug, Clone)]
struct State<B: Backend> {
    /// With the original input.
    saved: Saved<B>,
    has_residual: bool,
}

impl<B: LinearPasses> Backward<B, 3> for StackedBackward {
    type State = State<B>;

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let outputs = &ops.state.saved.spec.out_features;
        crate::operation!(
            "lora_linear backward",
            "{} to {}",
            ops.state.saved.x.shape()[1],
            outputs.iter().sum::<usize>()
        );
        let dy = gradients.consume::<B>(&ops.node);
        let State {
            saved,
            has_residual,
        } = ops.state;
        let [x, factors, residual] = ops.parents;
        let shared = saved.spec.shared_gradient.clone();
        if let Some(residual) = residual.filter(|_| has_residual) {
            let summand = match &shared {
                Some(shared) => shared.deposit(dy.clone()),
                None => Some(dy.clone()),
            };
            if let Some(summand) = summand {
                gradients.register::<B>(residual.id, summand);
            }
        }
        let factors = factors.filter(|_| saved.factors.is_some());
        let wants = if x.is_some() {
            Wants::InputAndFactors
        } else {
            Wants::Factors
        };
        if x.is_none() && factors.is_none() {
            return;
        }
        let added = shared
            .filter(|_| !has_residual)
            .and_then(|shared| shared.take());
        let (dx, d_factors) = B::input_backward(saved, dy, added, wants);
        if let (Some(x), Some(dx)) = (x, dx) {
            gradients.register::<B>(x.id, dx);
        }
        if let (Some(factors), Some(d_factors)) = (factors, d_factors) {
            gradients.register::<B>(factors.id, d_factors);
        }
    }
}

impl<B: LinearPasses, C: CheckpointStrategy> LinearOps for Autodiff<B, C> {
    fn stacked_linear(
        x: FloatTensor<Self>,
        operands: Operands<Self>,
        spec: Spec,
    ) -> FloatTensor<Self> {
        let [factors, residual] = [operands.factors, operands.residual].map(Maybe::into_option);
        let node = |tensor: &Option<FloatTensor<Self>>| {
            tensor
                .as_ref()
                .map_or_else(|| x.node(), |tensor| tensor.node())
        };
        let prepared = StackedBackward
            .prepare::<C>([x.node(), node(&factors), node(&residual)])
            .compute_bound()
            .stateful();
        let has_residual = residual.is_some();
        let takes = spec.shared_gradient.clone().filter(|_| !has_residual);
        let inner = |tensor: Maybe<Self>| {
            Maybe::from_option(tensor.into_option().map(|t| t.into_primitive()))
        };
        let frozen = operands.frozen;
        let frozen = Frozen {
            weight: inner(frozen.weight),
            bias: inner(frozen.bias),
            norm: inner(frozen.norm),
            rounded: inner(frozen.rounded),
        };
        let norm = frozen.norm.clone().into_option();
        let (given, transform) = (x.into_primitive(), spec.transform);
        let (y, mut saved) = B::linear_forward(
            B::transform_input(given.clone(), norm, transform),
            factors.map(|tensor| tensor.into_primitive()),
            residual.map(|tensor| tensor.into_primitive()),
            frozen,
            spec,
        );
        saved.x = given;
        match prepared {
            OpsKind::Tracked(prep) => {
                if let Some(shared) = takes {
                    shared.claim();
                }
                let state = State {
                    saved,
                    has_residual,
                };
                prep.finish(state, y)
            }
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}

impl LinearOps for Flex {
    fn stacked_linear(x: FlexTensor, operands: Operands<Self>, spec: Spec) -> FlexTensor {
        Self::linear_output(x, operands, spec)
    }
}

/// The reason why weights on the CPU have panels.
const PACKED: &str = "frozen weights on the CPU are packed or quantised when they are created";

impl LinearPasses for Flex {
    fn linear_forward(
        x: FlexTensor,
        factors: Option<FlexTensor>,
        residual: Option<FlexTensor>,
        frozen: Frozen<Self>,
        spec: Spec,
    ) -> (FlexTensor, Saved<Self>) {
        let x = contiguous(x);
        let [factors, residual, bias] = [factors, residual, frozen.bias.clone().into_option()]
            .map(|tensor| tensor.map(contiguous));
        let inputs = [&factors, &residual, &bias].map(Option::as_ref);
        let (y, low) = forward_by_weight(&x, inputs, &spec, FewRows::Decode);
        let saved = Saved {
            x,
            low: factors.is_some().then_some(low),
            factors,
            frozen,
            spec,
        };
        (y, saved)
    }

    fn linear_output(x: FlexTensor, operands: Operands<Self>, spec: Spec) -> FlexTensor {
        let frozen = operands.frozen;
        let x = Self::transform_input(x, frozen.norm.into_option(), spec.transform);
        let x = contiguous(x);
        let [factors, residual, bias] = [operands.factors, operands.residual, frozen.bias]
            .map(|tensor| tensor.into_option().map(contiguous));
        let inputs = [&factors, &residual, &bias].map(Option::as_ref);
        forward_by_weight(&x, inputs, &spec, FewRows::Multiply).0
    }

    fn linear_backward(
        saved: Saved<Self>,
        dy: FlexTensor,
        wants: Wants,
    ) -> (Option<FlexTensor>, Option<FlexTensor>) {
        let dy = contiguous(dy);
        if let Some(quantised) = &saved.spec.quantised {
            let weight = quantised.panel_codes();
            return match quantised.compute_dtype() {
                ComputeDtype::F32 => backward::<f32>(&saved, weight.backward(), &dy, wants),
                ComputeDtype::Bf16 => backward::<bf16>(&saved, weight.backward(), &dy, wants),
            };
        }
        match saved.spec.panels.as_ref().expect(PACKED) {
            Packed::F32(weight) => backward(&saved, weight.backward(), &dy, wants),
            Packed::Bf16(weight) => backward(&saved, weight.backward(), &dy, wants),
        }
    }
}

/// The packed factors of a stack.
fn scaled_factors<'a>(
    factors: &'a FlexTensor,
    plan: &'a AdapterPlan,
    dropout: &'a [Option<Dropout>],
) -> Factors<'a> {
    Factors {
        values: floats(factors),
        layout: &plan.layout,
        dropout,
    }
}

/// Output and low-rank values, by the dtype of the weight; the inputs are factors, residual and bias.
fn forward_by_weight(
    x: &FlexTensor,
    [factors, residual, bias]: [Option<&FlexTensor>; 3],
    spec: &Spec,
    few_rows: FewRows,
) -> (FlexTensor, FlexTensor) {
    if let Some(quantised) = &spec.quantised {
        let codes = quantised.panel_codes();
        return match quantised.compute_dtype() {
            ComputeDtype::F32 => {
                let weight = ForwardWeight::<f32>::Codes(codes, few_rows);
                forward(x, factors, residual, bias, weight, spec)
            }
            ComputeDtype::Bf16 => {
                let weight = ForwardWeight::<bf16>::Codes(codes, few_rows);
                forward(x, factors, residual, bias, weight, spec)
            }
        };
    }
    with_matrix!(spec.panels.as_ref().expect(PACKED), weight => {
        let weight = ForwardWeight::Panels(weight.forward());
        forward(x, factors, residual, bias, weight, spec)
    })
}

/// Output and low-rank values.
fn forward<T: PackedIn>(
    x: &FlexTensor,
    factors: Option<&FlexTensor>,
    residual: Option<&FlexTensor>,
    bias: Option<&FlexTensor>,
    weight: ForwardWeight<'_, T>,
    spec: &Spec,
) -> (FlexTensor, FlexTensor) {
    let dropout = spec.part_dropout();
    let adapter = factors.zip(spec.adapter.as_ref()).map(|(factors, plan)| {
        let packed = T::factors(&plan.packed);
        let packed = packed.forward(scaled_factors(factors, plan, &dropout));
        (packed, &plan.layout)
    });
    let (y, low) = Forward {
        x: numbers(x),
        weight,
        adapter: adapter.as_ref().map(|(packed, layout)| cpu::Adapter {
            parts: &layout.parts,
            low_width: layout.low_width,
            panels: &**packed,
            dropout: &dropout,
        }),
        bias: bias.map(floats),
        residual: residual.map(floats),
        unread: spec.unread,
    }
    .run();
    let [n, _] = dims(x);
    let shape = [n, spec.out_features.iter().sum()];
    let y = match y {
        Values::Wide(y) => buffer::tensor(y, shape),
        Values::Same(y) => buffer::tensor(y, shape),
    };
    let low_width = spec.adapter.as_ref().map_or(0, |a| a.layout.low_width);
    (y, buffer::tensor(low, [n, low_width]))
}

fn backward<T: PackedIn>(
    saved: &Saved<Flex>,
    weight: Panels<T>,
    dy: &FlexTensor,
    wants: Wants,
) -> (Option<FlexTensor>, Option<FlexTensor>) {
    let dropout = saved.spec.part_dropout();
    let adapter = saved.factors.as_ref().zip(saved.spec.adapter.as_ref());
    let adapter = adapter.map(|(factors, plan)| {
        let packed = T::factors(&plan.packed);
        let packed = packed.backward(scaled_factors(factors, plan, &dropout));
        (packed, &plan.layout)
    });
    let (dx, d_factors) = cpu::Backward {
        x: numbers(&saved.x),
        low: saved.low.as_ref().map_or(&[][..], numbers),
        dy: if dy.dtype() == T::DTYPE {
            OutputGradient::Same(numbers(dy))
        } else {
            OutputGradient::Wide(floats(dy))
        },
        weight: &weight,
        adapter: adapter.as_ref().map(|(packed, layout)| cpu::Adapter {
            parts: &layout.parts,
            low_width: layout.low_width,
            panels: &**packed,
            dropout: &dropout,
        }),
    }
    .run(wants);
    let dx = match wants {
        Wants::InputAndFactors => buffer::tensor_if(dx, dims::<2>(&saved.x)),
        Wants::Factors => None,
    };
    let len = d_factors.len();
    let has_factors = saved.factors.is_some();
    (dx, has_factors.then(|| buffer::tensor(d_factors, [len])))
}
