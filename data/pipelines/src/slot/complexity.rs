//! How complex the golds of data sets are, beside each other: the means of SLOT's seven measures.

use std::path::Path;

use serde::Serialize;
use tooltune_rows::text::{DataFormat, SlotPrompt, all_rows, read_rows};
use tooltune_synth::statistics::{N_COMPLEXITY, SlotStatistics};

use crate::error::PipelineError;

/// A data set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SetComplexity {
    /// What it is called.
    pub name: String,
    /// Its rows.
    pub n_rows: usize,
    /// The mean of each of the seven measures over its rows, by their names.
    pub means: Vec<(&'static str, f64)>,
}

/// Measures the golds of a file of SLOT rows.
///
/// # Errors
///
/// The file cannot be read, holds other rows, or none.
pub fn complexity_of_file(name: &str, file: &Path) -> Result<SetComplexity, PipelineError> {
    let mut statistics = SlotStatistics::new(|_| 0, SlotPrompt::default());
    for row in all_rows(read_rows(file, DataFormat::Slot)?)? {
        if let Some(slot) = &row.slot {
            statistics.add(&slot.input_text, &slot.json_schema, &slot.gold)?;
        }
    }
    let table = statistics.table();
    if table.n_rows == 0 {
        let reason = format!("{}: there is no row in it to be measured", file.display());
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
