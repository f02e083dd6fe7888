//! Folders of sentence-transformers: how texts become one vector, read and written.
//!
//! [`SentenceTransformer`] is what the files beside the weights say; [`save_sentence_transformer`]
//! writes an encoder with the same words, so that every version, and vLLM, gives its embeddings.

mod read;
mod write;

pub use read::{Pooling, Prompts, SentenceTransformer, Similarity, TokenizerRules};
pub use write::save_sentence_transformer;
