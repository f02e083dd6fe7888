//! What an import could not hold, so that nothing is lost without a word.

use std::collections::HashMap;

/// Places that are named of each kind of loss.
const N_NAMED: usize = 5;

/// What descriptions of APIs say and documents cannot hold, by kind, in the order of the source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    kinds: Vec<Kind>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Kind {
    what: String,
    named: Vec<String>,
    n: usize,
}

impl LeftOut {
    /// Counts `what` at `place`.
    pub(super) fn add(&mut self, what: &str, place: String) {
        let position = match self.by_name.get(what) {
            Some(position) => *position,
            None => {
                self.by_name.insert(what.to_owned(), self.kinds.len());
                self.kinds.push(Kind {
                    what: what.to_owned(),
                    named: Vec::new(),
                    n: 0,
                });
                self.kinds.len() - 1
            }
        };
        let kind = &mut self.kinds[position];
        kind.n += 1;
        if kind.named.len() < N_NAMED && !kind.named.contains(&place) {
            kind.named.push(place);
        }
    }

    /// Whether everything is held.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// A line for each kind: what, how often, and the first places.
    pub fn lines(&self) -> Vec<String> {
        let line = |kind: &Kind| {
            let dots = if kind.n > kind.named.len() {
                "; ..."
            } else {
                ""
            };
            format!("{} {}: {}{dots}", kind.n, kind.what, kind.named.join("; "))
        };
        self.kinds.iter().map(line).collect()
    }
}
