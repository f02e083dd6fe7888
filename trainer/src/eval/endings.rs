//! Texts to how they ended: how many were cut, and how many a server gave no text for.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::generate::FinishReason;
use super::writer::Written;

/// Counts over the texts of an evaluation, those of an interrupted one among them.
#[derive(Debug, Default)]
pub struct Endings(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    n_texts: usize,
    n_cut: usize,
    n_without_text: usize,
    /// Answers without a text, by their reason to end and by what they have instead.
    without_text: BTreeMap<String, usize>,
}

impl Endings {
    pub(super) fn add(&self, texts: &[Written]) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.n_texts += texts.len();
        for written in texts {
            counts.n_cut += usize::from(written.finish_reason == FinishReason::Length.name());
            if let Some(instead) = &written.without_text {
                let reason = match written.finish_reason.as_str() {
                    "" => "no finish_reason",
                    reason => reason,
                };
                counts.n_without_text += 1;
                let key = format!("{reason}, {instead}");
                *counts.without_text.entry(key).or_default() += 1;
            }
        }
    }

    /// What there is to say: of texts that were cut at the limit of tokens, and of answers of a
    /// server without a text, which count as empty ones.
    pub fn lines(&self) -> Vec<String> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Counts {
            n_texts,
            n_cut,
            n_without_text,
            without_text,
        } = &*counts;
        let mut lines = Vec::new();
        if *n_cut > 0 {
            lines.push(format!(
                "{n_cut} of {n_texts} texts were cut at the limit of tokens (finish_reason \
                 \"length\"); raise eval.max_new_tokens, or eval.toolqa.max_new_tokens, if they \
                 should be whole"
            ));
        }
        if *n_without_text > 0 {
            let kinds = without_text.iter();
            let kinds: Vec<String> = kinds.map(|(kind, n)| format!("{n} {kind}")).collect();
            lines.push(format!(
                "{n_without_text} of {n_texts} answers of the server have no text and count as \
                 empty, by finish_reason and what they have instead: {}",
                kinds.join("; ")
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cut_and_what_has_no_text_is_counted() {
        let written = |finish_reason: &str, without_text: Option<&str>| Written {
            text: String::new(),
            finish_reason: finish_reason.to_string(),
            n_tokens: 1,
            without_text: without_text.map(str::to_string),
        };
        let endings = Endings::default();
        endings.add(&[written("stop", None), written("", None)]);
        assert!(endings.lines().is_empty());
        endings.add(&[
            written("length", None),
            written("length", Some("reasoning")),
            written("content_filter", Some("nothing")),
            written("", Some("nothing")),
        ]);
        let lines = endings.lines();
        assert!(lines[0].starts_with("2 of 6 texts were cut"), "{lines:?}");
        let counted = "3 of 6 answers of the server have no text and count as empty, by \
                       finish_reason and what they have instead: 1 content_filter, nothing; 1 \
                       length, reasoning; 1 no finish_reason, nothing";
        assert_eq!(lines[1], counted);
    }
}
