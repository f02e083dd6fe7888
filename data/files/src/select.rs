//! Which rows of a file are read: the first so many, and one side of a split.
//!
//! A row's side is drawn from the seed and from what stands in it, or from the value of the field that
//! it is grouped by; so it does not depend on the other rows: equal rows are on one side, and rows
//! that are added, moved or written in another file change no other row's side.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tooltune_rows::ReadError;
use tooltune_rows::lines::Records;

/// A part of the rows that is kept back for evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Split {
    /// The share of the rows, or groups, that is kept back.
    pub share: f64,
    /// What the draw follows from.
    pub seed: u64,
    /// The field by whose value rows stay together.
    pub group_by: Option<String>,
}

/// One side of a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// What is learned.
    Training,
    /// What is kept back.
    Validation,
}

/// Which rows of a file are read.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// The most rows that are read of a file, of both sides.
    pub max_samples: Option<usize>,
    /// One side of a split, if there is one.
    pub side: Option<(Split, Side)>,
    /// What counts both sides.
    pub counts: Arc<SplitCounts>,
}

/// How the rows that were read were split.
#[derive(Debug, Default)]
pub struct SplitCounts(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    n_training: usize,
    n_validation: usize,
    hasher: Sha256,
}

/// What a split was, for those who must know later that it is the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitRecord {
    /// Rows to learn from.
    pub n_training: usize,
    /// Rows that are kept back.
    pub n_validation: usize,
    /// SHA-256 over the rows that are kept back, in their order.
    pub validation_sha256: String,
}

impl SplitCounts {
    fn count(&self, side: Side, draw: u64) {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match side {
            Side::Training => counted.n_training += 1,
            Side::Validation => {
                counted.n_validation += 1;
                counted.hasher.update(draw.to_le_bytes());
            }
        }
    }

    /// What was counted so far.
    pub fn record(&self) -> SplitRecord {
        let counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let digest = counted.hasher.clone().finalize();
        SplitRecord {
            n_training: counted.n_training,
            n_validation: counted.n_validation,
            validation_sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }
}

impl Split {
    /// The side of a row, and what was drawn for it.
    fn side_of(&self, record: &[u8]) -> Result<(Side, u64), ReadError> {
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
        let is_kept_back = ((draw >> 11) as f64) < self.share * (1_u64 << 53) as f64;
        let side = if is_kept_back {
            Side::Validation
        } else {
            Side::Training
        };
        Ok((side, draw))
    }
}

/// The value of a field as a text. What is no row at all is told by whoever parses it.
fn group_of(record: &[u8], field: &str) -> Result<String, ReadError> {
    let Ok(row) = serde_json::from_slice::<Map<String, Value>>(record) else {
        return Ok(String::new());
    };
    match row.get(field) {
        None | Some(Value::Null) => Err(ReadError::missing(
            field,
            "data.validation_group_by keeps rows of one value together, so every row needs one",
        )),
        Some(value) => Ok(value.to_string()),
    }
}

/// Leaves out what is not selected.
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

    fn place(&self) -> String {
        self.records.place()
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
            let Some((split, wanted)) = &self.selection.side else {
                return Ok(Some(record));
            };
            let (side, draw) = split.side_of(&record)?;
            self.selection.counts.count(side, draw);
            if side == *wanted {
                return Ok(Some(record));
            }
        }
    }
}
