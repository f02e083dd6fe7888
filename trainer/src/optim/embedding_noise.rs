//! NEFTune: adds noise to the embeddings of a micro-batch.
//!
//! The noise depends only on the seed, the step and the micro-batch. A resumed run, or a second
//! backward pass in tests, can therefore recompute it instead of storing it.

use burn::tensor::{DType, Tensor, TensorData};
use tooltune_kernels::dropout::mix;
use tooltune_rows::batches::SeededRandom;

/// The noise of one micro-batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmbeddingNoise {
    alpha: f64,
    stream: u64,
    seed: u64,
}

/// Random streams for noise have the highest bit set.
const NOISE_STREAMS: u64 = 1 << 63;

impl EmbeddingNoise {
    /// Noise of a micro-batch. `step` counts the optimizer steps of the whole run.
    pub fn new(alpha: f64, seed: u64, step: u64, micro_batch: usize) -> Self {
        let stream = mix(mix(step) ^ micro_batch as u64) | NOISE_STREAMS;
        Self {
            alpha,
            stream,
            seed,
        }
    }

    /// Adds noise to embeddings. It is uniform in `±alpha / √(n d)` for a document of `n` tokens;
    /// `cu_seqlens` has the document boundaries.
    ///
    /// # Shapes
    ///
    /// - `embeddings`: `[n, d]`
    /// - returns: `[n, d]` in the same dtype
    ///
    /// # Source
    ///
    /// Jain et al. 2023 ("NEFTune: Noisy Embeddings Improve Instruction Finetuning"), Algorithm 1;
    /// `neftune_post_forward_hook`, transformers 5.23, whose `n` also includes padding.
    pub fn add_to(self, embeddings: Tensor<2>, cu_seqlens: &[usize]) -> Tensor<2> {
        let [n, d] = embeddings.dims();
        let mut random = SeededRandom::new(self.seed, self.stream);
        let mut noise = Vec::with_capacity(n * d);
        for document in cu_seqlens.windows(2) {
            let n_values = (document[1] - document[0]) * d;
            let bound = self.alpha / (n_values as f64).sqrt();
            let value = |_| ((random.uniform_f64() * 2.0 - 1.0) * bound) as f32;
            noise.extend((0..n_values).map(value));
        }
        // Rows after the last document are padding.
        noise.resize(n * d, 0.0);
        let dtype = embeddings.dtype();
        let noise = Tensor::from_data(TensorData::new(noise, [n, d]), &embeddings.device());
        embeddings.cast(DType::F32).add(noise).cast(dtype)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn values(x: &Tensor<2>) -> Vec<f32> {
        x.to_data().iter::<f32>().collect()
    }

    #[test]
    fn noise_is_uniform_within_the_bound_of_each_document() {
        let device = Device::flex();
        let (n, d) = (600, 64);
        let zeros = Tensor::<2>::zeros([n, d], &device);
        let noise = EmbeddingNoise::new(5.0, 42, 3, 1);
        let noise_values = values(&noise.add_to(zeros.clone(), &[0, 100, 500]));
        for (range, n_tokens) in [(0..100, 100.0), (100..500, 400.0)] {
            let bound = 5.0 / f64::sqrt(n_tokens * d as f64);
            let part = &noise_values[range.start * d..range.end * d];
            let largest = part.iter().fold(0.0_f32, |a, x| a.max(x.abs()));
            assert!(f64::from(largest) <= bound && f64::from(largest) > 0.99 * bound);
            let squares: f64 = part.iter().map(|x| f64::from(*x).powi(2)).sum();
            let variance = squares / part.len() as f64;
            // Variance of a uniform distribution, within five standard errors.
            let expected = bound * bound / 3.0;
            let deviation = expected * f64::sqrt(0.8 / part.len() as f64);
            assert!(
                (variance - expected).abs() < 5.0 * deviation,
                "{variance} {expected}"
            );
            let mean = part.iter().map(|x| f64::from(*x)).sum::<f64>() / part.len() as f64;
            assert!(
                mean.abs() < 5.0 * f64::sqrt(expected / part.len() as f64),
                "{mean}"
            );
        }
        assert!(noise_values[500 * d..].iter().all(|x| *x == 0.0));
        assert_eq!(
            noise_values,
            values(&noise.add_to(zeros.clone(), &[0, 100, 500]))
        );
        for other in [
            EmbeddingNoise::new(5.0, 41, 3, 1),
            EmbeddingNoise::new(5.0, 42, 4, 1),
            EmbeddingNoise::new(5.0, 42, 3, 0),
        ] {
            assert_ne!(
                noise_values,
                values(&other.add_to(zeros.clone(), &[0, 100, 500]))
            );
        }
    }
}
