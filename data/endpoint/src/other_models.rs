//! Records models that a server reports instead of the requested one.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tooltune_json::printable;

/// Maximum recorded names; further ones are only counted.
const MAX_NAMES: usize = 8;

/// Names from replies, each shortened, so a server that sends a new name each time cannot fill the
/// memory.
#[derive(Debug, Default)]
pub struct OtherModels {
    found: Mutex<ReportedModel>,
}

#[derive(Debug, Default)]
struct ReportedModel {
    names: BTreeSet<String>,
    n_further: usize,
}

impl OtherModels {
    /// Records the name in a reply, if it has one that differs from the requested name.
    pub fn add(&self, requested: &str, reported: &str) {
        // Replies keep only the beginning of a long name.
        let is_same =
            requested == reported || super::answer::truncate_excerpt(requested) == reported;
        if reported.is_empty() || is_same {
            return;
        }
        let name = printable::name(reported);
        let mut models = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if models.names.len() < MAX_NAMES || models.names.contains(&name) {
            models.names.insert(name);
        } else {
            models.n_further += 1;
        }
    }

    /// A remark on the recorded names; `option` is the option with the model.
    pub fn note_text(&self, requested: &str, option: &str) -> Option<String> {
        let models = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if models.names.is_empty() {
            return None;
        }
        // The names are already escaped.
        let mut names: Vec<String> = models
            .names
            .iter()
            .map(|name| format!("\"{name}\""))
            .collect();
        if models.n_further > 0 {
            names.push(format!("other names in {} replies", models.n_further));
        }
        Some(format!(
            "the requested model is {requested:?}, but the server reports {}; if this is another model, check \
             {option}",
            names.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_and_counted() {
        let models = OtherModels::default();
        models.add("m", "m");
        models.add("m", "");
        assert_eq!(models.note_text("m", "--model"), None);
        for n in 0..1000 {
            models.add("m", &format!("other-{n}{}", "x".repeat(10_000)));
        }
        let note = models.note_text("m", "--model").expect("a note");
        assert!(note.contains("other names in 992 replies"), "{note}");
        assert!(note.len() < 1500, "{note}");
        let models = OtherModels::default();
        models.add("m", "\u{1b}[2J");
        let note = models.note_text("m", "--model").expect("a note");
        assert!(note.contains(r#"reports "\u{1b}[2J";"#), "{note}");
    }
}
