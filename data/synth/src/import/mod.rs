//! Imports public data sets in their own formats as rows of text, schema and gold value; also
//! imports API-Bank.
//!
//! SLOT (appendix D.1) reverses each data set: the text that was the output becomes the input, and
//! the data that it was generated from becomes the gold value. The schema is derived from the gold
//! value: every key is declared and required, and no other key is allowed. Content that a row
//! cannot represent is omitted and counted. A file that cannot be read is an error.

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

/// The rows of a data set, and counts of omitted content.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imported {
    /// The rows, in file order.
    pub rows: Vec<SlotRow>,
    /// Counts of imported and omitted entries.
    pub counts: ImportCounts,
}

/// Counts of imported and omitted entries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ImportCounts {
    /// Number of entries, with or without a row.
    pub n_entries: usize,
    /// Number of entries without a row, by reason.
    pub dropped: BTreeMap<&'static str, usize>,
    /// Number of omitted parts of entries, by reason.
    pub left_out: BTreeMap<&'static str, usize>,
}

impl Imported {
    /// Counts an entry, and keeps its row if there is one.
    fn record(&mut self, outcome: Result<SlotRow, &'static str>) {
        self.counts.n_entries += 1;
        match outcome {
            Ok(row) => self.rows.push(row),
            Err(reason) => *self.counts.dropped.entry(reason).or_default() += 1,
        }
    }

    fn skip(&mut self, reason: &'static str) {
        *self.counts.left_out.entry(reason).or_default() += 1;
    }
}
