//! Limits of configs, and of the files that runs and evaluations write.
//!
//! Each constant states its reason; docs/limits.md tells users what may exceed it and what to do.

use tooltune_disk::budgets::Limit;

/// Largest config in bytes. The longest ones in the repository have some kilobytes; a generated one
/// with a pattern for each module of a large model has some hundred kilobytes.
pub const CONFIG_BYTES: Limit = Limit::new("CONFIG_BYTES", 4 << 20);

/// Largest JSON file of a run or an evaluation in bytes, such as `run.lock.json` or `metrics.json`.
/// The metrics of all suites with their tables have some hundred kilobytes.
pub const RUN_FILE_BYTES: Limit = Limit::new("RUN_FILE_BYTES", 64 << 20);

/// Largest number of syntax errors collected in a config. One open bracket may invalidate all
/// following lines, and only the first fifty mistakes are displayed.
pub const SYNTAX_FAULTS: usize = 1_000;

/// Largest number of unknown keys for which similar settings are searched. Only the first fifty
/// mistakes are displayed, and a file with more unknown keys is not a config.
pub const EXPLAINED_KEYS: usize = 100;

/// Largest rank of an adapter. The matrices of the largest models trained here have 4,096 to 8,192
/// rows, and a higher rank only adds memory. Ranks in use are at most 1,024.
pub const LORA_RANK: usize = 8_192;
