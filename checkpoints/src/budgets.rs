//! What files may ask for: every budget of bytes and depth that models, adapters and runs are held to.
//!
//! Each constant gives its reason here; docs/limits.md tells users what exceeds it and what to do.
//! The error of a budget says what was asked for, the limit, and the setting, if there is one.

/// The most bytes of a file that is read whole, with the name of its constant, which errors say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// How many.
    pub bytes: u64,
    /// As docs/limits.md spells it.
    pub name: &'static str,
}

impl Limit {
    /// A limit of a file.
    pub const fn new(name: &'static str, bytes: u64) -> Self {
        Self { bytes, name }
    }
}

/// The most bytes of the header of a safetensors file. The format's own reader takes 100 MB, which
/// is more than a gigabyte once it is parsed; the header of 60,000 tensors has 8 MB.
pub const SAFETENSORS_HEADER_BYTES: u64 = 32 << 20;

/// The most dimensions of a tensor. Those of language models have two.
pub const TENSOR_DIMENSIONS: usize = 8;

/// The most bytes of the header of a GGUF file: its metadata and its list of tensors. The largest
/// vocabularies, of a quarter of a million tokens, take 20 MB with their merges.
pub const GGUF_HEADER_BYTES: u64 = 256 << 20;

/// The most items of the metadata of a GGUF file, those of all arrays together: an item takes one
/// byte in the file and 32 or more in memory. The largest vocabularies have a quarter of a million
/// tokens, each in a handful of arrays.
pub const GGUF_ITEMS: u64 = 1 << 22;

/// The most tensors of a file of weights. The largest models have 60,000 in all their files.
pub const TENSORS: u64 = 1 << 18;

/// The most bytes of a JSON file beside weights: `config.json` and its like, the index of shards,
/// what a run directory says of itself. As JSON values they take some twenty times as much memory.
/// The index of a model of 60,000 tensors has 9 MB, the longest `tokenizer_config.json` 1 MB.
pub const JSON_BYTES: Limit = Limit::new("JSON_BYTES", 16 << 20);

/// The most bytes of a `tokenizer.json`. Those of the largest vocabularies have about 35 MB.
pub const TOKENIZER_BYTES: Limit = Limit::new("TOKENIZER_BYTES", 64 << 20);

/// The most values of a `tokenizer.json` beside its model. A token that is added takes nine, and the
/// largest vocabularies add a few thousand.
pub const TOKENIZER_VALUES: u64 = 1 << 21;

/// The most bytes of a chat template in a file of its own. The longest public ones have about
/// 50 KB.
pub const TEMPLATE_BYTES: Limit = Limit::new("TEMPLATE_BYTES", 1 << 20);

/// The most bytes of a damaged `metrics.jsonl` that is set aside. A run of ten million steps has as
/// many.
pub const METRICS_BYTES: Limit = Limit::new("METRICS_BYTES", 4 << 30);

/// The most bytes of a line of `metrics.jsonl` or `timing.jsonl`. A step with the metrics of every
/// suite has some kilobytes.
pub const METRICS_LINE_BYTES: u64 = 1 << 20;
