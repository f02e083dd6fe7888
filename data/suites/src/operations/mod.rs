//! Defines an operation of `tooltune score`: a name, its input fields, and the function that
//! computes its value.
//!
//! Each suite lists its operations in its own folder.

mod encoders;
mod error;
mod outside;
mod request;

pub use encoders::{EncoderLoader, Encoders};
pub use error::LineError;
pub use outside::Outside;
pub use request::{Fields, InputField, Operation, Request, WHOLE_INPUT};
