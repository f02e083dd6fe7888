//! How near two results must be: every bound of every numeric test, by what is compared, where it
//! was computed and in which type.
//!
//! The integration tests and those of `kernels` share this table. In f32 on the CPU only the order
//! of sums differs. On CUDA the tensor cores round the factors of an f32 product to TF32, which
//! keeps 10 bits of 23; bf16 keeps 7. Where the CPU keeps results of bf16 in f32, such as logits,
//! CUDA rounds them to bf16, so that bf16 has a column of each. What is exact on one device, such as the outcome of a resumed
//! run or the tokens of greedy decoding, is compared exactly on all of them.

use burn::tensor::DType;

use super::place::TestDevice;

/// What is compared with what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantity {
    /// Logits with those of transformers, or of the whole text with those of cached decoding:
    /// largest absolute difference.
    Logits,
    /// Sentence embeddings of length 1 with those of sentence-transformers: largest absolute
    /// difference.
    Embedding,
    /// Gradients with those of PEFT: relative difference in the Euclidean norm.
    Gradient,
    /// Single numbers of a gradient with PyTorch's: largest absolute difference.
    GradientElement,
    /// A gradient that is 0 but for rounding: largest absolute value.
    VanishingGradient,
    /// The norm of a gradient with that in f64: relative difference.
    GradientNorm,
    /// A gradient along a direction with the central difference of the function: as shares of the
    /// gradient, to which each test adds what it needs where that is small.
    Slope,
    /// Loss or gradients with the same ones computed in other pieces: relative difference.
    OtherPieces,
    /// The sum of a loss over some rows with the same one in other pieces or by another function:
    /// absolute difference, as a share of 1 + the loss.
    LossInOtherPieces,
    /// The sum of a loss over some rows with that in f64: the same.
    LossSum,
    /// The loss of each of twenty steps with PEFT's: absolute difference, in nats.
    StepLoss,
    /// The same: relative difference. Batches are small, and one that is learned well has a loss
    /// of a few tokens' rounding.
    StepLossShare,
    /// The mean of those losses: relative difference.
    MeanLossShare,
    /// The gradient norm of each of twenty steps with PEFT's: relative difference.
    StepNorm,
    /// Adapters after twenty steps with PEFT's: relative difference.
    TrainedAdapter,
    /// Products of the factors that PiSSA begins with, and their squares, with PEFT's: relative difference.
    PrincipalFactors,
    /// What a sketch leaves of a weight beside what its singular values leave: relative difference.
    SketchedFactors,
    /// How far each parameter moved in five steps with PyTorch's: relative difference of norms.
    ParameterChange,
    /// An operation or its gradients with its reference: relative difference.
    Operation,
    /// Attention with scores of some hundreds, whose rounding their exponentials enlarge: relative
    /// difference.
    SteepAttention,
}

const ALL: [Quantity; 20] = [
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
            // Of gradients whose norm is about 1: the types stand to each other as in their norms.
            Self::GradientElement => [1e-5, 1e-3, 1e-2, 1e-2],
            // The softmax of one candidate is 1 in every type.
            Self::VanishingGradient => [1e-5; 4],
            // Gradients are f32 whatever products read, and no product sums their squares: at most
            // 32,768 of them one after the other, in 32 lanes.
            Self::GradientNorm => [1e-6; 4],
            // The step's share of a loss in f32, whose error of some 1e-6 is divided by it. TF32
            // and bf16 round most factors alike on both sides of the step.
            Self::Slope => [1e-2, 1e-1, 4e-1, 4e-1],
            Self::OtherPieces => [1e-5, 5e-3, 5e-2, 5e-2],
            // Rows are summed in f64, and pieces change the order of sums within their logits
            // alone, which the CPU keeps in f32; a GPU may take another product for other shapes.
            Self::LossInOtherPieces => [2e-7, 5e-3, 1e-5, 5e-2],
            // A temperature of 2.5 enlarges what logits are off by in a divergence. In bf16 on
            // CUDA that is up to 2^-9 of each logit; on the CPU, the rounding of sums alone.
            Self::LossSum => [1e-4, 2e-3, 1e-4, 2e-2],
            Self::StepLoss => [1e-4, 5e-3, 5e-2, 5e-2],
            Self::StepLossShare => [1e-4, 5e-3, 5e-2, 5e-2],
            Self::MeanLossShare => [1e-5, 2e-3, 1e-2, 1e-2],
            Self::StepNorm => [1e-3, 2e-2, 1e-1, 1e-1],
            Self::TrainedAdapter => [1e-3, 5e-2, 2e-1, 2e-1],
            // PEFT decomposes in f32: singular vectors are off by its rounding, 1e-7 of the largest
            // value, over the distance of two values, which is some hundredth of it. Both sides
            // decompose f32 weights in every type.
            Self::PrincipalFactors => [2e-4; 4],
            // A sketch is as near as its iterations make it; 200 of them separate any two values of a
            // random matrix that differ by a few percent, and equal ones leave the same.
            Self::SketchedFactors => [1e-2; 4],
            // Adam moves a parameter by the sign of its gradient at first, however small that is.
            Self::ParameterChange => [1e-2, 2e-1, 4e-1, 4e-1],
            // Over a few thousand terms another order costs some 1e-6 of the norm in f32, so this
            // leaves room and still catches a wrong term. Rounding to bf16 costs up to 2^-9 =
            // 2e-3 of each number, and up to six of them meet: what is read, factors, low-rank
            // values, probabilities, results.
            Self::Operation => [1e-5, 2e-3, 1.2e-2, 1.2e-2],
            // Scores of some hundreds that are read in TF32 are off by up to .1, and one side scales
            // queries before they are rounded, the other scores after. Rounded so in f64, the test's
            // gradients of queries differ by .061 of their norm, and each side's from the exact ones
            // by .043 and .063.
            Self::SteepAttention => [1e-3, 1e-1, 2e-1, 2e-1],
        }
    }

    /// The bound for results in f32 on the device that the tests run on.
    pub(crate) fn bound(self) -> f64 {
        self.bound_in(DType::F32)
    }

    /// The bound for results in `dtype` on the device that the tests run on.
    pub(crate) fn bound_in(self, dtype: DType) -> f64 {
        let [f32_on_cpu, f32_on_cuda, bf16_on_cpu, bf16_on_cuda] = self.row();
        match (dtype, TestDevice::chosen()) {
            (DType::F32, TestDevice::Cpu) => f32_on_cpu,
            (DType::F32, TestDevice::Cuda(_)) => f32_on_cuda,
            (DType::BF16, TestDevice::Cpu) => bf16_on_cpu,
            (DType::BF16, TestDevice::Cuda(_)) => bf16_on_cuda,
            // Always on the CPU. A step of 1e-5 leaves some 1e-10 of curvature and 1e-11 of
            // rounding.
            (DType::F64, _) if self == Self::Slope => 1e-6,
            (other, _) => panic!("the table of bounds has no column for {other:?}"),
        }
    }
}

#[test]
fn fewer_bits_never_have_the_tighter_bound() {
    for quantity in ALL {
        let row = quantity.row();
        let [f32_on_cpu, f32_on_cuda, bf16_on_cpu, bf16_on_cuda] = row;
        let most_on_cpu = [f32_on_cpu, bf16_on_cpu, bf16_on_cuda];
        assert!(most_on_cpu.is_sorted(), "{quantity:?}: {row:?}");
        let most_in_f32 = [f32_on_cpu, f32_on_cuda, bf16_on_cuda];
        assert!(most_in_f32.is_sorted(), "{quantity:?}: {row:?}");
        // A result that is all wrong differs by its own size.
        assert!(
            f32_on_cpu > 0.0 && bf16_on_cuda < 0.5,
            "{quantity:?}: {row:?}"
        );
        assert!(quantity.bound() <= quantity.bound_in(DType::BF16));
    }
}
