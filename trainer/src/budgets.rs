//! Limits on bytes and counts for configs and run files: every budget of this crate.
//!
//! Each constant documents its reason. docs/limits.md lists what exceeds each limit and what to do.
//! Errors about a budget contain the requested amount, the limit, and the setting if there is one.

use tooltune_disk::budgets::Limit;

/// Maximum bytes of a line that `chat` reads from a pipe or a file. The longest context is a few
/// megabytes of text; typed lines are about a thousandth of that.
pub const CHAT_LINE_BYTES: usize = 1 << 20;

/// Maximum bytes of prepared examples in the cache. Ten million rows of two hundred tokens make
/// about 5 GB of examples.
pub const EXAMPLE_CACHE_BYTES: u64 = 32 << 30;

/// Maximum number of transformer blocks. Lists with one entry per block are allocated before any
/// tensor is read; published models have up to 130.
pub const MODEL_LAYERS: usize = 10_000;

/// Maximum head size of attention; published models use at most 256.
pub const MODEL_HEAD_DIM: usize = 1 << 16;

/// Maximum number of parameters implied by the sizes in a config: a hundred times the largest
/// models. It keeps byte counts from overflowing.
pub const MODEL_PARAMETERS: u128 = 1 << 44;

/// Maximum bytes read from standard input as one string: twice the longest rendered template.
pub const INPUT_BYTES: Limit = Limit::new("INPUT_BYTES", 16 << 20);
