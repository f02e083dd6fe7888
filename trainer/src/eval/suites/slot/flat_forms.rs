//! Flattens schemas for generation and nests the completions again for scoring.
//!
//! If a config flattens schemas, the prompts of evaluation rows contain flat schemas, but the rows
//! also keep the nested fields for the metrics. This module derives the flat schemas again from the
//! nested fields. It uses them to constrain completions, and to nest completions before scoring.

use serde::Serialize;
use serde_json::Value;
use tooltune_agents::flat::{
    FlatSlotRow, FlattenReport, NestedCompletion, UnflattenReport, flatten_slot_row,
};
use tooltune_rows::text::Row;

use super::slot_fields;
use crate::config::DataConfig;
use crate::error::Error;
use crate::eval::prediction::Prediction;
use crate::settings;

/// Flat forms of evaluation rows; empty if schemas are not flattened.
#[derive(Debug, Default)]
pub(super) struct FlatForms(Option<Forms>);

#[derive(Debug)]
struct Forms {
    by_row: Vec<FlatSlotRow>,
    report: FlattenReport,
}

/// Statistics about schemas, and converted completions.
#[derive(Debug, Clone)]
pub(super) struct Unflattened {
    /// Which schemas were flattened.
    pub schemas: FlattenReport,
    /// The completions to score, in the order of the rows.
    pub completions: Vec<NestedCompletion>,
    /// Counts of malformed completions.
    pub predictions: UnflattenReport,
}

impl FlatForms {
    /// Flattens SLOT rows as configured.
    ///
    /// # Errors
    ///
    /// A row is not a SLOT row, or a prompt cannot be read.
    pub(super) fn flatten(rows: &[Row], config: &DataConfig) -> Result<Self, Error> {
        let Some(flattening) = settings::flattening(config)? else {
            return Ok(Self::default());
        };
        let mut report = FlattenReport::default();
        let by_row = rows
            .iter()
            .map(|row| {
                Ok(flatten_slot_row(
                    slot_fields(row)?,
                    &flattening,
                    &mut report,
                ))
            })
            .collect::<Result<_, Error>>()?;
        Ok(Self(Some(Forms { by_row, report })))
    }

    /// Report lines about the schemas; empty if nothing is flattened.
    pub(super) fn lines(&self) -> Vec<String> {
        let forms = self.0.iter();
        forms.flat_map(|forms| forms.report.lines()).collect()
    }

    /// The schemas that can constrain completions of `rows`.
    ///
    /// # Errors
    ///
    /// A row is not a SLOT row.
    pub(super) fn enforced_schemas(&self, rows: &[Row]) -> Result<Vec<Value>, Error> {
        match &self.0 {
            Some(forms) => Ok(forms
                .by_row
                .iter()
                .map(FlatSlotRow::enforced_schema)
                .collect()),
            None => rows
                .iter()
                .map(|row| Ok(slot_fields(row)?.json_schema.clone()))
                .collect(),
        }
    }

    /// Nests completions for scoring; `None` if nothing is flattened.
    pub(super) fn unflatten_report(&self, predictions: &[Prediction]) -> Option<Unflattened> {
        let forms = self.0.as_ref()?;
        let mut report = UnflattenReport::default();
        let completions = forms
            .by_row
            .iter()
            .zip(predictions)
            .map(|(form, completion)| form.nested_completion(completion.whole_text(), &mut report))
            .collect();
        Some(Unflattened {
            schemas: forms.report.clone(),
            completions,
            predictions: report,
        })
    }
}

/// The part of a report about schemas and completions.
#[derive(Debug, Serialize)]
pub(super) struct FlatCounts<'a> {
    schemas: &'a FlattenReport,
    predictions: &'a UnflattenReport,
}

impl Unflattened {
    pub(super) fn counts(&self) -> FlatCounts<'_> {
        FlatCounts {
            schemas: &self.schemas,
            predictions: &self.predictions,
        }
    }
}
