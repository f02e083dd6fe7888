//! Counts completions that were cut off, have no text, or have no answer.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::generate::FinishReason;
use super::generator::Completion;

/// Counts over the completions of an evaluation, including those resumed from its journal.
#[derive(Debug, Default)]
pub struct Endings(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    n_texts: usize,
    n_cut: usize,
    n_without_text: usize,
    /// Server answers without text, keyed by finish reason and by their content.
    without_text: BTreeMap<String, usize>,
    /// Prompts without an answer, keyed by the kind of failure.
    unanswered: BTreeMap<String, Unanswered>,
}

#[derive(Debug)]
struct Unanswered {
    n: usize,
    /// Example: the first prompt and its error.
    first: String,
}

impl Endings {
    /// Adds completions, each with the ID of its prompt.
    pub(super) fn add<'a>(&self, texts: impl Iterator<Item = (&'a str, &'a Completion)>) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, completion) in texts {
            counts.n_texts += 1;
            counts.n_cut += usize::from(completion.finish_reason == FinishReason::Length.name());
            if let Some(error) = &completion.error {
                let kind = completion.without_text.clone().unwrap_or_default();
                let first = || Unanswered {
                    n: 0,
                    first: format!("{id}: {error}"),
                };
                counts.unanswered.entry(kind).or_insert_with(first).n += 1;
            } else if let Some(instead) = &completion.without_text {
                let reason = match completion.finish_reason.as_str() {
                    "" => "no finish_reason",
                    reason => reason,
                };
                counts.n_without_text += 1;
                let key = format!("{reason}, {instead}");
                *counts.without_text.entry(key).or_default() += 1;
            }
        }
    }

    /// Summary lines about completions that were cut off, server answers without text, and prompts
    /// without an answer. The last two kinds are scored as empty. `limits` names the settings that
    /// limit the tokens.
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
                "{n_cut} of {n_texts} replies were cut off at the token limit (finish_reason \
                 \"length\"); raise {} if they need more tokens",
                limits.join(" or ")
            ));
        }
        if *n_without_text > 0 {
            let kinds = without_text.iter();
            let kinds: Vec<String> = kinds.map(|(kind, n)| format!("{n} {kind}")).collect();
            lines.push(format!(
                "{n_without_text} of {n_texts} server answers have no text and are scored as \
                 empty; by finish_reason and content: {}",
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
                "{n} of {n_texts} prompts got no answer from the server and are scored as empty; \
                 by error: {}",
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
    fn truncated_and_empty_completions_are_counted() {
        let completion = |finish_reason: &str, without_text: Option<&str>| Completion {
            text: String::new(),
            finish_reason: finish_reason.to_string(),
            n_tokens: 1,
            without_text: without_text.map(str::to_string),
            error: None,
            tool_calls: Vec::new(),
            rewritten: None,
        };
        let add = |endings: &Endings, texts: &[Completion]| {
            endings.add(texts.iter().map(|text| ("a:1", text)));
        };
        let endings = Endings::default();
        add(&endings, &[completion("stop", None), completion("", None)]);
        assert!(endings.lines(&[]).is_empty());
        let others = [
            completion("length", None),
            completion("length", Some("reasoning")),
            completion("content_filter", Some("nothing")),
            completion("", Some("nothing")),
        ];
        add(&endings, &others);
        let lines = endings.lines(&[]);
        assert!(
            lines[0].starts_with("2 of 6 replies were cut off"),
            "{lines:?}"
        );
        // The message names the limits of the evaluated suites.
        let raise = |suites: &[&str]| {
            let suite_of = |name: &&str| Suite::all().find(|suite| suite.as_str() == *name);
            let suites: Vec<Suite> = suites.iter().filter_map(suite_of).collect();
            endings.lines(&EvalConfig::answer_limit_keys(&suites))[0].clone()
        };
        for (suites, limits) in [
            (&["slot"][..], "raise eval.max_new_tokens if"),
            (&["toolqa"], "raise eval.toolqa.max_new_tokens if"),
            (
                &["calls", "slot", "toolqa"],
                "raise eval.max_new_tokens or eval.toolqa.max_new_tokens if",
            ),
        ] {
            assert!(raise(suites).contains(limits), "{}", raise(suites));
        }
        let expected = "3 of 6 server answers have no text and are scored as empty; by \
                       finish_reason and content: 1 content_filter, nothing; 1 \
                       length, reasoning; 1 no finish_reason, nothing";
        assert_eq!(lines[1], expected);
        let refused = |kind: &str| Completion {
            error: Some("http://x answered 400".to_string()),
            ..completion("error", Some(kind))
        };
        add(&endings, &[refused("status 400"), refused("status 400")]);
        assert_eq!(
            endings.lines(&[])[2],
            "2 of 8 prompts got no answer from the server and are scored as empty; by error: 2 \
             status 400, such as a:1: http://x answered 400"
        );
    }
}
