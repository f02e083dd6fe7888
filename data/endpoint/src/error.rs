//! Why there is no text of an endpoint.

use thiserror::Error;

use super::fault::{Concern, FaultKind};
use crate::http::HttpConfigError;

/// A reason why an endpoint gave no text; every message names its URL, none holds its key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The options cannot be used.
    #[error("endpoint: {0}")]
    Options(#[from] HttpConfigError),

    /// The server refuses the request, and would again.
    #[error("{url} answered {status} {said}; {hint}")]
    Refused {
        /// The URL that was asked.
        url: String,
        /// Status of HTTP.
        status: u16,
        /// The first characters of the answer.
        said: String,
        /// What to check.
        hint: String,
        /// What is wrong.
        kind: FaultKind,
    },

    /// No attempt had an answer.
    #[error("{url} gave no answer in {n_attempts} attempts, at the last {reason}; {advice}")]
    NoAnswer {
        /// The URL that was asked.
        url: String,
        /// Attempts that were made.
        n_attempts: usize,
        /// What was wrong with the last one.
        reason: String,
        /// What to check, by the options that there are.
        advice: String,
        /// What was wrong with the last one, in a word.
        kind: FaultKind,
    },

    /// The answer is not a chat completion.
    #[error(
        "{url} answered {status} {reason}; check that {base_url} leads to a server of chat completions, usually ending in /v1"
    )]
    NotTheProtocol {
        /// The URL that was asked.
        url: String,
        /// Status of HTTP.
        status: u16,
        /// What it is instead, with its first characters.
        reason: String,
        /// The option with the address.
        base_url: &'static str,
        /// What is wrong.
        kind: FaultKind,
    },

    /// The caller ended the work before this request had its answer.
    #[error("{url} was not asked to the end, because the work was stopped")]
    Stopped {
        /// The URL.
        url: String,
    },
}

impl EndpointError {
    /// What is wrong with the request, in a word; nothing where none was sent to its end.
    pub fn kind(&self) -> Option<FaultKind> {
        match self {
            Self::Refused { kind, .. }
            | Self::NoAnswer { kind, .. }
            | Self::NotTheProtocol { kind, .. } => Some(*kind),
            Self::Options(_) | Self::Stopped { .. } => None,
        }
    }

    /// Whom the fault concerns.
    pub fn concern(&self) -> Concern {
        self.kind().map_or(Concern::All, FaultKind::concern)
    }
}
