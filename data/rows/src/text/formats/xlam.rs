//! Reads xLAM rows: `{"query", "tools", "answers"}`, as in Salesforce's
//! `xlam-function-calling-60k`.
//!
//! `tools` and `answers` are lists, or JSON strings of lists. The parameters of a tool are a map by
//! name, `{"city": {"type": "str, optional", "description": ..., "default": ...}}`. They are
//! converted to a JSON Schema in OpenAI's format, which chat templates render and call checks use.

use serde_json::{Map, Value, json};
use tooltune_template::TemplateError;
use tooltune_template::conversation::{
    Conversation, Message, Role, as_object, missing_field, parse_message, text_field, wrong_type,
};

use super::FormattedRow;
use super::python_types::{ParsedType, parse_type};
use super::tools::{Wrapping, read_calls, tools};
use crate::text::error::DataError;

const NEEDED: &str = "an xlam row needs query, tools and answers";

/// Reads a row.
pub(super) fn row(fields: &Map<String, Value>) -> Result<FormattedRow, DataError> {
    let query = text_field(fields, "", "query", NEEDED)?;
    let answers = fields
        .get("answers")
        .ok_or_else(|| missing_field("answers", NEEDED))?;
    if !fields.contains_key("tools") {
        return Err(missing_field("tools", NEEDED).into());
    }
    let mut unknown_types = Vec::new();
    let source_tools = tools(fields, Wrapping::Function)?.unwrap_or_default();
    let tools = source_tools
        .into_iter()
        .enumerate()
        .map(|(idx, tool)| convert_parameters(tool, &format!("tools[{idx}]"), &mut unknown_types))
        .collect::<Result<Vec<Value>, DataError>>()?;
    let answer = json!({"role": "assistant", "tool_calls": read_calls(answers, "answers")?});
    // Errors in a call get the row's own path here; later checks of the calls use `calls` below.
    let answer = parse_message(&answer, "answers").map_err(rename_error_path)?;
    let conversation = Conversation {
        tools: (!tools.is_empty()).then_some(tools),
        ..Conversation::new(vec![Message::new(Role::User, query), answer])
    };
    unknown_types.sort();
    unknown_types.dedup();
    Ok(FormattedRow {
        conversation,
        calls: vec!["query".to_owned(), "answers".to_owned()],
        unknown_types,
    })
}

/// Replaces the path of the built message in an error by the row's own field.
fn rename_error_path(error: TemplateError) -> TemplateError {
    let rename = |field: &str| field.replacen("answers.tool_calls", "answers", 1);
    match error {
        TemplateError::Read(error) => error.with_field(rename).into(),
        TemplateError::ToolArguments { field, reason } => TemplateError::ToolArguments {
            field: rename(&field),
            reason,
        },
        error => error,
    }
}

/// Replaces a tool's map of parameters by a JSON Schema.
fn convert_parameters(
    mut tool: Value,
    field: &str,
    unknown_types: &mut Vec<String>,
) -> Result<Value, DataError> {
    let Some(function) = tool.get_mut("function") else {
        return Ok(tool);
    };
    let Value::Object(function) = function else {
        return Err(wrong_type(&format!("{field}.function"), function, "an object").into());
    };
    let Some(parameters) = function.get_mut("parameters") else {
        return Ok(tool);
    };
    let parameters_path = format!("{field}.parameters");
    if parameters.is_null() {
        *parameters = object_schema(Map::new(), Vec::new());
        return Ok(tool);
    }
    let map = as_object(parameters, &parameters_path)?;
    if !is_map_of_parameters(map) {
        return Ok(tool);
    }
    let mut properties = Map::new();
    let mut required = Vec::new();
    for (name, parameter) in map {
        let (property, is_required) = convert_property(
            as_object(parameter, &format!("{parameters_path}.{name}"))?,
            unknown_types,
        );
        properties.insert(name.clone(), property);
        if is_required {
            required.push(json!(name));
        }
    }
    *parameters = object_schema(properties, required);
    Ok(tool)
}

fn object_schema(properties: Map<String, Value>, required: Vec<Value>) -> Value {
    json!({"type": "object", "properties": properties, "required": required})
}

/// Whether parameters are a map by name instead of a JSON Schema: every value is an object with a
/// string type or description.
fn is_map_of_parameters(parameters: &Map<String, Value>) -> bool {
    parameters.values().all(|parameter| {
        let strings = ["type", "description"].map(|key| parameter.get(key));
        strings.iter().flatten().all(|word| word.is_string()) && strings.iter().any(Option::is_some)
    })
}

/// The schema of a parameter, and whether the parameter is required. It is optional if its type
/// contains `optional`, it has a default, or it has `"required": false`.
fn convert_property(fields: &Map<String, Value>, unknown_types: &mut Vec<String>) -> (Value, bool) {
    let mut property = Map::new();
    let mut is_required = !fields.contains_key("default");
    for (key, value) in fields {
        match (key.as_str(), value) {
            ("type", Value::String(word)) => {
                let ParsedType {
                    schema,
                    is_optional,
                    unknown,
                } = parse_type(word);
                is_required &= !is_optional;
                property.extend(schema);
                unknown_types.extend(unknown);
            }
            ("required", Value::Bool(value)) => is_required = *value,
            _ => drop(property.insert(key.clone(), value.clone())),
        }
    }
    (Value::Object(property), is_required)
}
