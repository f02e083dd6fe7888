//! Python's values in Rust: read from JSON, compared, printed and computed as in Python.
//!
//! Published scorers are Python programs, and their rules follow the language: 2 equals 2.0 and
//! `True` equals 1, but `str(2)` is not `str(2.0)`; integers are unbounded; `-7 % 3` is 2.
//! This module does not use the crate's own `parse`, because that rejects JSON that Python reads
//! (`NaN`, `1e999`) and stores integers beyond 64 bits as floats.

mod division;
mod json;
mod literal;
mod number;
mod repr;
mod round;
mod value;

#[cfg(test)]
mod tests;

pub use json::{PythonJsonError, dumps, loads, loads_prefix};
pub use literal::{LiteralReader, leading_literal, python_literal};
pub use number::{MAX_INTEGER_BITS, Number, NumberError};
pub use repr::{python_repr, python_str};
pub use round::round_to;
pub use value::{Booleans, PyDict, PyValue};
