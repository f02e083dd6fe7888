//! The faults of many rows as one error: the first in full, the rest counted.
//!
//! Whoever has fifty bad rows mends them in one go, and not by fifty attempts.

use super::error::DataError;

/// Faults that are told in full.
const MAX_SHOWN: usize = 10;

/// The faults of rows that were read one by one.
#[derive(Debug, Default)]
pub struct Faults {
    shown: Vec<DataError>,
    n_more: usize,
}

impl Faults {
    /// What was read, or nothing and the fault kept.
    pub fn take<T>(&mut self, row: Result<T, DataError>) -> Option<T> {
        match row {
            Ok(row) => return Some(row),
            Err(error) if self.shown.len() < MAX_SHOWN => self.shown.push(error),
            Err(_) => self.n_more += 1,
        }
        None
    }

    /// All faults as one error.
    ///
    /// # Errors
    ///
    /// - there was a fault; a single one is the error as it was
    pub fn none(self) -> Result<(), DataError> {
        let Self { mut shown, n_more } = self;
        match shown.len() {
            0 => Ok(()),
            1 => shown.pop().map_or(Ok(()), Err),
            _ => Err(DataError::Several { shown, n_more }),
        }
    }
}

/// Reads all rows.
///
/// # Errors
///
/// - some are at fault; the error tells of all
pub fn all_rows<T>(rows: impl Iterator<Item = Result<T, DataError>>) -> Result<Vec<T>, DataError> {
    let mut faults = Faults::default();
    let good = rows.filter_map(|row| faults.take(row)).collect();
    faults.none()?;
    Ok(good)
}

/// A line for each fault, and one for those that are only counted; a fault that was told before is
/// told by its place alone.
pub(super) fn lines(shown: &[DataError], n_more: usize) -> String {
    let mut told: Vec<String> = Vec::new();
    let mut lines: Vec<String> = Vec::new();
    for error in shown {
        match error {
            DataError::At { id, error } => {
                let fault = error.to_string();
                if told.contains(&fault) {
                    lines.push(format!("{id}: the same"));
                    continue;
                }
                lines.push(format!("{id}: {fault}"));
                told.push(fault);
            }
            other => lines.push(other.to_string()),
        }
    }
    match n_more {
        0 => {}
        1 => lines.push("and 1 more row at fault".to_owned()),
        n => lines.push(format!("and {n} more rows at fault")),
    }
    lines.join("\n")
}
