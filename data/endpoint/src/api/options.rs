//! What a configuration says of the server that answers calls.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Where calls go and what an answer may cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpOptions {
    /// Where the paths of the specification begin, such as `https://api.themoviedb.org/3`.
    pub base_url: String,
    /// Headers of every request: the name of each, and the environment variable that holds its
    /// whole value, such as `Bearer ...`.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Hosts that may be asked, as `host` or `host:port`; empty allows the base URL's alone.
    #[serde(default)]
    pub allowed_hosts: Vec<String>,
    /// Seconds until a connection stands.
    #[serde(default = "connect_timeout_secs")]
    pub connect_timeout_secs: f64,
    /// Seconds for a whole call, redirects included.
    #[serde(default = "timeout_secs")]
    pub timeout_secs: f64,
    /// Bytes of an answer; a longer one is a failed call.
    #[serde(default = "max_body_bytes")]
    pub max_body_bytes: usize,
    /// Redirects of one call that are followed, to allowed hosts alone.
    #[serde(default = "max_redirects")]
    pub max_redirects: usize,
}

impl HttpOptions {
    /// The options of a configuration that says nothing else.
    pub fn new(base_url: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            headers: BTreeMap::new(),
            allowed_hosts: Vec::new(),
            connect_timeout_secs: connect_timeout_secs(),
            timeout_secs: timeout_secs(),
            max_body_bytes: max_body_bytes(),
            max_redirects: max_redirects(),
        }
    }
}

fn connect_timeout_secs() -> f64 {
    5.0
}

fn timeout_secs() -> f64 {
    20.0
}

fn max_body_bytes() -> usize {
    1 << 20
}

fn max_redirects() -> usize {
    3
}
