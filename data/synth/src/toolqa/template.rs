//! Templates: questions with slots, each with a program.
//!
//! A template file has tables like this. A slot is a field, whose values are drawn from the records of
//! the program, or a list of values. `{slot}` in a condition or in `n` is replaced by the value itself.
//!
//! ```toml
//! [[template]]
//! task = "cheapest"
//! type = "AGGREGATION"
//! question = 'Which flight to "{city}" is the cheapest? Answer with its number.'
//! slots = { city = "to" }
//!
//! [template.program]
//! records = "data.flights"
//! where = [["to", "==", "{city}"]]
//! answer = "argmin"
//! by = "price.total"
//! field = "number"
//! ```

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use tooltune_rows::batches::SeededRandom;
use tooltune_suites::toolqa::{AnswerMetric, TaskType};

use super::SynthError;
use super::field_path::FieldPath;
use super::program::{Ambiguity, Answer, CompiledProgram, NOT_A_LIST, Program, scalar_text};
use super::response::MAX_VALUE;

pub(super) const NO_SLOT_VALUE: Ambiguity = "a slot has no value left to draw";

/// A question with slots, and the program that computes its answer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// Name of the template.
    pub task: String,
    /// Type of the question.
    #[serde(rename = "type")]
    pub task_type: TaskType,
    /// How answers are compared; by default as its answer requires.
    pub metric: Option<AnswerMetric>,
    /// The endpoint whose responses it is for; all by default.
    pub endpoint: Option<String>,
    /// The question, with `{slot}`.
    pub question: String,
    /// The slots.
    #[serde(default)]
    pub slots: BTreeMap<String, Slot>,
    /// Computes the answer.
    pub program: Program,
}

/// Where the values of a slot are from.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Slot {
    /// A field of the records, as a JMESPath expression.
    Field(String),
    /// These values.
    Values(Vec<Value>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TemplateFile {
    template: Vec<Template>,
}

/// Reads templates from TOML; `place` names the file in errors.
///
/// # Errors
///
/// The text is not TOML, there is no template, a template is incomplete, or its program is invalid.
pub fn parse_templates(place: &str, text: &str) -> Result<Vec<Template>, SynthError> {
    let failed = |reason: String| SynthError::Template {
        place: place.to_owned(),
        reason,
    };
    let TemplateFile { template } =
        toml::from_str(text).map_err(|error| failed(error.to_string()))?;
    for one in &template {
        one.check()
            .map_err(|reason| failed(format!("template {:?}: {reason}", one.task)))?;
    }
    if template.is_empty() {
        return Err(failed("no [[template]]; add one".to_owned()));
    }
    Ok(template)
}

/// A filled template.
#[derive(Debug, Clone)]
pub(super) struct Filled {
    pub(super) question: String,
    pub(super) program: Program,
    pub(super) compiled: CompiledProgram,
}

impl Template {
    /// How answers are compared.
    pub(super) fn answer_metric(&self) -> AnswerMetric {
        self.metric.unwrap_or(match self.program.answer {
            Answer::Count | Answer::Min | Answer::Max | Answer::Sum | Answer::Mean => {
                AnswerMetric::ApproxNumberMatch
            }
            Answer::List => AnswerMetric::UnorderedListStrMatch,
            _ => AnswerMetric::AccuracyString,
        })
    }

    /// Checks slots and program.
    fn check(&self) -> Result<(), String> {
        let known = |name: &str| {
            if self.slots.contains_key(name) {
                return Ok(());
            }
            Err(format!("{{{name}}} is not in `slots`; add it"))
        };
        let in_question = placeholders(&self.question);
        in_question.iter().try_for_each(|name| known(name))?;
        let mut in_program = Vec::new();
        let conditions = self.program.conditions.iter().map(|condition| &condition.2);
        conditions
            .chain(&self.program.n)
            .for_each(|value| slots_of(value, &mut in_program));
        in_program.iter().try_for_each(|name| known(name))?;
        let mut fillers = BTreeMap::new();
        for (name, slot) in &self.slots {
            if !in_question.contains(name) && !in_program.contains(name) {
                return Err(format!("the slot {name} is not used; remove it"));
            }
            let filler = match slot {
                Slot::Field(_) if self.program.records.is_none() => {
                    return Err(format!(
                        "the slot {name} has a field, but the program no `records`; add them"
                    ));
                }
                Slot::Field(field) => {
                    FieldPath::parse(field).map_err(|error| format!("the slot {name}: {error}"))?;
                    Value::from(1)
                }
                Slot::Values(values) if values.iter().any(|value| scalar_text(value).is_none()) => {
                    return Err(format!(
                        "the slot {name} has a value that is not a string, number or boolean"
                    ));
                }
                Slot::Values(values) => values
                    .first()
                    .ok_or_else(|| format!("the slot {name} has no values; add one"))?
                    .clone(),
            };
            fillers.insert(name.clone(), filler);
        }
        CompiledProgram::new(&filled_program(&self.program, &fillers)).map(|_| ())
    }

    /// Draws the values of all slots from a response.
    ///
    /// # Errors
    ///
    /// The response has no such records, or a slot has no value left.
    pub(super) fn fill(
        &self,
        response: &Value,
        random: &mut SeededRandom,
    ) -> Result<Filled, Ambiguity> {
        let mut values: BTreeMap<String, Value> = BTreeMap::new();
        // Slots with the same source get different values.
        let mut used: Vec<(&Slot, Value)> = Vec::new();
        let path;
        let records = match &self.program.records {
            Some(records)
                if self
                    .slots
                    .values()
                    .any(|slot| matches!(slot, Slot::Field(_))) =>
            {
                path = FieldPath::parse(records).map_err(|_| NOT_A_LIST)?;
                path.look_up(response)
            }
            _ => Cow::Owned(Value::Null),
        };
        for (name, slot) in &self.slots {
            let candidates: Vec<Value> = match slot {
                Slot::Values(values) => values.clone(),
                Slot::Field(field) => {
                    let field = FieldPath::parse(field).map_err(|_| NO_SLOT_VALUE)?;
                    let records = records.as_array().ok_or(NOT_A_LIST)?;
                    records.iter().map(|record| field.get(record)).collect()
                }
            };
            let mut candidates = distinct(candidates);
            candidates.retain(|value| !used.contains(&(slot, value.clone())));
            if candidates.is_empty() {
                return Err(NO_SLOT_VALUE);
            }
            let value = candidates.swap_remove(random.below(candidates.len()));
            used.push((slot, value.clone()));
            values.insert(name.clone(), value);
        }
        let program = filled_program(&self.program, &values);
        let compiled = CompiledProgram::new(&program).map_err(|_| NO_SLOT_VALUE)?;
        Ok(Filled {
            question: filled_question(&self.question, &values),
            program,
            compiled,
        })
    }
}

/// The scalars that can be part of a question, each once, in order.
fn distinct(mut values: Vec<Value>) -> Vec<Value> {
    let mut seen = std::collections::HashSet::new();
    let is_usable = |value: &Value| {
        let text = scalar_text(value)?;
        let is_short = text.chars().count() <= MAX_VALUE && !text.contains(char::is_control);
        is_short.then(|| value.to_string())
    };
    values.retain(|value| is_usable(value).is_some_and(|key| seen.insert(key)));
    values
}

/// The names in braces.
fn placeholders(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    replace_placeholders(text, |name| {
        names.push(name.to_owned());
        None
    });
    names
}

/// Replaces `{name}` once per occurrence; other braces remain.
fn replace_placeholders(text: &str, mut value: impl FnMut(&str) -> Option<String>) -> String {
    let mut replaced = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        replaced.push_str(before);
        let name = after.split_once('}').filter(|(name, _)| {
            !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_')
        });
        let found = name.and_then(|(name, after)| Some((value(name)?, after)));
        if let Some((value, after)) = found {
            replaced.push_str(&value);
            rest = after;
        } else {
            replaced.push('{');
            rest = after;
        }
    }
    replaced + rest
}

fn filled_question(question: &str, values: &BTreeMap<String, Value>) -> String {
    replace_placeholders(question, |name| scalar_text(values.get(name)?))
}

fn slot_name(text: &str) -> Option<&str> {
    text.strip_prefix('{')?.strip_suffix('}')
}

fn slots_of(value: &Value, names: &mut Vec<String>) {
    match value {
        Value::String(text) => names.extend(slot_name(text).map(str::to_owned)),
        Value::Array(items) => items.iter().for_each(|item| slots_of(item, names)),
        _ => {}
    }
}

fn filled_program(program: &Program, values: &BTreeMap<String, Value>) -> Program {
    let mut filled = program.clone();
    let conditions = filled
        .conditions
        .iter_mut()
        .map(|condition| &mut condition.2);
    conditions
        .chain(&mut filled.n)
        .for_each(|value| fill_value(value, values));
    filled
}

fn fill_value(value: &mut Value, values: &BTreeMap<String, Value>) {
    match value {
        Value::String(text) => {
            if let Some(new) = slot_name(text).and_then(|name| values.get(name)) {
                *value = new.clone();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| fill_value(item, values)),
        _ => {}
    }
}
