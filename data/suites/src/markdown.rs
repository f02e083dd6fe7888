//! Markdown tables of reports.

use crate::bootstrap::{Estimate, cell};

/// A table with right-aligned columns after the first one. `headings` are separated by ` | `.
pub(crate) fn markdown_table<L: AsRef<[String]>>(
    headings: &str,
    lines: impl IntoIterator<Item = L>,
) -> String {
    let rule = "--:|".repeat(headings.matches(" | ").count());
    let mut table = format!("| {headings} |\n|---|{rule}\n");
    for cells in lines {
        table.push_str(&format!("| {} |\n", cells.as_ref().join(" | ")));
    }
    table
}

/// An estimate in per cent with its interval; a dash if there is none.
pub(crate) fn percent(estimate: impl Into<Option<Estimate>>) -> String {
    cell(estimate.into(), 100.0, "")
}
