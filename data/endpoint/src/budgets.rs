//! Limits of MCP servers and failing requests.
//!
//! Each constant documents its reason. docs/limits.md tells users which input exceeds a limit, and
//! what to do.

/// Maximum bytes of a message from an MCP server, and of all pages of its tools together. The
/// longest tool lists are a few hundred kilobytes long; prompts have room for a thousandth of the
/// limit.
pub const MCP_MESSAGE_BYTES: usize = 16 << 20;

/// Maximum JSON values of a message from an MCP server, and of all pages of its tools together;
/// they need about 300 MB of memory.
pub const MCP_VALUES: usize = 1_000_000;

/// Maximum bytes of a tool result, as for the reply of an HTTP server.
pub const MCP_RESULT_BYTES: usize = 1 << 20;

/// Maximum messages that wait for an MCP server to read them. A call is one message; the others are
/// replies to requests of a server that sends without reading.
pub const MCP_UNREAD_MESSAGES: usize = 64;

/// Maximum tools of an MCP server, and maximum pages of its list.
pub const MCP_TOOLS: usize = 10_000;

/// Maximum consecutive requests without a reply before the server is considered at fault. A server
/// that fails for every request is abandoned after a few attempts, instead of retrying thousands of
/// rows for minutes each. Rows that a server refuses for their contents rarely follow each other.
pub const FAULTS_IN_A_ROW: usize = 8;
