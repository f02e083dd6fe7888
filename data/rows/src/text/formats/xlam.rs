//! xLAM's rows: `{"query", "tools", "answers"}`, as in Salesforce's `xlam-function-calling-60k`.
//!
//! `tools` and `answers` are lists, or JSON texts of them. The parameters of a tool are a map by
//! name, `{"city": {"type": "str, optional", "description": ..., "default": ...}}`, and become a
//! JSON Schema in OpenAI's form, which is what chat templates render and calls are checked by.

use serde_json::{Map, Value, json};

use super::FormattedRow;
use super::python_types::{TypeWord, schema_of};
use super::tools::{Wrapping, calls, tools};
use crate::text::conversation::{
    Conversation, Message, Role, as_object, missing, parse_message, text_field, wrong_type,
};
use crate::text::error::DataError;

const NEEDED: &str = "an xlam row needs query, tools and answers";

/// Reads a row.
pub(super) fn row(fields: &Map<String, Value>) -> Result<FormattedRow, DataError> {
    let query = text_field(fields, "", "query", NEEDED)?;
    let answers = fields
        .get("answers")
        .ok_or_else(|| missing("answers", NEEDED))?;
    if !fields.contains_key("tools") {
        return Err(missing("tools", NEEDED));
    }
    let mut unknown_types = Vec::new();
    let given = tools(fields, Wrapping::Function)?.unwrap_or_default();
    let tools = given
        .into_iter()
        .enumerate()
        .map(|(idx, tool)| converted(tool, &format!("tools[{idx}]"), &mut unknown_types))
        .collect::<Result<Vec<Value>, DataError>>()?;
    let answer = json!({"role": "assistant", "tool_calls": calls(answers, "answers")?});
    // The place is put right by `calls` below; what is wrong with a call itself is told here.
    let answer = parse_message(&answer, "answers").map_err(within_answers)?;
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

/// Names a fault by the field that is in the row.
fn within_answers(error: DataError) -> DataError {
    let renamed = |field: &str| field.replacen("answers.tool_calls", "answers", 1);
    match error {
        DataError::Read(error) => error.with_field(renamed).into(),
        DataError::ToolArguments { field, reason } => DataError::ToolArguments {
            field: renamed(&field),
            reason,
        },
        error => error,
    }
}

/// A tool with a JSON Schema in the place of a map of parameters.
fn converted(
    mut tool: Value,
    field: &str,
    unknown_types: &mut Vec<String>,
) -> Result<Value, DataError> {
    let Some(function) = tool.get_mut("function") else {
        return Ok(tool);
    };
    let Value::Object(function) = function else {
        return Err(wrong_type(
            &format!("{field}.function"),
            function,
            "an object",
        ));
    };
    let Some(given) = function.get_mut("parameters") else {
        return Ok(tool);
    };
    let place = format!("{field}.parameters");
    if given.is_null() {
        *given = object_schema(Map::new(), Vec::new());
        return Ok(tool);
    }
    let map = as_object(given, &place)?;
    if !is_map_of_parameters(map) {
        return Ok(tool);
    }
    let mut properties = Map::new();
    let mut required = Vec::new();
    for (name, parameter) in map {
        let (property, is_required) = property(
            as_object(parameter, &format!("{place}.{name}"))?,
            unknown_types,
        );
        properties.insert(name.clone(), property);
        if is_required {
            required.push(json!(name));
        }
    }
    *given = object_schema(properties, required);
    Ok(tool)
}

fn object_schema(properties: Map<String, Value>, required: Vec<Value>) -> Value {
    json!({"type": "object", "properties": properties, "required": required})
}

/// Whether parameters are a map by name, and no JSON Schema already: every value is an object with
/// a type or a description in words.
fn is_map_of_parameters(parameters: &Map<String, Value>) -> bool {
    parameters.values().all(|parameter| {
        let words = ["type", "description"].map(|key| parameter.get(key));
        words.iter().flatten().all(|word| word.is_string()) && words.iter().any(Option::is_some)
    })
}

/// The schema of a parameter, and whether a call must give it: unless its type says `optional`, it
/// has a default, or it says `"required": false` itself.
fn property(given: &Map<String, Value>, unknown_types: &mut Vec<String>) -> (Value, bool) {
    let mut property = Map::new();
    let mut is_required = !given.contains_key("default");
    for (key, value) in given {
        match (key.as_str(), value) {
            ("type", Value::String(word)) => {
                let TypeWord {
                    schema,
                    is_optional,
                    unknown,
                } = schema_of(word);
                is_required &= !is_optional;
                property.extend(schema);
                unknown_types.extend(unknown);
            }
            ("required", Value::Bool(says)) => is_required = *says,
            _ => drop(property.insert(key.clone(), value.clone())),
        }
    }
    (Value::Object(property), is_required)
}
