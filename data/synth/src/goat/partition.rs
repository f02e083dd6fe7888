//! A query and its calls in, the one split that may hold them out.
//!
//! Both texts are hashed, and a row belongs to a split only if both fall into its share. Two splits
//! can therefore share neither a query nor a sequence of calls, whatever their sizes and seeds; the
//! price is that most drawn rows belong nowhere and are drawn again.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::GoatSplit;

/// Upper ends of the shares of the splits, in percent.
const SHARES: [(GoatSplit, u64); 4] = [
    (GoatSplit::Train, 50),
    (GoatSplit::Dev, 65),
    (GoatSplit::TestSeen, 85),
    (GoatSplit::TestUnseen, 100),
];

/// The names and arguments of calls as one text.
pub(super) fn sequence<'a>(
    calls: impl IntoIterator<Item = (&'a str, &'a Map<String, Value>)>,
) -> String {
    let calls = calls
        .into_iter()
        .map(|(name, arguments)| json!([name, arguments]));
    Value::Array(calls.collect()).to_string()
}

/// The split whose rows may have `text`, a query or a sequence of calls.
pub(super) fn share_of(text: &str) -> Option<GoatSplit> {
    let digest = Sha256::digest(text.as_bytes());
    let first = digest
        .iter()
        .take(8)
        .fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte));
    let percent = first % 100;
    SHARES
        .iter()
        .find(|(_, end)| percent < *end)
        .map(|(split, _)| *split)
}
