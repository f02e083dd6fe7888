//! Writes the grammar of a call of given tools, or of several, in a model's own format.

use serde_json::{Map, Value, json};

use super::error::GrammarError;
use super::lower::Lowerer;
use super::options::Keys;

/// How a model writes a call. The JSON is laid out as templates and the text of agents write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallFormat {
    /// `{"name": ..., "arguments": {...}}`, the text of the agents of this crate.
    Plain,
    /// `<tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>`: Qwen2.5, Hermes.
    Hermes,
    /// `{"name": ..., "parameters": {...}}`: Llama 3.1.
    Llama,
    /// `[TOOL_CALLS] [{"name": ..., "arguments": {...}, "id": "..."}]`: Mistral, with or without
    /// the id of nine letters and digits.
    Mistral,
    /// One call or more, each with a label by which later ones refer to its result.
    Sequence(SequenceFormat),
}

/// How a model writes NESTFUL's sequences, of calls `{"name": ..., "label": "$var_1",
/// "arguments": {...}}`, or with the label last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SequenceFormat {
    /// `[{...}, {...}]`.
    List,
    /// As [`SequenceFormat::List`], with or without `<|tool_call|>` before it: Granite 3.1.
    MarkedList,
    /// `{"tool_calls": [{...}, {...}]}`: xLAM.
    ToolCalls,
    /// `<tool_call> {...} </tool_call>` for each call: Hermes. A blank, a line break or nothing
    /// stands between the parts, and the tags are texts even where the vocabulary has special
    /// tokens of their spelling: decoding drops those, and the calls with them.
    Tagged,
}

/// What is written around the JSON.
pub(super) enum Frame {
    /// One value.
    Once {
        /// Before the JSON; it is one token where the vocabulary has a special one of this
        /// spelling.
        marker: &'static str,
        /// Between the marker and the JSON.
        opening: &'static str,
        /// After the JSON.
        closing: &'static str,
        /// One token where the vocabulary has a special one of this spelling.
        end_marker: &'static str,
        /// What follows the value or the frame.
        next: Next,
    },
    /// One value, with or without this mark before it.
    Marked(&'static str),
    /// A value or more, each between these tags.
    Tagged(&'static str, &'static str),
}

/// What may stand behind a value in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing.
    Nothing,
    /// Further values in the same frame, after this text.
    Value(&'static str),
    /// Further frames, after this text.
    Frame(&'static str),
}

const TAGS: (&str, &str) = ("<tool_call>", "</tool_call>");

impl Frame {
    /// What ends the JSON, in a string too.
    pub(super) fn unwritten(&self) -> Option<&'static str> {
        match self {
            Self::Once { end_marker, .. } => Some(end_marker).filter(|mark| !mark.is_empty()),
            Self::Tagged(_, close) => Some(close),
            Self::Marked(_) => None,
        }
        .copied()
    }

    pub(super) fn takes_special_tokens(&self) -> bool {
        !matches!(self, Self::Tagged(..))
    }
}

impl CallFormat {
    /// `parallel` says whether one call or more may stand in a text; Llama's format and the plain one
    /// have no way to write several.
    pub(super) fn frame(self, parallel: bool) -> Frame {
        let (marker, opening, closing, end_marker) = match self {
            Self::Hermes => (TAGS.0, "\n", "\n", TAGS.1),
            Self::Mistral => ("[TOOL_CALLS]", " [", "]", ""),
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
                Self::Mistral if parallel => Next::Value(", "),
                _ => Next::Nothing,
            },
        }
    }

    /// The schema of what a server is to write: the calls without marks around them, which readers
    /// of the format take as well. None where they do not, or where a tool's parameters refer to
    /// definitions of their own, which mean nothing in another document.
    ///
    /// # Errors
    ///
    /// - there is no tool, or one has no name or that of another
    pub fn server_schema(self, tools: &[Value]) -> Result<Option<Value>, GrammarError> {
        let tools = read_tools(tools)?;
        let is_json = !matches!(
            self,
            Self::Hermes | Self::Mistral | Self::Sequence(SequenceFormat::Tagged)
        );
        let has_references = tools.iter().any(|tool| has_reference(&tool.parameters));
        if !is_json || has_references {
            return Ok(None);
        }
        let calls = tools
            .into_iter()
            .flat_map(|tool| self.calls(&tool.name, &tool.parameters));
        Ok(Some(self.whole(calls.collect())))
    }

    fn arguments_key(self) -> &'static str {
        match self {
            Self::Llama => "parameters",
            Self::Plain | Self::Hermes | Self::Mistral | Self::Sequence(_) => "arguments",
        }
    }

    /// The schemas of a call of a tool, one for each order of its keys.
    fn calls(self, name: &str, arguments: &Value) -> Vec<Value> {
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
            Self::Plain | Self::Hermes | Self::Llama => {
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

    /// The schema of all the JSON that stands in one frame.
    fn whole(self, calls: Vec<Value>) -> Value {
        let one = json!({"anyOf": calls});
        match self {
            Self::Sequence(SequenceFormat::List | SequenceFormat::MarkedList) => several(one),
            Self::Sequence(SequenceFormat::ToolCalls) => json!({
                "type": "object",
                "properties": {"tool_calls": several(one)},
                "additionalProperties": false,
                "required": ["tool_calls"],
            }),
            _ => one,
        }
    }
}

fn several(call: Value) -> Value {
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

/// Reads tools as templates take them: `{"type": "function", "function": {"name": ...,
/// "parameters": {...}}}`, or the inner object alone. A tool without parameters takes none.
pub(super) fn read_tools(tools: &[Value]) -> Result<Vec<Tool>, GrammarError> {
    if tools.is_empty() {
        return Err(GrammarError::NoTool);
    }
    let mut read: Vec<Tool> = Vec::with_capacity(tools.len());
    for (tool_idx, tool) in tools.iter().enumerate() {
        let refused = |reason: &str| GrammarError::Tool {
            tool_idx,
            reason: reason.to_owned(),
        };
        let tool = tool.get("function").unwrap_or(tool);
        let name = tool.get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| refused("has no name; give it one as a text"))?;
        if read.iter().any(|known| known.name == name) {
            return Err(refused(
                "has the name of an earlier tool; rename one of them",
            ));
        }
        let parameters = match tool.get("parameters") {
            None | Some(Value::Null) => json!({"type": "object", "additionalProperties": false}),
            Some(parameters) => parameters.clone(),
        };
        read.push(Tool {
            name: name.to_owned(),
            parameters,
        });
    }
    Ok(read)
}

/// The lowered schema of what stands in one frame: a call of one of the tools, or a list of them.
pub(super) fn call_schema(
    tools: &[Tool],
    format: CallFormat,
    lowerer: &mut Lowerer,
    keys: Keys,
) -> Result<Value, GrammarError> {
    let mut calls = Vec::with_capacity(tools.len());
    for (tool_idx, tool) in tools.iter().enumerate() {
        let arguments = lowerer.document(&keys.of(&tool.parameters));
        let arguments = arguments.map_err(|error| GrammarError::Tool {
            tool_idx,
            reason: format!("({}): {error}", tool.name),
        })?;
        calls.extend(format.calls(&tool.name, &arguments));
    }
    Ok(format.whole(calls))
}
