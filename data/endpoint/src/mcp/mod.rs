//! A client of MCP servers: their tools, and calls of them, over standard input and output.
//!
//! Every wait is bounded, every message has a limit, and the program of the server ends with its
//! client: its input is closed, and what is left of its process group is killed. What the server
//! prints on standard error is kept out of the way, and its end stands in the messages about it.
//! The official SDK, rmcp, brings an asynchronous runtime, tokio, which nothing else here needs: the
//! part of the protocol that lists and calls tools is JSON in lines, in the few files beside this.
//! The decision to question: a server that ended is started again by the next call, and a call is
//! never repeated, since nobody knows whether it has already had its effect.
//!
//! # Source
//!
//! <https://modelcontextprotocol.io/specification/2025-11-25>; revisions without the handshake
//! (2026-07-28) are not spoken.

mod client;
mod error;
mod executor;
mod message;
mod process;

pub use client::{McpClient, McpOptions};
pub use error::McpError;
pub use executor::McpExecutor;
