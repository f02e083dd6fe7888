//! Assigns each query and each sequence of calls to at most one split.
//!
//! The query and the call sequence of a row are hashed, and the row belongs to a split only if both
//! hashes fall into the split's share. Two splits can therefore never have a query or a call
//! sequence in common, whatever their sizes and seeds are. The cost is that most drawn rows belong
//! to no split and are drawn again.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::GoatSplit;

/// Cumulative shares of the splits, in percent.
const SHARES: [(GoatSplit, u64); 4] = [
    (GoatSplit::Train, 50),
    (GoatSplit::Dev, 65),
    (GoatSplit::TestSeen, 85),
    (GoatSplit::TestUnseen, 100),
];

/// The names and arguments of calls as one string.
pub(super) fn sequence<'a>(
    calls: impl IntoIterator<Item = (&'a str, &'a Map<String, Value>)>,
) -> String {
    let calls = calls
        .into_iter()
        .map(|(name, arguments)| json!([name, arguments]));
    Value::Array(calls.collect()).to_string()
}

/// The split that may contain `text`, a query or a sequence of calls.
pub(super) fn split_for(text: &str) -> Option<GoatSplit> {
    let digest = Sha256::digest(text.as_bytes());
    let first_bytes = digest
        .iter()
        .take(8)
        .fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte));
    let percent = first_bytes % 100;
    SHARES
        .iter()
        .find(|(_, end)| percent < *end)
        .map(|(split, _)| *split)
}
