//! An MCP client: lists and calls the tools of servers over standard input and output.
//!
//! Every wait is bounded and every message has a size limit. The server program ends with its
//! client: its input is closed, then its process group and all other processes that it started are
//! killed. Its standard error is captured, and messages about the server quote the end of it. A
//! server that ended is started again by the next call. A call is never repeated, because it may
//! already have had its effect.
//!
//! The official SDK, rmcp, needs the asynchronous runtime tokio, which nothing else here uses. The
//! required part of the protocol, listing and calling tools, is line-delimited JSON and needs only
//! the few files of this module.
//!
//! # Source
//!
//! <https://modelcontextprotocol.io/specification/2025-11-25>; revisions without the handshake
//! (2026-07-28) are not supported.

mod client;
mod descendants;
mod error;
mod executor;
mod message;
mod process;
mod secret_arguments;

pub use client::{McpClient, McpOptions};
pub use error::McpError;
pub use executor::McpExecutor;
