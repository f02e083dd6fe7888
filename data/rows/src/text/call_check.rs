//! Checks the calls of a row against the tools of the same row.
//!
//! Undeclared arguments are an error, although JSON Schema allows additional properties by default:
//! in training rows they are nearly always misspellings. A tool that accepts any argument declares
//! `additionalProperties`.

use serde_json::Value;
use tooltune_apis::declared_schema::{
    Declared, declared_names, field_path, is_schema, with_json_types,
};
use tooltune_apis::{DeclaredBy, ToolsError, did_you_mean};
use tooltune_json::faults::excerpt;
use tooltune_json::json_schema::FormatRule;
use tooltune_template::conversation::{Conversation, ToolCall};

use super::error::DataError;
use super::validators::Validators;

/// Checks calls; caches the compiled parameters of the tools of earlier rows.
#[derive(Debug)]
pub(super) struct CallCheck {
    validators: Validators,
}

/// A tool in OpenAI's format, `{"type": "function", "function": {...}}`, or only the inner object.
struct Tool<'t> {
    name: &'t str,
    parameters: Option<&'t Value>,
    /// Path of the parameters, such as `tools[2].function.parameters`.
    field: String,
}

impl CallCheck {
    pub(super) fn new(formats: FormatRule) -> Self {
        Self {
            validators: Validators::new(formats),
        }
    }

    /// Checks the calls of all messages. `calls_of` maps the index of a message to the path of its
    /// calls, such as `messages[2].tool_calls`.
    ///
    /// A row without tools passes. If a tool has an unknown format, any name passes, because the
    /// call may refer to that tool.
    ///
    /// # Errors
    ///
    /// - no tool has the name
    /// - an argument is not declared, a required one is missing, or one violates its schema
    /// - the parameters of the tool are not a usable JSON Schema
    pub(super) fn check(
        &mut self,
        conversation: &Conversation,
        calls_of: impl Fn(usize) -> String,
    ) -> Result<(), DataError> {
        let Some(row_tools) = conversation
            .tools
            .as_deref()
            .filter(|tools| !tools.is_empty())
        else {
            return Ok(());
        };
        let tools: Vec<Tool<'_>> = row_tools
            .iter()
            .enumerate()
            .filter_map(|(idx, value)| tool(idx, value))
            .collect();
        for (message_idx, message) in conversation.messages.iter().enumerate() {
            for (call_idx, call) in message.tool_calls.iter().enumerate() {
                let field = format!("{}[{call_idx}]", calls_of(message_idx));
                let is_known = tools.iter().any(|tool| tool.name == call.name);
                if !is_known && tools.len() == row_tools.len() {
                    let names = tools.iter().map(|tool| tool.name);
                    return Err(DataError::Tools(ToolsError::UnknownApi {
                        field: format!("{field}.name"),
                        name: call.name.clone(),
                        hint: did_you_mean(&call.name, names),
                        by: DeclaredBy::RowTools,
                    }));
                }
                self.check_call(call, &tools, &format!("{field}.arguments"))?;
            }
        }
        Ok(())
    }

    /// If two tools have the same name, a call may match either; the first one's error is reported.
    fn check_call(
        &mut self,
        call: &ToolCall,
        tools: &[Tool<'_>],
        field: &str,
    ) -> Result<(), DataError> {
        let mut outcome = Ok(());
        for tool in tools.iter().filter(|tool| tool.name == call.name) {
            match self.check_arguments(call, tool, field) {
                Ok(()) => return Ok(()),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    fn check_arguments(
        &mut self,
        call: &ToolCall,
        tool: &Tool<'_>,
        field: &str,
    ) -> Result<(), DataError> {
        let Some(schema) = tool.parameters.filter(|schema| is_schema(schema)) else {
            return Ok(());
        };
        declared_names(tool.name, schema, DeclaredBy::RowTools).check(&call.arguments, field)?;
        let arguments = Value::Object(call.arguments.clone());
        let schema_with_types = with_json_types(schema);
        let validator = self
            .validators
            .get_or_compile(&tool.field, &schema_with_types)
            .map_err(with_fix)?;
        if let Some(fault) = validator.first_fault(&arguments) {
            return Err(DataError::Tools(ToolsError::ArgumentBreaksSchema {
                field: format!("{field}{}", field_path(&fault.place)),
                tool: tool.name.to_owned(),
                reason: excerpt(&fault.reason) + fault.remedy(),
                by: DeclaredBy::RowTools,
            }));
        }
        let declared = Declared {
            called: tool.name,
            by: DeclaredBy::RowTools,
        };
        Ok(declared.check_nested_keys(schema, &arguments, field)?)
    }
}

/// A tool with a readable name.
fn tool(idx: usize, value: &Value) -> Option<Tool<'_>> {
    let (function, field) = match value.get("function") {
        Some(function) => (function, format!("tools[{idx}].function.parameters")),
        None => (value, format!("tools[{idx}].parameters")),
    };
    Some(Tool {
        name: function.get("name")?.as_str()?,
        parameters: function.get("parameters"),
        field,
    })
}

/// A tool declared in a row. Scorers check calls against it by the same rules as rows.
#[derive(Debug, Clone, PartialEq)]
pub struct DeclaredTool {
    /// Name of the tool.
    pub name: String,
    /// JSON Schema of the arguments, with the type names of JSON Schema; `None` if the parameters
    /// are not a schema.
    pub parameters: Option<Value>,
    /// All argument names, if no others are accepted.
    pub arguments: Option<Vec<String>>,
    /// Names of the required arguments.
    pub required: Vec<String>,
}

impl DeclaredTool {
    /// Reads a tool, `{"type": "function", "function": {...}}` or only the inner object; `None` if
    /// its name cannot be read.
    pub fn from_value(value: &Value) -> Option<Self> {
        let Tool {
            name, parameters, ..
        } = tool(0, value)?;
        let schema = parameters.filter(|schema| is_schema(schema));
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
        let names = schema.map(|schema| declared_names(name, schema, DeclaredBy::RowTools));
        let (arguments, required) = match names {
            None => (None, Vec::new()),
            Some(names) => (names.only.map(owned), owned(names.required)),
        };
        Some(Self {
            name: name.to_owned(),
            parameters: schema.map(with_json_types),
            arguments,
            required,
        })
    }
}

/// An error in the tool itself, with the fix.
fn with_fix(error: DataError) -> DataError {
    match error {
        DataError::BadSchema {
            field,
            pointer,
            reason,
        } => DataError::BadSchema {
            field,
            pointer,
            reason: format!("{reason}; {}", DeclaredBy::RowTools.fix_argument()),
        },
        other => other,
    }
}
