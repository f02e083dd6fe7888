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
