//! Keys of dropout masks: a key identifies the mask of one projection's input.
//!
//! The mask is not stored, but the backward pass runs each block a second time, and a resumed run
//! repeats a step. The mask is therefore a pure function of (seed, step, micro-batch, layer,
//! projection), from our own generator that no dependency can change.

use crate::Dropout;
use crate::dropout::mix;

/// Probability of dropping an element, in units of 1/65536.
///
/// Kept elements are multiplied by the inverse of the keep probability after rounding, so that the
/// expectation is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropoutRate(u16);

impl DropoutRate {
    /// Rounds `rate` in `0.0..1.0` to units of 1/65536; `None` if the result is zero.
    pub fn new(rate: f64) -> Option<Self> {
        let units = (rate * 65536.0).round().clamp(0.0, 65535.0) as u16;
        (units > 0).then_some(Self(units))
    }
}

/// Identifies one dropout mask of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropoutKey {
    rate: DropoutRate,
    state: u64,
}

impl DropoutKey {
    /// The key of a micro-batch: `step` counts optimizer updates of the whole run.
    pub fn new(rate: DropoutRate, seed: u64, step: u64, micro_batch: usize) -> Self {
        let state = [step, micro_batch as u64]
            .into_iter()
            .fold(mix(seed), |s, x| mix(s ^ mix(x)));
        Self { rate, state }
    }

    /// The key of a block.
    pub fn layer(self, layer: usize) -> Self {
        self.child(layer as u64)
    }

    /// The mask of a projection of a block.
    pub fn projection(self, index: usize) -> Dropout {
        Dropout {
            state: self.child(1 << 32 | index as u64).state,
            threshold: self.rate.0,
        }
    }

    fn child(self, label: u64) -> Self {
        Self {
            state: mix(self.state ^ mix(label)),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Invariant: A dropout mask depends only on its key.
    #[test]
    fn every_part_of_the_key_changes_the_mask() {
        let rate = DropoutRate::new(0.05).unwrap();
        let key = DropoutKey::new(rate, 17, 3, 1).layer(4).projection(2);
        assert_eq!(key, DropoutKey::new(rate, 17, 3, 1).layer(4).projection(2));
        let other_keys = [
            DropoutKey::new(rate, 18, 3, 1).layer(4).projection(2),
            DropoutKey::new(rate, 17, 4, 1).layer(4).projection(2),
            DropoutKey::new(rate, 17, 3, 0).layer(4).projection(2),
            DropoutKey::new(rate, 17, 3, 1).layer(5).projection(2),
            DropoutKey::new(rate, 17, 3, 1).layer(4).projection(3),
        ];
        for other in other_keys {
            assert_ne!(key.state, other.state);
        }
    }

    #[test]
    fn a_rate_of_zero_has_no_mask() {
        assert_eq!(DropoutRate::new(0.0), None);
    }
}
