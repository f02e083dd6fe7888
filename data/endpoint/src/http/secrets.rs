//! Request headers from environment variables.
//!
//! `Debug` never shows a value.

use std::collections::BTreeMap;
use std::fmt;

use ureq::http::{HeaderName, HeaderValue};

use super::Environment;
use super::error::HttpConfigError;
use super::redactor::Redactor;

const MASK: &str = "***";

/// Headers that the protocol or this program sets itself.
///
/// They include the other hop-by-hop headers (RFC 9110, 7.6.1): with `upgrade` a server may switch
/// protocols, and with `expect` both sides may wait for each other. With `accept-encoding` the server
/// could choose an encoding that this client does not decode.
const OWN_HEADERS: [&str; 13] = [
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Names of fields that hold a secret, in lower case and without `-` and `_`.
const SECRET_FIELDS: [&str; 4] = ["authorization", "key", "secret", "token"];

/// Endings of other names of secret fields.
const SECRET_ENDINGS: [&str; 5] = ["apikey", "authtoken", "accesstoken", "password", "secret"];

/// Whether the name of a field suggests that its value is a secret. Settings name environment variables
/// instead, but an additional field of a request may have any value.
pub fn is_secret_field(name: &str) -> bool {
    let name = name.to_lowercase().replace(['-', '_'], "");
    SECRET_FIELDS.contains(&name.as_str())
        || SECRET_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Whether the protocol or this program sets this header itself.
pub(crate) fn is_own_header(name: &str) -> bool {
    OWN_HEADERS
        .iter()
        .any(|program_header| program_header.eq_ignore_ascii_case(name))
}

/// Headers with values from the environment.
#[derive(Clone)]
pub(crate) struct SecretHeaders {
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl SecretHeaders {
    /// Reads the value of each header from the given variable.
    ///
    /// # Errors
    ///
    /// A header name is invalid or set automatically, or a variable is not set, is empty, or
    /// contains invalid characters.
    pub(crate) fn read(
        variables: &BTreeMap<String, String>,
        environment: Environment<'_>,
    ) -> Result<Self, HttpConfigError> {
        let mut headers = Vec::new();
        for (name, variable) in variables {
            let bad_name = |reason| HttpConfigError::BadHeaderName {
                name: name.clone(),
                reason,
            };
            let header = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| bad_name("is not an HTTP header name; use letters, digits and -"))?;
            if is_own_header(name) {
                return Err(bad_name("is set automatically; leave it out"));
            }
            let needed_by = format!("headers.{name}");
            let value = secret(&needed_by, variable, environment)?;
            headers.push((header, header_value(&needed_by, variable, &value)?));
        }
        Ok(Self { headers })
    }

    /// `Authorization: Bearer KEY` with the key of a variable.
    ///
    /// # Errors
    ///
    /// The variable is not set, is empty, or contains invalid characters.
    pub(crate) fn bearer(
        needed_by: &str,
        variable: &str,
        environment: Environment<'_>,
    ) -> Result<Self, HttpConfigError> {
        let value = format!("Bearer {}", secret(needed_by, variable, environment)?);
        let value = header_value(needed_by, variable, &value)?;
        Ok(Self {
            headers: vec![(ureq::http::header::AUTHORIZATION, value)],
        })
    }

    /// No headers.
    pub(crate) fn none() -> Self {
        Self {
            headers: Vec::new(),
        }
    }

    /// Header names and values.
    pub(crate) fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.headers
    }

    /// Whether there is a header with this name, ignoring case.
    pub(crate) fn has(&self, name: &str) -> bool {
        let mut names = self.headers.iter().map(|(name, _)| name.as_str());
        names.any(|header_name| header_name.eq_ignore_ascii_case(name))
    }

    /// The secrets to remove from replies.
    pub(crate) fn redactor(&self) -> Redactor {
        let values = self.headers.iter().map(|(_, value)| value.as_bytes());
        let values: Vec<_> = values.filter_map(|v| std::str::from_utf8(v).ok()).collect();
        Redactor::new(&values)
    }
}

impl fmt::Debug for SecretHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.headers.iter().map(|(name, _)| (name.as_str(), MASK));
        f.debug_map().entries(names).finish()
    }
}

fn secret(
    needed_by: &str,
    variable: &str,
    environment: Environment<'_>,
) -> Result<String, HttpConfigError> {
    let value = environment(variable).unwrap_or_default();
    // A key read from a file ends with a line break.
    let value = value.trim();
    let is_unreadable =
        || std::env::var_os(variable).is_some_and(|value| value.into_string().is_err());
    if value.is_empty() && is_unreadable() {
        return Err(HttpConfigError::VariableNotUtf8 {
            variable: variable.to_owned(),
        });
    }
    if value.is_empty() {
        return Err(HttpConfigError::MissingVariable {
            needed_by: needed_by.to_owned(),
            variable: variable.to_owned(),
        });
    }
    Ok(value.to_owned())
}

fn header_value(
    needed_by: &str,
    variable: &str,
    value: &str,
) -> Result<HeaderValue, HttpConfigError> {
    let bad_value = || HttpConfigError::BadHeaderValue {
        needed_by: needed_by.to_owned(),
        variable: variable.to_owned(),
    };
    let is_sendable = value.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    let value = HeaderValue::from_str(value).ok().filter(|_| is_sendable);
    let mut value = value.ok_or_else(bad_value)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(name: &str) -> Option<String> {
        let value = match name {
            "KEY" => "Bearer top/secret\"key\n",
            "SHORT" => "3",
            "EMPTY" => " \n",
            "BROKEN" => "a\r\nX-Evil: 1",
            "FOREIGN" => "schlüssel",
            _ => return None,
        };
        Some(value.to_owned())
    }

    fn read(name: &str, variable: &str) -> Result<SecretHeaders, HttpConfigError> {
        let variables = BTreeMap::from([(name.to_owned(), variable.to_owned())]);
        SecretHeaders::read(&variables, &environment)
    }

    #[test]
    fn values_are_sent_but_never_shown() {
        let secrets = read("X-Api-Key", "KEY").expect("reads");
        assert_eq!(secrets.headers()[0].1, "Bearer top/secret\"key");
        assert!(secrets.has("x-api-KEY") && !secrets.has("X-Api"));
        let debug_text = format!("{secrets:?} {:?}", secrets.redactor());
        assert!(
            !debug_text.contains("secret") && debug_text.contains("x-api-key"),
            "{debug_text}"
        );
        let bearer = SecretHeaders::bearer("api_key_env", "SHORT", &environment).expect("reads");
        assert_eq!(bearer.headers()[0].1, "Bearer 3");
    }

    #[test]
    fn secrets_repeated_by_a_server_are_redacted_in_every_encoding() {
        let redactor = read("X-Api-Key", "KEY").expect("reads").redactor();
        for repeated in [
            "no: Bearer top/secret\"key!",
            "no: top/secret\"key!",
            "no: top/secret\\\"key!",
            "no: top\\/secret\\\"key!",
        ] {
            assert_eq!(
                redactor.redact(repeated.to_owned()),
                "no: ***!",
                "{repeated}"
            );
        }
        let short = read("X-Version", "SHORT").expect("reads").redactor();
        assert_eq!(short.redact("3 of 3".to_owned()), "3 of 3");
    }

    #[test]
    fn invalid_headers_are_refused_without_showing_their_values() {
        for (name, variable, expected) in [
            (
                "X-Key",
                "NO_SUCH",
                "headers.X-Key needs the environment variable NO_SUCH",
            ),
            ("X-Key", "EMPTY", "EMPTY, which is unset or empty"),
            (
                "X-Key",
                "BROKEN",
                "the value of the environment variable BROKEN cannot be sent",
            ),
            (
                "X-Key",
                "FOREIGN",
                "remove line breaks and characters that are not ASCII",
            ),
            (
                "X Key",
                "KEY",
                "headers: \"X Key\" is not an HTTP header name",
            ),
            ("Host", "KEY", "headers: \"Host\" is set automatically"),
        ] {
            let message = read(name, variable).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
            assert!(
                !message.contains("Evil") && !message.contains("secret"),
                "{message}"
            );
        }
    }
}
