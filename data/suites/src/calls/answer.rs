//! What an answer holds: calls, and what was to be one and is none.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tooltune_agents::flat::{FlatToolRow, UnflattenReport};
use tooltune_rows::json;
use tooltune_rows::text::ToolCall;

use super::read::{CallDialect, MAX_CALLS};

/// A call: of the gold, or as a model wrote it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WrittenCall {
    /// Name of the tool.
    pub name: String,
    /// Arguments by name.
    pub arguments: Map<String, Value>,
}

impl From<&ToolCall> for WrittenCall {
    fn from(call: &ToolCall) -> Self {
        Self {
            name: call.name.clone(),
            arguments: call.arguments.clone(),
        }
    }
}

/// An answer as it is scored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CallsAnswer {
    /// The calls that could be read, in their order.
    pub calls: Vec<WrittenCall>,
    /// Why each of the others could not, in words.
    pub malformed: Vec<String>,
    /// How the calls are written; none without calls, and where a server has read them.
    pub dialect: Option<CallDialect>,
}

impl CallsAnswer {
    /// An answer of these calls.
    pub fn of_calls(calls: Vec<WrittenCall>) -> Self {
        Self {
            calls,
            ..Self::default()
        }
    }

    /// An answer in which nothing is read yet, written so.
    pub(super) fn in_dialect(dialect: CallDialect) -> Self {
        Self {
            dialect: Some(dialect),
            ..Self::default()
        }
    }

    /// The calls that a server has read: `tool_calls` of a message, whose arguments are JSON texts.
    pub fn of_server(tool_calls: &[Value]) -> Self {
        let mut answer = Self::default();
        for call in tool_calls {
            let function = call.get("function").unwrap_or(call);
            let mut function = function.clone();
            let read = match function.get("arguments") {
                // Servers write the arguments of a call without any as an empty text.
                Some(Value::String(text)) if text.trim().is_empty() => {
                    Some(Ok(Value::Object(Map::new())))
                }
                Some(Value::String(text)) => Some(json::parse(text)),
                _ => None,
            };
            match read {
                Some(Ok(value)) => function["arguments"] = value,
                Some(Err(error)) => {
                    answer.refuse(format!("the arguments of a call are no JSON: {error}"));
                    continue;
                }
                None => {}
            }
            answer.add(WrittenCall::of_value(&function));
        }
        answer.within_budget()
    }

    /// The answer with every call malformed, if they are written in another way than `dialect`, which
    /// is that of the model's template: what serves the model would not read them.
    #[must_use]
    pub fn held_to(self, dialect: CallDialect) -> Self {
        match self.dialect {
            Some(found) if found != dialect && !self.calls.is_empty() => {
                let mut malformed = self.malformed;
                malformed.push(format!(
                    "calls are written as {found}, where the chat template writes {dialect}"
                ));
                Self {
                    calls: Vec::new(),
                    malformed,
                    dialect: self.dialect,
                }
            }
            _ => self,
        }
    }

    /// The answer with nested arguments, where the model was shown flat tools.
    ///
    /// A call with a name that the flat schema of its tool does not have is malformed.
    #[must_use]
    pub fn unflattened(self, flat: &FlatToolRow, report: &mut UnflattenReport) -> Self {
        let mut answer = Self {
            calls: Vec::with_capacity(self.calls.len()),
            ..self
        };
        for WrittenCall { name, arguments } in self.calls {
            let nested = flat.nested_arguments(&name, &arguments, report);
            let nested = nested.map(|arguments| WrittenCall {
                name: name.clone(),
                arguments,
            });
            answer.add(nested.map_err(|error| format!("the call of {name}: {error}")));
        }
        answer
    }

    pub(super) fn refuse(&mut self, reason: String) {
        self.malformed.push(reason);
    }

    pub(super) fn add(&mut self, call: Result<WrittenCall, String>) {
        match call {
            Ok(call) => self.calls.push(call),
            Err(reason) => self.refuse(reason),
        }
    }

    /// Keeps at most [`MAX_CALLS`]; an answer with more is malformed.
    pub(super) fn within_budget(mut self) -> Self {
        let n_calls = self.calls.len();
        if n_calls > MAX_CALLS {
            self.calls.truncate(MAX_CALLS);
            self.refuse(format!(
                "there are {n_calls} calls; an answer may have {MAX_CALLS}"
            ));
        }
        self.malformed.truncate(MAX_CALLS);
        self
    }
}

impl WrittenCall {
    /// Reads `{"name": ..., "arguments": {...}}`, with `parameters` in the place of `arguments` as
    /// Llama writes it, or within `function`.
    ///
    /// # Errors
    ///
    /// - it is no object, has no name or no object of arguments
    pub(super) fn of_value(value: &Value) -> Result<Self, String> {
        let Some(mut fields) = value.as_object() else {
            return Err("a call is no JSON object".to_owned());
        };
        if let Some(Value::Object(function)) = fields.get("function") {
            fields = function;
        }
        let Some(Value::String(name)) = fields.get("name") else {
            return Err("a call has no name".to_owned());
        };
        let arguments = fields.get("arguments").or_else(|| fields.get("parameters"));
        match arguments {
            Some(Value::Object(arguments)) => Ok(Self {
                name: name.clone(),
                arguments: arguments.clone(),
            }),
            Some(Value::String(_)) => Err(format!(
                "the arguments of the call of {name} are a text, not a JSON object"
            )),
            Some(_) => Err(format!(
                "the arguments of the call of {name} are not a JSON object"
            )),
            None => Err(format!("the call of {name} has no arguments")),
        }
    }

    /// Whether a value is a call, whole or not: it has a name, and arguments or the name of a tool.
    pub(super) fn is_meant_by(value: &Value, is_tool: impl Fn(&str) -> bool) -> bool {
        let fields = value.get("function").filter(|inner| inner.is_object());
        let fields = fields.unwrap_or(value);
        let has_arguments = ["arguments", "parameters"]
            .iter()
            .any(|key| fields.get(key).is_some());
        let name = fields.get("name").and_then(Value::as_str);
        name.is_some_and(|name| has_arguments || is_tool(name))
    }
}
