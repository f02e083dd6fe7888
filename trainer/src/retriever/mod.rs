//! Queries and documents to an encoder that puts each query beside its right documents.
//!
//! [`info_nce`] is the loss over the embeddings of a batch, [`gradient`] takes it back to the
//! encoder's parameters a few sentences at a time, [`training`] makes steps of that.

pub mod files;
pub mod gradient;
pub mod info_nce;
pub mod mining;
pub mod preparation;
pub mod trained;
pub mod training;

pub use gradient::{Encoder, Sentences, StepGradient};
pub use info_nce::{Direction, InfoNce};
pub use preparation::RetrieverPreparation;
pub use trained::{RetrieverLora, Trained};
pub use training::{RetrieverRun, RetrieverState};
