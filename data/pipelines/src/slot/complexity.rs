//! Compares the complexity of the gold values of data sets: the means of SLOT's seven measures.

use std::path::Path;

use serde::Serialize;
use tooltune_json::faults::collect_rows;
use tooltune_rows::text::{DataFormat, SlotPrompt, read_rows};
use tooltune_synth::statistics::{N_COMPLEXITY, SlotStatistics};

use crate::error::PipelineError;

/// A data set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SetComplexity {
    /// Name of the data set.
    pub name: String,
    /// Number of rows.
    pub n_rows: usize,
    /// Means of the seven measures over the rows, by name.
    pub means: Vec<(&'static str, f64)>,
}

/// Measures the gold values of a file of SLOT rows.
///
/// # Errors
///
/// The file cannot be read, has no rows, or has rows of another format.
pub fn complexity_of_file(name: &str, file: &Path) -> Result<SetComplexity, PipelineError> {
    let mut statistics = SlotStatistics::new(|_| 0, SlotPrompt::default());
    for row in collect_rows(read_rows(file, DataFormat::Slot)?)? {
        if let Some(slot) = &row.slot {
            statistics.add(&slot.input_text, &slot.json_schema, &slot.gold)?;
        }
    }
    let table = statistics.table();
    if table.n_rows == 0 {
        let reason = format!("{}: the file has no rows to measure", file.display());
        return Err(PipelineError::Usage(reason));
    }
    let measures = table.measures.iter().take(N_COMPLEXITY);
    Ok(SetComplexity {
        name: name.to_owned(),
        n_rows: table.n_rows,
        means: measures
            .map(|measure| (measure.name, measure.mean))
            .collect(),
    })
}
