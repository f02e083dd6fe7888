//! Defines what an operation of `tooltune score` is: a name, the fields that it reads of a line, and
//! the value that it computes.
//!
//! Each suite has its table of operations in its own folder.

mod encoders;
mod error;
mod outside;
mod request;

pub use encoders::{EncoderLoader, Encoders};
pub use error::LineError;
pub use outside::Outside;
pub use request::{Fields, InputField, Operation, Request, WHOLE_INPUT};
