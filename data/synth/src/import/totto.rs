//! Imports ToTTo's highlighted cells by rules.
//!
//! In the paper, a model writes the schema and gold value. The rules here use only certain facts:
//! cells whose text occurs in the sentence, each with its header.

use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tooltune_apis::JsonLines;
use tooltune_json::Decimal;
use tooltune_rows::text::SlotRow;

use super::gold::{GoldFields, slot_row};
use super::{ImportError, Imported};

const FORMAT: &str = "ToTTo's tables: table, table_page_title, highlighted_cells, \
                      sentence_annotations";

/// The key of the page title in the gold value.
const TITLE: &str = "page_title";

/// Maximum column span; wider cells are treated as this wide.
const MAX_SPAN: usize = 1_000;

#[derive(Deserialize)]
struct Table {
    table: Vec<Vec<Cell>>,
    table_page_title: String,
    highlighted_cells: Vec<(usize, usize)>,
    #[serde(default)]
    sentence_annotations: Vec<Annotation>,
}

#[derive(Deserialize)]
struct Cell {
    value: String,
    is_header: bool,
    column_span: usize,
    row_span: usize,
}

#[derive(Deserialize)]
struct Annotation {
    final_sentence: String,
}

/// Imports ToTTo's JSON Lines.
///
/// Each table gives a row whose text is the final sentence of its first annotation. The gold value
/// has the page title and the highlighted cells by header, if they occur in the sentence as whole
/// words. Integers become numbers. Cells with the same header become an array, which has strings
/// unless all cells are integers. The header of a cell is the nearest one above it, otherwise the
/// nearest one to its left.
///
/// Tables without a sentence, or without a cell in the sentence, are dropped. Cells that are not in
/// the sentence or have no header are counted.
///
/// # Errors
///
/// The file cannot be read, or a line is not in ToTTo's format.
pub fn import_totto(path: &Path) -> Result<Imported, ImportError> {
    let mut imported = Imported::default();
    for line in JsonLines::open(path)? {
        let (location, value) = line?;
        let format_error = |reason: String| ImportError::Format {
            place: location.clone(),
            reason,
            expected: FORMAT,
        };
        let table = Table::deserialize(value).map_err(|error| format_error(error.to_string()))?;
        let highlighted = highlighted_cells(&table).map_err(format_error)?;
        let outcome = table_row(location.clone(), &table, &highlighted, &mut imported);
        imported.record(outcome);
    }
    Ok(imported)
}

fn table_row(
    id: String,
    table: &Table,
    highlighted: &[(Option<&str>, &str)],
    imported: &mut Imported,
) -> Result<SlotRow, &'static str> {
    let annotation = table.sentence_annotations.first();
    let sentence = annotation.ok_or("the table has no sentence")?;
    let sentence = sentence.final_sentence.trim();
    let mut gold = GoldFields::default();
    for (header, value) in highlighted {
        match header {
            _ if !occurs_in(value, sentence) => {
                imported.skip("a cell that is not in the sentence");
            }
            None => imported.skip("a cell without a header"),
            Some(header) => gold.add(header, parse_number(value)),
        }
    }
    if gold.is_empty() {
        return Err("no highlighted cell is in the sentence");
    }
    let mut all_fields = GoldFields::default();
    let title = table.table_page_title.trim();
    if occurs_in(title, sentence) {
        all_fields.add(TITLE, title.into());
    }
    for (key, value) in gold.into_fields() {
        match value {
            Value::Array(values) => unify_types(values)
                .into_iter()
                .for_each(|value| all_fields.add(&key, value)),
            single => all_fields.add(&key, single),
        }
    }
    Ok(slot_row(id, sentence, all_fields.into_fields()))
}

/// The highlighted cells with their headers, in file order.
fn highlighted_cells(table: &Table) -> Result<Vec<(Option<&str>, &str)>, String> {
    let columns = columns(&table.table);
    let cell_location = |&(row, cell): &(usize, usize)| {
        let cell_found = table.table.get(row).and_then(|cells| cells.get(cell));
        let Some(Cell { value, .. }) = cell_found else {
            return Err(format!(
                "highlighted cell [{row}, {cell}] is not in the table"
            ));
        };
        let header = header(table, &columns, row, cell);
        Ok((header, value.trim()))
    };
    table.highlighted_cells.iter().map(cell_location).collect()
}

/// The columns that each cell covers, taking into account cells of earlier rows that span several
/// rows.
fn columns(rows: &[Vec<Cell>]) -> Vec<Vec<Range<usize>>> {
    /// Occupied columns, and the first row in which they are free again.
    struct OccupiedColumns(Range<usize>, usize);
    let mut occupied: Vec<OccupiedColumns> = Vec::new();
    let mut columns = Vec::with_capacity(rows.len());
    for (row_idx, cells) in rows.iter().enumerate() {
        occupied.retain(|OccupiedColumns(_, free_row)| *free_row > row_idx);
        let mut next_column = 0;
        let mut row_columns = Vec::with_capacity(cells.len());
        for cell in cells {
            while let Some(OccupiedColumns(range, _)) =
                occupied.iter().find(|OccupiedColumns(range, free_row)| {
                    range.contains(&next_column) && *free_row > row_idx
                })
            {
                next_column = range.end;
            }
            let range = next_column..next_column + cell.column_span.clamp(1, MAX_SPAN);
            next_column = range.end;
            row_columns.push(range);
        }
        let reach_down = cells
            .iter()
            .zip(&row_columns)
            .filter(|(cell, _)| cell.row_span > 1);
        occupied.extend(reach_down.map(|(cell, range)| {
            OccupiedColumns(range.clone(), row_idx + cell.row_span.min(MAX_SPAN))
        }));
        columns.push(row_columns);
    }
    columns
}

fn header<'t>(
    table: &'t Table,
    columns: &[Vec<Range<usize>>],
    row: usize,
    cell: usize,
) -> Option<&'t str> {
    let own_columns = columns.get(row)?.get(cell)?;
    let is_usable = |cell: &&Cell| cell.is_header && !cell.value.trim().is_empty();
    let rows_above = table.table.iter().zip(columns).take(row).rev();
    let mut rows_above = rows_above.flat_map(|(cells, ranges)| cells.iter().zip(ranges));
    let header_above = rows_above.find(|(cell, range)| {
        is_usable(cell) && range.start < own_columns.end && own_columns.start < range.end
    });
    let header_left = || {
        table
            .table
            .get(row)?
            .iter()
            .take(cell)
            .rev()
            .find(is_usable)
    };
    let header = header_above.map(|(cell, _)| cell).or_else(header_left)?;
    Some(header.value.trim())
}

/// Whether `text` occurs in `sentence` without an adjacent letter or digit.
fn occurs_in(text: &str, sentence: &str) -> bool {
    if text.is_empty() {
        return false;
    }
    sentence.match_indices(text).any(|(start, _)| {
        let (before, from_start) = sentence.split_at(start);
        let after = from_start.strip_prefix(text).unwrap_or_default();
        let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        !is_word(before.chars().next_back()) && !is_word(after.chars().next())
    })
}

/// Converts a JSON integer to a number, and anything else to a string.
fn parse_number(value: &str) -> Value {
    let is_literal = !value.contains(['.', 'e', 'E']) && Decimal::parse(value).is_some();
    match value.parse::<i64>() {
        Ok(number) if is_literal => number.into(),
        _ => value.into(),
    }
}

fn unify_types(values: Vec<Value>) -> Vec<Value> {
    if values.iter().all(Value::is_number) {
        return values;
    }
    let text = |value: Value| match value {
        Value::Number(number) => number.to_string().into(),
        text => text,
    };
    values.into_iter().map(text).collect()
}
