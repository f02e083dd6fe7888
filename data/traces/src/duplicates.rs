//! Finds equal conversations, and conversations that are the beginning of another one.
//!
//! Every conversation has a chain of hashes: one of its tools, then one after each message.
//! Ids and reasoning are not part of it, because a later request usually repeats neither. Keys of
//! arguments are sorted. A hash is the first 16 bytes of SHA-256.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use sha2::{Digest, Sha256};
use tooltune_template::conversation::Role;

use crate::budgets::TRACE_ANSWERS;
use crate::trace::{Trace, Turn};

/// The hash of a beginning of a conversation.
pub(crate) type Hash = [u8; 16];

/// The hashes of all conversations so far.
#[derive(Debug, Default)]
pub(crate) struct Duplicates {
    /// Beginnings of conversations that end in an answer, without the whole conversations.
    beginnings: HashSet<Hash>,
    /// Kept conversations, with their number.
    whole: HashMap<Hash, usize>,
}

/// How a conversation relates to those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relation {
    /// An equal one is kept.
    Equal,
    /// It is the beginning of an earlier one.
    Beginning,
    /// Neither.
    New(Hash),
}

impl Duplicates {
    /// Adds the beginnings of a conversation, and returns its relation to the others.
    pub(crate) fn add(&mut self, trace: &Trace) -> Relation {
        let mut chain = hash_values(&trace.tools);
        let mut whole = chain;
        let last = trace.turns.len().saturating_sub(1);
        for (idx, turn) in trace.turns.iter().enumerate() {
            chain = hash_turn(chain, turn);
            if idx == last {
                whole = chain;
            } else if turn.role == Role::Assistant {
                self.beginnings.insert(chain);
            }
        }
        if self.whole.contains_key(&whole) {
            Relation::Equal
        } else if self.beginnings.contains(&whole) {
            Relation::Beginning
        } else {
            Relation::New(whole)
        }
    }

    /// Records that a conversation is kept under a number.
    pub(crate) fn keep(&mut self, hash: Hash, number: usize) {
        self.whole.insert(hash, number);
    }

    /// Whether there are more hashes than the limit.
    pub(crate) fn is_full(&self) -> bool {
        self.beginnings.len() + self.whole.len() > TRACE_ANSWERS
    }

    /// The numbers of kept conversations that turned out to be the beginning of a later one.
    pub(crate) fn replaced(&self) -> HashSet<usize> {
        let whole = self.whole.iter();
        whole
            .filter(|(hash, _)| self.beginnings.contains(*hash))
            .map(|(_, number)| *number)
            .collect()
    }
}

fn hash_values(values: &[Value]) -> Hash {
    let mut hasher = Sha256::new();
    for value in values {
        add_value(&mut hasher, value);
    }
    finish(hasher)
}

fn hash_turn(before: Hash, turn: &Turn) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update(before);
    add_text(&mut hasher, turn.role.as_str());
    add_text(&mut hasher, turn.content.as_deref().unwrap_or_default());
    add_text(&mut hasher, turn.name.as_deref().unwrap_or_default());
    // The repair numbers the ids, so results of parallel calls differ by the id of their call.
    add_text(&mut hasher, turn.call_id.as_deref().unwrap_or_default());
    for call in &turn.calls {
        add_text(&mut hasher, &call.name);
        add_value(&mut hasher, &call.arguments);
    }
    finish(hasher)
}

/// The length separates a text from the next one.
fn add_text(hasher: &mut Sha256, text: &str) {
    hasher.update((text.len() as u64).to_le_bytes());
    hasher.update(text);
}

fn add_value(hasher: &mut Sha256, value: &Value) {
    match value {
        Value::Object(fields) => {
            let mut sorted: Vec<(&String, &Value)> = fields.iter().collect();
            sorted.sort_unstable_by_key(|(name, _)| *name);
            hasher.update([b'{']);
            hasher.update((sorted.len() as u64).to_le_bytes());
            for (name, value) in sorted {
                add_text(hasher, name);
                add_value(hasher, value);
            }
        }
        Value::Array(items) => {
            hasher.update([b'[']);
            hasher.update((items.len() as u64).to_le_bytes());
            for item in items {
                add_value(hasher, item);
            }
        }
        Value::String(text) => {
            hasher.update([b'"']);
            add_text(hasher, text);
        }
        other => {
            hasher.update([b'#']);
            add_text(hasher, &other.to_string());
        }
    }
}

fn finish(hasher: Sha256) -> Hash {
    let mut hash = Hash::default();
    hash.copy_from_slice(&hasher.finalize()[..16]);
    hash
}
