//! Encodes texts as sentence vectors, each distinct text once.
//!
//! On a CPU, encoding is the main cost of the metric. The texts of a data set are therefore
//! collected first and encoded in chunks of similar length, without repeats and with little
//! padding. [`HashEncoder`] replaces a real model if no weights are available. Its numbers are
//! reproducible bit by bit in any language, but have no linguistic meaning.

use std::collections::{BTreeSet, HashMap};

/// Maximum number of texts per call of the encoder.
const CHUNK_TEXTS: usize = 64;

/// Length of a [`HashEncoder`] vector.
const HASH_DIMENSIONS: u64 = 64;

/// Encoding failed.
#[derive(Debug, thiserror::Error)]
pub enum EncoderError {
    /// The sentence encoder failed.
    #[error("the sentence encoder failed: {0}")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The encoder did not return one vector per text, all of the same length.
    #[error(
        "the sentence encoder returned a wrong number of vectors, or vectors of different lengths, for {n_texts} texts"
    )]
    Shape {
        /// Number of texts passed to the encoder.
        n_texts: usize,
    },
}

/// Encodes texts as vectors whose cosine measures similarity.
pub trait SentenceEncoder {
    /// Encodes each text as one vector; all vectors have the same length.
    ///
    /// # Errors
    ///
    /// The model fails; use [`EncoderError::Failed`].
    fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EncoderError>;
}

/// A deterministic substitute encoder: signed counts of hashed three-byte windows.
#[derive(Debug, Clone, Copy, Default)]
pub struct HashEncoder;

impl HashEncoder {
    /// Returns the 64 counts of a text, not normalised. They are integers, which f32 represents
    /// exactly.
    ///
    /// The input bytes are 0x02, the UTF-8 text, and 0x03. Each three-byte window is hashed with
    /// 64-bit FNV-1a to `h`. It adds 1 at index `h % 64` if bit 32 of `h` is 0, otherwise it
    /// subtracts 1.
    pub fn vector(text: &str) -> Vec<f32> {
        let framed: Vec<u8> = [2].into_iter().chain(text.bytes()).chain([3]).collect();
        let mut counts = vec![0.0; HASH_DIMENSIONS as usize];
        for window in framed.windows(3) {
            let hash = fnv1a_64(window);
            let sign = if hash >> 32 & 1 == 0 { 1.0 } else { -1.0 };
            counts[(hash % HASH_DIMENSIONS) as usize] += sign;
        }
        counts
    }
}

impl SentenceEncoder for HashEncoder {
    fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EncoderError> {
        Ok(texts.iter().map(|text| Self::vector(text)).collect())
    }
}

fn fnv1a_64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// The vectors of a set of texts.
#[derive(Debug, Default)]
pub struct Embeddings {
    vectors: HashMap<String, Vec<f32>>,
}

impl Embeddings {
    /// Encodes each distinct text once, shortest first, `CHUNK_TEXTS` per call.
    ///
    /// # Errors
    ///
    /// The encoder fails, or returns a wrong number of vectors or vectors of different lengths.
    pub fn encode<'t>(
        texts: impl Iterator<Item = &'t str>,
        encoder: &dyn SentenceEncoder,
    ) -> Result<Self, EncoderError> {
        let by_length: BTreeSet<(usize, &str)> = texts.map(|text| (text.len(), text)).collect();
        let texts: Vec<&str> = by_length.into_iter().map(|(_, text)| text).collect();
        let mut vectors = HashMap::with_capacity(texts.len());
        let mut n_dimensions = None;
        for chunk in texts.chunks(CHUNK_TEXTS) {
            let encoded = encoder.encode(chunk)?;
            let expected = *n_dimensions.get_or_insert(encoded.first().map_or(0, Vec::len));
            let have_equal_length = encoded.iter().all(|vector| vector.len() == expected);
            if encoded.len() != chunk.len() || !have_equal_length {
                return Err(EncoderError::Shape {
                    n_texts: chunk.len(),
                });
            }
            vectors.extend(chunk.iter().map(|text| (*text).to_owned()).zip(encoded));
        }
        Ok(Self { vectors })
    }

    /// The vector of a text, if it was encoded.
    pub fn vector(&self, text: &str) -> Option<&[f32]> {
        self.vectors.get(text).map(Vec::as_slice)
    }

    /// Cosine similarity of two texts, clamped to 0..=1; 0 if a text was not encoded.
    pub(crate) fn similarity(&self, left: &str, right: &str) -> f64 {
        match (self.vectors.get(left), self.vectors.get(right)) {
            (Some(left), Some(right)) => cosine(left, right).clamp(0.0, 1.0),
            _ => 0.0,
        }
    }
}

/// Cosine in f64; 0 if either vector is zero.
fn cosine(left: &[f32], right: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter()
            .zip(b)
            .map(|(x, y)| f64::from(*x) * f64::from(*y))
            .sum()
    };
    let norms = (dot(left, left) * dot(right, right)).sqrt();
    if norms == 0.0 {
        0.0
    } else {
        dot(left, right) / norms
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn a_hash_vector_has_one_signed_count_per_window() {
        let vector = HashEncoder::vector("tea");
        assert_eq!(vector.len(), 64);
        assert_eq!(vector.iter().map(|count| count.abs()).sum::<f32>(), 3.0);
        assert_eq!(HashEncoder::vector(""), vec![0.0; 64]);
    }

    #[test]
    fn fnv_hashes_equal_the_published_vectors() {
        assert_eq!(fnv1a_64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a_64(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a_64(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn opposite_and_zero_vectors_have_similarity_zero() {
        assert_eq!(cosine(&[1.0, 0.0], &[-2.0, 0.0]), -1.0);
        assert_eq!(cosine(&[0.0, 0.0], &[1.0, 0.0]), 0.0);
        struct OppositeEncoder;
        impl SentenceEncoder for OppositeEncoder {
            fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EncoderError> {
                Ok(texts
                    .iter()
                    .map(|text| vec![if *text == "up" { 1.0 } else { -1.0 }])
                    .collect())
            }
        }
        let embeddings =
            Embeddings::encode(["up", "down"].into_iter(), &OppositeEncoder).expect("encoded");
        assert_eq!(embeddings.similarity("up", "down"), 0.0);
        assert_eq!(embeddings.similarity("up", "up"), 1.0);
    }

    #[test]
    fn each_distinct_text_is_encoded_once_and_by_length() {
        #[derive(Default)]
        struct RecordingEncoder(RefCell<Vec<Vec<String>>>);
        impl SentenceEncoder for RecordingEncoder {
            fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EncoderError> {
                self.0
                    .borrow_mut()
                    .push(texts.iter().map(ToString::to_string).collect());
                HashEncoder.encode(texts)
            }
        }
        let texts: Vec<String> = (0..200).map(|n| "x".repeat(1 + (n * 37) % 100)).collect();
        let recorder = RecordingEncoder::default();
        Embeddings::encode(texts.iter().map(String::as_str), &recorder).expect("encoded");
        let calls = recorder.0.into_inner();
        assert_eq!(calls.iter().map(Vec::len).collect::<Vec<_>>(), [64, 36]);
        let lengths: Vec<usize> = calls.iter().flatten().map(String::len).collect();
        assert_eq!(lengths, (1..=100).collect::<Vec<_>>());
    }

    #[test]
    fn an_encoder_that_returns_too_few_vectors_is_an_error() {
        struct TooFewEncoder;
        impl SentenceEncoder for TooFewEncoder {
            fn encode(&self, _texts: &[&str]) -> Result<Vec<Vec<f32>>, EncoderError> {
                Ok(vec![vec![1.0]])
            }
        }
        let error = Embeddings::encode(["a", "b"].into_iter(), &TooFewEncoder)
            .expect_err("one vector for two");
        assert!(matches!(error, EncoderError::Shape { n_texts: 2 }));
    }
}
