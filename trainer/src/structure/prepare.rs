//! Rows to prompts with what their answers keep to.

use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};
use tooltune_agents::flat::{FlatSlotRow, FlattenReport, RowFlattening, flatten_slot_row};
use tooltune_rows::json_schema::{BoundedValidator, KeptBySchema};
use tooltune_rows::text::{AskedPrompt, Conversation, DataError, SlotPrompt, SlotRow};

use super::rows::{BrokenRow, TextRow};
use crate::base_model::BaseModel;
use crate::config::Config;
use crate::error::Error;
use crate::eval::generator::{Constrainer, TextConstraint};
use crate::eval::saved::excerpt;
use crate::settings;

/// Schemas that are remembered by name as not flattened.
const MOST_KEPT: usize = 20;

/// A row that is ready to be asked.
#[derive(Debug)]
pub struct PreparedRow {
    /// The row's own name, or its place.
    pub id: Value,
    /// The row as `file:line`.
    pub place: String,
    /// The answer of the first model, where one was asked.
    pub text: Option<String>,
    /// What the model is asked.
    pub conversation: Conversation,
    /// The same as a text.
    pub prompt: String,
    /// The row in its flat form, where the config flattens.
    pub flat: Option<FlatSlotRow>,
    /// Its schema.
    pub schema: Arc<CompiledSchema>,
}

/// A schema that is enforced, and validated by.
#[derive(Debug)]
pub struct CompiledSchema {
    /// What judges answers.
    pub validator: BoundedValidator,
    /// What keeps answers to it; otherwise why nothing does, and nothing where texts are free by
    /// choice.
    pub constraint: Option<Result<TextConstraint, String>>,
    /// What is enforced: the schema, or its flat form.
    enforced: Value,
    /// What keeps answers to it with short lists and texts, once that was asked for.
    short: OnceLock<Option<TextConstraint>>,
}

impl CompiledSchema {
    /// Compiles, at the first call, what keeps answers to the schema with short lists and texts; whether
    /// there is something: not where the schema has limits of its own, or nothing is enforced.
    pub fn is_shortened(&self, constrainer: Option<&Constrainer>) -> bool {
        let compile = || constrainer?.short(&self.enforced);
        self.short.get_or_init(compile).is_some()
    }

    /// What [`is_shortened`](Self::is_shortened) has compiled.
    pub fn short(&self) -> Option<&TextConstraint> {
        self.short.get()?.as_ref()
    }
}

/// Prepares rows for one model.
#[derive(Debug)]
pub struct Preparer {
    base: Arc<BaseModel>,
    slot_prompt: SlotPrompt,
    flattening: Option<RowFlattening>,
    system: Option<String>,
    constrainer: Option<Arc<Constrainer>>,
    schemas: KeptBySchema<CompiledSchema>,
    flattened: FlattenReport,
}

impl Preparer {
    /// For the model of a config; without a constrainer texts are free.
    ///
    /// # Errors
    ///
    /// A prompt of the config that cannot be read.
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
            schemas: KeptBySchema::default(),
            flattened: FlattenReport::default(),
        })
    }

    /// Prepares a row; `is_answer` says whether its text is the answer of a first model.
    ///
    /// # Errors
    ///
    /// A schema that cannot be used, or a text that the template or the tokenizer refuses.
    pub fn prepare(&mut self, row: TextRow, is_answer: bool) -> Result<PreparedRow, BrokenRow> {
        let place = row.place.clone();
        self.prepared(row, is_answer).map_err(|error| {
            let reason = error.at(&place).to_string();
            BrokenRow { place, reason }
        })
    }

    /// What became of schemas, in sentences; none where nothing is flattened.
    pub fn lines(&self) -> Vec<String> {
        match self.flattening {
            None => Vec::new(),
            Some(_) => self.flattened.lines(),
        }
    }

    fn prepared(&mut self, row: TextRow, is_answer: bool) -> Result<PreparedRow, DataError> {
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
            // What gives lists the slots that a flattening asks for.
            gold: Value::Object(Map::new()),
        };
        let flat = self.flattening.as_ref().map(|flattening| {
            let flat = flatten_slot_row(&slot, flattening, &mut self.flattened);
            self.flattened.kept_schemas.truncate(MOST_KEPT);
            flat
        });
        let constrainer = self.constrainer.as_deref();
        let schema = self.schemas.of(&slot.json_schema, |schema| {
            let enforced = flat.as_ref().map(FlatSlotRow::enforced_schema);
            compiled(schema, enforced.as_ref().unwrap_or(schema), constrainer)
        })?;
        let shown = flat.as_ref().map_or(&slot, |flat| &flat.row);
        let conversation = shown.conversation(&self.slot_prompt)?.without_answer();
        let conversation = match &self.system {
            None => conversation,
            Some(system) => conversation.with_system(system),
        };
        let (template, tokenizer) = (&self.base.template, &self.base.tokenizer);
        let asked = AskedPrompt::of_messages(&place, &conversation, template, tokenizer)?;
        Ok(PreparedRow {
            id,
            place,
            text: is_answer.then(|| std::mem::take(&mut slot.input_text)),
            conversation,
            prompt: asked.text,
            flat,
            schema,
        })
    }
}

fn compiled(
    schema: &Value,
    enforced: &Value,
    constrainer: Option<&Constrainer>,
) -> Result<CompiledSchema, DataError> {
    let validator = BoundedValidator::new(schema).map_err(|fault| DataError::BadSchema {
        field: "json_schema".to_owned(),
        pointer: fault.pointer,
        reason: excerpt(&fault.reason),
    })?;
    let constraint = constrainer.and_then(|constrainer| {
        let found = constrainer.constraints(&[enforced]);
        found.into_iter().next()
    });
    Ok(CompiledSchema {
        validator,
        constraint,
        enforced: enforced.clone(),
        short: OnceLock::new(),
    })
}
