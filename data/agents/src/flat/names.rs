//! Generates unique flat names from paths.
//!
//! A name is the path joined by the separator. If names collide, the first part in document order
//! keeps the name. The others are numbered from 2, skipping the unnumbered names of other parts:
//! `a_b`, `a.b` and `a.b_2` become `a_b`, `a_b_3` and `a_b_2`.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use tooltune_json::PathStep;

use super::error::{FlatError, path_text};
use super::shape::PlacedLeaf;

/// Treatment of colliding names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnCollision {
    /// All except the first are numbered.
    #[default]
    Number,
    /// The schema is rejected.
    Error,
}

/// Names the leaves, in order.
///
/// # Errors
///
/// Two names collide, and `on_collision` is [`OnCollision::Error`].
pub(super) fn flat_names(
    leaves: &[PlacedLeaf<'_>],
    separator: &str,
    on_collision: OnCollision,
) -> Result<Vec<String>, FlatError> {
    let natural: Vec<String> = leaves
        .iter()
        .map(|leaf| join_path(&leaf.path, separator))
        .collect();
    let all_natural: HashSet<&str> = natural.iter().map(String::as_str).collect();
    let mut owners: HashMap<String, &PlacedLeaf<'_>> = HashMap::with_capacity(leaves.len());
    // The next suffix to try. Without it, a thousand equal names would need a million attempts.
    let mut next_suffix: HashMap<&str, usize> = HashMap::new();
    let mut names = Vec::with_capacity(leaves.len());
    for (leaf, name) in leaves.iter().zip(&natural) {
        let mut free_name = name.clone();
        if let Some(first_owner) = owners.get(name) {
            if on_collision == OnCollision::Error {
                return Err(FlatError::Collision {
                    name: name.clone(),
                    first: path_text(&first_owner.path),
                    second: path_text(&leaf.path),
                });
            }
            let number = next_suffix.entry(name.as_str()).or_insert(2);
            loop {
                free_name = format!("{name}_{number}");
                *number += 1;
                if !all_natural.contains(free_name.as_str()) && !owners.contains_key(&free_name) {
                    break;
                }
            }
        }
        owners.insert(free_name.clone(), leaf);
        names.push(free_name);
    }
    Ok(names)
}

fn join_path(path: &[PathStep], separator: &str) -> String {
    let steps: Vec<String> = path
        .iter()
        .map(|step| match step {
            PathStep::Key(key) => key.clone(),
            PathStep::Index(index) => index.to_string(),
        })
        .collect();
    steps.join(separator)
}
