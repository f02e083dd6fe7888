//! Input limits.
//!
//! The comment of each constant gives its reason. docs/limits.md tells users which input exceeds a
//! limit, and what to do.

use tooltune_disk::budgets::Limit;

/// Maximum bytes of a `tokenizer_config.json`. The longest public files have 1 MB.
pub const TOKENIZER_CONFIG_BYTES: Limit = Limit::new("TOKENIZER_CONFIG_BYTES", 16 << 20);

/// Maximum nested tokens of an expression, and maximum branches of an `if`. The parser recurses for
/// each token and branch. Real templates have at most a tenth as many.
pub const TEMPLATE_NESTING: usize = 500;

/// Maximum bytes of a name in a template. Each lookup compares names.
pub const TEMPLATE_NAME_BYTES: usize = 256;

/// Maximum blocks (`{% block %}`) of a template. Each macro call scans all blocks.
pub const TEMPLATE_BLOCKS: usize = 100;

/// Maximum bytes of strings and lists that operators between literals create while a template
/// compiles, as in `"=" * 80`. The engine evaluates such an expression again for each expression
/// that encloses it.
pub const TEMPLATE_LITERAL_BYTES: usize = 1 << 20;

/// Maximum steps of one rendering, about a second; a step is an instruction of the template engine.
/// A conversation of a hundred messages takes about ten thousand.
pub const TEMPLATE_STEPS: u64 = 10_000_000;

/// Maximum steps of all renderings of one row, about half a minute. Every 32 bytes of rendered text
/// count as one more step. A chat of 2,000 messages, of which half are trained on, needs fewer.
pub const ROW_STEPS: u64 = 100_000_000;

/// Maximum total bytes of the strings and lists that one rendering creates, which also bounds its
/// memory. A conversation of a hundred messages creates less than one MiB.
pub const TEMPLATE_MADE_BYTES: usize = 256 << 20;

/// Maximum total bytes of the strings and lists that one rendering searches and compares: about a
/// second.
pub const TEMPLATE_READ_BYTES: usize = 1 << 30;

/// Maximum levels of lists and maps in a value that a template prints or compares. Rows have at
/// most 127 levels.
pub const TEMPLATE_VALUE_LEVELS: usize = 256;

/// Maximum bytes of a rendered text and of text to tokenize. This is about two million tokens,
/// longer than any model's context. Tokenizing it takes about two GiB of memory.
pub const TEMPLATE_TEXT_BYTES: usize = 8 << 20;
