//! The calls of a row against the tools of the same row.
//!
//! The decision to question: an argument that a tool does not declare is a fault, though JSON Schema
//! lets undeclared properties pass. In rows to learn from it is nearly always a misspelling; a tool
//! that takes any argument says so with `additionalProperties`.

use serde_json::Value;

use super::conversation::{Conversation, ToolCall};
use super::error::DataError;
use super::validators::Validators;
use crate::faults::excerpt;
use crate::tools::declared_schema::{Declared, declared_names, dotted, is_schema, typed};
use crate::tools::{DeclaredBy, ToolsError, did_you_mean};

/// Checks calls, with the compiled parameters of the tools of earlier rows kept.
#[derive(Debug, Default)]
pub(super) struct CallCheck {
    validators: Validators,
}

/// A tool in OpenAI's form, `{"type": "function", "function": {...}}`, or the inner object alone.
struct Tool<'t> {
    name: &'t str,
    parameters: Option<&'t Value>,
    /// Where the parameters stand, such as `tools[2].function.parameters`.
    field: String,
}

impl CallCheck {
    /// Checks the calls of all messages; `calls_of` says where those of a message stand, by its
    /// position, as in `messages[2].tool_calls`.
    ///
    /// A row without tools says nothing of its calls, and passes. Where a tool is not in a form that
    /// is known, a call may be of it, so that no name is refused.
    ///
    /// # Errors
    ///
    /// - no tool is called so
    /// - an argument is not declared, a required one is missing, or one breaks its schema
    /// - the parameters of the tool are not a usable JSON Schema
    pub(super) fn check(
        &mut self,
        conversation: &Conversation,
        calls_of: impl Fn(usize) -> String,
    ) -> Result<(), DataError> {
        let Some(given) = conversation
            .tools
            .as_deref()
            .filter(|tools| !tools.is_empty())
        else {
            return Ok(());
        };
        let tools: Vec<Tool<'_>> = given
            .iter()
            .enumerate()
            .filter_map(|(idx, value)| tool(idx, value))
            .collect();
        for (message_idx, message) in conversation.messages.iter().enumerate() {
            for (call_idx, call) in message.tool_calls.iter().enumerate() {
                let field = format!("{}[{call_idx}]", calls_of(message_idx));
                let is_known = tools.iter().any(|tool| tool.name == call.name);
                if !is_known && tools.len() == given.len() {
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

    /// Of two tools of one name a call may mean either; the first says what is wrong.
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
        let typed = typed(schema);
        let validator = self.validators.of(&tool.field, &typed).map_err(with_fix)?;
        if let Some(fault) = validator.first_fault(&arguments) {
            return Err(DataError::Tools(ToolsError::ArgumentBreaksSchema {
                field: format!("{field}{}", dotted(&fault.place)),
                tool: tool.name.to_owned(),
                reason: excerpt(&fault.reason),
                by: DeclaredBy::RowTools,
            }));
        }
        let declared = Declared {
            called: tool.name,
            by: DeclaredBy::RowTools,
        };
        Ok(declared.undeclared_inside(schema, &arguments, field)?)
    }
}

/// A tool whose name can be read.
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

/// What a tool of a row says of the calls of it, for whoever scores calls by the rules that rows are
/// checked by.
#[derive(Debug, Clone, PartialEq)]
pub struct DeclaredTool {
    /// Its name.
    pub name: String,
    /// The JSON Schema of its arguments, with JSON Schema's words for types; none where its
    /// parameters are no schema.
    pub parameters: Option<Value>,
    /// The names of all arguments, where there are no others.
    pub arguments: Option<Vec<String>>,
    /// The names of those that every call gives.
    pub required: Vec<String>,
}

impl DeclaredTool {
    /// Reads a tool, `{"type": "function", "function": {...}}` or the inner object alone; none where
    /// its name cannot be read.
    pub fn of(value: &Value) -> Option<Self> {
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
            parameters: schema.map(typed),
            arguments,
            required,
        })
    }
}

/// A fault of the tool's own, with what can be done.
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
