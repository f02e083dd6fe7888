//! Counts answers and builds the final report.

use super::answer::{Answer, MAX_NEW_TOKENS, short_limits};
use super::partial::EarlierAnswer;
use tooltune_terminal::count_noun;

/// Counts over rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    /// Valid answers.
    pub n_valid: usize,
    /// Invalid answers, not counting rows that cannot be read.
    pub n_invalid: usize,
    /// Valid and invalid answers that an earlier process wrote.
    pub n_earlier: usize,
    /// Rows that cannot be read.
    pub n_broken: usize,
    /// Rows whose completion was requested a second time.
    pub n_retried: usize,
    /// Texts of the first model that were cut off at its token limit.
    pub n_cut_texts: usize,
    /// Generated tokens.
    pub n_tokens: usize,
    /// Seconds from the first row to the last answer, without loading the model.
    pub seconds: f64,
    /// Additional notes.
    pub notes: Vec<String>,
    first_broken: Option<String>,
    n_unenforced: usize,
    /// The first row whose schema is not enforced, and why.
    first_unenforced: Option<String>,
    n_blank: usize,
    n_unanswered: usize,
    first_unanswered: Option<String>,
    n_cut: usize,
    n_shortened: usize,
}

impl Counts {
    /// Number of finished rows.
    pub fn n_answers(&self) -> usize {
        self.n_valid + self.n_invalid + self.n_broken
    }

    pub(super) fn add(&mut self, answer: &Answer, location: &str) {
        self.count(answer.valid);
        let is_cut = |rule: &str| [MAX_NEW_TOKENS, "max_time"].contains(&rule);
        let cut = answer.violations.first();
        self.n_cut += usize::from(cut.is_some_and(|one| is_cut(&one.rule)));
        self.n_shortened += usize::from(answer.shortened.is_some());
        if let Some(reason) = &answer.unenforced {
            self.n_unenforced += 1;
            let first = || format!("{location}: {reason}");
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

    pub(super) fn add_blank(&mut self) {
        self.n_invalid += 1;
        self.n_blank += 1;
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

    /// The report, starting with the counts of all rows.
    pub fn lines(&self) -> Vec<String> {
        let n = self.n_valid + self.n_invalid;
        let n_new = self.n_answers() - self.n_earlier;
        let mut first = format!(
            "{}: {} valid, {} not valid",
            count_noun(n, "row"),
            self.n_valid,
            self.n_invalid
        );
        if self.n_earlier > 0 {
            first.push_str(&format!(
                "; {} of them from an interrupted run",
                self.n_earlier
            ));
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
                "{} completions were generated without constraints, because their schema cannot \
                 be enforced, such as {reason}",
                self.n_unenforced
            ));
        }
        if self.n_retried > 0 {
            lines.push(format!(
                "{} generated again, because a schema or format that is not enforced was violated",
                count_noun(self.n_retried, "text")
            ));
        }
        if self.n_blank > 0 {
            lines.push(format!(
                "{} blank and skipped, because the model would invent content",
                match self.n_blank {
                    1 => "1 text is".to_owned(),
                    n => format!("{n} texts are"),
                }
            ));
        }
        if self.n_shortened > 0 {
            lines.push(format!(
                "{} did not end within eval.max_new_tokens and were generated again with {}",
                count_noun(self.n_shortened, "text"),
                short_limits()
            ));
        }
        if self.n_cut > 0 {
            lines.push(format!(
                "{} answers are CUT OFF and not valid; raise eval.max_new_tokens or \
                 eval.max_time with --set",
                self.n_cut
            ));
        }
        if let Some(reason) = &self.first_unanswered {
            lines.push(format!(
                "{} prompts got no text from the first model; the first error: {reason}",
                self.n_unanswered
            ));
        }
        if self.n_cut_texts > 0 {
            lines.push(format!(
                "{} texts of the first model were cut off at --upstream-max-tokens and structured \
                 anyway",
                self.n_cut_texts
            ));
        }
        lines.extend(self.notes.iter().cloned());
        lines
    }

    /// A report line about rows that cannot be read, with the first one.
    pub fn broken_rows_line(&self) -> Option<String> {
        let first = self.first_broken.as_ref()?;
        Some(format!(
            "{} cannot be read, such as {first}",
            count_noun(self.n_broken, "row")
        ))
    }
}
