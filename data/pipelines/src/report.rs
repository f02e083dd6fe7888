//! What each stage was given, what it kept, what it dropped and why, and what that took.
//!
//! A report is a function of the journal and the stages' files: it says nothing of the clock, so
//! that a run that was interrupted ends with the report of one that was not.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ask::is_time;
use crate::journal::{Entry, Journal};

/// Its name in the folder of a pipeline.
pub const REPORT_FILE: &str = "report.json";

/// What became of the stages so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The stages that are done, in their order.
    pub stages: Vec<StageReport>,
}

/// One stage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageReport {
    /// Its name.
    pub stage: String,
    /// What it wrote, in the folder of the pipeline.
    pub file: String,
    /// What it began with.
    pub n_in: usize,
    /// What it wrote.
    pub n_kept: usize,
    /// What it dropped, by the reason in words.
    pub dropped: BTreeMap<String, usize>,
    /// Further counts, by what they count.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, usize>,
    /// What it asked.
    pub requests: RequestCounts,
    /// SHA-256 of the file that it was made from; none for the first stage.
    pub input_sha256: Option<String>,
    /// SHA-256 of what it wrote.
    pub sha256: String,
}

/// Requests of a stage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestCounts {
    /// Requests with a reply.
    pub n_replies: usize,
    /// Those of them that were asked once more because the first reply could not be read.
    pub n_asked_again: usize,
    /// Requests without a reply, by the kind of fault.
    pub unanswered: BTreeMap<String, usize>,
    /// Tokens of the prompts with a reply.
    pub n_prompt_tokens: usize,
    /// Tokens of the replies.
    pub n_tokens: usize,
}

/// Something that a stage does not hand on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Its name among what the stage was given.
    pub id: String,
    /// In words, by which it is counted.
    pub reason: String,
    /// What was found, for whoever looks at it.
    pub detail: String,
}

impl Dropped {
    /// Something with the reason why it is dropped.
    pub fn new(id: &str, reason: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            id: id.to_owned(),
            reason: reason.into(),
            detail: detail.into(),
        }
    }
}

impl Report {
    /// What became of a stage, if it is done.
    pub fn of(&self, stage: &str) -> Option<&StageReport> {
        self.stages.iter().find(|report| report.stage == stage)
    }

    /// What all stages asked.
    pub fn requests(&self) -> RequestCounts {
        let mut all = RequestCounts::default();
        for counts in self.stages.iter().map(|stage| &stage.requests) {
            all.n_replies += counts.n_replies;
            all.n_asked_again += counts.n_asked_again;
            all.n_prompt_tokens += counts.n_prompt_tokens;
            all.n_tokens += counts.n_tokens;
            for (kind, n) in &counts.unanswered {
                *all.unanswered.entry(kind.clone()).or_default() += n;
            }
        }
        all
    }
}

/// What tells the key of a request that is asked once more.
pub(crate) const AGAIN: &str = "/again/";

impl RequestCounts {
    /// Those of a stage, as the journal has them.
    pub(crate) fn of(journal: &Journal, stage: &str) -> Self {
        let mut counts = Self::default();
        for (key, entry) in journal.entries_of(&format!("{stage}/")) {
            match entry {
                Entry::Reply(reply) => {
                    counts.n_replies += 1;
                    counts.n_asked_again += usize::from(is_time(key, AGAIN));
                    counts.n_prompt_tokens += reply.n_prompt_tokens;
                    counts.n_tokens += reply.n_tokens;
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
