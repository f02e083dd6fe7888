//! Reads and writes folders of sentence-transformers, whose models compute one vector per text.
//!
//! [`SentenceTransformer`] contains the settings of a folder. [`save_sentence_transformer`] writes
//! an encoder with the same settings, so that every version of sentence-transformers and vLLM
//! compute the same embeddings.

mod read;
mod write;

pub use read::{Pooling, Prompts, SentenceTransformer, Similarity, TokenizerRules};
pub use write::save_sentence_transformer;
