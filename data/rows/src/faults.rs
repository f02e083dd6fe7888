//! The faults of many rows as one error: the first in full, the rest counted.
//!
//! Whoever has fifty bad rows fixes them in one go, and not by fifty attempts.

use std::error::Error;

/// Faults that are told in full.
const MAX_SHOWN: usize = 10;

/// What can be wrong with a row.
pub trait Fault: Error + Sized {
    /// Several rows at fault as one error: the first faults, and how many more there are.
    fn several(shown: Vec<Self>, n_more: usize) -> Self;

    /// The row that is at fault and what is wrong with it, where the error names a row.
    fn placed(&self) -> Option<(&str, String)>;
}

/// The faults of rows that were read one by one.
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
    /// What was read, or nothing and the fault kept.
    pub fn take<T>(&mut self, row: Result<T, E>) -> Option<T> {
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
    pub fn none(self) -> Result<(), E> {
        let Self { mut shown, n_more } = self;
        match shown.len() {
            0 => Ok(()),
            1 => shown.pop().map_or(Ok(()), Err),
            _ => Err(E::several(shown, n_more)),
        }
    }
}

/// Reads all rows.
///
/// # Errors
///
/// - some are at fault; the error tells of all
pub fn all_rows<T, E: Fault>(rows: impl Iterator<Item = Result<T, E>>) -> Result<Vec<T>, E> {
    let mut faults = Faults::default();
    let good = rows.filter_map(|row| faults.take(row)).collect();
    faults.none()?;
    Ok(good)
}

/// A line for each fault, and one for those that are only counted; a fault that was told before is
/// told by its place alone.
pub(crate) fn lines(shown: &[impl Fault], n_more: usize) -> String {
    let mut told: Vec<String> = Vec::new();
    let mut lines: Vec<String> = Vec::new();
    for error in shown {
        match error.placed() {
            Some((place, fault)) if told.contains(&fault) => {
                lines.push(format!("{place}: the same"));
            }
            Some((place, fault)) => {
                lines.push(format!("{place}: {fault}"));
                told.push(fault);
            }
            None => lines.push(error.to_string()),
        }
    }
    match n_more {
        0 => {}
        1 => lines.push("and 1 more row at fault".to_owned()),
        n => lines.push(format!("and {n} more rows at fault")),
    }
    lines.join("\n")
}

/// The beginning of a text that may be as long as a row.
pub(crate) fn excerpt(text: &str) -> String {
    const N_CHARACTERS: usize = 200;
    match text.char_indices().nth(N_CHARACTERS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
