//! Limits of column files.
//!
//! Each constant documents its reason. docs/limits.md tells users which input exceeds a limit, and
//! what to do.

/// Maximum consecutive rows without values in column files. They need no bytes in the file, so
/// nothing else limits them.
pub const EMPTY_ROWS: usize = 1_000_000;

/// Maximum bytes of columns that must be decoded together: one Arrow batch with its dictionaries,
/// or the Parquet pages of one row. Writers create batches of a few megabytes.
pub const COLUMN_BYTES: usize = 2 << 30;
