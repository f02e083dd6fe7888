//! What can go wrong with a server.

use std::time::Duration;

use thiserror::Error;
use tooltune_rows::tools::ToolsError;

/// Why a server has no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum McpError {
    /// The command is empty.
    #[error("the command of the MCP server is empty; give a program and its arguments")]
    NoCommand,

    /// A variable that the server is to have is not set.
    #[error("the MCP server needs the environment variable {variable}, which is not set or empty")]
    MissingVariable {
        /// The variable.
        variable: String,
    },

    /// The program cannot be started.
    #[error("cannot start the MCP server {program:?}: {reason}; is it installed and in the PATH?")]
    NotStarted {
        /// The program.
        program: String,
        /// What the system says.
        reason: String,
    },

    /// The program ended.
    #[error("the MCP server ended ({status}){said}; start it by hand to see why")]
    Ended {
        /// How, such as `exit status: 1`.
        status: String,
        /// `; it said: ...`, or nothing.
        said: String,
    },

    /// Nothing came within the time.
    #[error("the MCP server did not answer {method} within {} s{said}; give it more time", within.as_secs_f64())]
    Timeout {
        /// The request.
        method: &'static str,
        /// The time that it had.
        within: Duration,
        /// `; it said: ...`, or nothing.
        said: String,
    },

    /// What came is not of the protocol.
    #[error("the MCP server {reason}")]
    BadMessage {
        /// What is wrong with it.
        reason: String,
    },

    /// The server refuses a request.
    #[error("the MCP server refuses {method}: {message} (code {code})")]
    Refused {
        /// The request.
        method: &'static str,
        /// The code of JSON-RPC.
        code: i64,
        /// What the server says.
        message: String,
    },

    /// The server and this client have no revision of the protocol in common.
    #[error("the MCP server speaks revision {theirs:?} of the protocol; this client speaks {ours}")]
    OtherRevision {
        /// Its revision.
        theirs: String,
        /// Ours, with commas.
        ours: String,
    },

    /// The tools are not as the protocol says.
    #[error("the tools of the MCP server: {0}")]
    Tools(#[from] ToolsError),

    /// The work was stopped.
    #[error("stopped")]
    Stopped,
}
