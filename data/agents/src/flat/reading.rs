//! Gives rows flat schemas while they are read.
//!
//! What is rendered and learned becomes flat; the fields that the metrics read stay nested, so a
//! score needs no more than [`flatten_slot_row`] again to bring a completion back.

use tooltune_rows::text::{DataError, Row};

use super::report::FlattenReport;
use super::rows::{RowFlattening, flatten_slot_row};
use super::tool_rows::flatten_tool_row;

/// Flattens rows one by one; what became of them is in `report` as far as they were read.
///
/// A SLOT row shows a flat schema and learns a flat answer, a row with tools shows flat parameters
/// and learns flat calls. Other rows, and those that stay nested, are as they were.
pub fn flatten_rows<'r>(
    rows: impl Iterator<Item = Result<Row, DataError>> + 'r,
    flattening: &'r RowFlattening,
    report: &'r mut FlattenReport,
) -> impl Iterator<Item = Result<Row, DataError>> + 'r {
    rows.map(move |row| flatten_row(row?, flattening, report))
}

fn flatten_row(
    row: Row,
    flattening: &RowFlattening,
    report: &mut FlattenReport,
) -> Result<Row, DataError> {
    let conversation = match &row.slot {
        Some(slot) => {
            let flat = flatten_slot_row(slot, flattening, report);
            let asked = || flat.row.conversation(&flattening.slot_prompt);
            let asked = flat.flat_schema.is_some().then(asked).transpose();
            let conversation = asked.map_err(|error| error.at(&row.id))?;
            let is_asking = row.has_no_answer();
            conversation.map(|flat| {
                if is_asking {
                    flat.without_answer()
                } else {
                    flat
                }
            })
        }
        None if row.conversation.tools.is_some() => {
            let flat = flatten_tool_row(&row.id, &row.conversation, flattening, report);
            Some(flat.conversation)
        }
        None => None,
    };
    Ok(Row {
        conversation: conversation.unwrap_or(row.conversation),
        ..row
    })
}
