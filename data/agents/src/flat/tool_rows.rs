//! Gives conversations flat tools and calls, and brings flat calls back.
//!
//! A tool and all calls of it in the conversation are flattened together or not at all, so that
//! history and target agree with the schema that the model is shown.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use tooltune_rows::json::PathStep;
use tooltune_rows::text::{Conversation, ToolCall};

use super::error::FlatError;
use super::flatten::FlatSchema;
use super::report::{FlattenReport, Kept, UnflattenReport};
use super::rows::{RowFlattening, flat_form};

/// A conversation as the model is to see it.
#[derive(Debug, Clone)]
pub struct FlatToolRow {
    /// The conversation, with tools and calls flat where they were flattened.
    pub conversation: Conversation,
    /// The way back for each tool that was flattened, by its name.
    pub flat_schemas: BTreeMap<String, FlatSchema>,
}

/// Flattens the tools of a conversation, the row `id`, and their calls in every message.
///
/// Each tool is judged on its own; its lists get the slots of the longest one in any of its calls,
/// at least those of the options. A tool stays nested, too, if one of its calls would be refused
/// or changed, or if another has its name. Calls that messages hold as text are not touched.
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
            Err(Kept::SharedName)
        } else {
            flat_form(parameters, &targets, flattening)
        };
        let counted = outcome.as_ref().map(|form| form.is_widened);
        report.record(id, Some(&name), counted);
        if let Ok(form) = outcome {
            *parameters = form.flat_schema.schema().clone();
            flat.flat_schemas.insert(name, form.flat_schema);
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

/// The names that more than one tool has.
fn shared_names(conversation: &Conversation) -> BTreeSet<&str> {
    let mut seen = BTreeSet::new();
    let tools = conversation.tools.iter().flatten();
    let names = tools.filter_map(|tool| tool.get("function").unwrap_or(tool).get("name")?.as_str());
    names.filter(|name| !seen.insert(*name)).collect()
}

/// The name and the parameters of `{"function": {...}}` or of the inner object alone.
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
    let derived: BTreeSet<String> = flat_schema
        .mapping()
        .filter(|(name, path)| is_derived(path) && arguments.contains_key(*name))
        .map(|(name, _)| name.to_owned())
        .collect();
    Some(ToolCall {
        id: call.id.clone(),
        name: call.name.clone(),
        arguments,
        derived,
    })
}

impl FlatToolRow {
    /// The arguments of a predicted call in their nested form, counted in `report`.
    ///
    /// Those of a tool that stayed nested are returned as they are.
    ///
    /// # Errors
    ///
    /// - a name that the tool's flat schema does not have; the call is malformed
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
