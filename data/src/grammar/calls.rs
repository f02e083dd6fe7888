//! Tools to the grammar of one call in a model's own format.

use serde_json::{Map, Value, json};

use super::error::GrammarError;
use super::lower::Lowerer;
use super::options::Keys;

/// How a model writes a call. The JSON is laid out as templates and [`render_call`] write it.
///
/// [`render_call`]: crate::agents::render_call
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
}

/// What is written around the JSON of a call.
pub(super) struct Frame {
    /// Before the JSON; it is one token where the vocabulary has a special one of this spelling.
    pub(super) marker: &'static str,
    /// Between the marker and the JSON.
    pub(super) opening: &'static str,
    /// After the JSON.
    pub(super) closing: &'static str,
    /// One token where the vocabulary has a special one of this spelling.
    pub(super) end_marker: &'static str,
}

impl CallFormat {
    pub(super) fn frame(self) -> Frame {
        let (marker, opening, closing, end_marker) = match self {
            Self::Plain | Self::Llama => ("", "", "", ""),
            Self::Hermes => ("<tool_call>", "\n", "\n", "</tool_call>"),
            Self::Mistral => ("[TOOL_CALLS]", " [", "]", ""),
        };
        Frame {
            marker,
            opening,
            closing,
            end_marker,
        }
    }

    fn arguments_key(self) -> &'static str {
        match self {
            Self::Llama => "parameters",
            Self::Plain | Self::Hermes | Self::Mistral => "arguments",
        }
    }

    fn call(self, name: &str, arguments: Value) -> Value {
        let key = self.arguments_key();
        let mut properties = Map::new();
        properties.insert("name".to_owned(), json!({"const": name}));
        properties.insert(
            key.to_owned(),
            json!({"type": "object", "allOf": [arguments]}),
        );
        if self == Self::Mistral {
            let id = json!({"type": "string", "pattern": "^[a-zA-Z0-9]{9}$"});
            properties.insert("id".to_owned(), id);
        }
        json!({
            "type": "object",
            "properties": properties,
            "additionalProperties": false,
            "required": ["name", key],
        })
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

/// The lowered schema of a call of one of the tools.
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
        calls.push(format.call(&tool.name, arguments));
    }
    Ok(json!({"anyOf": calls}))
}
