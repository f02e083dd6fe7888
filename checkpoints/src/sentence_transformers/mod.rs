//! Reads and writes folders of sentence-transformers, which turn each text into one vector.
//!
//! [`SentenceTransformer`] contains the settings next to the weights. [`save_sentence_transformer`]
//! writes an encoder with the same settings, so every version of sentence-transformers, and vLLM,
//! computes its embeddings.

mod read;
mod write;

pub use read::{Pooling, Prompts, SentenceTransformer, Similarity, TokenizerRules};
pub use write::save_sentence_transformer;
