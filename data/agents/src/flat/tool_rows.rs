//! Flattens the tools and calls of conversations, and unflattens calls.
//!
//! A tool and all its calls in the conversation are flattened together or not at all, so that
//! history and target agree with the schema shown to the model.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use tooltune_json::PathStep;
use tooltune_template::{Conversation, ToolCall};

use super::error::FlatError;
use super::flatten::FlatSchema;
use super::report::{FlattenReport, NestedReason, UnflattenReport};
use super::rows::{RowFlattening, flat_form};

/// A conversation as shown to the model.
#[derive(Debug, Clone)]
pub struct FlatToolRow {
    /// The conversation, with flattened tools and calls.
    pub conversation: Conversation,
    /// The mapping of each flattened tool, by name.
    pub flat_schemas: BTreeMap<String, FlatSchema>,
}

/// Flattens the tools of the conversation in row `id`, and their calls in all messages.
///
/// Each tool is handled separately. Its lists get as many slots as the longest list in any of its
/// calls needs, and at least the configured number. A tool stays nested if flattening would reject
/// or change one of its calls, or if another tool has the same name. Calls written as text in
/// messages are unchanged.
pub fn flatten_tool_row(
    id: &str,
    conversation: &Conversation,
    flattening: &RowFlattening,
    report: &mut FlattenReport,
) -> FlatToolRow {
    let mut flat = FlatToolRow {
        conversation: conversation.clone(),
        flat_schemas: BTreeMap::new(),
    };
    let shared = shared_names(conversation);
    for tool in flat.conversation.tools.iter_mut().flatten() {
        let Some((name, parameters)) = declared_tool(tool) else {
            continue;
        };
        let messages = conversation.messages.iter();
        let calls = messages.flat_map(|message| &message.tool_calls);
        let targets: Vec<&Map<String, Value>> = calls
            .filter(|call| call.name == name)
            .map(|call| &call.arguments)
            .collect();
        let outcome = if shared.contains(name.as_str()) {
            Err(NestedReason::SharedName)
        } else {
            flat_form(parameters, &targets, flattening)
        };
        let is_widened = outcome.as_ref().map(|flat_form| flat_form.is_widened);
        report.record(id, Some(&name), is_widened);
        if let Ok(flat_form) = outcome {
            *parameters = flat_form.flat_schema.schema().clone();
            flat.flat_schemas.insert(name, flat_form.flat_schema);
        }
    }
    for message in &mut flat.conversation.messages {
        for call in &mut message.tool_calls {
            let flat_schema = flat.flat_schemas.get(&call.name);
            if let Some(flat_call) = flat_schema.and_then(|schema| flat_call(schema, call)) {
                *call = flat_call;
            }
        }
    }
    flat
}

/// The names that several tools have.
fn shared_names(conversation: &Conversation) -> BTreeSet<&str> {
    let mut seen_names = BTreeSet::new();
    let tools = conversation.tools.iter().flatten();
    let names = tools.filter_map(|tool| tool.get("function").unwrap_or(tool).get("name")?.as_str());
    names.filter(|name| !seen_names.insert(*name)).collect()
}

/// Name and parameters of `{"function": {...}}` or of the bare function object.
fn declared_tool(tool: &mut Value) -> Option<(String, &mut Value)> {
    let fields = tool.as_object_mut()?;
    let fields = if fields.contains_key("function") {
        fields.get_mut("function")?.as_object_mut()?
    } else {
        fields
    };
    let name = fields.get("name")?.as_str()?.to_owned();
    Some((name, fields.get_mut("parameters")?))
}

fn flat_call(flat_schema: &FlatSchema, call: &ToolCall) -> Option<ToolCall> {
    let arguments = flat_schema.flatten_arguments(&call.arguments).ok()?;
    let is_derived = |path: &[PathStep]| match path.first() {
        Some(PathStep::Key(argument)) => call.derived.contains(argument),
        _ => false,
    };
    let flat_derived: BTreeSet<String> = flat_schema
        .mapping()
        .filter(|(name, path)| is_derived(path) && arguments.contains_key(*name))
        .map(|(name, _)| name.to_owned())
        .collect();
    Some(ToolCall {
        id: call.id.clone(),
        name: call.name.clone(),
        arguments,
        derived: flat_derived,
    })
}

impl FlatToolRow {
    /// The nested arguments of a predicted call; the result is counted in `report`.
    ///
    /// Arguments of a tool that stays nested are returned unchanged.
    ///
    /// # Errors
    ///
    /// A name is not in the tool's flat schema; the call is malformed.
    pub fn nested_arguments(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
        report: &mut UnflattenReport,
    ) -> Result<Map<String, Value>, FlatError> {
        let nested = match self.flat_schemas.get(name) {
            Some(flat_schema) => flat_schema.unflatten_arguments(arguments),
            None => Ok(arguments.clone()),
        };
        report.record(nested.as_ref().err().map(FlatError::kind));
        nested
    }
}
