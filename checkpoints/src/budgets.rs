//! Limits on bytes and nesting depth for the files of models, adapters and runs.
//!
//! Each constant documents its reason. docs/limits.md describes what exceeds it and what to do.
//! Errors contain the requested amount, the limit, and the setting if there is one.

use tooltune_disk::budgets::Limit;

/// Maximum bytes of a safetensors header. The format's own reader accepts 100 MB, which needs more
/// than a gigabyte when parsed; the header of 60,000 tensors is 8 MB long.
pub const SAFETENSORS_HEADER_BYTES: u64 = 32 << 20;

/// Maximum dimensions of a tensor. Tensors of language models have two.
pub const TENSOR_DIMENSIONS: usize = 8;

/// Maximum bytes of a GGUF header: metadata and tensor list. The largest vocabularies, with a
/// quarter of a million tokens, need 20 MB including their merges.
pub const GGUF_HEADER_BYTES: u64 = 256 << 20;

/// Maximum items of GGUF metadata, summed over all arrays. An item needs one byte in the file and
/// 32 or more in memory. The largest vocabularies have a quarter of a million tokens, each in a
/// handful of arrays.
pub const GGUF_ITEMS: u64 = 1 << 22;

/// Maximum tensors of a weights file. The largest models have 60,000 tensors in all their files.
pub const TENSORS: u64 = 1 << 18;

/// Maximum bytes of a small JSON file: `config.json` and similar files, the shard index, and the
/// files of a run directory. Parsed JSON needs about twenty times as much memory. The index of a
/// model of 60,000 tensors is 9 MB long, the longest `tokenizer_config.json` 1 MB.
pub const JSON_BYTES: Limit = Limit::new("JSON_BYTES", 16 << 20);

/// Maximum values of a `tokenizer.json` outside its model. An added token needs nine, and the
/// largest vocabularies add a few thousand.
pub const TOKENIZER_VALUES: u64 = 1 << 21;

/// Maximum bytes of a damaged `metrics.jsonl` that is set aside: the size after ten million steps.
pub const METRICS_BYTES: Limit = Limit::new("METRICS_BYTES", 4 << 30);

/// Maximum bytes of a line of `metrics.jsonl` or `timing.jsonl`. A step with the metrics of every
/// suite needs a few kilobytes.
pub const METRICS_LINE_BYTES: u64 = 1 << 20;
