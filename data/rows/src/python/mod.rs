//! Python's values in Rust: read from JSON, compared, printed and calculated with as Python does.
//!
//! Scorers of this field are Python programs, and their rules follow the language: 2 equals 2.0 and
//! `True` equals 1, but `str(2)` is not `str(2.0)`; integers have no bounds; `-7 % 3` is 2.
//! The decision to question: `json::parse` is not used here, because it refuses what Python reads
//! (`NaN`, `1e999`) and holds integers beyond 64 bits as floats.

mod division;
mod json;
mod number;
mod repr;
mod round;
mod text;
mod value;

#[cfg(test)]
mod tests;

pub use json::{PythonJsonError, dumps, loads, loads_prefix};
pub use number::{MAX_INTEGER_BITS, Number, NumberError};
pub use repr::{python_repr, python_str};
pub use round::round_to;
pub use text::is_blank;
pub use value::{Booleans, PyDict, PyValue};
