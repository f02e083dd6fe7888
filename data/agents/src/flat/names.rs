//! Makes flat names of paths, each name once.
//!
//! A name is the path joined by the separator. Of parts whose names collide the first in document
//! order keeps it; the others are numbered from 2, past every name that some part has by nature:
//! `a_b`, `a.b` and `a.b_2` become `a_b`, `a_b_3` and `a_b_2`.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use tooltune_rows::json::PathStep;

use super::error::{FlatError, shown_path};
use super::shape::PlacedLeaf;

/// What becomes of parts whose names collide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnCollision {
    /// All but the first are numbered.
    #[default]
    Number,
    /// The schema is refused.
    Error,
}

/// Names the leaves, in their order.
///
/// # Errors
///
/// - two names collide and `on_collision` says that they must not
pub(super) fn flat_names(
    leaves: &[PlacedLeaf<'_>],
    separator: &str,
    on_collision: OnCollision,
) -> Result<Vec<String>, FlatError> {
    let natural: Vec<String> = leaves
        .iter()
        .map(|leaf| joined(&leaf.path, separator))
        .collect();
    let all_natural: HashSet<&str> = natural.iter().map(String::as_str).collect();
    let mut owners: HashMap<String, &PlacedLeaf<'_>> = HashMap::with_capacity(leaves.len());
    // The next number to try, so that a thousand equal names are not a million attempts.
    let mut next: HashMap<&str, usize> = HashMap::new();
    let mut names = Vec::with_capacity(leaves.len());
    for (leaf, name) in leaves.iter().zip(&natural) {
        let mut free = name.clone();
        if let Some(first) = owners.get(name) {
            if on_collision == OnCollision::Error {
                return Err(FlatError::Collision {
                    name: name.clone(),
                    first: shown_path(&first.path),
                    second: shown_path(&leaf.path),
                });
            }
            let number = next.entry(name.as_str()).or_insert(2);
            loop {
                free = format!("{name}_{number}");
                *number += 1;
                if !all_natural.contains(free.as_str()) && !owners.contains_key(&free) {
                    break;
                }
            }
        }
        owners.insert(free.clone(), leaf);
        names.push(free);
    }
    Ok(names)
}

fn joined(path: &[PathStep], separator: &str) -> String {
    let steps: Vec<String> = path
        .iter()
        .map(|step| match step {
            PathStep::Key(key) => key.clone(),
            PathStep::Index(index) => index.to_string(),
        })
        .collect();
    steps.join(separator)
}
