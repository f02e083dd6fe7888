//! What input may ask for: every budget of work, bytes and depth that texts from elsewhere are held to.
//!
//! Each constant gives its reason here; docs/limits.md tells users what exceeds it and what to do.
//! The error of a budget says what was asked for, the limit, and the setting, if there is one.

/// The most bytes of a line. As JSON values, which take some times as much, a line of this length
/// still fits a laptop's memory; the longest row of a public data set that is read here has less
/// than a hundredth of it.
pub const LINE_BYTES: usize = 256 << 20;

/// The most bytes of a document that is read whole, after it is decompressed.
pub const DOCUMENT_BYTES: usize = 2 << 30;

/// The most bytes of a `tokenizer.json`. Those of the largest vocabularies have about 35 MB.
pub const TOKENIZER_BYTES: u64 = 64 << 20;

/// The most bytes of a chat template in a file of its own. The longest public ones have about
/// 50 KB.
pub const TEMPLATE_BYTES: u64 = 1 << 20;

/// The most bytes of a `tokenizer_config.json`. The longest public ones have 1 MB.
pub const TOKENIZER_CONFIG_BYTES: u64 = 16 << 20;

/// The most requests in a row that may have no answer before the fault is taken for the server's. A
/// server that fails for every request is so left after some tries, where thousands of rows would
/// each be tried for minutes; rows that a server refuses by their contents seldom follow each other.
pub const FAULTS_IN_A_ROW: usize = 8;
