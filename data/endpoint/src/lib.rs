//! Messages in, a model's text out, from any server that speaks OpenAI's chat completions; and calls
//! of APIs in, answers out, from servers of HTTP and of MCP.
//!
//! Every wait is bounded: an attempt by its timeout, the waits between attempts by what is left
//! of the whole request's time. The decision to question: waits have no random part, so that a
//! run can be repeated; the number of requests at once is bounded instead.
//!
//! ```
//! use tooltune_endpoint::{ChatEndpoint, EndpointOptions};
//!
//! // Nothing is sent yet; an address that is none is an error.
//! let endpoint = ChatEndpoint::new(&EndpointOptions::new("http://localhost:8000/v1", "my-adapter"))?;
//! assert_eq!(endpoint.model(), "my-adapter");
//! assert!(ChatEndpoint::new(&EndpointOptions::new("localhost", "my-adapter")).is_err());
//! # Ok::<(), tooltune_endpoint::EndpointError>(())
//! ```

mod answer;
mod api;
mod chat;
mod error;
mod fault;
mod formats;
pub mod http;
mod mcp;
mod options;
mod pool;
mod toolbench;
mod waits;
mod wire;

#[cfg(any(test, feature = "test-server"))]
pub mod chat_server;
#[cfg(test)]
mod tests;

pub use answer::{ChatAnswer, WithoutText};
pub use api::{HttpExecutor, HttpOptions};
pub use chat::{Answered, ChatEndpoint, ChatRequest, EndpointProgress};
pub use error::EndpointError;
pub use fault::{Concern, FaultKind, Tolerance};
pub use mcp::{McpClient, McpError, McpExecutor, McpOptions};
pub use options::{ChatOptions, EndpointOptions, OptionNames};
pub use pool::{MAX_CONCURRENCY, Watched, in_parallel};
pub use toolbench::{ToolBenchExecutor, ToolBenchOptions};
