//! Limits of work, bytes and depth for untrusted input.
//!
//! The comment of each constant gives its reason. docs/limits.md tells users which input exceeds a
//! limit, and what to do. Errors state the requested amount, the limit, and the setting if there is
//! one.

/// Maximum nesting of a `tokenizer.json`. Published models have seven levels.
pub const TOKENIZER_LEVELS: usize = 32;

/// Maximum steps of a normalizer, pre-tokenizer or decoder, each of which processes the whole text.
/// Published models have fewer than twenty.
pub const TOKENIZER_STEPS: usize = 100;

/// Maximum factor by which the steps of a pre-tokenizer or decoder may lengthen text in the worst
/// case. Published models reach 24.
pub const TOKENIZER_GROWTH: usize = 100;

/// Maximum bytes of normalizer output for a text. The library stores
/// sixteen more bytes for each of them.
pub const TOKENIZER_TEXT_BYTES: usize = 16 << 20;

/// Maximum bytes of normalizer output for a piece of about 256 bytes: a factor of 4,000. Unicode
/// normalization reaches a factor of eighteen.
pub const TOKENIZER_PIECE_BYTES: usize = 1 << 20;

/// Maximum bytes that one normalizer step may produce for such a piece in the worst case. The library
/// allocates the output before it can be counted, and its offsets need sixteen times as much
/// memory.
pub const TOKENIZER_STEP_BYTES: usize = 16 << 20;

/// Maximum characters per word for a WordPiece model, whose time is quadratic in the word length.
/// BERT models have 100.
pub const TOKENIZER_WORD_CHARS: usize = 256;

/// Maximum bytes of a token in a SentencePiece vocabulary in GGUF, because every split of the token
/// is tried. Gemma's and Llama 2's tokens have at most 48 bytes.
pub const SENTENCE_PIECE_BYTES: usize = 1024;
