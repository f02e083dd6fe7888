//! Makes rows of text, schema and gold from public data sets in their own formats, and reads what
//! API-Bank publishes.
//!
//! SLOT (appendix D.1) turns each set around: the text that was to be written is the input, the
//! data that it was written from is the gold. The schema is made from the gold: every key is
//! declared, required, and no other allowed.
//! What a set has and a row cannot hold is left out and counted, never lost in silence. A file
//! that cannot be read is an error.

mod apibank;
mod e2e;
mod error;
mod gold;
mod issue_form;
mod issues;
#[cfg(test)]
mod tests;
mod totto;
mod webnlg;
mod wikibio;

use std::collections::BTreeMap;

use serde::Serialize;

pub use apibank::{
    ApiBankCalls, import_apibank_calls, import_apibank_dialogue_files, import_apibank_sources,
};
pub use e2e::{E2eRows, import_e2e};
pub use error::ImportError;
pub use issue_form::{FormField, FormFieldKind, IssueForm};
pub use issues::import_issues;
pub use totto::import_totto;
pub use webnlg::import_webnlg;
pub use wikibio::import_wikibio;

use tooltune_rows::text::SlotRow;

/// The rows of a data set, and what became of the rest.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imported {
    /// The rows in the order of the files.
    pub rows: Vec<SlotRow>,
    /// What was read and what was left out.
    pub counts: ImportCounts,
}

/// How many entries were read and left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ImportCounts {
    /// Entries that were read: rows and left out entries together.
    pub n_entries: usize,
    /// Entries that gave no row, by the reason in words.
    pub dropped: BTreeMap<&'static str, usize>,
    /// Parts of entries that are in no gold, by the reason in words.
    pub left_out: BTreeMap<&'static str, usize>,
}

impl Imported {
    /// Counts an entry, and keeps its row if it gives one.
    fn record(&mut self, outcome: Result<SlotRow, &'static str>) {
        self.counts.n_entries += 1;
        match outcome {
            Ok(row) => self.rows.push(row),
            Err(reason) => *self.counts.dropped.entry(reason).or_default() += 1,
        }
    }

    fn leave_out(&mut self, reason: &'static str) {
        *self.counts.left_out.entry(reason).or_default() += 1;
    }
}
