//! Gives SLOT rows flat schemas, and brings flat completions back to nested ones.
//!
//! Both arms of a comparison differ in nothing but the transform: a row that is not worth
//! flattening stays as it is in both, and a flat completion is unflattened before it is scored
//! against the nested gold.
//! The decision to question: lists get as many slots as the row's own longest list needs, so a
//! schema of one slot tells the model that there is one item. Where that must not be,
//! [`FlattenOptions::slots`] gives every row as many slots at least, and
//! [`FlattenReport::n_widened`] counts the rows that needed more.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tooltune_rows::json::{self, Style};
use tooltune_rows::text::{SlotPrompt, SlotRow};

use super::advice::{Audience, Reason, advise};
use super::arguments::as_arguments;
use super::flatten::{FlatSchema, FlattenOptions};
use super::report::{FlattenReport, Kept, UnflattenReport};

/// Which schemas of rows are flattened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlattenWhen {
    /// Those that [`advise`] is for.
    #[default]
    Advised,
    /// All that have a nested level and a flat form.
    Always,
}

/// Which schemas of rows are flattened, and how.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RowFlattening {
    /// Which.
    pub when: FlattenWhen,
    /// How. Lists get the slots of the longest one in a row, at least those given here; with 0
    /// they stay as they are.
    pub options: FlattenOptions,
    /// How SLOT rows are asked with the flat schema.
    pub slot_prompt: SlotPrompt,
}

/// A SLOT row as the model is to see it.
#[derive(Debug, Clone)]
pub struct FlatSlotRow {
    /// The row, with schema and gold flat unless it stayed as it was.
    pub row: SlotRow,
    /// The way back to the nested form; none if the row stayed as it was.
    pub flat_schema: Option<FlatSchema>,
}

/// A completion as it is scored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NestedCompletion {
    /// The nested JSON text, or what stands for a malformed completion.
    pub text: String,
    /// `not_json`, or [`FlatError::kind`](super::FlatError::kind), of a malformed one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub malformed: Option<&'static str>,
}

/// Flattens schema and gold of a SLOT row where it is wanted and nothing is lost.
pub fn flatten_slot_row(
    row: &SlotRow,
    flattening: &RowFlattening,
    report: &mut FlattenReport,
) -> FlatSlotRow {
    let outcome = match as_arguments(&row.gold) {
        Ok(gold) => flat_form(&row.json_schema, &[gold], flattening),
        Err(error) => Err(Kept::Refused(error)),
    };
    let counted = outcome.as_ref().map(|form| form.is_widened);
    report.record(&row.id, None, counted);
    let Ok(form) = outcome else {
        return FlatSlotRow {
            row: row.clone(),
            flat_schema: None,
        };
    };
    FlatSlotRow {
        row: SlotRow {
            id: row.id.clone(),
            input_text: row.input_text.clone(),
            json_schema: form.flat_schema.schema().clone(),
            gold: Value::Object(form.targets.into_iter().next().unwrap_or_default()),
        },
        flat_schema: Some(form.flat_schema),
    }
}

impl FlatSlotRow {
    /// The schema that a completion of the row can keep to, for constrained decoding.
    ///
    /// A flat one is closed, though it is not shown so: a key that the mapping does not have
    /// could not be brought back.
    pub fn enforced_schema(&self) -> Value {
        let mut schema = self.row.json_schema.clone();
        if let (Some(fields), Some(_)) = (schema.as_object_mut(), &self.flat_schema) {
            fields.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
        schema
    }

    /// The completion to score against the nested row.
    ///
    /// A completion that is no JSON stays as it is, and one that the mapping refuses becomes the
    /// empty text: neither parses, so both score zero. Completions of a row that stayed nested are
    /// returned as they are, and counted as malformed by the same rule.
    pub fn nested_completion(&self, raw: &str, report: &mut UnflattenReport) -> NestedCompletion {
        let (text, malformed) = match json::parse(raw) {
            Err(_) => (raw.to_owned(), Some("not_json")),
            Ok(value) => self.nested_value(raw, &value),
        };
        report.record(malformed);
        NestedCompletion { text, malformed }
    }

    fn nested_value(&self, raw: &str, value: &Value) -> (String, Option<&'static str>) {
        let given = as_arguments(value);
        let Some(flat_schema) = &self.flat_schema else {
            return (raw.to_owned(), given.err().map(|error| error.kind()));
        };
        match given.and_then(|given| flat_schema.unflatten_arguments(given)) {
            Ok(nested) => (json::dumps(&Value::Object(nested), Style::Python), None),
            Err(error) => (String::new(), Some(error.kind())),
        }
    }
}

/// A schema and everything that is written under it, flat.
pub(super) struct FlatForm {
    pub(super) flat_schema: FlatSchema,
    /// In the order of the nested ones.
    pub(super) targets: Vec<Map<String, Value>>,
    /// Whether a list needed more slots than the options give.
    pub(super) is_widened: bool,
}

pub(super) fn flat_form(
    schema: &Value,
    targets: &[&Map<String, Value>],
    flattening: &RowFlattening,
) -> Result<FlatForm, Kept> {
    if flattening.when == FlattenWhen::Advised {
        let advice = advise(schema, Audience::Model).map_err(Kept::Refused)?;
        if !advice.flatten {
            return Err(Kept::Advised(advice.reason));
        }
    }
    let options = &flattening.options;
    let mut flat_schema = FlatSchema::new(schema, options).map_err(Kept::Refused)?;
    if flat_schema.mapping().all(|(_, path)| path.len() < 2) {
        return Err(Kept::Advised(Reason::AlreadyFlat));
    }
    let lengths = targets
        .iter()
        .map(|target| flat_schema.longest_list(target));
    let longest = lengths.max().unwrap_or(0);
    let is_widened = options.slots > 0 && longest > options.slots;
    if is_widened {
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
    Ok(FlatForm {
        flat_schema,
        targets: flat,
        is_widened,
    })
}
