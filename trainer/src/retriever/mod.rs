//! Trains an encoder to embed queries near their relevant documents.
//!
//! [`info_nce`] is the loss of a batch's embeddings. [`gradient`] propagates it to the trained
//! parameters ([`trained`]), a few sentences at a time. [`crate::recipes::retriever`] runs the
//! steps.

pub mod division;
pub mod gradient;
pub mod info_nce;
pub mod trained;

pub use division::{Alone, Division};
pub use gradient::{Encoder, Sentences, StepGradient};
pub use info_nce::{Direction, InfoNce};
pub use trained::{RetrieverLora, Trained};
