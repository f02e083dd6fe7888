//! The grammar of one or several tool calls in a model's own format.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::error::GrammarError;
use super::lower::Lowerer;
use super::options::Keys;

/// A model's tool-call format. The JSON layout matches chat templates and agent prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CallFormat {
    /// `{"name": ..., "arguments": {...}}`, the plain format of tooltune's agents.
    Plain,
    /// `<tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>`: Qwen2.5, Hermes.
    Hermes,
    /// `{"name": ..., "parameters": {...}}`: Llama 3.1.
    Llama,
    /// `[TOOL_CALLS] [{"name": ..., "arguments": {...}, "id": "..."}]`: Mistral, with or without
    /// the id of nine letters and digits.
    Mistral,
    /// `<|tool_call|>[{"name": ..., "arguments": {...}}]`: Granite 3, Phi-4-mini.
    Granite,
    /// One call or more. Each call has a label by which later calls refer to its result.
    Sequence(SequenceFormat),
}

/// The format of NESTFUL's call sequences, with calls `{"name": ..., "label": "$var_1",
/// "arguments": {...}}` or with the label last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SequenceFormat {
    /// `[{...}, {...}]`.
    List,
    /// As [`SequenceFormat::List`], optionally preceded by `<|tool_call|>`: Granite 3.1.
    MarkedList,
    /// `{"tool_calls": [{...}, {...}]}`: xLAM.
    ToolCalls,
    /// `<tool_call> {...} </tool_call>` for each call: Hermes. The parts are separated by a space,
    /// a line break or nothing. The tags are plain text even if the vocabulary has special tokens
    /// with that spelling, because decoding would drop special tokens and with them the calls.
    Tagged,
}

/// The text around the JSON.
pub(super) enum Frame {
    /// A value, or several values if `next` allows them.
    Once {
        /// Marker before the JSON; one token if the vocabulary has a special token with this
        /// spelling.
        marker: &'static str,
        /// Text between the marker and the JSON.
        opening: &'static str,
        /// Text after the JSON.
        closing: &'static str,
        /// Marker after the JSON; one token if the vocabulary has a special token with this
        /// spelling.
        end_marker: &'static str,
        /// What can follow the value or the frame.
        next: Next,
    },
    /// A single value, optionally preceded by this marker.
    Marked(&'static str),
    /// One or more values, each between these tags.
    Tagged(&'static str, &'static str),
}

/// What can follow a value in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing.
    Nothing,
    /// More values in the same frame, after this separator.
    Value(&'static str),
    /// More frames, after this separator.
    Frame(&'static str),
}

const TAGS: (&str, &str) = ("<tool_call>", "</tool_call>");

impl Frame {
    /// The marker that ends the JSON even inside a string.
    pub(super) fn forbidden_substring(&self) -> Option<&'static str> {
        match self {
            Self::Once { end_marker, .. } => Some(end_marker).filter(|mark| !mark.is_empty()),
            Self::Tagged(_, close) => Some(close),
            Self::Marked(_) => None,
        }
        .copied()
    }

    pub(super) fn uses_special_tokens(&self) -> bool {
        !matches!(self, Self::Tagged(..))
    }
}

impl CallFormat {
    /// `parallel` allows several calls per reply. Llama's format and the plain format always allow
    /// only one.
    pub(super) fn frame(self, parallel: bool) -> Frame {
        let (marker, opening, closing, end_marker) = match self {
            Self::Hermes => (TAGS.0, "\n", "\n", TAGS.1),
            Self::Mistral => ("[TOOL_CALLS]", " [", "]", ""),
            Self::Granite => ("<|tool_call|>", "[", "]", ""),
            Self::Sequence(SequenceFormat::MarkedList) => return Frame::Marked("<|tool_call|>"),
            Self::Sequence(SequenceFormat::Tagged) => return Frame::Tagged(TAGS.0, TAGS.1),
            Self::Plain | Self::Llama | Self::Sequence(_) => ("", "", "", ""),
        };
        Frame::Once {
            marker,
            opening,
            closing,
            end_marker,
            next: match self {
                Self::Hermes if parallel => Next::Frame("\n"),
                Self::Mistral | Self::Granite if parallel => Next::Value(", "),
                _ => Next::Nothing,
            },
        }
    }

    /// Returns the schema of the calls without markers, for a server's constrained output. Returns
    /// `None` if parsers of the format do not accept calls without markers. Also returns `None` if
    /// a tool's parameters refer to parts of their own document, because the references would not
    /// resolve in the returned schema.
    ///
    /// # Errors
    ///
    /// - There is no tool, or a tool has no name or a duplicate name.
    pub fn server_schema(self, tools: &[Value]) -> Result<Option<Value>, GrammarError> {
        let tools = read_tools(tools)?;
        let is_json = !matches!(
            self,
            Self::Hermes | Self::Mistral | Self::Granite | Self::Sequence(SequenceFormat::Tagged)
        );
        let has_references = tools.iter().any(|tool| has_reference(&tool.parameters));
        if !is_json || has_references {
            return Ok(None);
        }
        let calls = tools
            .into_iter()
            .flat_map(|tool| self.call_schemas(&tool.name, &tool.parameters));
        Ok(Some(self.frame_schema(calls.collect())))
    }

    fn arguments_key(self) -> &'static str {
        match self {
            Self::Llama => "parameters",
            _ => "arguments",
        }
    }

    /// The schemas of a call of a tool: one schema for each key order.
    fn call_schemas(self, name: &str, arguments: &Value) -> Vec<Value> {
        let key = self.arguments_key();
        let name = ("name", json!({"const": name}));
        let arguments = (key, json!({"type": "object", "allOf": [arguments]}));
        let call = |properties: Vec<(&str, Value)>, required: &[&str]| {
            let properties = properties.into_iter();
            let properties = properties.map(|(key, property)| (key.to_owned(), property));
            json!({
                "type": "object",
                "properties": properties.collect::<Map<_, _>>(),
                "additionalProperties": false,
                "required": required,
            })
        };
        match self {
            Self::Plain | Self::Hermes | Self::Llama | Self::Granite => {
                vec![call(vec![name, arguments], &["name", key])]
            }
            Self::Mistral => {
                let id = json!({"type": "string", "pattern": "^[a-zA-Z0-9]{9}$"});
                vec![call(vec![name, arguments, ("id", id)], &["name", key])]
            }
            Self::Sequence(_) => {
                let label = json!({"type": "string", "pattern": r"^\$var_?[0-9]{1,3}$"});
                let label = ("label", label);
                let required = &["name", "label", key];
                vec![
                    call(
                        vec![name.clone(), label.clone(), arguments.clone()],
                        required,
                    ),
                    call(vec![name, arguments, label], required),
                ]
            }
        }
    }

    /// The schema of the whole JSON in a frame.
    fn frame_schema(self, calls: Vec<Value>) -> Value {
        let one = json!({"anyOf": calls});
        match self {
            Self::Sequence(SequenceFormat::List | SequenceFormat::MarkedList) => call_list(one),
            Self::Sequence(SequenceFormat::ToolCalls) => json!({
                "type": "object",
                "properties": {"tool_calls": call_list(one)},
                "additionalProperties": false,
                "required": ["tool_calls"],
            }),
            _ => one,
        }
    }
}

fn call_list(call: Value) -> Value {
    json!({"type": "array", "items": call, "minItems": 1})
}

fn has_reference(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.contains_key("$ref") || fields.values().any(has_reference),
        Value::Array(items) => items.iter().any(has_reference),
        _ => false,
    }
}

/// A tool's name and the schema of its arguments.
pub(super) struct Tool {
    name: String,
    parameters: Value,
}

/// Reads tools in the format of chat templates: `{"type": "function", "function": {"name": ...,
/// "parameters": {...}}}`, or only the inner object. A tool without parameters accepts no
/// arguments.
pub(super) fn read_tools(tools: &[Value]) -> Result<Vec<Tool>, GrammarError> {
    if tools.is_empty() {
        return Err(GrammarError::NoTool);
    }
    let mut all_tools: Vec<Tool> = Vec::with_capacity(tools.len());
    for (tool_idx, tool) in tools.iter().enumerate() {
        let tool_error = |reason: &str| GrammarError::Tool {
            tool_idx,
            reason: reason.to_owned(),
        };
        let tool = tool.get("function").unwrap_or(tool);
        let name = tool.get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| tool_error("has no name; add one as a string"))?;
        if all_tools.iter().any(|earlier| earlier.name == name) {
            return Err(tool_error(
                "has the same name as an earlier tool; rename one of them",
            ));
        }
        let parameters = match tool.get("parameters") {
            None | Some(Value::Null) => json!({"type": "object", "additionalProperties": false}),
            Some(parameters) => parameters.clone(),
        };
        all_tools.push(Tool {
            name: name.to_owned(),
            parameters,
        });
    }
    Ok(all_tools)
}

/// The lowered schema of a frame's JSON: a call of one of the tools, or a list of calls.
pub(super) fn call_schema(
    tools: &[Tool],
    format: CallFormat,
    lowerer: &mut Lowerer,
    keys: Keys,
) -> Result<Value, GrammarError> {
    let mut calls = Vec::with_capacity(tools.len());
    for (tool_idx, tool) in tools.iter().enumerate() {
        let arguments = lowerer.document(&keys.apply_to(&tool.parameters));
        let arguments = arguments.map_err(|error| GrammarError::Tool {
            tool_idx,
            reason: format!("({}): {error}", tool.name),
        })?;
        calls.extend(format.call_schemas(&tool.name, &arguments));
    }
    Ok(format.frame_schema(calls))
}
