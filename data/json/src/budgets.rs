//! Input limits.
//!
//! The comment of each constant gives its reason. docs/limits.md tells users which input exceeds a
//! limit, and what to do.

use crate::ValueBudget;

/// Maximum bytes per line. Parsed JSON needs several times the memory of its text; a line of this
/// length still fits into a laptop's memory. The longest row of the supported public data sets is
/// less than a hundredth of it.
pub const LINE_BYTES: usize = 256 << 20;

/// Maximum bytes of a line that `score` skips because it exceeds [`LINE_BYTES`]. A device such as
/// `/dev/zero` has no line end; reading this many bytes takes seconds.
pub const SKIPPED_LINE_BYTES: u64 = 16 * LINE_BYTES as u64;

/// Maximum rows per file. The largest files of public data sets have a few million; a billion rows
/// of one repeated value fit into a kilobyte of Parquet.
pub const FILE_ROWS: usize = 100_000_000;

/// Maximum bytes of blank lines, or of white space in an array, between two rows. Gzip compresses a
/// gigabyte of them to a megabyte.
pub const BLANK_BYTES: usize = 64 << 20;

/// Maximum bytes of row text for files of any size. The text of a larger file may have up to
/// [`EXPANSION`] times the size of the file.
pub const EXPANDED_BYTES: u64 = 256 << 20;

/// Maximum ratio of row text to file bytes. Gzip reaches a thousand; dictionary-encoded columns or
/// zstd expand a kilobyte to gigabytes.
pub const EXPANSION: u64 = 10_000;

/// Maximum members of a gzip stream that decompresses to nothing. Each [`GZIP_MEMBER_BYTES`]
/// decompressed bytes allow one more, because some programs compress each line separately.
pub const GZIP_MEMBERS: u64 = 10_000;

/// Decompressed bytes that allow one more gzip member. The lines of JSON Lines are longer.
pub const GZIP_MEMBER_BYTES: u64 = 16;

/// Maximum bytes, after decompression, of a document that is read into memory as a whole.
pub const DOCUMENT_BYTES: usize = 2 << 30;

/// Maximum values in one JSON text, counted before any is built. They take at most about 1.5 GB.
/// The largest public API documents have a third of them.
pub const JSON_VALUES: ValueBudget = ValueBudget::new("JSON_VALUES", 5_000_000);

/// Maximum bytes of text that the aliases of a YAML document may repeat.
pub const YAML_ALIAS_BYTES: usize = 64 << 20;

/// Maximum accesses to the value during one validation. Ten thousand leaves under a schema with
/// ten branches per leaf need a hundredth of it; using all of it takes less than half a second.
pub const VALIDATION_STEPS: u64 = 10_000_000;

/// Maximum bytes of the errors of one validation, including the values that they copy.
pub const VALIDATION_ERROR_BYTES: u64 = 64 << 20;

/// Maximum broken rules listed per value; a longer list would not help to fix it.
pub const LISTED_FAULTS: usize = 1_000;

/// Maximum paths through the branches of a schema at one location of a value. The widest schema of
/// JSONSchemaBench has 91.
pub const SCHEMA_WAYS: u64 = 100_000;

/// Maximum chain of schemas applied at one location of a value. Validators recurse over them.
pub const SCHEMA_LEVELS: usize = 500;

/// Maximum product of schema levels and value levels. A stack for more would exceed the memory
/// that a validation may use.
pub const SCHEMA_STACK_LEVELS: usize = 64_000;

/// Maximum values in a schema whose definitions are also compiled separately.
pub const MEMORY_SCHEMA_NODES: usize = 100_000;

/// Maximum backtracking steps per match of a pattern with lookaround or backreferences.
pub const BACKTRACK_STEPS: usize = 100_000;

/// Maximum compilations of subschemas with an `$id`: each path to one compiles it again.
pub const COMPILED_RESOURCES: usize = 2_000;

/// Maximum bytes of the paths to all subschemas, which the validator stores. A schema of 100,000
/// properties has 4 MiB.
pub const SCHEMA_PLACE_BYTES: usize = 64 << 20;

/// Maximum patterns per schema.
pub const SCHEMA_PATTERNS: usize = 10_000;

/// Maximum patterns per schema that compile to more than 256 KiB or use lookaround or
/// backreferences.
pub const LARGE_PATTERNS: usize = 32;
