//! Any metric from any language: one JSON object a line in, one out, in order.
//!
//! `{"id", "op", "input", "options"?}` becomes `{"id", "value"}` or `{"id", "error"}`, so that
//! predictions of any system can be scored and worked examples can be fed as they are.
//! A line that cannot be read never stops the stream: it gets an error with its number, the
//! later lines are scored, and [`Summary::n_malformed`] tells the caller to exit with status 3.
//!
//! Every operation is one entry of a table, one table for each suite.

mod data_operations;
mod encoders;
mod error;
mod flat_operations;
mod goat_operations;
mod nestful_operations;
mod outside;
mod pipeline_operations;
mod request;
mod slot_operations;
mod stream;
mod toolqa_operations;

pub use encoders::{EncoderLoader, Encoders};
pub use error::{LineError, StreamError};
pub use outside::Outside;
pub use request::{InputField, Operation, operations};
pub use stream::{ScoreLine, Summary, score_line, score_stream};
