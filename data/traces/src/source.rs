//! The layouts of traces, and how an entry reveals its layout.

use serde_json::{Map, Value};

use crate::{claude_code, codex, langchain, otlp, requests};

/// The layout of a file of traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TraceSource {
    /// OTLP/JSON: spans and log records with GenAI attributes.
    Otlp,
    /// Logged requests and responses of OpenAI's or Anthropic's API.
    Requests,
    /// Session files of Claude Code.
    ClaudeCode,
    /// Rollout files of the Codex CLI.
    Codex,
    /// Message lists of LangChain and LangGraph.
    Langchain,
}

impl TraceSource {
    /// The name in options and rows.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Otlp => "otlp",
            Self::Requests => "requests",
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
            Self::Langchain => "langchain",
        }
    }

    /// The layout of an entry, by its fields.
    pub(crate) fn recognise(entry: &Value) -> Option<Self> {
        let empty = Map::new();
        let fields = match entry {
            Value::Object(fields) => fields,
            // A list of messages.
            Value::Array(items) => items.first().and_then(Value::as_object).unwrap_or(&empty),
            _ => return None,
        };
        if otlp::is_known(fields) {
            Some(Self::Otlp)
        } else if codex::is_known(fields) {
            Some(Self::Codex)
        } else if claude_code::is_known(fields) {
            Some(Self::ClaudeCode)
        } else if langchain::is_known(fields) {
            Some(Self::Langchain)
        } else if requests::is_known(fields) {
            Some(Self::Requests)
        } else {
            None
        }
    }
}
