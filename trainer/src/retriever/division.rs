//! How the processes of a run divide numbered portions of work.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use tooltune_kernels::gradient_sum::GradientSum;

use crate::error::Error;

/// The processes that compute a step together. All make the same calls.
pub trait Division {
    /// The portions of this process, in ascending order. `costs` has the estimated work of each.
    fn own(&self, costs: &[u64]) -> Vec<usize>;

    /// Gives the values of the own portions to all processes, and returns the values of all `n`
    /// portions in order.
    ///
    /// # Errors
    ///
    /// A process was lost.
    fn exchange(
        &mut self,
        own: BTreeMap<usize, Vec<f32>>,
        n: usize,
    ) -> Result<Vec<Vec<f32>>, Error>;

    /// An empty sum of the gradients of all processes: `n_parts` parts of `n_values` values.
    fn gradient_sum(&self, n_values: usize, n_parts: usize) -> GradientSum;

    /// The sum of the parts of all processes, `[p]`, on the device of `like`.
    ///
    /// # Errors
    ///
    /// A process was lost.
    fn add(&mut self, sum: GradientSum, like: &Tensor<1>) -> Result<Tensor<1>, Error>;

    /// Notes that a portion is finished.
    fn progress(&mut self) {}
}

/// A process that computes without others.
#[derive(Debug, Clone, Copy)]
pub struct Alone;

impl Division for Alone {
    fn own(&self, costs: &[u64]) -> Vec<usize> {
        (0..costs.len()).collect()
    }

    fn exchange(
        &mut self,
        own: BTreeMap<usize, Vec<f32>>,
        _: usize,
    ) -> Result<Vec<Vec<f32>>, Error> {
        Ok(own.into_values().collect())
    }

    fn gradient_sum(&self, n_values: usize, n_parts: usize) -> GradientSum {
        GradientSum::new(n_values, n_parts)
    }

    fn add(&mut self, sum: GradientSum, like: &Tensor<1>) -> Result<Tensor<1>, Error> {
        sum.finish(like, None)
    }
}
