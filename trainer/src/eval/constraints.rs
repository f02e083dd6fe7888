//! What texts keep to where `eval.constrained` asks for it: the schema of a row, or the calls that
//! the tools of a prompt take.

use serde::Serialize;
use serde_json::{Map, Value, json};
use tooltune_agents::flat::{FlattenReport, RowFlattening, flatten_slot_row};
use tooltune_grammar::{CallFormat, GrammarOptions};
use tooltune_rows::text::{ChatTemplate, Conversation, Message, Role, SlotRow, ToolCall, Turns};

use super::generator::{Generator, TextConstraint};
use super::suites::dialect;
use crate::error::Error;

/// A text that is written freely, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unsupported {
    /// Its row.
    pub id: String,
    /// What is asked for and not enforced.
    pub reason: String,
}

/// What the texts of prompts keep to.
#[derive(Debug, Default)]
pub struct Constraints {
    /// For each prompt, or none at all where nothing is enforced.
    pub by_prompt: Vec<Option<TextConstraint>>,
    /// Those that are written freely, though they are to keep to something.
    pub unsupported: Vec<Unsupported>,
}

/// What a text is to keep to.
#[derive(Debug, Clone, PartialEq)]
pub enum Kept {
    /// Nothing.
    Nothing,
    /// A JSON Schema.
    Schema(Value),
    /// Calls of these tools, as the model's template writes them.
    Calls(Vec<Value>),
}

impl Constraints {
    /// Compiles what texts are to keep to, for `generator`; each comes with the id of its row.
    ///
    /// # Errors
    ///
    /// A tokenizer that cannot be constrained.
    pub fn compiled(generator: &Generator<'_>, kept: &[(&str, Kept)]) -> Result<Self, Error> {
        let mut constraints = Self::default();
        if kept.iter().all(|(_, kept)| *kept == Kept::Nothing) {
            return Ok(constraints);
        }
        let constrainer = generator.constrainer()?;
        let schemas = kept.iter().filter_map(|(_, kept)| match kept {
            Kept::Schema(schema) => Some(schema),
            _ => None,
        });
        let schemas: Vec<&Value> = schemas.collect();
        let tools = kept.iter().filter_map(|(_, kept)| match kept {
            Kept::Calls(tools) => Some(tools.clone()),
            _ => None,
        });
        let tools: Vec<Vec<Value>> = tools.collect();
        let mut of_schemas = constrainer.constraints(&schemas).into_iter();
        let of_tools = match generator {
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
        let mut of_tools = of_tools.into_iter();
        for (id, kept) in kept {
            let compiled = match kept {
                Kept::Nothing => None,
                Kept::Schema(_) => of_schemas.next(),
                Kept::Calls(_) => of_tools.next(),
            };
            constraints.by_prompt.push(match compiled.transpose() {
                Ok(constraint) => constraint,
                Err(reason) => {
                    let id = (*id).to_owned();
                    constraints.unsupported.push(Unsupported { id, reason });
                    None
                }
            });
        }
        Ok(constraints)
    }

    /// What the text of this prompt keeps to.
    pub fn of_prompt(&self, place: usize) -> Option<&TextConstraint> {
        self.by_prompt.get(place)?.as_ref()
    }

    /// Which of `n` rows are written freely, if some are.
    pub fn line(&self, n: usize) -> Option<String> {
        let first = self.unsupported.first()?;
        Some(format!(
            "{} of {n} rows are generated freely, because their schema is not enforced, such as {}: \
             {}",
            self.unsupported.len(),
            first.id,
            first.reason
        ))
    }
}

/// The schema that the answer to a SLOT row keeps to, in the form that the model is shown.
pub fn shown_schema(slot: &SlotRow, flattening: Option<&RowFlattening>) -> Value {
    match flattening {
        None => slot.json_schema.clone(),
        Some(flattening) => {
            flatten_slot_row(slot, flattening, &mut FlattenReport::default()).enforced_schema()
        }
    }
}

/// How the template of a model writes calls, as what can be enforced; otherwise why not.
fn call_format(template: &ChatTemplate) -> Result<CallFormat, String> {
    let probe = json!({"type": "function", "function": {"name": "probe", "description": "Probes.",
        "parameters": {"type": "object", "properties": {"depth": {"type": "integer"}}}}});
    let written = written_call(template, &probe)
        .ok_or_else(|| "the chat template does not write calls of tools".to_owned())?;
    match dialect(&written, &[probe]) {
        Some("hermes") => Ok(CallFormat::Hermes),
        Some("mistral") => Ok(CallFormat::Mistral),
        Some("json") if written.contains("\"parameters\"") => Ok(CallFormat::Llama),
        Some("json") => Ok(CallFormat::Plain),
        Some(dialect) => Err(format!(
            "the chat template writes calls as {dialect}, which is not enforced"
        )),
        None => Err("the chat template writes calls in a way that is not known".to_owned()),
    }
}

/// The text of a turn with one call, as the template writes it.
fn written_call(template: &ChatTemplate, tool: &Value) -> Option<String> {
    let mut turn = Message::new(Role::Assistant, "");
    turn.content = None;
    turn.tool_calls = vec![ToolCall {
        id: Some("probe0001".to_owned()),
        name: "probe".to_owned(),
        arguments: Map::from_iter([("depth".to_owned(), Value::from(1))]),
        derived: Default::default(),
    }];
    let conversation = Conversation {
        tools: Some(vec![tool.clone()]),
        ..Conversation::new(vec![Message::new(Role::User, "Probe."), turn])
    };
    let prompt = template.render_prompt(&conversation).ok()?;
    let rendered = template
        .render_with_spans(&conversation, Turns::Completion)
        .ok()?;
    rendered.text.strip_prefix(&prompt).map(str::to_owned)
}
