//! How complex the golds of data sets are, beside each other: the means of SLOT's seven measures.

use std::path::Path;

use serde::Serialize;
use tooltune_rows::json::json_complexity;
use tooltune_rows::text::{DataFormat, all_rows, read_rows};

use crate::error::PipelineError;

/// The names of the measures, in the order of appendix D.3.
pub const MEASURES: [&str; 7] = [
    "depth",
    "keys",
    "size",
    "elements",
    "cyclomatic",
    "schema_complexity",
    "content_complexity",
];

/// A data set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SetComplexity {
    /// What it is called.
    pub name: String,
    /// Its rows.
    pub n_rows: usize,
    /// The mean of each of [`MEASURES`].
    pub means: [f64; MEASURES.len()],
}

/// Measures the golds of a file of SLOT rows.
///
/// # Errors
///
/// The file cannot be read, holds other rows, or none.
pub fn complexity_of_file(name: &str, file: &Path) -> Result<SetComplexity, PipelineError> {
    let rows = all_rows(read_rows(file, DataFormat::Slot)?)?;
    let mut sums = [0.0; MEASURES.len()];
    let mut n_rows = 0;
    for row in rows.iter().filter_map(|row| row.slot.as_ref()) {
        let found = json_complexity(&row.gold);
        let measured = [
            found.depth as f64,
            found.keys as f64,
            found.size as f64,
            found.elements as f64,
            found.cyclomatic as f64,
            found.schema_complexity,
            found.content_complexity,
        ];
        for (sum, value) in sums.iter_mut().zip(measured) {
            *sum += value;
        }
        n_rows += 1;
    }
    if n_rows == 0 {
        let reason = format!("{}: there is no row in it to be measured", file.display());
        return Err(PipelineError::Usage(reason));
    }
    Ok(SetComplexity {
        name: name.to_owned(),
        n_rows,
        means: sums.map(|sum| sum / n_rows as f64),
    })
}
