//! A key to the dropout multipliers of one projection's input: the same key, the same mask.
//!
//! The backward pass runs each block a second time, and a resumed run repeats a step; both need
//! the mask again without its having been kept. So it is a pure function of (seed, step,
//! micro-batch, layer, projection), from our own generator, which no dependency can change.

use burn::tensor::{Device, Tensor, TensorData};
use rayon::prelude::*;
use tooltune_kernels::lora_linear::Dropout;

/// Probability of dropping an element, in units of 1/65536.
///
/// The multiplier of a kept element is the inverse of the exact rounded probability, so that the
/// expectation stays 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropoutRate(u16);

impl DropoutRate {
    /// Rounds `rate` in `0.0..1.0` to units of 1/65536; `None` when that is zero.
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

    /// The key of a projection of a block.
    pub fn projection(self, index: usize) -> Self {
        self.child(1 << 32 | index as u64)
    }

    fn child(self, label: u64) -> Self {
        Self {
            state: mix(self.state ^ mix(label)),
            ..self
        }
    }

    /// Multipliers `[n, in]`, f32: 0, or the inverse of the probability of being kept.
    pub fn multiplier(self, [rows, width]: [usize; 2], device: &Device) -> Option<Dropout> {
        let threshold = self.rate.0;
        let kept = 65536.0 / (65536.0 - f32::from(threshold));
        let mut values = vec![0.0f32; rows * width];
        values
            .par_chunks_mut(width.max(1))
            .enumerate()
            .for_each(|(row, values)| {
                let row_state = mix(self.state ^ mix(row as u64));
                for (word_idx, four) in values.chunks_mut(4).enumerate() {
                    let word = mix(row_state.wrapping_add(word_idx as u64));
                    for (i, value) in four.iter_mut().enumerate() {
                        let dropped = ((word >> (16 * i)) as u16) < threshold;
                        *value = if dropped { 0.0 } else { kept };
                    }
                }
            });
        Some(Dropout(Tensor::from_data(
            TensorData::new(values, [rows, width]),
            device,
        )))
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014) after one step of its counter.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(key: DropoutKey, rows: usize) -> Vec<f32> {
        let Dropout(mask) = key.multiplier([rows, 577], &Device::flex()).unwrap();
        mask.into_data().iter::<f32>().collect()
    }

    #[test]
    fn the_same_key_gives_the_same_mask_and_another_key_another() {
        let rate = DropoutRate::new(0.05).unwrap();
        let key = DropoutKey::new(rate, 17, 3, 1).layer(4).projection(2);
        assert_eq!(values(key, 9), values(key, 9));
        let others = [
            DropoutKey::new(rate, 18, 3, 1).layer(4).projection(2),
            DropoutKey::new(rate, 17, 4, 1).layer(4).projection(2),
            DropoutKey::new(rate, 17, 3, 0).layer(4).projection(2),
            DropoutKey::new(rate, 17, 3, 1).layer(5).projection(2),
            DropoutKey::new(rate, 17, 3, 1).layer(4).projection(3),
        ];
        for other in others {
            assert_ne!(values(key, 9), values(other, 9));
        }
    }

    #[test]
    fn the_expectation_of_a_multiplier_is_one() {
        let rate = DropoutRate::new(0.3).unwrap();
        let values = values(DropoutKey::new(rate, 1, 1, 0).layer(0).projection(0), 2000);
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64;
        // 1.15 million draws with standard deviation 0.65: 6 sigma are 0.0036.
        assert!((mean - 1.0).abs() < 0.0036, "{mean}");
        let dropped = values.iter().filter(|&&v| v == 0.0).count() as f64 / values.len() as f64;
        assert!((dropped - 0.3).abs() < 0.003, "{dropped}");
    }

    #[test]
    fn a_rate_of_zero_has_no_mask() {
        assert_eq!(DropoutRate::new(0.0), None);
    }
}
