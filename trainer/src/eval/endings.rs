//! Texts to how they ended: how many were cut, how many a server gave no text for, and why.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::generate::FinishReason;
use super::generator::Completion;

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
    /// Prompts without an answer, by the kind of fault, each with the first of them.
    unanswered: BTreeMap<String, Unanswered>,
}

#[derive(Debug)]
struct Unanswered {
    n: usize,
    /// The first prompt and what is wrong with it.
    first: String,
}

impl Endings {
    /// Adds texts by the ids of their prompts.
    pub(super) fn add<'a>(&self, texts: impl Iterator<Item = (&'a str, &'a Completion)>) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, written) in texts {
            counts.n_texts += 1;
            counts.n_cut += usize::from(written.finish_reason == FinishReason::Length.name());
            if let Some(error) = &written.error {
                let kind = written.without_text.clone().unwrap_or_default();
                let first = || Unanswered {
                    n: 0,
                    first: format!("{id}: {error}"),
                };
                counts.unanswered.entry(kind).or_insert_with(first).n += 1;
            } else if let Some(instead) = &written.without_text {
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

    /// What there is to say: of texts that were cut at one of their `limits`, which are settings, of
    /// answers of a server without a text, and of prompts without an answer, which count as empty ones.
    pub fn lines(&self, limits: &[String]) -> Vec<String> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Counts {
            n_texts,
            n_cut,
            n_without_text,
            without_text,
            unanswered,
        } = &*counts;
        let mut lines = Vec::new();
        if *n_cut > 0 {
            lines.push(format!(
                "{n_cut} of {n_texts} texts were cut at the limit of tokens (finish_reason \
                 \"length\"); raise {}, if they should be whole",
                limits.join(", or ")
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
        if !unanswered.is_empty() {
            let n: usize = unanswered.values().map(|kind| kind.n).sum();
            let kinds = unanswered.iter();
            let kinds: Vec<String> = kinds
                .map(|(kind, Unanswered { n, first })| format!("{n} {kind}, such as {first}"))
                .collect();
            lines.push(format!(
                "{n} of {n_texts} prompts have no answer of the server and count as empty, by what \
                 is wrong: {}",
                kinds.join("; ")
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{EvalConfig, Suite};

    #[test]
    fn what_was_cut_and_what_has_no_text_is_counted() {
        let written = |finish_reason: &str, without_text: Option<&str>| Completion {
            text: String::new(),
            finish_reason: finish_reason.to_string(),
            n_tokens: 1,
            without_text: without_text.map(str::to_string),
            error: None,
            tool_calls: Vec::new(),
        };
        let add = |endings: &Endings, texts: &[Completion]| {
            endings.add(texts.iter().map(|text| ("a:1", text)));
        };
        let endings = Endings::default();
        add(&endings, &[written("stop", None), written("", None)]);
        assert!(endings.lines(&[]).is_empty());
        let others = [
            written("length", None),
            written("length", Some("reasoning")),
            written("content_filter", Some("nothing")),
            written("", Some("nothing")),
        ];
        add(&endings, &others);
        let lines = endings.lines(&[]);
        assert!(lines[0].starts_with("2 of 6 texts were cut"), "{lines:?}");
        // The limit that is raised is that of the suites whose texts these are.
        let raise = |suites: &[&str]| {
            let named = |word: &&str| Suite::all().find(|suite| suite.as_str() == *word);
            let suites: Vec<Suite> = suites.iter().filter_map(named).collect();
            endings.lines(&EvalConfig::limits_of_answers(&suites))[0].clone()
        };
        for (suites, limits) in [
            (&["slot"][..], "raise eval.max_new_tokens, if"),
            (&["toolqa"], "raise eval.toolqa.max_new_tokens, if"),
            (
                &["calls", "slot", "toolqa"],
                "raise eval.max_new_tokens, or eval.toolqa.max_new_tokens, if",
            ),
        ] {
            assert!(raise(suites).contains(limits), "{}", raise(suites));
        }
        let counted = "3 of 6 answers of the server have no text and count as empty, by \
                       finish_reason and what they have instead: 1 content_filter, nothing; 1 \
                       length, reasoning; 1 no finish_reason, nothing";
        assert_eq!(lines[1], counted);
        let refused = |kind: &str| Completion {
            error: Some("http://x answered 400".to_string()),
            tool_calls: Vec::new(),
            ..written("error", Some(kind))
        };
        add(&endings, &[refused("status 400"), refused("status 400")]);
        assert_eq!(
            endings.lines(&[])[2],
            "2 of 8 prompts have no answer of the server and count as empty, by what is wrong: 2 \
             status 400, such as a:1: http://x answered 400"
        );
    }
}
