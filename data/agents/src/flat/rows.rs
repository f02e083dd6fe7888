//! Flattens the schemas of SLOT rows, and unflattens completions.
//!
//! The two arms of a comparison differ only in the transform: a row that is not worth flattening is
//! unchanged in both arms, and a flat completion is unflattened before it is scored against the
//! nested gold value.
//!
//! Lists get as many slots as the longest list in the row needs, so a schema with one slot reveals
//! to the model that there is one item. To avoid that, set [`FlattenOptions::slots`] to a minimum
//! number of slots for all rows; [`FlattenReport::n_widened`] counts the rows that need more.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tooltune_json as json;
use tooltune_json::Style;
use tooltune_rows::text::{SlotPrompt, SlotRow};

use super::advice::{Audience, Reason, advise};
use super::arguments::as_arguments;
use super::flatten::{FlatSchema, FlattenOptions};
use super::report::{FlattenReport, NestedReason, UnflattenReport};

/// Which schemas of rows are flattened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlattenWhen {
    /// Schemas that [`advise`] recommends.
    #[default]
    Advised,
    /// All schemas with a nested level and a flat form.
    Always,
}

/// Which schemas of rows are flattened, and how.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RowFlattening {
    /// The selection of schemas.
    pub when: FlattenWhen,
    /// Lists get as many slots as the longest list in the row needs, and at least the configured
    /// number; with 0 they stay nested.
    pub options: FlattenOptions,
    /// The prompt of SLOT rows with a flat schema.
    pub slot_prompt: SlotPrompt,
}

/// A SLOT row as shown to the model.
#[derive(Debug, Clone)]
pub struct FlatSlotRow {
    /// The row, with flat schema and gold value unless it stays nested.
    pub row: SlotRow,
    /// The mapping for unflattening; `None` if the row stays nested.
    pub flat_schema: Option<FlatSchema>,
}

/// A completion in nested form, for scoring.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NestedCompletion {
    /// The nested JSON text, or the replacement for a malformed completion.
    pub text: String,
    /// For a malformed completion: `not_json`, or [`FlatError::kind`](super::FlatError::kind).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub malformed: Option<&'static str>,
}

/// Flattens the schema and gold value of a SLOT row, if configured and lossless.
pub fn flatten_slot_row(
    row: &SlotRow,
    flattening: &RowFlattening,
    report: &mut FlattenReport,
) -> FlatSlotRow {
    let outcome = match as_arguments(&row.gold) {
        Ok(gold) => flat_form(&row.json_schema, &[gold], flattening),
        Err(error) => Err(NestedReason::Refused(error)),
    };
    let is_widened = outcome.as_ref().map(|flat_form| flat_form.is_widened);
    report.record(&row.id, None, is_widened);
    let Ok(flat_form) = outcome else {
        return FlatSlotRow {
            row: row.clone(),
            flat_schema: None,
        };
    };
    FlatSlotRow {
        row: SlotRow {
            id: row.id.clone(),
            input_text: row.input_text.clone(),
            json_schema: flat_form.flat_schema.schema().clone(),
            gold: Value::Object(flat_form.targets.into_iter().next().unwrap_or_default()),
        },
        flat_schema: Some(flat_form.flat_schema),
    }
}

impl FlatSlotRow {
    /// The schema of the row's completions for constrained decoding.
    ///
    /// A flat schema forbids undeclared keys here, although the prompt does not show that, because
    /// a key that is not in the mapping could not be unflattened.
    pub fn enforced_schema(&self) -> Value {
        let mut schema = self.row.json_schema.clone();
        if let (Some(fields), Some(_)) = (schema.as_object_mut(), &self.flat_schema) {
            fields.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
        schema
    }

    /// The completion to score against the nested row.
    ///
    /// A completion that is not JSON is unchanged, and one that cannot be unflattened becomes
    /// empty. Neither can be parsed, so both score zero. If the row stays nested, its completions
    /// are returned unchanged, and counted as malformed by the same rule.
    pub fn nested_completion(&self, raw: &str, report: &mut UnflattenReport) -> NestedCompletion {
        let (text, malformed) = match json::parse(raw) {
            Err(_) => (raw.to_owned(), Some("not_json")),
            Ok(value) => self.nested_value(raw, &value),
        };
        report.record(malformed);
        NestedCompletion { text, malformed }
    }

    fn nested_value(&self, raw: &str, value: &Value) -> (String, Option<&'static str>) {
        let arguments = as_arguments(value);
        let Some(flat_schema) = &self.flat_schema else {
            return (raw.to_owned(), arguments.err().map(|error| error.kind()));
        };
        match arguments.and_then(|arguments| flat_schema.unflatten_arguments(arguments)) {
            Ok(nested) => (json::dumps(&Value::Object(nested), Style::Python), None),
            Err(error) => (String::new(), Some(error.kind())),
        }
    }
}

/// A flat schema with its flat targets.
pub(super) struct FlatForm {
    pub(super) flat_schema: FlatSchema,
    /// The flat targets, in the order of the nested targets.
    pub(super) targets: Vec<Map<String, Value>>,
    /// Whether a list needed more slots than configured.
    pub(super) is_widened: bool,
}

pub(super) fn flat_form(
    schema: &Value,
    targets: &[&Map<String, Value>],
    flattening: &RowFlattening,
) -> Result<FlatForm, NestedReason> {
    if flattening.when == FlattenWhen::Advised {
        let advice = advise(schema, Audience::Model).map_err(NestedReason::Refused)?;
        if !advice.flatten {
            return Err(NestedReason::Advised(advice.reason));
        }
    }
    let options = &flattening.options;
    let mut flat_schema = FlatSchema::new(schema, options).map_err(NestedReason::Refused)?;
    if flat_schema.mapping().all(|(_, path)| path.len() < 2) {
        return Err(NestedReason::Advised(Reason::AlreadyFlat));
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
        flat_schema = FlatSchema::new(schema, &options).map_err(NestedReason::Refused)?;
    }
    let mut flat = Vec::with_capacity(targets.len());
    for target in targets {
        if !flat_schema
            .round_trips(target)
            .map_err(NestedReason::Refused)?
        {
            return Err(NestedReason::Lossy);
        }
        let arguments = flat_schema.flatten_arguments(target);
        flat.push(arguments.map_err(NestedReason::Refused)?);
    }
    Ok(FlatForm {
        flat_schema,
        targets: flat,
        is_widened,
    })
}
