//! The stacked maps as an operation of backends: slices for the CPU, and one backward pass for
//! every backend that has its pieces.

use std::sync::Arc;

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, DType, ExtensionType, Flex, TensorMetadata, backend_extension};

use super::adapter::{AdapterPlan, PackedIn};
use super::cpu::{self, Forward, OutputGradient, Values, Wants};
use super::cpu_factors::Factors;
use super::shared_gradient::SharedGradient;
use crate::cpu::buffer::{self, contiguous, dims, floats, numbers};
use crate::dropout::Dropout;
use crate::frozen_weight::{Packed, PackedMatrix, with_matrix};
use crate::maybe::Maybe;
use crate::rms_norm::RmsNormGradients;
use crate::swiglu::SwigluGradients;

/// What has no gradient.
#[derive(Debug, Clone, ExtensionType)]
pub(crate) struct Frozen<B: Backend> {
    /// `[Σ out, in]`; absent where the weight is packed.
    #[extension_type]
    pub(crate) weight: Maybe<B>,
    /// `[Σ out]`.
    #[extension_type]
    pub(crate) bias: Maybe<B>,
    /// `[in]`, where the maps read a norm.
    #[extension_type]
    pub(crate) norm: Maybe<B>,
    /// The factors in the type that products read, where somebody has cast them.
    #[extension_type]
    pub(crate) rounded: Maybe<B>,
}

/// What the maps read of their input, as [`super::InputTransform`] says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum TransformSpec {
    Plain,
    Normed { eps: f32, output: DType },
    Gated,
}

/// Everything that is no tensor.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) out_features: Arc<[usize]>,
    /// The weight, where it is packed.
    pub(crate) panels: Option<Packed>,
    pub(crate) adapter: Option<AdapterPlan>,
    /// Of each map; empty for none.
    pub(crate) dropout: Vec<Option<Dropout>>,
    pub(crate) transform: TransformSpec,
    /// Nobody reads the output: it stays uncomputed.
    pub(crate) unread: bool,
    /// As [`super::LinearExtras`] says.
    pub(crate) shared_gradient: Option<SharedGradient>,
}

impl Spec {
    /// Dropout of each adapted map; empty for none.
    pub(super) fn part_dropout(&self) -> Vec<Option<Dropout>> {
        let parts = self
            .adapter
            .iter()
            .flat_map(|adapter| &adapter.layout.parts);
        let dropout: Vec<_> = parts
            .map(|part| self.dropout.get(part.map).copied().flatten())
            .collect();
        if dropout.iter().any(Option::is_some) {
            dropout
        } else {
            Vec::new()
        }
    }
}

/// What the backward pass needs of the forward pass.
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

/// Stacked maps, differentiable where the backend is.
///
/// Fusion has an implementation of its own, which keeps the products apart.
#[backend_extension(Autodiff, Flex, Cube: cfg(feature = "cube"))]
pub(crate) trait LinearOps: Backend {
    /// The contract is [`super::lora_linear`]'s.
    fn stacked_linear(
        x: FloatTensor<Self>,
        #[extension_type] factors: Maybe<Self>,
        #[extension_type] residual: Maybe<Self>,
        #[extension_type] frozen: Frozen<Self>,
        spec: Spec,
    ) -> FloatTensor<Self>;
}

/// Both passes on tensors without a graph.
pub(crate) trait LinearPasses: LinearOps + RmsNormGradients + SwigluGradients {
    /// What the maps read of `x`.
    fn read(
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

    /// Gradient of `x` from that of what was read.
    fn read_gradient(
        x: FloatTensor<Self>,
        norm: Option<FloatTensor<Self>>,
        transform: TransformSpec,
        d_read: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        match (transform, norm) {
            (TransformSpec::Normed { eps, .. }, Some(norm)) => {
                Self::rms_norm_gradient(x, norm, eps, d_read)
            }
            (TransformSpec::Gated, _) => Self::gated_silu_gradient(x, d_read),
            (TransformSpec::Plain | TransformSpec::Normed { .. }, _) => d_read,
        }
    }

    /// The output for what was read, and what the backward pass needs.
    fn linear_forward(
        x: FloatTensor<Self>,
        factors: Option<FloatTensor<Self>>,
        residual: Option<FloatTensor<Self>>,
        frozen: Frozen<Self>,
        spec: Spec,
    ) -> (FloatTensor<Self>, Saved<Self>);

    /// The output alone, where no backward pass follows.
    fn linear_output(
        x: FloatTensor<Self>,
        factors: Maybe<Self>,
        residual: Maybe<Self>,
        frozen: Frozen<Self>,
        spec: Spec,
    ) -> FloatTensor<Self> {
        let x = Self::read(x, frozen.norm.clone().into_option(), spec.transform);
        let (factors, residual) = (factors.into_option(), residual.into_option());
        Self::linear_forward(x, factors, residual, frozen, spec).0
    }

    /// Gradients of what was read, if wanted, and of the factors, if there are some; `saved` holds what
    /// was read.
    fn linear_backward(
        saved: Saved<Self>,
        dy: FloatTensor<Self>,
        wants: Wants,
    ) -> (Option<FloatTensor<Self>>, Option<FloatTensor<Self>>);

    /// The same of the input as it was given, which `saved` holds, with `added`, which is another share
    /// of its gradient.
    fn given_backward(
        saved: Saved<Self>,
        dy: FloatTensor<Self>,
        added: Option<FloatTensor<Self>>,
        wants: Wants,
    ) -> (Option<FloatTensor<Self>>, Option<FloatTensor<Self>>) {
        piecewise_backward::<Self>(saved, dy, added, wants)
    }
}

/// [`LinearPasses::given_backward`] by the other pieces of a backend.
pub(super) fn piecewise_backward<B: LinearPasses>(
    mut saved: Saved<B>,
    dy: FloatTensor<B>,
    added: Option<FloatTensor<B>>,
    wants: Wants,
) -> (Option<FloatTensor<B>>, Option<FloatTensor<B>>) {
    let transform = saved.spec.transform;
    let norm = saved.frozen.norm.clone().into_option();
    let given = saved.x.clone();
    saved.x = B::read(saved.x, norm.clone(), transform);
    let (d_read, d_factors) = B::linear_backward(saved, dy, wants);
    let dx = d_read.map(|d_read| {
        let dx = B::read_gradient(given, norm, transform, d_read);
        match added {
            Some(added) => B::float_add(dx, added),
            None => dx,
        }
    });
    (dx, d_factors)
}

/// Parents: x, factors, residual; those that are missing repeat x.
#[derive(Debug)]
struct StackedBackward;

/// What [`StackedBackward`] keeps.
#[derive(Debug, Clone)]
struct State<B: Backend> {
    /// With the input as it was given.
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
            let share = match &shared {
                Some(shared) => shared.leave(dy.clone()),
                None => Some(dy.clone()),
            };
            if let Some(share) = share {
                gradients.register::<B>(residual.id, share);
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
        let (dx, d_factors) = B::given_backward(saved, dy, added, wants);
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
        factors: Maybe<Self>,
        residual: Maybe<Self>,
        frozen: Frozen<Self>,
        spec: Spec,
    ) -> FloatTensor<Self> {
        let (factors, residual) = (factors.into_option(), residual.into_option());
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
        let inner =
            |tensor: Maybe<Self>| Maybe::of(tensor.into_option().map(|t| t.into_primitive()));
        let frozen = Frozen {
            weight: inner(frozen.weight),
            bias: inner(frozen.bias),
            norm: inner(frozen.norm),
            rounded: inner(frozen.rounded),
        };
        let norm = frozen.norm.clone().into_option();
        let (given, transform) = (x.into_primitive(), spec.transform);
        let (y, mut saved) = B::linear_forward(
            B::read(given.clone(), norm, transform),
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
    fn stacked_linear(
        x: FlexTensor,
        factors: Maybe<Self>,
        residual: Maybe<Self>,
        frozen: Frozen<Self>,
        spec: Spec,
    ) -> FlexTensor {
        Self::linear_output(x, factors, residual, frozen, spec)
    }
}

/// Why weights on the CPU have panels.
const PACKED: &str = "a frozen weight on the CPU is packed when it is made";

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
        let [given_factors, residual, bias] = [&factors, &residual, &bias].map(Option::as_ref);
        let (y, low) = with_matrix!(spec.panels.as_ref().expect(PACKED), weight => {
            forward(&x, given_factors, residual, bias, weight, &spec)
        });
        let saved = Saved {
            x,
            low: factors.is_some().then_some(low),
            factors,
            frozen,
            spec,
        };
        (y, saved)
    }

    fn linear_backward(
        saved: Saved<Self>,
        dy: FlexTensor,
        wants: Wants,
    ) -> (Option<FlexTensor>, Option<FlexTensor>) {
        let dy = contiguous(dy);
        match saved.spec.panels.as_ref().expect(PACKED) {
            Packed::F32(weight) => backward(&saved, weight, &dy, wants),
            Packed::Bf16(weight) => backward(&saved, weight, &dy, wants),
        }
    }
}

/// The factors of a stack as they are packed.
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

/// Output and low-rank values.
fn forward<T: PackedIn>(
    x: &FlexTensor,
    factors: Option<&FlexTensor>,
    residual: Option<&FlexTensor>,
    bias: Option<&FlexTensor>,
    weight: &PackedMatrix<T>,
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
        weight: weight.forward(),
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
    weight: &PackedMatrix<T>,
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
    let backward = weight.backward();
    let (dx, d_factors) = cpu::Backward {
        x: numbers(&saved.x),
        low: saved.low.as_ref().map_or(&[][..], numbers),
        dy: if dy.dtype() == T::DTYPE {
            OutputGradient::Same(numbers(dy))
        } else {
            OutputGradient::Wide(floats(dy))
        },
        weight: &backward,
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
