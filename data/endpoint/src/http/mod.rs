//! Bounded HTTP requests, shared by the executor and the chat client, and the rules for addresses
//! and secrets that every client follows.
//!
//! A request has one deadline for everything, including name resolution and reading the body. A
//! reply is never read beyond its limit. Redirects are not followed here, because only the caller
//! knows the allowed hosts.

mod address;
mod client;
mod error;
mod excerpt;
mod redactor;
mod secrets;
#[cfg(any(test, feature = "test-server"))]
pub mod test_server;
#[cfg(test)]
mod tests;

pub(crate) use address::{AllowedHosts, BaseUrl};
pub use address::{Origin, redirect_target, without_secrets};
pub use client::HttpFault;
pub(crate) use client::{ClientOptions, Connections, HttpClient, HttpReply};
pub use error::HttpConfigError;
pub use excerpt::excerpt;
pub use redactor::Redactor;
pub use secrets::is_secret_field;
pub(crate) use secrets::{SecretHeaders, is_own_header};

use std::time::Duration;

/// The variables in which the HTTP client looks for a proxy.
pub const PROXY_VARIABLES: [&str; 8] = [
    "ALL_PROXY",
    "all_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "NO_PROXY",
    "no_proxy",
];

/// Looks up an environment variable by name; `None` if it is not set.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// This process's environment; a value that is not UTF-8 counts as not set.
pub(crate) fn process_environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Checks a configured time in seconds.
///
/// # Errors
///
/// The time is not above 0, or exceeds a day.
pub(crate) fn checked_secs(field: &'static str, secs: f64) -> Result<Duration, HttpConfigError> {
    const DAY: f64 = 86_400.0;
    if !(secs > 0.0 && secs <= DAY) {
        return Err(HttpConfigError::BadOption {
            field,
            reason: format!("is {secs}; give a number of seconds above 0 and at most {DAY}"),
        });
    }
    Ok(Duration::from_secs_f64(secs))
}

/// Checks a configured number of bytes.
///
/// # Errors
///
/// The number is 0.
pub(crate) fn checked_bytes(field: &'static str, bytes: usize) -> Result<usize, HttpConfigError> {
    if bytes == 0 {
        let reason = "is 0, so nothing could be read; give at least 1".to_owned();
        return Err(HttpConfigError::BadOption { field, reason });
    }
    Ok(bytes)
}
