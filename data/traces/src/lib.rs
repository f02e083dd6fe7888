//! Imports production traces of agents as rows of messages with tools.
//!
//! `import_traces` reads OpenTelemetry spans, logs of requests, and sessions of agent programs.
//! Each layout is in its own module, which names the source of the layout and the date on which it
//! was read:
//!
//! - `otlp`: OTLP/JSON with OpenTelemetry's GenAI conventions, OpenInference or OpenLLMetry
//! - `requests`: chat completions, Anthropic's messages, the Responses API
//! - `claude_code`, `codex`, `langchain`: sessions
//!
//! A layout turns its entries into `Trace`s. Every trace then takes the same path: `repair` ends
//! it before its first broken message, the `redact` rules replace secrets, `duplicates` finds equal
//! conversations and prefixes, and the row reader of training checks the row. Each step counts what
//! it drops or changes in the [`TraceReport`].
//!
//! Rows go to a temporary file, because a later conversation can replace an earlier one. Memory
//! holds 16 bytes per distinct answer, and only those entries that need others: spans, halves of a
//! request, chunks, and the file of one session (`TRACE_BYTES`).

pub mod budgets;

mod chat;
mod claude_code;
mod codex;
mod counts;
mod duplicates;
mod entries;
mod error;
mod import;
mod langchain;
mod otlp;
mod outcome;
mod redact;
mod repair;
mod requests;
mod row;
mod source;
mod trace;

#[cfg(test)]
mod tests;

pub use counts::{Count, Counts};
pub use error::TraceError;
pub use import::{ImportedTraces, TraceOptions, TraceReport, import_traces};
pub use source::TraceSource;
