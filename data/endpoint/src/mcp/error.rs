//! Errors of MCP servers.

use std::time::Duration;

use thiserror::Error;
use tooltune_apis::ToolsError;

/// Why a server has no reply.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum McpError {
    /// The command is empty.
    #[error("the command of the MCP server is empty; give a program and its arguments")]
    NoCommand,

    /// A required environment variable is not set.
    #[error(
        "the MCP server needs the environment variable {variable}, which is unset or empty; set it"
    )]
    MissingVariable {
        /// The variable.
        variable: String,
    },

    /// The value of a variable is not UTF-8, so it could not be removed from replies.
    #[error(
        "{variable}: the value of this environment variable, which the MCP server needs, is not \
         UTF-8; set it again"
    )]
    VariableNotUtf8 {
        /// The variable.
        variable: String,
    },

    /// The program cannot be started.
    #[error(
        "cannot start the MCP server {program:?}: {reason}; check that it is installed and in the PATH"
    )]
    NotStarted {
        /// The program.
        program: String,
        /// The system's error.
        reason: String,
    },

    /// The program ended.
    #[error("the MCP server ended ({status}){stderr}; start it manually to see why")]
    Ended {
        /// How it ended, such as `exit status: 1`.
        status: String,
        /// `; its standard error ends with: ...`, or empty.
        stderr: String,
    },

    /// No reply within the time limit.
    #[error("the MCP server did not answer {method} within {} s{stderr}; increase its time limit", within.as_secs_f64())]
    Timeout {
        /// The request.
        method: &'static str,
        /// The time limit.
        within: Duration,
        /// `; its standard error ends with: ...`, or empty.
        stderr: String,
    },

    /// A message violates the protocol.
    #[error("the MCP server {reason}")]
    BadMessage {
        /// What is wrong with it.
        reason: String,
    },

    /// The result of a call exceeds the limit.
    #[error(
        "the MCP server answered {method} with more than {limit} bytes, the limit for a result \
         ({name} in docs/limits.md)"
    )]
    TooLarge {
        /// The request.
        method: &'static str,
        /// The limit.
        limit: usize,
        /// The name of the limit.
        name: &'static str,
    },

    /// The server refuses a request.
    #[error("the MCP server refuses {method}: {message} (code {code})")]
    Refused {
        /// The request.
        method: &'static str,
        /// The JSON-RPC error code.
        code: i64,
        /// The server's message.
        message: String,
    },

    /// The server and this client share no revision of the protocol.
    #[error("the MCP server uses revision {theirs:?} of the protocol; this client supports {ours}")]
    UnsupportedRevision {
        /// The server's revision.
        theirs: String,
        /// The supported revisions, comma-separated.
        ours: String,
    },

    /// The list of tools is invalid.
    #[error("the tools of the MCP server: {0}")]
    Tools(#[from] ToolsError),

    /// An allowed tool does not exist.
    #[error("the MCP server has no tool {name:?}, which allow_tools lists{hint}")]
    UnknownTool {
        /// The tool.
        name: String,
        /// `, did you mean "..."?`, or empty.
        hint: String,
    },

    /// The work was stopped.
    #[error("stopped")]
    Stopped,
}

impl McpError {
    /// Whether a setting is wrong: the command cannot be started, or an allowed tool does not
    /// exist. All other errors are failures of a running server.
    pub fn is_settings_error(&self) -> bool {
        matches!(
            self,
            Self::NoCommand
                | Self::MissingVariable { .. }
                | Self::VariableNotUtf8 { .. }
                | Self::NotStarted { .. }
                | Self::UnknownTool { .. }
        )
    }
}
