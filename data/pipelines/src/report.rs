//! Counts the input, output and dropped items of each stage, and its requests.
//!
//! A report depends only on the journal and the stages' files, not on the clock, so that an
//! interrupted run ends with the same report as an uninterrupted one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ask::is_attempt;
use crate::journal::{Entry, Journal};

/// File name in the folder of a pipeline.
pub const REPORT_FILE: &str = "report.json";

/// Reports of the completed stages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The completed stages, in order.
    pub stages: Vec<StageReport>,
}

/// Report of a stage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageReport {
    /// Name of the stage.
    pub stage: String,
    /// Its output file, in the folder of the pipeline.
    pub file: String,
    /// Number of input items.
    pub n_in: usize,
    /// Number of output items.
    pub n_kept: usize,
    /// Number of dropped items by reason.
    pub dropped: BTreeMap<String, usize>,
    /// Additional counts by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, usize>,
    /// Its requests.
    pub requests: RequestCounts,
    /// SHA-256 of its input file; `None` for the first stage.
    pub input_sha256: Option<String>,
    /// SHA-256 of its output file.
    pub sha256: String,
}

/// Requests of a stage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestCounts {
    /// Number of requests with a reply.
    pub n_replies: usize,
    /// Number of requests repeated because the first reply could not be parsed.
    pub n_asked_again: usize,
    /// Number of requests without a reply, by kind of error.
    pub unanswered: BTreeMap<String, usize>,
    /// Prompt tokens of requests with a reply.
    pub n_prompt_tokens: usize,
    /// Tokens of the replies.
    pub n_tokens: usize,
}

/// An item that a stage dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Id of the input item.
    pub id: String,
    /// The reason, by which items are counted.
    pub reason: String,
    /// Details for inspection.
    pub detail: String,
}

impl Dropped {
    /// An item with the reason for dropping it.
    pub fn new(id: &str, reason: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            id: id.to_owned(),
            reason: reason.into(),
            detail: detail.into(),
        }
    }
}

impl Report {
    /// The report of a stage, if it is done.
    pub fn stage(&self, stage: &str) -> Option<&StageReport> {
        self.stages.iter().find(|report| report.stage == stage)
    }

    /// The requests of all stages.
    pub fn requests(&self) -> RequestCounts {
        let mut total = RequestCounts::default();
        for counts in self.stages.iter().map(|stage| &stage.requests) {
            total.n_replies += counts.n_replies;
            total.n_asked_again += counts.n_asked_again;
            total.add_tokens(counts.n_prompt_tokens, counts.n_tokens);
            for (kind, n) in &counts.unanswered {
                *total.unanswered.entry(kind.clone()).or_default() += n;
            }
        }
        total
    }
}

/// The part of a journal key that marks a repeated request.
pub(crate) const RETRY: &str = "/again/";

impl RequestCounts {
    /// Adds token counts, which saturate because a server may report any numbers.
    fn add_tokens(&mut self, n_prompt_tokens: usize, n_tokens: usize) {
        self.n_prompt_tokens = self.n_prompt_tokens.saturating_add(n_prompt_tokens);
        self.n_tokens = self.n_tokens.saturating_add(n_tokens);
    }

    /// The requests of a stage, from the journal.
    pub(crate) fn from_journal(journal: &Journal, stage: &str) -> Self {
        let mut counts = Self::default();
        for (key, entry) in journal.entries_of(&format!("{stage}/")) {
            match entry {
                Entry::Reply(reply) => {
                    counts.n_replies += 1;
                    counts.n_asked_again += usize::from(is_attempt(key, RETRY));
                    counts.add_tokens(reply.n_prompt_tokens, reply.n_tokens);
                }
                Entry::Output(_) => {}
                Entry::Unanswered(fault) => {
                    *counts.unanswered.entry(fault.kind.clone()).or_default() += 1;
                }
            }
        }
        counts
    }
}
