//! What files may ask for: every budget of bytes and depth that models, adapters and runs are held to.
//!
//! Each constant gives its reason here; docs/limits.md tells users what exceeds it and what to do.
//! The error of a budget says what was asked for, the limit, and the setting, if there is one.

/// The most bytes of the header of a safetensors file: the rule of the format's own reader.
pub const SAFETENSORS_HEADER_BYTES: u64 = 100_000_000;
