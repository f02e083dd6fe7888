//! A parsed answer: its calls, and calls that could not be parsed.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tooltune_agents::flat::{FlatToolRow, UnflattenReport};
use tooltune_json as json;
use tooltune_template::ToolCall;

use super::read::{CallDialect, MAX_CALLS};

/// A call, in the gold answer or written by a model.
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

/// How an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AnswerEnd {
    /// Complete.
    #[default]
    Whole,
    /// It has neither calls nor visible text.
    Empty,
    /// Cut off, for example by a token limit, or missing because a server did not reply.
    Cut,
}

/// A parsed answer, ready to be scored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CallsAnswer {
    /// The parsed calls, in order.
    pub calls: Vec<WrittenCall>,
    /// Reasons why the other calls could not be parsed.
    pub malformed: Vec<String>,
    /// The notation of the calls; `None` if there are no calls, or if a server parsed them.
    pub dialect: Option<CallDialect>,
    /// How the answer ends. Only a complete answer can be right.
    pub end: AnswerEnd,
}

impl CallsAnswer {
    /// An answer with these calls.
    pub fn from_calls(calls: Vec<WrittenCall>) -> Self {
        Self {
            calls,
            ..Self::default()
        }
    }

    /// An empty answer in this dialect.
    pub(super) fn in_dialect(dialect: CallDialect) -> Self {
        Self {
            dialect: Some(dialect),
            ..Self::default()
        }
    }

    /// Converts `tool_calls` of a server's message, whose arguments are JSON strings.
    pub fn from_server(tool_calls: &[Value]) -> Self {
        let mut answer = Self::default();
        for call in tool_calls {
            let function = call.get("function").unwrap_or(call);
            let mut function = function.clone();
            let arguments = match function.get("arguments") {
                // Servers write an empty string for a call without arguments.
                Some(Value::String(text)) if text.trim().is_empty() => {
                    Some(Ok(Value::Object(Map::new())))
                }
                Some(Value::String(text)) => Some(json::parse(text)),
                _ => None,
            };
            match arguments {
                Some(Ok(value)) => function["arguments"] = value,
                Some(Err(error)) => {
                    answer.add_malformed(format!("the arguments of a call are not JSON: {error}"));
                    continue;
                }
                None => {}
            }
            answer.add(WrittenCall::from_value(&function));
        }
        answer.limit_calls()
    }

    /// Converts the arguments of an answer to flat tools to their nested form. A call is malformed
    /// if it has an argument that the flat schema of its tool does not contain.
    #[must_use]
    pub fn unflatten(self, flat: &FlatToolRow, report: &mut UnflattenReport) -> Self {
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
            answer.add(nested.map_err(|error| format!("the call to {name}: {error}")));
        }
        answer
    }

    /// Marks the answer as cut off.
    #[must_use]
    pub fn truncate(self) -> Self {
        Self {
            end: AnswerEnd::Cut,
            ..self
        }
    }

    /// Records the dialect; the first call of an answer determines it.
    pub(super) fn record_dialect(&mut self, dialect: CallDialect) {
        self.dialect = self.dialect.or(Some(dialect));
    }

    /// Whether the answer has more calls than are allowed.
    pub(super) fn has_too_many_calls(&self) -> bool {
        self.calls.len() + self.malformed.len() > MAX_CALLS
    }

    pub(super) fn add_malformed(&mut self, reason: String) {
        self.malformed.push(reason);
    }

    pub(super) fn add(&mut self, call: Result<WrittenCall, String>) {
        match call {
            Ok(call) => self.calls.push(call),
            Err(reason) => self.add_malformed(reason),
        }
    }

    /// Keeps at most [`MAX_CALLS`] calls. An answer with more calls is malformed.
    pub(super) fn limit_calls(mut self) -> Self {
        self.malformed.truncate(MAX_CALLS);
        if self.calls.len() > MAX_CALLS {
            self.calls.truncate(MAX_CALLS);
            self.add_malformed(format!("an answer may have at most {MAX_CALLS} calls"));
        }
        self
    }
}

impl WrittenCall {
    /// Parses `{"name": ..., "arguments": {...}}`. Llama writes `parameters` instead of
    /// `arguments`. The object may be nested in `function`.
    ///
    /// # Errors
    ///
    /// The value is not an object, or has no name or no arguments object.
    pub(super) fn from_value(value: &Value) -> Result<Self, String> {
        let Some(mut fields) = value.as_object() else {
            return Err("a call is not a JSON object".to_owned());
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
                "the arguments of the call to {name} are a string, not a JSON object"
            )),
            Some(_) => Err(format!(
                "the arguments of the call to {name} are not a JSON object"
            )),
            None => Err(format!("the call to {name} has no arguments")),
        }
    }

    /// Whether a value is an attempted call, valid or not. It is if it has a name, and also
    /// arguments or the name of a known tool.
    pub(super) fn is_attempted_call(value: &Value, is_tool: impl Fn(&str) -> bool) -> bool {
        let fields = value.get("function").filter(|inner| inner.is_object());
        let fields = fields.unwrap_or(value);
        let has_arguments = ["arguments", "parameters"]
            .iter()
            .any(|key| fields.get(key).is_some());
        let name = fields.get("name").and_then(Value::as_str);
        name.is_some_and(|name| has_arguments || is_tool(name))
    }
}
