//! Combines the errors of many rows into one: the first errors in full and the number of the
//! others.
//!
//! Users can then fix fifty bad rows at once instead of in fifty attempts.

use std::error::Error;

/// Number of errors that are printed in full.
const MAX_SHOWN: usize = 10;

/// An error that a row can have.
pub trait Fault: Error + Sized {
    /// Combines several errors: the first ones in full, and the number of the others.
    fn combine(shown: Vec<Self>, n_more: usize) -> Self;

    /// The location of the row and its error, if the error names a row.
    fn location_and_message(&self) -> Option<(&str, String)>;
}

/// Collects the errors of rows that are read one by one.
#[derive(Debug)]
pub struct Faults<E> {
    shown: Vec<E>,
    n_more: usize,
}

impl<E> Default for Faults<E> {
    fn default() -> Self {
        Self {
            shown: Vec::new(),
            n_more: 0,
        }
    }
}

impl<E: Fault> Faults<E> {
    /// Returns the value, or stores the error and returns `None`.
    pub fn take<T>(&mut self, row: Result<T, E>) -> Option<T> {
        match row {
            Ok(row) => return Some(row),
            Err(error) if self.shown.len() < MAX_SHOWN => self.shown.push(error),
            Err(_) => self.n_more += 1,
        }
        None
    }

    /// Returns all collected errors as one.
    ///
    /// # Errors
    ///
    /// - at least one error was collected; a single one is returned unchanged
    pub fn into_result(self) -> Result<(), E> {
        let Self { mut shown, n_more } = self;
        match shown.len() {
            0 => Ok(()),
            1 => shown.pop().map_or(Ok(()), Err),
            _ => Err(E::combine(shown, n_more)),
        }
    }
}

/// Reads all rows.
///
/// # Errors
///
/// - at least one row has an error; the result describes all of them
pub fn collect_rows<T, E: Fault>(rows: impl Iterator<Item = Result<T, E>>) -> Result<Vec<T>, E> {
    let mut faults = Faults::default();
    let good = rows.filter_map(|row| faults.take(row)).collect();
    faults.into_result()?;
    Ok(good)
}

/// Formats one line per error, and one for the errors that are only counted. A repeated error is
/// not printed again.
pub fn lines(shown: &[impl Fault], n_more: usize) -> String {
    let mut printed: Vec<String> = Vec::new();
    let mut lines: Vec<String> = Vec::new();
    for error in shown {
        match error.location_and_message() {
            Some((location, fault)) if printed.contains(&fault) => {
                lines.push(format!("{location}: same error"));
            }
            Some((location, fault)) => {
                lines.push(format!("{location}: {fault}"));
                printed.push(fault);
            }
            None => lines.push(error.to_string()),
        }
    }
    match n_more {
        0 => {}
        1 => lines.push("and 1 more row with errors".to_owned()),
        n => lines.push(format!("and {n} more rows with errors")),
    }
    lines.join("\n")
}

/// Shortens a string that may be as long as a row.
pub fn excerpt(text: &str) -> String {
    const N_CHARACTERS: usize = 200;
    match text.char_indices().nth(N_CHARACTERS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
