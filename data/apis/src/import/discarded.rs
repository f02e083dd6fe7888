//! Reports information that an import discards.

use std::collections::HashMap;

/// Locations reported per kind of discarded information.
const MAX_LOCATIONS: usize = 5;

/// Discarded information by kind, in source order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    kinds: Vec<DiscardedKind>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct DiscardedKind {
    description: String,
    locations: Vec<String>,
    n: usize,
}

impl LeftOut {
    /// Counts a discarded part at a location.
    pub(super) fn add(&mut self, description: &str, location: String) {
        let position = match self.by_name.get(description) {
            Some(position) => *position,
            None => {
                self.by_name
                    .insert(description.to_owned(), self.kinds.len());
                self.kinds.push(DiscardedKind {
                    description: description.to_owned(),
                    locations: Vec::new(),
                    n: 0,
                });
                self.kinds.len() - 1
            }
        };
        let kind = &mut self.kinds[position];
        kind.n += 1;
        if kind.locations.len() < MAX_LOCATIONS && !kind.locations.contains(&location) {
            kind.locations.push(location);
        }
    }

    /// Whether nothing was discarded.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// One line per kind: count, kind, and the first locations.
    pub fn lines(&self) -> Vec<String> {
        let line = |kind: &DiscardedKind| {
            let dots = if kind.n > kind.locations.len() {
                "; ..."
            } else {
                ""
            };
            format!(
                "{} {}: {}{dots}",
                kind.n,
                kind.description,
                kind.locations.join("; ")
            )
        };
        self.kinds.iter().map(line).collect()
    }
}
