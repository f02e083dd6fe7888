//! Limits of files that are read completely, including files that several crates read.
//!
//! Each constant documents its reason. docs/limits.md tells users which input exceeds a limit, and
//! what to do.

/// The maximum size of a file that is read completely, with the name of its constant for errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The maximum number of bytes.
    pub bytes: u64,
    /// The name in docs/limits.md.
    pub name: &'static str,
}

impl Limit {
    /// Creates a limit.
    pub const fn new(name: &'static str, bytes: u64) -> Self {
        Self { bytes, name }
    }
}

/// Maximum bytes of a `tokenizer.json`. The largest vocabularies need about 35 MB.
pub const TOKENIZER_BYTES: Limit = Limit::new("TOKENIZER_BYTES", 64 << 20);

/// Maximum bytes of a chat template, in its own file or inside another. The longest public
/// templates are about 50 KB long.
pub const TEMPLATE_BYTES: Limit = Limit::new("TEMPLATE_BYTES", 1 << 20);
