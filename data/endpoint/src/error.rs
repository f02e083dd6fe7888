//! Errors of chat completion endpoints.

use thiserror::Error;

use super::fault::{FaultKind, FaultScope};
use crate::http::HttpConfigError;

/// Why an endpoint returned no text. Every message contains the URL and none contains the key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// An option is invalid.
    #[error("endpoint: {0}")]
    Options(#[from] HttpConfigError),

    /// The server refuses the request; retries would not help.
    #[error("{url} answered {status} {excerpt}; {hint}")]
    Refused {
        /// The requested URL.
        url: String,
        /// HTTP status.
        status: u16,
        /// The first characters of the reply.
        excerpt: String,
        /// What to check.
        hint: String,
        /// The type of the fault.
        kind: FaultKind,
    },

    /// All attempts failed.
    #[error("{url} gave no answer in {n_attempts} attempts; the last attempt: {reason}; {advice}")]
    InvalidReply {
        /// The requested URL.
        url: String,
        /// Number of attempts.
        n_attempts: usize,
        /// The fault of the last attempt.
        reason: String,
        /// What to check, with option names.
        advice: String,
        /// The type of the last fault.
        kind: FaultKind,
    },

    /// No server was reached, and no earlier request had a reply.
    #[error("{url}: {reason}; {advice}")]
    Unreachable {
        /// The requested URL.
        url: String,
        /// The system's error.
        reason: String,
        /// What to check, with option names.
        advice: String,
    },

    /// The reply is not a chat completion.
    #[error(
        "{url} answered {status} {reason}; check that {base_url} is the address of a chat completion server, usually ending in /v1"
    )]
    NotTheProtocol {
        /// The requested URL.
        url: String,
        /// HTTP status.
        status: u16,
        /// The actual reply, with its first characters.
        reason: String,
        /// The option with the address.
        base_url: &'static str,
        /// The type of the fault.
        kind: FaultKind,
    },

    /// The caller stopped the work before this request had a reply.
    #[error("the request to {url} was abandoned because the work was stopped")]
    Stopped {
        /// The URL.
        url: String,
    },
}

impl EndpointError {
    /// The type of the fault; `None` if no request was completed.
    pub fn kind(&self) -> Option<FaultKind> {
        match self {
            Self::Refused { kind, .. }
            | Self::InvalidReply { kind, .. }
            | Self::NotTheProtocol { kind, .. } => Some(*kind),
            Self::Unreachable { .. } => Some(FaultKind::Connection),
            Self::Options(_) | Self::Stopped { .. } => None,
        }
    }

    /// Which requests the fault affects.
    pub fn scope(&self) -> FaultScope {
        self.kind().map_or(FaultScope::All, FaultKind::scope)
    }
}
