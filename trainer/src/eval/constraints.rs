//! Constraints for `eval.constrained`: the JSON Schema of a row, or calls to the tools in a prompt.

use serde::Serialize;
use serde_json::Value;
use tooltune_agents::flat::{FlattenReport, RowFlattening, flatten_slot_row};
use tooltune_grammar::GrammarOptions;
use tooltune_rows::text::SlotRow;

use super::generator::{Generator, TextConstraint};
use super::suites::call_format;
use crate::error::Error;

/// A completion that is generated without its constraint, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unsupported {
    /// Row id.
    pub id: String,
    /// Why the constraint cannot be enforced.
    pub reason: String,
}

/// Constraints for a list of prompts.
#[derive(Debug, Default)]
pub struct Constraints {
    /// One entry per prompt; empty if nothing is constrained.
    pub by_prompt: Vec<Option<TextConstraint>>,
    /// Prompts whose constraint cannot be enforced.
    pub unsupported: Vec<Unsupported>,
}

/// Kind of constraint.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestedConstraint {
    /// Unconstrained.
    Nothing,
    /// A JSON Schema.
    Schema(Value),
    /// Calls to these tools, in the format of the chat template.
    Calls(Vec<Value>),
}

impl Constraints {
    /// Compiles the requested constraints, each with its row ID, for `generator`.
    ///
    /// # Errors
    ///
    /// The tokenizer does not support constrained decoding.
    pub fn compile<'s>(
        generator: &Generator<'_>,
        requested: impl IntoIterator<Item = (&'s str, RequestedConstraint)>,
    ) -> Result<Self, Error> {
        let requested: Vec<(&str, RequestedConstraint)> = requested.into_iter().collect();
        let mut constraints = Self::default();
        if requested
            .iter()
            .all(|(_, requested)| *requested == RequestedConstraint::Nothing)
        {
            return Ok(constraints);
        }
        let constrainer = generator.constrainer()?;
        let schemas = requested
            .iter()
            .filter_map(|(_, requested)| match requested {
                RequestedConstraint::Schema(schema) => Some(schema),
                _ => None,
            });
        let schemas: Vec<&Value> = schemas.collect();
        let tools = requested
            .iter()
            .filter_map(|(_, requested)| match requested {
                RequestedConstraint::Calls(tools) => Some(tools.clone()),
                _ => None,
            });
        let tools: Vec<Vec<Value>> = tools.collect();
        let mut schema_constraints = constrainer.constraints(&schemas).into_iter();
        let tool_constraints = match generator {
            _ if tools.is_empty() => Vec::new(),
            Generator::Endpoint(_) => vec![Ok(TextConstraint::ToolChoice); tools.len()],
            Generator::Local(model) => match call_format(&model.base.template) {
                Err(reason) => vec![Err(reason); tools.len()],
                Ok(format) => {
                    let options = GrammarOptions {
                        parallel_tool_calls: true,
                        ..GrammarOptions::default()
                    };
                    constrainer.calls(&tools, format, &options)
                }
            },
        };
        let mut tool_constraints = tool_constraints.into_iter();
        for (id, requested) in requested {
            let compiled = match requested {
                RequestedConstraint::Nothing => None,
                RequestedConstraint::Schema(_) => schema_constraints.next(),
                RequestedConstraint::Calls(_) => tool_constraints.next(),
            };
            constraints.push(id, compiled.transpose());
        }
        Ok(constraints)
    }

    /// Collects compiled constraints, each with its row ID. Constraints that failed to compile are
    /// added to `unsupported`.
    pub fn from_compiled<'s>(
        compiled: impl IntoIterator<Item = (&'s str, Result<TextConstraint, String>)>,
    ) -> Self {
        let mut constraints = Self::default();
        for (id, compiled) in compiled {
            constraints.push(id, compiled.map(Some));
        }
        constraints
    }

    fn push(&mut self, id: &str, compiled: Result<Option<TextConstraint>, String>) {
        let constraint = compiled.unwrap_or_else(|reason| {
            let id = id.to_owned();
            self.unsupported.push(Unsupported { id, reason });
            None
        });
        self.by_prompt.push(constraint);
    }

    /// The constraint of the prompt at this index.
    pub fn prompt_constraint(&self, idx: usize) -> Option<&TextConstraint> {
        self.by_prompt.get(idx)?.as_ref()
    }

    /// A report line if some of the `n` rows are unconstrained.
    pub fn line(&self, n: usize) -> Option<String> {
        let first = self.unsupported.first()?;
        Some(format!(
            "{} of {n} rows are generated without constraints, because their schema cannot be \
             enforced, such as {}: {}",
            self.unsupported.len(),
            first.id,
            first.reason
        ))
    }
}

/// The schema for the answer to a SLOT row as the model sees it: flattened or nested.
pub fn shown_schema(slot: &SlotRow, flattening: Option<&RowFlattening>) -> Value {
    match flattening {
        None => slot.json_schema.clone(),
        Some(flattening) => {
            flatten_slot_row(slot, flattening, &mut FlattenReport::default()).enforced_schema()
        }
    }
}
