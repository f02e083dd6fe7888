//! Trains an encoder that puts each query beside its right documents.
//!
//! [`info_nce`] is the loss over the embeddings of a batch, [`gradient`] takes it back to what learns
//! ([`trained`]), a few sentences at a time; [`crate::recipes::retriever`] makes steps of that.

pub mod gradient;
pub mod info_nce;
pub mod trained;

pub use gradient::{Encoder, Sentences, StepGradient};
pub use info_nce::{Direction, InfoNce};
pub use trained::{RetrieverLora, Trained};
