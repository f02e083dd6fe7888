//! Requests out, whole and bounded replies back: what the executor and the chat client share, and the
//! rules of addresses and secrets that every client keeps to.
//!
//! A request has one deadline for everything, names to resolve and body to read included, and a
//! reply is never read beyond its limit. The decision to question: redirects are never followed
//! here, for only who knows the allowed hosts may follow one.

mod address;
mod client;
mod error;
mod excerpt;
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
pub use secrets::Blots;
pub(crate) use secrets::{SecretHeaders, is_own_header};

use std::time::Duration;

/// The value of an environment variable, by its name; absent where it is not set.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The variables of this process; one whose value is no UTF-8 counts as not set.
pub(crate) fn process_environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// A time of a configuration, in seconds.
///
/// # Errors
///
/// - it is not a number above 0, or beyond a day
pub(crate) fn checked_secs(field: &'static str, secs: f64) -> Result<Duration, HttpConfigError> {
    const DAY: f64 = 86_400.0;
    if !(secs > 0.0 && secs <= DAY) {
        return Err(HttpConfigError::BadOption {
            field,
            reason: format!("is {secs}; give seconds above 0, at most {DAY}"),
        });
    }
    Ok(Duration::from_secs_f64(secs))
}

/// A number of bytes of a configuration.
///
/// # Errors
///
/// - it is 0
pub(crate) fn checked_bytes(field: &'static str, bytes: usize) -> Result<usize, HttpConfigError> {
    if bytes == 0 {
        let reason = "is 0, so that nothing could be read; give at least 1".to_owned();
        return Err(HttpConfigError::BadOption { field, reason });
    }
    Ok(bytes)
}
