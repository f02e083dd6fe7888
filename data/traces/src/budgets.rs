//! Limits of imported traces.
//!
//! Each constant documents its reason. docs/limits.md tells users which input exceeds a limit, and
//! what to do.

use tooltune_disk::budgets::Limit;

/// Maximum bytes of text of the entries that are held in memory: spans until the last file is read,
/// requests without their response, and the entries of one session file. Parsed JSON needs several
/// times the memory of its text.
pub const TRACE_BYTES: usize = 1 << 30;

/// Maximum distinct answers of all conversations, each with a hash of 16 bytes.
pub const TRACE_ANSWERS: usize = 50_000_000;

/// Maximum branches of one session. The branches share their beginnings, so their rows together
/// can be this many times as large as the file.
pub const SESSION_BRANCHES: usize = 100;

/// Maximum redaction rules. Every string is searched for each of them.
pub const REDACTION_RULES: usize = 1_000;

/// Maximum bytes of a compiled pattern of a redaction rule. The time of a search grows with it.
pub const PATTERN_BYTES: usize = 1 << 20;

/// Maximum bytes of a file of redaction rules.
pub const RULE_FILE_BYTES: Limit = Limit::new("RULE_FILE_BYTES", 1 << 20);
