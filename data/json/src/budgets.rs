//! Input limits.
//!
//! The comment of each constant gives its reason. docs/limits.md tells users which input exceeds a
//! limit, and what to do.

use crate::ValueBudget;

/// Maximum bytes per line. Parsed JSON needs several times the memory of its text, and a line of
/// this length still fits into a laptop's memory. The longest row of the supported public data sets
/// has less than a hundredth of these bytes.
pub const LINE_BYTES: usize = 256 << 20;

/// Maximum bytes of a line that `score` skips because it exceeds [`LINE_BYTES`]. Without this
/// limit, `score` would never finish on a device such as `/dev/zero`, which has no line end.
/// Reading this many bytes takes seconds.
pub const SKIPPED_LINE_BYTES: u64 = 16 * LINE_BYTES as u64;

/// Maximum rows per file. The largest files of public data sets have a few million rows, but a
/// billion rows of one repeated value fit into a kilobyte of Parquet.
pub const FILE_ROWS: usize = 100_000_000;

/// Maximum bytes of blank lines, or of white space in an array, between two rows. Gzip compresses a
/// gigabyte of blank lines to a megabyte.
pub const BLANK_BYTES: usize = 64 << 20;

/// Maximum bytes of row text for files of any size. The text of a larger file may have up to
/// [`EXPANSION`] times the size of the file.
pub const EXPANDED_BYTES: u64 = 256 << 20;

/// Maximum ratio of row text to file bytes. Gzip reaches a ratio of a thousand; dictionary-encoded
/// columns or zstd expand a kilobyte to gigabytes.
pub const EXPANSION: u64 = 10_000;

/// Maximum members of a gzip stream that decompresses to nothing. The limit grows by one member for
/// every [`GZIP_MEMBER_BYTES`] decompressed bytes, because some programs compress each line
/// separately.
pub const GZIP_MEMBERS: u64 = 10_000;

/// Decompressed bytes that allow one more gzip member. Even one line of JSON Lines has more bytes.
pub const GZIP_MEMBER_BYTES: u64 = 16;

/// Maximum bytes, after decompression, of a document that is read into memory as a whole.
pub const DOCUMENT_BYTES: usize = 2 << 30;

/// Maximum values in one JSON text, counted before any is built. They take at most about 1.5 GB of
/// memory. The largest public API documents have a third as many values.
pub const JSON_VALUES: ValueBudget = ValueBudget::new("JSON_VALUES", 5_000_000);

/// Maximum bytes of text that the aliases of a YAML document may repeat.
pub const YAML_ALIAS_BYTES: usize = 64 << 20;

/// Maximum accesses to the value during one validation. A value with ten thousand leaves, under a
/// schema with ten branches per leaf, needs a hundredth of them. All of them take less than half a
/// second.
pub const VALIDATION_STEPS: u64 = 10_000_000;

/// Maximum bytes of the errors of one validation, including the values that they copy.
pub const VALIDATION_ERROR_BYTES: u64 = 64 << 20;

/// Maximum broken rules listed per value. A longer list would not help to fix the value.
pub const LISTED_FAULTS: usize = 1_000;

/// Maximum paths through the branches of a schema at one location of a value. The widest schema of
/// JSONSchemaBench has 91 paths.
pub const SCHEMA_WAYS: u64 = 100_000;

/// Maximum length of a chain of schemas that apply to one location of a value. Validators recurse
/// over the chain.
pub const SCHEMA_LEVELS: usize = 500;

/// Maximum product of schema levels and value levels. A larger product would need a stack that
/// exceeds the memory of a validation.
pub const SCHEMA_STACK_LEVELS: usize = 64_000;

/// Maximum values in a schema for which each definition is also compiled separately.
pub const MEMORY_SCHEMA_NODES: usize = 100_000;

/// Maximum backtracking steps per match of a pattern with lookaround or backreferences.
pub const BACKTRACK_STEPS: usize = 100_000;

/// Maximum compilations of subschemas with an `$id`. Each path to such a subschema compiles it
/// again.
pub const COMPILED_RESOURCES: usize = 2_000;

/// Maximum bytes of the paths to all subschemas, which the validator stores. The paths of a schema
/// with 100,000 properties have 4 MiB.
pub const SCHEMA_PLACE_BYTES: usize = 64 << 20;

/// Maximum patterns per schema.
pub const SCHEMA_PATTERNS: usize = 10_000;

/// Maximum patterns per schema that compile to more than 256 KiB or use lookaround or
/// backreferences.
pub const LARGE_PATTERNS: usize = 32;
