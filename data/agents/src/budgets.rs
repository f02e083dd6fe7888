//! Limits of input.
//!
//! Each constant gives its reason here; docs/limits.md tells users what exceeds it and what to do.

/// Parts of a schema that is made flat, references followed: twenty can describe a million.
pub const FLAT_PARTS: usize = 20_000;

/// Properties of a flat schema.
pub const FLAT_LEAVES: usize = 10_000;

/// Bytes of the names of a flat schema, and of the parts that it is made of, each with the way to it;
/// both are held some five times over. A schema of 10,000 leaves has 2 MiB.
pub const FLAT_BYTES: usize = 16 << 20;

/// Bytes of the ways to all parts of the calls of one line of `score`, each of which is answered with
/// the keys above it. A call of 100,000 arguments has 14 MiB.
pub const CALL_PLACE_BYTES: usize = 64 << 20;
