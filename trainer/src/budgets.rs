//! What configs and the files of runs may ask for: every budget of bytes and counts of this crate.
//!
//! Each constant gives its reason here; docs/limits.md tells users what exceeds it and what to do.
//! The error of a budget says what was asked for, the limit, and the setting, if there is one.

use tooltune_rows::budgets::Limit;

/// The most bytes of a config. The longest of the repository have some kilobytes; one that a
/// program wrote, with a pattern for each module of a large model, some hundreds.
pub const CONFIG_BYTES: Limit = Limit::new("CONFIG_BYTES", 4 << 20);

/// The most bytes of a file that is one JSON value and that a run or an evaluation wrote, such as
/// `run.lock.json` or `metrics.json`. The metrics of every suite with its tables have some hundred
/// kilobytes.
pub const RUN_FILE_BYTES: Limit = Limit::new("RUN_FILE_BYTES", 64 << 20);

/// The most bytes of prepared examples that the cache keeps. The examples of ten million rows of two
/// hundred tokens have some 5 GB.
pub const EXAMPLE_CACHE_BYTES: u64 = 32 << 30;

/// How many faults of syntax are kept of a config. One open bracket may spoil every line behind it,
/// and the first fifty mistakes are drawn.
pub const SYNTAX_FAULTS: usize = 1_000;

/// How many unknown keys of a config are compared with the names of all settings. The first fifty
/// mistakes are drawn, and a config with more is none.
pub const EXPLAINED_KEYS: usize = 100;

/// The most blocks of a model. Lists are made with an entry for each before any tensor is looked
/// for; published models have up to 130.
pub const MODEL_LAYERS: usize = 10_000;

/// The largest size of a head of attention; published models have 256 at most.
pub const MODEL_HEAD_DIM: usize = 1 << 16;

/// The most parameters that the sizes of a model may make, so that no sum of bytes overflows; a
/// hundred times those of the largest models.
pub const MODEL_PARAMETERS: u128 = 1 << 44;

/// The largest rank of an adapter. A matrix of the largest models that are trained here has 4,096
/// to 8,192 rows, and a rank beyond that adds memory and nothing else; ranks in use end at 1,024.
pub const LORA_RANK: usize = 8_192;
