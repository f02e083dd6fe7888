//! Limits of input.
//!
//! The comment of each constant gives its reason; docs/limits.md tells users what exceeds it and
//! what to do.

/// Maximum number of parts of a schema to flatten, with references resolved: twenty references can
/// describe a million parts.
pub const FLAT_PARTS: usize = 20_000;

/// Maximum number of properties of a flat schema.
pub const FLAT_LEAVES: usize = 10_000;

/// Maximum size, in bytes, of the names in a flat schema, and of its source parts together with
/// their paths. Memory use is about five times this. A schema of 10,000 leaves needs 2 MiB.
pub const FLAT_BYTES: usize = 16 << 20;

/// Maximum size of the paths to all parts of the calls in one line of `score`, in bytes. A path
/// repeats the keys above its part. A call with 100,000 arguments needs 14 MiB.
pub const CALL_PLACE_BYTES: usize = 64 << 20;
