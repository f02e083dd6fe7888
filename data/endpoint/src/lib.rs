//! Clients of servers: chat completions in OpenAI's protocol, and API calls over HTTP and MCP.
//!
//! Every wait is bounded: an attempt by its timeout, the waits between attempts by the time left
//! for the whole request. Waits have no random part, so that runs are repeatable; the number of
//! concurrent requests is limited instead.
//!
//! ```
//! use tooltune_endpoint::{ChatEndpoint, EndpointOptions};
//!
//! // No request is sent yet; an invalid address is an error.
//! let endpoint = ChatEndpoint::new(&EndpointOptions::new("http://localhost:8000/v1", "my-adapter"))?;
//! assert_eq!(endpoint.model(), "my-adapter");
//! assert!(ChatEndpoint::new(&EndpointOptions::new("localhost", "my-adapter")).is_err());
//! # Ok::<(), tooltune_endpoint::EndpointError>(())
//! ```

mod answer;
mod api;
mod border;
pub mod budgets;
mod chat;
mod error;
mod extra_body;
mod fault;
mod formats;
pub mod http;
mod mcp;
mod options;
mod other_models;
mod pool;
mod toolbench;
mod waits;
mod wire;

#[cfg(any(test, feature = "test-server"))]
pub mod chat_server;
#[cfg(test)]
mod tests;

pub use answer::{ChatAnswer, WithoutText};
pub use api::{HttpExecutor, HttpOptions, SAFE_METHODS};
pub use chat::{ChatEndpoint, ChatRequest, EndpointProgress, ReplyEvent};
pub use error::EndpointError;
pub use extra_body::{check_extra_body, without_secret_fields};
pub use fault::{FaultKind, FaultScope, Tolerance};
pub use mcp::{McpClient, McpError, McpExecutor, McpOptions};
pub use options::{ChatOptions, EndpointOptions, OptionNames};
pub use other_models::OtherModels;
pub use pool::{ItemEvent, MAX_CONCURRENCY, in_parallel};
pub use toolbench::{ToolBenchExecutor, ToolBenchOptions};
