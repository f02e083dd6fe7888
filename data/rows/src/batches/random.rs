//! Reproducible random numbers from a seed and a stream number.
//!
//! xoshiro256++ (Blackman and Vigna 2019, public domain), seeded by SplitMix64. It is implemented
//! here because the order of examples, LoRA's initial values and dropout must not change when a
//! crate is updated: resumed runs must be bitwise identical. The same seed with two stream numbers
//! gives two unrelated sequences.

/// A pseudo-random generator; not for cryptography.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeededRandom {
    state: [u64; 4],
}

/// One step of SplitMix64: advances `state` and returns a well-mixed value.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl SeededRandom {
    /// Creates a generator for one use (`stream`) of a run's `seed`.
    pub fn new(seed: u64, stream: u64) -> Self {
        // The stream is mixed before it is combined with the seed, so (1, 2) and (2, 1) differ and
        // neighbouring streams share no state words.
        let mut stream_state = stream;
        let mut mixer = seed ^ split_mix(&mut stream_state).rotate_left(32);
        Self {
            state: std::array::from_fn(|_| split_mix(&mut mixer)),
        }
    }

    /// Returns 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in `[0, 1)`, a multiple of 2⁻⁵³.
    pub fn uniform_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Uniform in `0..n`, without the bias of a remainder (Lemire 2019).
    ///
    /// # Panics
    ///
    /// If `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        assert!(n > 0, "below(0) has no value to return");
        let n = n as u64;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(n);
            // Reject the lowest 2^64 mod n products, which would favour some values.
            if product as u64 >= n.wrapping_neg() % n {
                return (product >> 64) as usize;
            }
        }
    }

    /// Shuffles `items`; every permutation is equally likely (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// Normal with mean 0 and variance 1 (Box and Muller). The second value is discarded to keep
    /// the state at four words.
    pub fn normal(&mut self) -> f64 {
        // 1 - u is in (0, 1], so its logarithm is finite.
        let radius = (-2.0 * (1.0 - self.uniform_f64()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform_f64()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_mix_gives_the_published_values() {
        let mut state = 1_234_567;
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973];
        assert_eq!([split_mix(&mut state), split_mix(&mut state)], expected);
    }

    #[test]
    fn xoshiro_gives_the_published_values() {
        let mut random = SeededRandom {
            state: [1, 2, 3, 4],
        };
        let expected = [
            41_943_041,
            58_720_359,
            3_588_806_011_781_223,
            3_591_011_842_654_386,
        ];
        assert_eq!(expected.map(|_| random.next_u64()), expected);
    }

    #[test]
    fn seed_and_stream_are_not_interchangeable() {
        let firsts: std::collections::BTreeSet<u64> = (0..20)
            .flat_map(|seed| (0..20).map(move |stream| SeededRandom::new(seed, stream).next_u64()))
            .collect();
        assert_eq!(firsts.len(), 400);
    }

    #[test]
    fn uniform_values_fill_the_unit_interval() {
        let mut random = SeededRandom::new(3, 0);
        let values: Vec<f64> = (0..20_000).map(|_| random.uniform_f64()).collect();
        assert!(values.iter().all(|v| (0.0..1.0).contains(v)));
        let mean = values.iter().sum::<f64>() / 20_000.0;
        assert!((mean - 0.5).abs() < 0.01, "mean {mean}");
    }

    #[test]
    fn random_integers_below_a_bound_are_uniform() {
        let mut random = SeededRandom::new(4, 0);
        let mut counts = [0_usize; 7];
        for _ in 0..14_000 {
            counts[random.below(7)] += 1;
        }
        assert!(
            counts.iter().all(|count| (1_800..2_200).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn normal_has_mean_zero_and_variance_one() {
        let mut random = SeededRandom::new(5, 0);
        let values: Vec<f64> = (0..40_000).map(|_| random.normal()).collect();
        let mean = values.iter().sum::<f64>() / 40_000.0;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 40_000.0;
        assert!(
            mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03,
            "{mean} {variance}"
        );
    }

    #[test]
    fn shuffle_keeps_every_item_and_moves_some() {
        let mut items: Vec<usize> = (0..100).collect();
        SeededRandom::new(6, 0).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
