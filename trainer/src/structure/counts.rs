//! Answers to the sentences at the end.

use super::answer::{Answer, MAX_NEW_TOKENS, short_limits};
use super::output::EarlierAnswer;
use crate::progress::counted;

/// What became of rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    /// Answers that are valid.
    pub n_valid: usize,
    /// Answers that are not; those of rows that cannot be read are not among them.
    pub n_invalid: usize,
    /// Those of both that an earlier process has written.
    pub n_earlier: usize,
    /// Rows that cannot be read.
    pub n_broken: usize,
    /// Rows that were asked once more.
    pub n_again: usize,
    /// Answers of the first model that its limit of tokens ended.
    pub n_cut_texts: usize,
    /// Tokens that were written.
    pub n_tokens: usize,
    /// Seconds from the first row to the last answer; a model is there before.
    pub seconds: f64,
    /// Further sentences.
    pub notes: Vec<String>,
    first_broken: Option<String>,
    n_unenforced: usize,
    /// The first row whose schema is not enforced, and why.
    first_unenforced: Option<String>,
    n_unanswered: usize,
    first_unanswered: Option<String>,
    n_cut: usize,
    n_shortened: usize,
}

impl Counts {
    /// Rows that have been dealt with.
    pub fn n_answers(&self) -> usize {
        self.n_valid + self.n_invalid + self.n_broken
    }

    pub(super) fn add(&mut self, answer: &Answer, place: &str) {
        self.count(answer.valid);
        let is_cut = |rule: &str| [MAX_NEW_TOKENS, "max_time"].contains(&rule);
        let cut = answer.violations.first();
        self.n_cut += usize::from(cut.is_some_and(|one| is_cut(&one.rule)));
        self.n_shortened += usize::from(answer.shortened.is_some());
        if let Some(reason) = &answer.unenforced {
            self.n_unenforced += 1;
            let first = || format!("{place}: {reason}");
            self.first_unenforced.get_or_insert_with(first);
        }
    }

    pub(super) fn add_earlier(&mut self, answer: &EarlierAnswer) {
        self.n_earlier += 1;
        match &answer.error {
            Some(reason) => self.add_broken(reason),
            None => self.count(answer.valid),
        }
    }

    pub(super) fn add_broken(&mut self, reason: &str) {
        self.n_broken += 1;
        self.first_broken.get_or_insert_with(|| reason.to_owned());
    }

    pub(super) fn add_unanswered(&mut self, reason: &str) {
        self.n_invalid += 1;
        self.n_unanswered += 1;
        self.first_unanswered
            .get_or_insert_with(|| reason.to_owned());
    }

    fn count(&mut self, is_valid: bool) {
        match is_valid {
            true => self.n_valid += 1,
            false => self.n_invalid += 1,
        }
    }

    /// What there is to say, the numbers of all rows first.
    pub fn lines(&self) -> Vec<String> {
        let n = self.n_valid + self.n_invalid;
        let n_new = self.n_answers() - self.n_earlier;
        let mut first = format!(
            "{}: {} valid, {} not valid",
            counted(n, "row"),
            self.n_valid,
            self.n_invalid
        );
        if self.n_earlier > 0 {
            first.push_str(&format!("; {} answers were there already", self.n_earlier));
        }
        if self.seconds > 0.0 {
            first.push_str(&format!(
                "; {:.2} rows/s, {:.0} tokens/s",
                n_new as f64 / self.seconds,
                self.n_tokens as f64 / self.seconds
            ));
        }
        let mut lines = vec![first];
        if let Some(reason) = &self.first_unenforced {
            lines.push(format!(
                "{} texts were written freely, because their schema is not enforced, such as {reason}",
                self.n_unenforced
            ));
        }
        if self.n_again > 0 {
            lines.push(format!(
                "{} texts that were written freely were not valid and asked for once more",
                self.n_again
            ));
        }
        if self.n_shortened > 0 {
            lines.push(format!(
                "{} did not end within eval.max_new_tokens, and were written once more with {}",
                counted(self.n_shortened, "text"),
                short_limits()
            ));
        }
        if self.n_cut > 0 {
            lines.push(format!(
                "{} answers are CUT OFF before their end, and not valid; raise eval.max_new_tokens or \
                 eval.max_time with --set",
                self.n_cut
            ));
        }
        if let Some(reason) = &self.first_unanswered {
            lines.push(format!(
                "{} prompts have no text of the first model, such as one for which: {reason}",
                self.n_unanswered
            ));
        }
        if self.n_cut_texts > 0 {
            lines.push(format!(
                "{} texts of the first model were cut at --upstream-max-tokens and structured as they \
                 are",
                self.n_cut_texts
            ));
        }
        lines.extend(self.notes.iter().cloned());
        lines
    }

    /// That rows cannot be read, with the first of them.
    pub fn broken(&self) -> Option<String> {
        let first = self.first_broken.as_ref()?;
        Some(format!(
            "{} cannot be read, such as {first}",
            counted(self.n_broken, "row")
        ))
    }
}
