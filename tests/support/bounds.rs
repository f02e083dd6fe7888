//! Tolerances of every numeric test, by quantity, device and dtype.
//!
//! The integration tests and the tests of `kernels` share this table. In f32 on the CPU only the
//! summation order differs. On CUDA the tensor cores round the factors of an f32 product to TF32,
//! which keeps 10 bits of 23; bf16 keeps 7. Some bf16 results, such as logits, are f32 on the CPU
//! but rounded to bf16 on CUDA, so bf16 has a column for each device. Results that are exact on one
//! device, such as a resumed run or greedy tokens, are compared exactly on all devices.

use burn::tensor::DType;

use super::test_device::TestDevice;

/// The compared quantities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantity {
    /// Logits compared with transformers' logits, or cached decoding with the whole text: largest
    /// absolute difference.
    Logits,
    /// Normalised sentence embeddings compared with sentence-transformers': largest absolute
    /// difference.
    Embedding,
    /// Gradients compared with PEFT's: relative difference in the Euclidean norm.
    Gradient,
    /// Single values of a gradient compared with PyTorch's: largest absolute difference.
    GradientElement,
    /// A gradient that is 0 up to rounding: largest absolute value.
    VanishingGradient,
    /// The norm of a gradient compared with its f64 value: relative difference.
    GradientNorm,
    /// A gradient along a direction compared with the central difference of the function: relative
    /// to the gradient; each test adds an absolute tolerance for small gradients.
    Slope,
    /// Loss or gradients computed in different pieces: relative difference.
    OtherPieces,
    /// Sum of a loss over some rows, computed in different pieces or by another function: absolute
    /// difference, relative to 1 + the loss.
    LossInOtherPieces,
    /// Sum of a loss over some rows compared with its f64 value: the same measure.
    LossSum,
    /// The loss of each of twenty steps compared with PEFT's: absolute difference, in nats.
    StepLoss,
    /// The same losses: relative difference. Batches are small, and the loss of a well-fitted one
    /// is only the rounding of a few tokens.
    StepLossShare,
    /// The loss of each of twenty steps of QLoRA compared with PEFT's: relative difference.
    QuantisedStepLossShare,
    /// The mean of those losses: relative difference.
    MeanLossShare,
    /// The gradient norm of each of twenty steps compared with PEFT's: relative difference.
    StepNorm,
    /// Adapters after twenty steps compared with PEFT's: relative difference.
    TrainedAdapter,
    /// Products of PiSSA's initial factors, and their squares, compared with PEFT's: relative
    /// difference.
    PrincipalFactors,
    /// Residual of a sketch compared with the residual of exact singular values: relative
    /// difference.
    SketchedFactors,
    /// The change of each parameter in five steps compared with PyTorch's: relative difference of
    /// norms.
    ParameterChange,
    /// An operation or its gradients compared with its reference: relative difference.
    Operation,
    /// Attention with scores of several hundred, whose rounding the exponentials amplify: relative
    /// difference.
    SteepAttention,
}

const ALL: [Quantity; 21] = [
    Quantity::Logits,
    Quantity::Embedding,
    Quantity::Gradient,
    Quantity::GradientElement,
    Quantity::VanishingGradient,
    Quantity::GradientNorm,
    Quantity::Slope,
    Quantity::OtherPieces,
    Quantity::LossInOtherPieces,
    Quantity::LossSum,
    Quantity::StepLoss,
    Quantity::StepLossShare,
    Quantity::QuantisedStepLossShare,
    Quantity::MeanLossShare,
    Quantity::StepNorm,
    Quantity::TrainedAdapter,
    Quantity::PrincipalFactors,
    Quantity::SketchedFactors,
    Quantity::ParameterChange,
    Quantity::Operation,
    Quantity::SteepAttention,
];

impl Quantity {
    /// f32 on the CPU and on CUDA, bf16 on the CPU and on CUDA.
    fn row(self) -> [f64; 4] {
        match self {
            // transformers' f32 differs from its own f64 by up to 8e-6 on the tiny models and
            // 1e-4 on SmolLM2.
            Self::Logits => [1e-4, 2e-2, 2e-1, 2e-1],
            Self::Embedding => [1e-4, 2e-3, 2e-2, 2e-2],
            Self::Gradient => [1e-4, 1e-2, 1e-1, 1e-1],
            // For gradients with a norm of about 1: the ratios between dtypes are the same
            // as for norms.
            Self::GradientElement => [1e-5, 1e-3, 1e-2, 1e-2],
            // The softmax of one candidate is 1 in every dtype.
            Self::VanishingGradient => [1e-5; 4],
            // Gradients are f32 for every product dtype. A loop sums their squares, not a product:
            // at most 32,768 of them in sequence, in 32 lanes.
            Self::GradientNorm => [1e-6; 4],
            // The error of an f32 loss, about 1e-6, is divided by the step. TF32 and bf16 round
            // most factors alike on both sides of the step.
            Self::Slope => [1e-2, 1e-1, 4e-1, 4e-1],
            Self::OtherPieces => [1e-5, 5e-3, 5e-2, 5e-2],
            // Rows are summed in f64, so pieces only change the summation order within logits,
            // which are f32 on the CPU. A GPU may use another matmul for other shapes.
            Self::LossInOtherPieces => [2e-7, 5e-3, 1e-5, 5e-2],
            // A temperature of 2.5 amplifies the error of logits in a divergence. In bf16 on CUDA
            // this error is up to 2^-9 of each logit; on the CPU it is only the rounding of sums.
            Self::LossSum => [1e-4, 2e-3, 1e-4, 2e-2],
            Self::StepLoss => [1e-4, 5e-3, 5e-2, 5e-2],
            Self::StepLossShare => [1e-4, 5e-3, 5e-2, 5e-2],
            // bitsandbytes' CPU kernel rounds an absmax before it looks for the nearest code, so a
            // few absmax values differ by one code. Quantisation changes losses by up to 110 %.
            Self::QuantisedStepLossShare => [1e-2, 2e-2, 1e-1, 1e-1],
            Self::MeanLossShare => [1e-5, 2e-3, 1e-2, 1e-2],
            Self::StepNorm => [1e-3, 2e-2, 1e-1, 1e-1],
            Self::TrainedAdapter => [1e-3, 5e-2, 2e-1, 2e-1],
            // PEFT decomposes in f32. The error of singular vectors is the rounding, 1e-7 of the
            // largest value, divided by the gap between two values, about a hundredth of the
            // largest. Both sides decompose f32 weights for every dtype.
            Self::PrincipalFactors => [2e-4; 4],
            // The accuracy of a sketch depends on its iterations. 200 of them separate any two
            // singular values of a random matrix that differ by a few percent, and equal values
            // leave the same residual.
            Self::SketchedFactors => [1e-2; 4],
            // Adam's first steps move a parameter by the sign of its gradient, however small the
            // gradient.
            Self::ParameterChange => [1e-2, 2e-1, 4e-1, 4e-1],
            // With a few thousand terms, another summation order costs about 1e-6 of the norm in
            // f32, so this leaves room and still catches a wrong term. Rounding to bf16 costs up to
            // 2^-9 = 2e-3 per value, and up to six roundings combine: input, factors, low-rank
            // values, probabilities, results.
            Self::Operation => [1e-5, 2e-3, 1.2e-2, 1.2e-2],
            // Scores of several hundred that are computed in TF32 are off by up to .1. One side
            // scales the queries before rounding, the other scales the scores after it. With these
            // roundings in f64, the query gradients of the two sides differ by .061 of their norm,
            // and from the exact gradients by .043 and .063.
            Self::SteepAttention => [1e-3, 1e-1, 2e-1, 2e-1],
        }
    }

    /// The tolerance for f32 results on the device under test.
    pub(crate) fn bound(self) -> f64 {
        self.bound_in(DType::F32)
    }

    /// The tolerance for results in `dtype` on the device under test.
    pub(crate) fn bound_in(self, dtype: DType) -> f64 {
        let [f32_on_cpu, f32_on_cuda, bf16_on_cpu, bf16_on_cuda] = self.row();
        match (dtype, TestDevice::from_env()) {
            (DType::F32, TestDevice::Cpu) => f32_on_cpu,
            (DType::F32, TestDevice::Cuda(_)) => f32_on_cuda,
            (DType::BF16, TestDevice::Cpu) => bf16_on_cpu,
            (DType::BF16, TestDevice::Cuda(_)) => bf16_on_cuda,
            // Always on the CPU. A step of 1e-5 leaves about 1e-10 of curvature and 1e-11 of
            // rounding.
            (DType::F64, _) if self == Self::Slope => 1e-6,
            (other, _) => panic!("the table of bounds has no column for {other:?}"),
        }
    }
}

#[test]
fn dtypes_with_fewer_bits_never_have_a_tighter_bound() {
    for quantity in ALL {
        let row = quantity.row();
        let [f32_on_cpu, f32_on_cuda, bf16_on_cpu, bf16_on_cuda] = row;
        let by_dtype_on_cpu = [f32_on_cpu, bf16_on_cpu, bf16_on_cuda];
        assert!(by_dtype_on_cpu.is_sorted(), "{quantity:?}: {row:?}");
        let by_device_in_f32 = [f32_on_cpu, f32_on_cuda, bf16_on_cuda];
        assert!(by_device_in_f32.is_sorted(), "{quantity:?}: {row:?}");
        // A completely wrong result differs by its own magnitude.
        assert!(
            f32_on_cpu > 0.0 && bf16_on_cuda < 0.5,
            "{quantity:?}: {row:?}"
        );
        assert!(quantity.bound() <= quantity.bound_in(DType::BF16));
    }
}
