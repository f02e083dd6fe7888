//! SLOT rows to rows with flat schemas, and flat completions back to nested ones.
//!
//! Both arms of a comparison differ in nothing but the transform: a row that is not worth
//! flattening stays as it is in both, and a flat completion is unflattened before it is scored
//! against the nested gold.
//! The decision to question: lists get as many slots as the row's own longest list needs, so a
//! schema of one slot tells the model that there is one item. Where that must not be,
//! [`FlattenOptions::slots`] gives every row as many slots at least.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use super::advice::{Audience, Reason, advise};
use super::arguments::as_arguments;
use super::error::FlatError;
use super::flatten::{FlatSchema, FlattenOptions};
use crate::json::{self, Style};
use crate::text::SlotRow;

/// Why a schema and its targets stay nested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// [`advise`] is against it.
    Advised(Reason),
    /// The schema or a target has no flat form.
    Refused(FlatError),
    /// A target would come back changed: it holds an empty object, an empty list of objects, or a
    /// null where the schema allows none.
    Lossy,
}

impl Kept {
    /// Stable name of the reason.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Advised(Reason::Recursive) => "recursive",
            Self::Advised(Reason::UserFacing) => "user_facing",
            Self::Advised(Reason::AlreadyFlat) => "already_flat",
            Self::Advised(Reason::Simple) => "simple",
            // Never a reason to keep a schema nested, but still what was advised.
            Self::Advised(Reason::Nested) => "nested",
            Self::Refused(error) => error.kind(),
            Self::Lossy => "lossy",
        }
    }
}

/// How many schemas of training rows were flattened, and why the others were not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FlattenReport {
    /// Schemas with their targets: one for a SLOT row, one for each tool of a tool row.
    pub n_schemas: usize,
    /// Those that were flattened.
    pub n_flattened: usize,
    /// Those that stayed nested, by [`Kept::name`].
    pub kept: BTreeMap<String, usize>,
}

/// How many predictions were brought back to the nested form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct UnflattenReport {
    /// All predictions, those of rows that stayed nested included.
    pub n_predictions: usize,
    /// Those that are no JSON object, or have a key that the flat schema does not have.
    pub n_malformed: usize,
    /// The malformed ones, by `not_json` or [`FlatError::kind`].
    pub malformed: BTreeMap<String, usize>,
}

impl FlattenReport {
    pub(super) fn record<T>(&mut self, outcome: &Result<T, Kept>) {
        self.n_schemas += 1;
        match outcome {
            Ok(_) => self.n_flattened += 1,
            Err(kept) => *self.kept.entry(kept.name().to_owned()).or_default() += 1,
        }
    }
}

impl UnflattenReport {
    /// Share of malformed predictions, 0 to 1; none without predictions.
    pub fn malformed_rate(&self) -> Option<f64> {
        (self.n_predictions > 0).then(|| self.n_malformed as f64 / self.n_predictions as f64)
    }

    pub(super) fn record(&mut self, fault: Option<&str>) {
        self.n_predictions += 1;
        if let Some(kind) = fault {
            self.n_malformed += 1;
            *self.malformed.entry(kind.to_owned()).or_default() += 1;
        }
    }
}

/// A SLOT row as the model is to see it.
#[derive(Debug, Clone)]
pub struct FlatSlotRow {
    /// The row, with schema and gold flat unless it stayed as it was.
    pub row: SlotRow,
    /// The way back to the nested form; none if the row stayed as it was.
    pub flat_schema: Option<FlatSchema>,
}

/// Flattens schema and gold of a SLOT row where [`advise`] is for it and nothing is lost.
///
/// Lists get the slots of the row's longest one, at least those of `options`; with 0 there lists
/// stay as they are.
pub fn flatten_slot_row(
    row: &SlotRow,
    options: &FlattenOptions,
    report: &mut FlattenReport,
) -> FlatSlotRow {
    let outcome = match as_arguments(&row.gold) {
        Ok(gold) => flat_form(&row.json_schema, &[gold], options),
        Err(error) => Err(Kept::Refused(error)),
    };
    report.record(&outcome);
    let (flat_schema, gold) = match outcome {
        Ok((flat_schema, golds)) => (flat_schema, golds.into_iter().next().unwrap_or_default()),
        Err(_) => {
            return FlatSlotRow {
                row: row.clone(),
                flat_schema: None,
            };
        }
    };
    FlatSlotRow {
        row: SlotRow {
            id: row.id.clone(),
            input_text: row.input_text.clone(),
            json_schema: flat_schema.schema().clone(),
            gold: Value::Object(gold),
        },
        flat_schema: Some(flat_schema),
    }
}

impl FlatSlotRow {
    /// The completion to score against the nested row.
    ///
    /// A completion that is no JSON stays as it is, and one that the mapping refuses becomes the
    /// empty text: neither parses, so both score zero. Completions of a row that stayed nested are
    /// returned as they are, and counted as malformed by the same rule.
    pub fn nested_completion(&self, raw: &str, report: &mut UnflattenReport) -> String {
        let Ok(value) = json::parse(raw) else {
            report.record(Some("not_json"));
            return raw.to_owned();
        };
        let nested = as_arguments(&value).and_then(|given| match &self.flat_schema {
            Some(flat_schema) => flat_schema.unflatten_arguments(given).map(Some),
            None => Ok(None),
        });
        report.record(nested.as_ref().err().map(FlatError::kind));
        match (nested, &self.flat_schema) {
            (Ok(Some(nested)), _) => json::dumps(&Value::Object(nested), Style::Python),
            (Ok(None), _) | (Err(_), None) => raw.to_owned(),
            (Err(_), Some(_)) => String::new(),
        }
    }
}

/// A schema and everything that is written under it, flat.
pub(super) fn flat_form(
    schema: &Value,
    targets: &[&Map<String, Value>],
    options: &FlattenOptions,
) -> Result<(FlatSchema, Vec<Map<String, Value>>), Kept> {
    let advice = advise(schema, Audience::Model).map_err(Kept::Refused)?;
    if !advice.flatten {
        return Err(Kept::Advised(advice.reason));
    }
    let mut flat_schema = FlatSchema::new(schema, options).map_err(Kept::Refused)?;
    let lengths = targets
        .iter()
        .map(|target| flat_schema.longest_list(target));
    let longest = lengths.max().unwrap_or(0);
    if options.slots > 0 && longest > options.slots {
        let options = FlattenOptions {
            slots: longest,
            ..options.clone()
        };
        flat_schema = FlatSchema::new(schema, &options).map_err(Kept::Refused)?;
    }
    let mut flat = Vec::with_capacity(targets.len());
    for target in targets {
        if !flat_schema.survives(target).map_err(Kept::Refused)? {
            return Err(Kept::Lossy);
        }
        let arguments = flat_schema.flatten_arguments(target);
        flat.push(arguments.map_err(Kept::Refused)?);
    }
    Ok((flat_schema, flat))
}
