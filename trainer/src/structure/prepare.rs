//! Builds prompts and constraints for rows.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};
use tooltune_agents::flat::{FlatSlotRow, FlattenReport, RowFlattening, flatten_slot_row};
use tooltune_grammar::Formats;
use tooltune_json::json_schema::{
    BoundedValidator, SchemaCache, checked_formats, unchecked_formats,
};
use tooltune_rows::text::{DataError, SlotPrompt, SlotRow, TokenizedPrompt};
use tooltune_template::Conversation;

use super::rows::{BrokenRow, TextRow};
use crate::base_model::BaseModel;
use crate::config::Config;
use crate::error::Error;
use crate::eval::generator::{Constrainer, TextConstraint};
use crate::eval::saved::excerpt;
use crate::settings;

/// Maximum number of unflattened schemas in the report.
const MAX_REPORTED: usize = 20;

/// A row ready for the model.
#[derive(Debug)]
pub struct PreparedRow {
    /// Id of the row, or its location.
    pub id: Value,
    /// Row as `file:line`.
    pub place: String,
    /// The text of the first model, if any.
    pub text: Option<String>,
    /// The prompt as messages.
    pub conversation: Conversation,
    /// The rendered prompt.
    pub prompt: String,
    /// The row in flat form, if the config flattens.
    pub flat: Option<FlatSlotRow>,
    /// The schema of the row.
    pub schema: Arc<CompiledSchema>,
}

/// A schema with its validator and constraint.
#[derive(Debug)]
pub struct CompiledSchema {
    /// Validates answers.
    pub validator: BoundedValidator,
    /// The constraint, or the reason why the schema cannot be enforced; `None` if constraints are
    /// off.
    pub constraint: Option<Result<TextConstraint, String>>,
}

/// Prepares rows for one model.
#[derive(Debug)]
pub struct Preparer {
    base: Arc<BaseModel>,
    slot_prompt: SlotPrompt,
    flattening: Option<RowFlattening>,
    system: Option<String>,
    constrainer: Option<Arc<Constrainer>>,
    schemas: SchemaCache<CompiledSchema>,
    flattened: FlattenReport,
    /// Schema formats that are not validated.
    unchecked_formats: BTreeSet<String>,
    /// Formats that are validated, but that no grammar enforces.
    unenforced_formats: BTreeSet<String>,
}

impl Preparer {
    /// Creates a preparer for the model of a config. Without `constrainer`, completions are
    /// unconstrained.
    ///
    /// # Errors
    ///
    /// A prompt template of the config cannot be read.
    pub fn new(
        config: &Config,
        base: Arc<BaseModel>,
        constrainer: Option<Arc<Constrainer>>,
    ) -> Result<Self, Error> {
        Ok(Self {
            base,
            slot_prompt: settings::slot_prompt(&config.data)?,
            flattening: settings::flattening(&config.data)?,
            system: config.data.system.clone(),
            constrainer,
            schemas: SchemaCache::default(),
            flattened: FlattenReport::default(),
            unchecked_formats: BTreeSet::new(),
            unenforced_formats: BTreeSet::new(),
        })
    }

    /// Prepares a row. `is_answer` is whether a first model generated its text.
    ///
    /// # Errors
    ///
    /// A schema is invalid, or the template or tokenizer rejects the text.
    pub fn prepare(&mut self, row: TextRow, is_answer: bool) -> Result<PreparedRow, BrokenRow> {
        let place = row.place.clone();
        self.prepare_row(row, is_answer).map_err(|error| {
            let reason = error.at(&place).to_string();
            BrokenRow { place, reason }
        })
    }

    /// Report lines about the schemas.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = match self.flattening {
            None => Vec::new(),
            Some(_) => self.flattened.lines(),
        };
        let quoted = |names: &BTreeSet<String>| {
            let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
            names.join(", ")
        };
        if !self.unenforced_formats.is_empty() {
            lines.push(format!(
                "formats that are validated but not enforced during generation: {}",
                quoted(&self.unenforced_formats)
            ));
        }
        if !self.unchecked_formats.is_empty() {
            lines.push(format!(
                "formats that are not validated, because JSON Schema does not define them or this \
                 program does not support them: {}; use \"pattern\" instead",
                quoted(&self.unchecked_formats)
            ));
        }
        lines
    }

    /// Records schema formats that are not validated or not enforced.
    fn note_formats(&mut self, schema: &Value) {
        for name in unchecked_formats(schema) {
            if self.unchecked_formats.len() < MAX_REPORTED {
                self.unchecked_formats.insert(excerpt(name));
            }
        }
        if self.constrainer.is_some() {
            let checked = checked_formats(schema).into_iter();
            let unenforced = checked.filter(|name| Formats::unenforced_formats().contains(name));
            self.unenforced_formats
                .extend(unenforced.map(str::to_owned));
        }
    }

    fn prepare_row(&mut self, row: TextRow, is_answer: bool) -> Result<PreparedRow, DataError> {
        let TextRow {
            id,
            place,
            text,
            json_schema,
        } = row;
        let mut slot = SlotRow {
            id: place.clone(),
            input_text: text,
            json_schema,
            // Flattening also counts the list entries of the gold JSON, which these rows do not
            // have.
            gold: Value::Object(Map::new()),
        };
        let flat = self.flattening.as_ref().map(|flattening| {
            let flat = flatten_slot_row(&slot, flattening, &mut self.flattened);
            self.flattened.kept_schemas.truncate(MAX_REPORTED);
            flat
        });
        self.note_formats(&slot.json_schema);
        let constrainer = self.constrainer.as_deref();
        let schema = self.schemas.get_or_compile(&slot.json_schema, |schema| {
            let enforced = flat.as_ref().map(FlatSlotRow::enforced_schema);
            compile_schema(schema, enforced.as_ref().unwrap_or(schema), constrainer)
        })?;
        let prompt_row = flat.as_ref().map_or(&slot, |flat| &flat.row);
        let conversation = prompt_row.conversation(&self.slot_prompt)?.without_answer();
        let conversation = match &self.system {
            None => conversation,
            Some(system) => conversation.with_system(system),
        };
        let (template, tokenizer) = (&self.base.template, &self.base.tokenizer);
        let prompt = TokenizedPrompt::from_messages(&place, &conversation, template, tokenizer)?;
        Ok(PreparedRow {
            id,
            place,
            text: is_answer.then(|| std::mem::take(&mut slot.input_text)),
            conversation,
            prompt: prompt.text,
            flat,
            schema,
        })
    }
}

fn compile_schema(
    schema: &Value,
    enforced: &Value,
    constrainer: Option<&Constrainer>,
) -> Result<CompiledSchema, DataError> {
    let validator =
        BoundedValidator::asserting_formats(schema).map_err(|fault| DataError::BadSchema {
            field: "json_schema".to_owned(),
            pointer: fault.pointer,
            reason: excerpt(&fault.reason),
        })?;
    let constraint = constrainer.and_then(|constrainer| {
        let constraints = constrainer.constraints_with(&[enforced], Formats::Enforceable);
        constraints.into_iter().next()
    });
    Ok(CompiledSchema {
        validator,
        constraint,
    })
}
