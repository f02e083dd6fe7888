//! Flattens rows while they are read.
//!
//! The content that is rendered and trained on becomes flat. The fields used by metrics stay
//! nested. To score a completion, [`flatten_slot_row`] is called again to unflatten it.

use tooltune_rows::text::{DataError, Row};

use super::report::FlattenReport;
use super::rows::{RowFlattening, flatten_slot_row};
use super::tool_rows::flatten_tool_row;

/// Flattens rows one by one; `report` counts the rows read so far.
///
/// A SLOT row gets a flat schema and a flat answer; a row with tools gets flat parameters and flat
/// calls. Other rows, and rows that stay nested, are unchanged.
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
            let nested_conversation = || flat.row.conversation(&flattening.slot_prompt);
            let nested_conversation = flat
                .flat_schema
                .is_some()
                .then(nested_conversation)
                .transpose();
            let conversation = nested_conversation.map_err(|error| error.at(&row.id))?;
            let has_no_answer = row.has_no_answer();
            conversation.map(|flat| {
                if has_no_answer {
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
