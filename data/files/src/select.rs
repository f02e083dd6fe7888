//! Selects the rows of a file: a maximum number, and one side of a split.
//!
//! A row's side is drawn from the seed and the row's content, or from the value of the field by
//! which rows are grouped. It does not depend on other rows: equal rows are on the same side, and
//! adding, moving or reformatting rows does not change the side of others.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tooltune_json::ReadError;
use tooltune_json::budgets::JSON_VALUES;
use tooltune_json::lines::Records;

/// The fraction of rows held out for evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Split {
    /// The fraction of rows, or groups, that is held out.
    pub share: f64,
    /// Seed of the random split.
    pub seed: u64,
    /// The field by which rows are grouped; all rows of a group are on one side.
    pub group_by: Option<String>,
}

/// One side of a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Rows to train on.
    Training,
    /// Held-out rows.
    Validation,
}

/// Which rows of a file are read.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Maximum rows read per file, counting both sides.
    pub max_samples: Option<usize>,
    /// One side of a split, if there is one.
    pub side: Option<(Split, Side)>,
    /// Counts the rows of both sides.
    pub counts: Arc<SplitCounts>,
}

/// How the rows read so far were split.
#[derive(Debug, Default)]
pub struct SplitCounts(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    n_training: usize,
    n_validation: usize,
    hasher: Sha256,
}

/// The record of a split, to check later that the split is the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitRecord {
    /// Number of training rows.
    pub n_training: usize,
    /// Number of held-out rows.
    pub n_validation: usize,
    /// SHA-256 over the held-out rows, in order.
    pub validation_sha256: String,
}

impl SplitCounts {
    fn count(&self, side: Side, draw: u64) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match side {
            Side::Training => counts.n_training += 1,
            Side::Validation => {
                counts.n_validation += 1;
                counts.hasher.update(draw.to_le_bytes());
            }
        }
    }

    /// The counts so far.
    pub fn record(&self) -> SplitRecord {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let digest = counts.hasher.clone().finalize();
        SplitRecord {
            n_training: counts.n_training,
            n_validation: counts.n_validation,
            validation_sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }
}

impl Split {
    /// The side of a row, and the number drawn for it.
    fn choose_side(&self, record: &[u8]) -> Result<(Side, u64), ReadError> {
        let mut hasher = Sha256::new();
        hasher.update(self.seed.to_le_bytes());
        match &self.group_by {
            None => hasher.update(record.trim_ascii()),
            Some(field) => hasher.update(group_of(record, field)?.as_bytes()),
        }
        let digest = hasher.finalize();
        let draw = digest[..8]
            .iter()
            .fold(0, |draw, &byte| (draw << 8) | u64::from(byte));
        // 53 bits are exact in a float.
        let is_held_out = ((draw >> 11) as f64) < self.share * (1_u64 << 53) as f64;
        let side = if is_held_out {
            Side::Validation
        } else {
            Side::Training
        };
        Ok((side, draw))
    }
}

/// The value of a field as a string. The row parser reports rows that are not objects.
fn group_of(record: &[u8], field: &str) -> Result<String, ReadError> {
    JSON_VALUES.check(record)?;
    let Ok(row) = serde_json::from_slice::<Map<String, Value>>(record) else {
        return Ok(String::new());
    };
    match row.get(field) {
        None | Some(Value::Null) => Err(ReadError::missing(
            field,
            "data.validation_group_by groups rows by this field, so every row needs it",
        )),
        Some(value) => Ok(value.to_string()),
    }
}

/// Filters the rows by the selection.
pub fn select(records: Box<dyn Records>, selection: &Selection) -> Box<dyn Records> {
    if selection.max_samples.is_none() && selection.side.is_none() {
        return records;
    }
    Box::new(Selected {
        records,
        n_read: 0,
        selection: selection.clone(),
    })
}

#[derive(Debug)]
struct Selected {
    records: Box<dyn Records>,
    n_read: usize,
    selection: Selection,
}

impl Records for Selected {
    fn path(&self) -> &Path {
        self.records.path()
    }

    fn location(&self) -> String {
        self.records.location()
    }

    fn has_any(&self) -> bool {
        self.records.has_any()
    }

    fn next_record(&mut self) -> Result<Option<Vec<u8>>, ReadError> {
        loop {
            if self
                .selection
                .max_samples
                .is_some_and(|most| self.n_read >= most)
            {
                return Ok(None);
            }
            let Some(record) = self.records.next_record()? else {
                return Ok(None);
            };
            self.n_read += 1;
            let Some((split, selected_side)) = &self.selection.side else {
                return Ok(Some(record));
            };
            let (side, draw) = split.choose_side(&record)?;
            self.selection.counts.count(side, draw);
            if side == *selected_side {
                return Ok(Some(record));
            }
        }
    }
}
