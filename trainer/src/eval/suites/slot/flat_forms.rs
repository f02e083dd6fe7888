//! Completions that are written under flat schemas to the nested JSON that is scored.
//!
//! Where a config flattens, the rows of an evaluation show flat schemas. Here are their forms once
//! more, made of the nested fields that rows keep for the metrics: what a text can keep to while
//! it is written, and the way back afterwards.

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

/// The forms of the rows of an evaluation; none where schemas are shown as they are.
#[derive(Debug, Default)]
pub(super) struct FlatForms(Option<Forms>);

#[derive(Debug)]
struct Forms {
    by_row: Vec<FlatSlotRow>,
    report: FlattenReport,
}

/// What became of schemas and completions.
#[derive(Debug, Clone)]
pub(super) struct Unflattened {
    /// Which schemas were flat, and which were not.
    pub schemas: FlattenReport,
    /// The completions as they are scored, in the order of the rows.
    pub completions: Vec<NestedCompletion>,
    /// How many of them were malformed.
    pub predictions: UnflattenReport,
}

impl FlatForms {
    /// Flattens SLOT rows as the config says.
    ///
    /// # Errors
    ///
    /// A row that is no SLOT row, or a prompt that cannot be read.
    pub(super) fn of(rows: &[Row], config: &DataConfig) -> Result<Self, Error> {
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

    /// What became of the schemas, in sentences; none where nothing is flattened.
    pub(super) fn lines(&self) -> Vec<String> {
        let forms = self.0.iter();
        forms.flat_map(|forms| forms.report.lines()).collect()
    }

    /// The schemas that completions of `rows` can keep to.
    ///
    /// # Errors
    ///
    /// A row that is no SLOT row.
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

    /// The completions to be scored against the nested rows; none where nothing is flattened.
    pub(super) fn unflattened(&self, predictions: &[Prediction]) -> Option<Unflattened> {
        let forms = self.0.as_ref()?;
        let mut counted = UnflattenReport::default();
        let completions = forms
            .by_row
            .iter()
            .zip(predictions)
            .map(|(form, written)| form.nested_completion(&written.prediction, &mut counted))
            .collect();
        Some(Unflattened {
            schemas: forms.report.clone(),
            completions,
            predictions: counted,
        })
    }
}

/// What a report says of schemas and completions.
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
