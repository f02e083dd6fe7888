//! Random values that depend only on a seed.

use tooltune_kernels::{DeltaHeads, DeltaInputs};

/// A generator of values in -1..1.
#[derive(Debug)]
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }

    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n)
            .map(|_| self.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0)
            .collect()
    }

    /// Inputs of the gated delta rule for `n` tokens.
    pub(crate) fn delta_inputs(&mut self, n: usize, heads: DeltaHeads) -> DeltaInputs {
        let shape = [n, heads.value_heads];
        DeltaInputs {
            qkv: self.tensor([n, heads.width()]),
            log_decay: self.tensor(shape).sub_scalar(1.0).mul_scalar(0.7),
            beta: self.tensor(shape).add_scalar(1.0).mul_scalar(0.5),
        }
    }
}
