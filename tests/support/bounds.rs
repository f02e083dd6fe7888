//! How near two results must be: every bound of every numeric test, by what is compared, where it
//! was computed and in which type.
//!
//! The integration tests and those of `kernels` share this table. In f32 on the CPU only the order
//! of sums differs. On CUDA the tensor cores round the factors of an f32 product to TF32, which
//! keeps 10 bits of 23; bf16 keeps 7. What is exact on one device, such as the outcome of a resumed
//! run or the tokens of greedy decoding, is compared exactly on all of them.

use burn::tensor::DType;

use super::place::Place;

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
    /// Loss or gradients with the same ones computed in other pieces: relative difference.
    OtherPieces,
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
    /// An operation or its gradients with its reference: relative difference.
    Operation,
    /// Attention with scores of some hundreds, whose rounding their exponentials enlarge: relative
    /// difference.
    SteepAttention,
}

const ALL: [Quantity; 11] = [
    Quantity::Logits,
    Quantity::Embedding,
    Quantity::Gradient,
    Quantity::OtherPieces,
    Quantity::StepLoss,
    Quantity::StepLossShare,
    Quantity::MeanLossShare,
    Quantity::StepNorm,
    Quantity::TrainedAdapter,
    Quantity::Operation,
    Quantity::SteepAttention,
];

impl Quantity {
    /// f32 on the CPU, f32 on CUDA, bf16 on either.
    fn row(self) -> [f64; 3] {
        match self {
            // transformers' f32 differs from its own f64 by up to 8e-6 on the tiny models and
            // 1e-4 on SmolLM2.
            Self::Logits => [1e-4, 2e-2, 2e-1],
            Self::Embedding => [1e-4, 2e-3, 2e-2],
            Self::Gradient => [1e-4, 1e-2, 1e-1],
            Self::OtherPieces => [1e-5, 5e-3, 5e-2],
            Self::StepLoss => [1e-4, 5e-3, 5e-2],
            Self::StepLossShare => [1e-4, 5e-3, 5e-2],
            Self::MeanLossShare => [1e-5, 2e-3, 1e-2],
            Self::StepNorm => [1e-3, 2e-2, 1e-1],
            Self::TrainedAdapter => [1e-3, 5e-2, 2e-1],
            // Over a few thousand terms another order costs some 1e-6 of the norm in f32, so this
            // leaves room and still catches a wrong term. Rounding to bf16 costs up to 2^-9 =
            // 2e-3 of each number, and up to six of them meet: what is read, factors, low-rank
            // values, probabilities, results.
            Self::Operation => [1e-5, 2e-3, 1.2e-2],
            Self::SteepAttention => [1e-3, 5e-2, 2e-1],
        }
    }

    /// The bound for results in f32 on the device that the tests run on.
    pub(crate) fn bound(self) -> f64 {
        self.bound_in(DType::F32)
    }

    /// The bound for results in `dtype` on the device that the tests run on.
    pub(crate) fn bound_in(self, dtype: DType) -> f64 {
        let [f32_on_cpu, f32_on_cuda, bf16] = self.row();
        match (dtype, Place::chosen()) {
            (DType::F32, Place::Cpu) => f32_on_cpu,
            (DType::F32, Place::Cuda(_)) => f32_on_cuda,
            (DType::BF16, _) => bf16,
            (other, _) => panic!("the table of bounds has no column for {other:?}"),
        }
    }
}

#[test]
fn fewer_bits_never_have_the_tighter_bound() {
    for quantity in ALL {
        let row = quantity.row();
        assert!(row.is_sorted(), "{quantity:?}: {row:?}");
        // A result that is all wrong differs by its own size.
        assert!(row[0] > 0.0 && row[2] < 0.5, "{quantity:?}: {row:?}");
        assert!(quantity.bound() <= quantity.bound_in(DType::BF16));
    }
}
