//! Divides the steps of a retriever among the ranks of a run.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use tooltune_kernels::gradient_sum::GradientSum;
use tooltune_ranks::Ranks;

use crate::error::Error;
use crate::eval::served::unreadable;
use crate::recipes::data_plane::DataPlane;
use crate::recipes::deal::deal;
use crate::retriever::Division;

/// The ranks of a run.
#[derive(Debug)]
pub(in crate::recipes) struct RankDivision<'r> {
    ranks: &'r mut Ranks,
    data_plane: &'r DataPlane,
    /// Whether a signal has arrived at this rank.
    is_interrupted: bool,
    /// Whether a signal has arrived at any rank. Equal on all ranks.
    pub(in crate::recipes) is_any_interrupted: bool,
}

impl<'r> RankDivision<'r> {
    /// For step `step`. `data_plane` adds the gradients; `is_interrupted` tells whether a signal has
    /// arrived at this rank.
    pub(in crate::recipes) fn new(
        (ranks, data_plane): (&'r mut Ranks, &'r DataPlane),
        step: u64,
        is_interrupted: bool,
    ) -> Self {
        ranks.pulse().phase(&format!("retriever step {step}"));
        Self {
            ranks,
            data_plane,
            is_interrupted,
            is_any_interrupted: is_interrupted,
        }
    }
}

impl Division for RankDivision<'_> {
    fn own(&self, costs: &[u64]) -> Vec<usize> {
        let items: Vec<(usize, u64)> = costs.iter().copied().enumerate().collect();
        let mut shares = deal(&items, self.ranks.world_size());
        std::mem::take(&mut shares[self.ranks.rank()])
    }

    fn exchange(
        &mut self,
        own: BTreeMap<usize, Vec<f32>>,
        n: usize,
    ) -> Result<Vec<Vec<f32>>, Error> {
        if self.ranks.world_size() == 1 {
            return Ok(own.into_values().collect());
        }
        let own = Portions {
            is_interrupted: self.is_interrupted,
            values: own,
        };
        let gathered = self.ranks.gather(&own.to_bytes())?;
        let all = match gathered {
            Some(of_ranks) => {
                let mut all = Portions::default();
                for bytes in of_ranks {
                    let portions = Portions::from_bytes(&bytes)?;
                    all.is_interrupted |= portions.is_interrupted;
                    all.values.extend(portions.values);
                }
                all.to_bytes()
            }
            None => Vec::new(),
        };
        let all = Portions::from_bytes(&self.ranks.broadcast(all)?)?;
        self.is_any_interrupted |= all.is_interrupted;
        let has_all = all.values.keys().copied().eq(0..n);
        has_all
            .then(|| all.values.into_values().collect())
            .ok_or_else(unreadable)
    }

    fn gradient_sum(&self, n_values: usize, n_parts: usize) -> GradientSum {
        self.data_plane.gradient_sum(n_values, n_parts)
    }

    fn add(&mut self, sum: GradientSum, like: &Tensor<1>) -> Result<Tensor<1>, Error> {
        self.data_plane.meet(&sum, self.ranks)?;
        self.data_plane.add(sum, like, self.ranks)
    }

    fn progress(&mut self) {
        self.ranks.pulse().progress();
    }
}

/// Values of numbered portions, as a message. Floats are sent as their bits.
#[derive(Debug, Default, PartialEq)]
struct Portions {
    is_interrupted: bool,
    values: BTreeMap<usize, Vec<f32>>,
}

impl Portions {
    fn to_bytes(&self) -> Vec<u8> {
        let n_values: usize = self.values.values().map(Vec::len).sum();
        let mut bytes = Vec::with_capacity(1 + 16 * self.values.len() + 4 * n_values);
        bytes.push(u8::from(self.is_interrupted));
        for (&number, values) in &self.values {
            bytes.extend((number as u64).to_le_bytes());
            bytes.extend((values.len() as u64).to_le_bytes());
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let (&flag, mut rest) = bytes.split_first().ok_or_else(unreadable)?;
        let mut values = BTreeMap::new();
        while !rest.is_empty() {
            let (number, after) = rest.split_first_chunk().ok_or_else(unreadable)?;
            let (len, after) = after.split_first_chunk().ok_or_else(unreadable)?;
            let n_bytes = u64::from_le_bytes(*len).checked_mul(4);
            let n_bytes = n_bytes.and_then(|n| usize::try_from(n).ok());
            let portion = n_bytes.and_then(|n| after.split_at_checked(n));
            let (portion, after) = portion.ok_or_else(unreadable)?;
            let number = usize::try_from(u64::from_le_bytes(*number)).map_err(|_| unreadable())?;
            let (floats, _) = portion.as_chunks::<4>();
            let floats = floats.iter().map(|bytes| f32::from_le_bytes(*bytes));
            if values.insert(number, floats.collect()).is_some() {
                return Err(unreadable());
            }
            rest = after;
        }
        Ok(Self {
            is_interrupted: flag != 0,
            values,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn portions() -> Portions {
        let values = [(3, vec![1.5, f32::MIN_POSITIVE]), (0, Vec::new())];
        Portions {
            is_interrupted: true,
            values: values.into_iter().collect(),
        }
    }

    #[test]
    fn portions_survive_the_message() {
        let bytes = portions().to_bytes();
        assert_eq!(Portions::from_bytes(&bytes).expect("whole"), portions());
    }

    #[test]
    fn damaged_portions_are_refused() {
        let bytes = portions().to_bytes();
        for n in [0, 2, 20, bytes.len() - 1] {
            assert!(Portions::from_bytes(&bytes[..n]).is_err(), "{n} bytes");
        }
        let mut huge = bytes.clone();
        huge[9..17].fill(0xff);
        assert!(Portions::from_bytes(&huge).is_err());
        let twice = [&bytes[..], &bytes[1..]].concat();
        assert!(Portions::from_bytes(&twice).is_err());
    }
}
