//! Makes rows of ToTTo's highlighted cells, by rule.
//!
//! The paper lets a model write schema and gold. The rule here takes only what is certain: cells
//! whose text stands in the sentence, each under its column's header.

use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tooltune_rows::json::Decimal;
use tooltune_rows::text::SlotRow;
use tooltune_rows::tools::JsonLines;

use super::gold::{Gathered, row_of};
use super::{ImportError, Imported};

const FORMAT: &str = "ToTTo's tables: table, table_page_title, highlighted_cells, \
                      sentence_annotations";

/// The key of the page's title in the gold.
const TITLE: &str = "page_title";

/// The widest cell that is followed; wider ones count as this wide.
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
/// One row for each table: the text is the final sentence of its first annotation. The gold holds
/// the page's title, and the highlighted cells under their headers, each only where it stands in
/// the sentence as whole words. A whole number is a number; cells under one header become an array,
/// of texts unless all are whole numbers. The header of a cell is the nearest one above it, else
/// the nearest to its left.
///
/// Tables without a sentence and those of whose cells none is in the sentence are dropped; cells
/// that are not in the sentence or have no header are counted.
///
/// # Errors
///
/// - the file cannot be read, or a line is not as ToTTo writes it
pub fn import_totto(path: &Path) -> Result<Imported, ImportError> {
    let mut imported = Imported::default();
    for line in JsonLines::open(path)? {
        let (place, value) = line?;
        let bad = |reason: String| ImportError::Format {
            place: place.clone(),
            reason,
            expected: FORMAT,
        };
        let table = Table::deserialize(value).map_err(|error| bad(error.to_string()))?;
        let highlighted = highlighted(&table).map_err(bad)?;
        let outcome = table_row(place.clone(), &table, &highlighted, &mut imported);
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
    let mut gold = Gathered::default();
    for (header, value) in highlighted {
        match header {
            _ if !stands_in(value, sentence) => {
                imported.leave_out("a cell that is not in the sentence");
            }
            None => imported.leave_out("a cell without a header"),
            Some(header) => gold.add(header, typed(value)),
        }
    }
    if gold.is_empty() {
        return Err("no highlighted cell is in the sentence");
    }
    let mut whole = Gathered::default();
    let title = table.table_page_title.trim();
    if stands_in(title, sentence) {
        whole.add(TITLE, title.into());
    }
    for (key, value) in gold.into_fields() {
        match value {
            Value::Array(values) => of_one_type(values)
                .into_iter()
                .for_each(|value| whole.add(&key, value)),
            single => whole.add(&key, single),
        }
    }
    Ok(row_of(id, sentence, whole.into_fields()))
}

/// The highlighted cells with their headers, in the order of the file.
fn highlighted(table: &Table) -> Result<Vec<(Option<&str>, &str)>, String> {
    let columns = columns(&table.table);
    let place = |&(row, cell): &(usize, usize)| {
        let found = table.table.get(row).and_then(|cells| cells.get(cell));
        let Some(Cell { value, .. }) = found else {
            return Err(format!(
                "highlighted cell [{row}, {cell}] is not in the table"
            ));
        };
        let header = header(table, &columns, row, cell);
        Ok((header, value.trim()))
    };
    table.highlighted_cells.iter().map(place).collect()
}

/// The columns that each cell covers, with cells of earlier rows that reach down in the way.
fn columns(rows: &[Vec<Cell>]) -> Vec<Vec<Range<usize>>> {
    /// Columns that are taken, and the row where they are free again.
    struct Taken(Range<usize>, usize);
    let mut taken: Vec<Taken> = Vec::new();
    let mut columns = Vec::with_capacity(rows.len());
    for (row_idx, cells) in rows.iter().enumerate() {
        taken.retain(|Taken(_, free_row)| *free_row > row_idx);
        let mut next = 0;
        let mut of_row = Vec::with_capacity(cells.len());
        for cell in cells {
            while let Some(Taken(range, _)) = taken
                .iter()
                .find(|Taken(range, free_row)| range.contains(&next) && *free_row > row_idx)
            {
                next = range.end;
            }
            let range = next..next + cell.column_span.clamp(1, MAX_SPAN);
            next = range.end;
            of_row.push(range);
        }
        let reach_down = cells
            .iter()
            .zip(&of_row)
            .filter(|(cell, _)| cell.row_span > 1);
        taken.extend(
            reach_down
                .map(|(cell, range)| Taken(range.clone(), row_idx + cell.row_span.min(MAX_SPAN))),
        );
        columns.push(of_row);
    }
    columns
}

fn header<'t>(
    table: &'t Table,
    columns: &[Vec<Range<usize>>],
    row: usize,
    cell: usize,
) -> Option<&'t str> {
    let own = columns.get(row)?.get(cell)?;
    let is_usable = |cell: &&Cell| cell.is_header && !cell.value.trim().is_empty();
    let above = table.table.iter().zip(columns).take(row).rev();
    let mut above = above.flat_map(|(cells, ranges)| cells.iter().zip(ranges));
    let found = above
        .find(|(cell, range)| is_usable(cell) && range.start < own.end && own.start < range.end);
    let left = || {
        table
            .table
            .get(row)?
            .iter()
            .take(cell)
            .rev()
            .find(is_usable)
    };
    let header = found.map(|(cell, _)| cell).or_else(left)?;
    Some(header.value.trim())
}

/// Whether a text stands in a sentence with no letter or digit next to it.
fn stands_in(text: &str, sentence: &str) -> bool {
    if text.is_empty() {
        return false;
    }
    sentence.match_indices(text).any(|(start, _)| {
        let (before, rest) = sentence.split_at(start);
        let after = rest.strip_prefix(text).unwrap_or_default();
        let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        !is_word(before.chars().next_back()) && !is_word(after.chars().next())
    })
}

/// A whole number as JSON writes one is a number; all else is a text.
fn typed(value: &str) -> Value {
    let is_literal = !value.contains(['.', 'e', 'E']) && Decimal::parse(value).is_some();
    match value.parse::<i64>() {
        Ok(number) if is_literal => number.into(),
        _ => value.into(),
    }
}

fn of_one_type(values: Vec<Value>) -> Vec<Value> {
    if values.iter().all(Value::is_number) {
        return values;
    }
    let text = |value: Value| match value {
        Value::Number(number) => number.to_string().into(),
        text => text,
    };
    values.into_iter().map(text).collect()
}
