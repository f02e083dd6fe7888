//! Why an executor or an endpoint cannot be made of its options.

use thiserror::Error;

/// A reason why options cannot be used; no message holds the value of an environment variable.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HttpConfigError {
    /// A base URL is none, or holds what does not belong there.
    #[error(
        "{option} {given:?} {reason}; give scheme, host and path, such as https://api.example.org/v1"
    )]
    BadBaseUrl {
        /// The option.
        option: &'static str,
        /// What was given, without user names, passwords and query strings.
        given: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// The base URL's host is not in the list.
    #[error("base_url leads to {host}, which is not in allowed_hosts ({allowed}); add it there")]
    HostNotAllowed {
        /// Host and port of the base URL.
        host: String,
        /// The list.
        allowed: String,
    },

    /// An entry of the list is no host.
    #[error("allowed_hosts: {entry:?} is no host; give names such as api.example.org or host:8080")]
    BadHost {
        /// The entry.
        entry: String,
    },

    /// A variable that a header or a key is read from is not set.
    #[error("{needed_by} needs the environment variable {variable}, which is not set or empty")]
    MissingVariable {
        /// The option, such as `headers.X-Api-Key`.
        needed_by: String,
        /// The variable.
        variable: String,
    },

    /// A header's name cannot be sent, or is the protocol's own.
    #[error("headers: {name:?} {reason}")]
    BadHeaderName {
        /// The name.
        name: String,
        /// Why not.
        reason: &'static str,
    },

    /// The value of a variable cannot be sent in a header.
    #[error(
        "{needed_by}: the value of the environment variable {variable} cannot be sent in a header; remove line breaks and characters that are not ASCII"
    )]
    BadHeaderValue {
        /// The option, such as `headers.X-Api-Key`.
        needed_by: String,
        /// The variable.
        variable: String,
    },

    /// Another option is out of its range.
    #[error("{field} {reason}")]
    BadOption {
        /// The option.
        field: &'static str,
        /// What is wrong and what to give.
        reason: String,
    },
}
