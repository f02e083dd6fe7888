//! Why there is no text of an endpoint.

use thiserror::Error;

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
        hint: &'static str,
    },

    /// No attempt had an answer.
    #[error(
        "{url} gave no answer in {n_attempts} attempts, at the last {reason}; check that the server runs, or give more time or retries"
    )]
    NoAnswer {
        /// The URL that was asked.
        url: String,
        /// Attempts that were made.
        n_attempts: usize,
        /// What was wrong with the last one.
        reason: String,
    },

    /// The answer is not a chat completion.
    #[error(
        "{url} answered 200 {reason}; check that base_url leads to a server of chat completions, usually ending in /v1"
    )]
    NotTheProtocol {
        /// The URL that was asked.
        url: String,
        /// What it is instead, with its first characters.
        reason: String,
    },

    /// The caller ended the work before this request had its answer.
    #[error("{url} was not asked to the end, because the work was stopped")]
    Stopped {
        /// The URL.
        url: String,
    },
}
