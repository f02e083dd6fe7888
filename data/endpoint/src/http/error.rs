//! Errors in the options of executors and endpoints.

use thiserror::Error;

/// Why options are invalid. No message contains the value of an environment variable.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HttpConfigError {
    /// A base URL is invalid.
    #[error(
        "{option} {given:?} {reason}; give scheme, host and path, such as https://api.example.org/v1"
    )]
    BadBaseUrl {
        /// The option.
        option: &'static str,
        /// The given value, without user names, passwords and query strings.
        given: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// The base URL's host is not in the list.
    #[error(
        "base_url has the host {host}, which is not in allowed_hosts ({allowed}); add it there"
    )]
    HostNotAllowed {
        /// Host and port of the base URL.
        host: String,
        /// The list.
        allowed: String,
    },

    /// An entry of the list is not a host.
    #[error(
        "allowed_hosts: {entry:?} is not a host; use names such as api.example.org or host:8080"
    )]
    BadHost {
        /// The entry.
        entry: String,
    },

    /// The environment variable of a header or a key is not set.
    #[error(
        "{needed_by} needs the environment variable {variable}, which is unset or empty; set it"
    )]
    MissingVariable {
        /// The option, such as `headers.X-Api-Key`.
        needed_by: String,
        /// The variable.
        variable: String,
    },

    /// The value of a variable is not UTF-8.
    #[error(
        "{variable}: the value of this environment variable is not UTF-8; set it again or unset it"
    )]
    VariableNotUtf8 {
        /// The variable.
        variable: String,
    },

    /// A header's name is invalid or reserved.
    #[error("headers: {name:?} {reason}")]
    BadHeaderName {
        /// The name.
        name: String,
        /// The reason.
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

    /// Another option is out of range.
    #[error("{field} {reason}")]
    BadOption {
        /// The option.
        field: &'static str,
        /// What is wrong, and the valid range.
        reason: String,
    },
}
