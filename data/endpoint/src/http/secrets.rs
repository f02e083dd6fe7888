//! Values of environment variables as headers, and their removal from what a server repeats.
//!
//! No value is ever shown by `Debug`. The decision to question: a value, or a blank-separated
//! word of one, is blotted out of a reply only from eight characters on; a shorter one is no
//! secret worth the name, and blotting `3` out of every reply would spoil the replies.

use std::collections::BTreeMap;
use std::fmt;

use ureq::http::{HeaderName, HeaderValue};

use super::Environment;
use super::error::HttpConfigError;

const BLOT: &str = "***";
const SHORTEST_BLOTTED: usize = 8;

/// Headers that the protocol or this program sets itself.
const OWN_HEADERS: [&str; 6] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "te",
    "transfer-encoding",
];

/// Whether the protocol, or this program, sets this header itself.
pub(crate) fn is_own_header(name: &str) -> bool {
    OWN_HEADERS.iter().any(|own| own.eq_ignore_ascii_case(name))
}

/// Headers whose values came from the environment.
#[derive(Clone)]
pub(crate) struct SecretHeaders {
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl SecretHeaders {
    /// Reads the value of each header from the variable that is named beside it.
    ///
    /// # Errors
    ///
    /// - a name cannot be a header's, or is one that is set without being asked for
    /// - a variable is not set, is empty, or holds what no header can
    pub(crate) fn read(
        variables: &BTreeMap<String, String>,
        environment: Environment<'_>,
    ) -> Result<Self, HttpConfigError> {
        let mut headers = Vec::new();
        for (name, variable) in variables {
            let bad = |reason| HttpConfigError::BadHeaderName {
                name: name.clone(),
                reason,
            };
            let header = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| bad("is no name of an HTTP header; use letters, digits and -"))?;
            if is_own_header(name) {
                return Err(bad("is set by the protocol; leave it out"));
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
    /// - the variable is not set, is empty, or holds what no header can
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

    /// No header at all.
    pub(crate) fn none() -> Self {
        Self {
            headers: Vec::new(),
        }
    }

    /// Names and values.
    pub(crate) fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.headers
    }

    /// Whether a header of this name, in any case, is among them.
    pub(crate) fn has(&self, name: &str) -> bool {
        let mut names = self.headers.iter().map(|(name, _)| name.as_str());
        names.any(|known| known.eq_ignore_ascii_case(name))
    }

    /// What to remove from replies.
    pub(crate) fn blots(&self) -> Blots {
        let values = self.headers.iter().map(|(_, value)| value.as_bytes());
        let values: Vec<_> = values.filter_map(|v| std::str::from_utf8(v).ok()).collect();
        Blots::new(&values)
    }
}

impl fmt::Debug for SecretHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.headers.iter().map(|(name, _)| (name.as_str(), BLOT));
        f.debug_map().entries(names).finish()
    }
}

fn secret(
    needed_by: &str,
    variable: &str,
    environment: Environment<'_>,
) -> Result<String, HttpConfigError> {
    let value = environment(variable).unwrap_or_default();
    // A key that was read from a file ends with that file's line break.
    let value = value.trim();
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
    let bad = || HttpConfigError::BadHeaderValue {
        needed_by: needed_by.to_owned(),
        variable: variable.to_owned(),
    };
    let is_sendable = value.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    let value = HeaderValue::from_str(value).ok().filter(|_| is_sendable);
    let mut value = value.ok_or_else(bad)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Texts that no reply, and so no message or result, may hold.
#[derive(Clone, Default)]
pub(crate) struct Blots {
    /// Longest first, so that no part of a value stays.
    patterns: Vec<String>,
}

impl Blots {
    /// Blots these values out, and their words.
    pub(crate) fn new(values: &[&str]) -> Self {
        let words = values.iter().flat_map(|value| value.split_whitespace());
        let mut patterns: Vec<String> = values
            .iter()
            .copied()
            .chain(words)
            .map(str::to_owned)
            .collect();
        // As a JSON text repeats them.
        let quoted = patterns
            .iter()
            .map(|text| serde_json::Value::from(text.as_str()).to_string());
        let quoted: Vec<String> = quoted
            .map(|text| text[1..text.len() - 1].to_owned())
            .collect();
        let escaped: Vec<String> = quoted.iter().map(|text| text.replace('/', "\\/")).collect();
        patterns.extend(quoted);
        patterns.extend(escaped);
        patterns.retain(|text| text.len() >= SHORTEST_BLOTTED);
        patterns.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        patterns.dedup();
        Self { patterns }
    }

    /// The text with `***` wherever it holds one of them.
    pub(crate) fn blot(&self, text: String) -> String {
        let replace = |text: String, pattern: &String| {
            if text.contains(pattern.as_str()) {
                text.replace(pattern.as_str(), BLOT)
            } else {
                text
            }
        };
        self.patterns.iter().fold(text, replace)
    }
}

impl fmt::Debug for Blots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blots({})", self.patterns.len())
    }
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
        let shown = format!("{secrets:?} {:?}", secrets.blots());
        assert!(
            !shown.contains("secret") && shown.contains("x-api-key"),
            "{shown}"
        );
        let bearer = SecretHeaders::bearer("api_key_env", "SHORT", &environment).expect("reads");
        assert_eq!(bearer.headers()[0].1, "Bearer 3");
    }

    #[test]
    fn what_a_server_repeats_is_blotted_out_in_every_spelling() {
        let blots = read("X-Api-Key", "KEY").expect("reads").blots();
        for repeated in [
            "no: Bearer top/secret\"key!",
            "no: top/secret\"key!",
            "no: top/secret\\\"key!",
            "no: top\\/secret\\\"key!",
        ] {
            assert_eq!(blots.blot(repeated.to_owned()), "no: ***!", "{repeated}");
        }
        let short = read("X-Version", "SHORT").expect("reads").blots();
        assert_eq!(short.blot("3 of 3".to_owned()), "3 of 3");
    }

    #[test]
    fn what_cannot_be_a_header_is_refused_without_its_value() {
        for (name, variable, expected) in [
            (
                "X-Key",
                "NO_SUCH",
                "headers.X-Key needs the environment variable NO_SUCH",
            ),
            ("X-Key", "EMPTY", "EMPTY, which is not set or empty"),
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
            ("X Key", "KEY", "headers: \"X Key\" is no name"),
            ("Host", "KEY", "headers: \"Host\" is set by the protocol"),
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
