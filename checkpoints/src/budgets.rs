//! What files may ask for: every budget of bytes and depth that models, adapters and runs are held to.
//!
//! Each constant gives its reason here; docs/limits.md tells users what exceeds it and what to do.
//! The error of a budget says what was asked for, the limit, and the setting, if there is one.

/// The most bytes of the header of a safetensors file: the rule of the format's own reader.
pub const SAFETENSORS_HEADER_BYTES: u64 = 100_000_000;

/// The most bytes of a JSON file beside weights: `config.json` and its like, the index of shards,
/// what a run directory says of itself. As JSON values they take some twenty times as much memory.
/// The index of a model of 60,000 tensors has 9 MB, the longest `tokenizer_config.json` 1 MB.
pub const JSON_BYTES: u64 = 16 << 20;

/// The most bytes of a `tokenizer.json`. Those of the largest vocabularies have about 35 MB.
pub const TOKENIZER_BYTES: u64 = 64 << 20;

/// The most bytes of a chat template in a file of its own. The longest public ones have about
/// 50 KB.
pub const TEMPLATE_BYTES: u64 = 1 << 20;

/// The most bytes of a line of `metrics.jsonl` or `timing.jsonl`. A step with the metrics of every
/// suite has some kilobytes.
pub const METRICS_LINE_BYTES: u64 = 1 << 20;
