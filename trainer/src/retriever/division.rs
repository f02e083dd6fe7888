//! How the processes of a run divide numbered portions of work.

use std::collections::BTreeMap;

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

    /// Whether this process has all portions.
    fn is_alone(&self) -> bool;

    /// Replaces `sums` by the element-wise sums over all processes.
    ///
    /// # Errors
    ///
    /// A process was lost.
    fn add_all(&mut self, sums: &mut [i64]) -> Result<(), Error>;

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

    fn is_alone(&self) -> bool {
        true
    }

    fn add_all(&mut self, _: &mut [i64]) -> Result<(), Error> {
        Ok(())
    }
}
