//! Options of the server that executes calls.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The server's address and the limits of a reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpOptions {
    /// Base URL of the specification's paths, such as `https://api.themoviedb.org/3`.
    pub base_url: String,
    /// Headers of every request: header name, and the environment variable with its whole value,
    /// such as `Bearer ...`.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Allowed hosts, as `host` or `host:port`; if empty, only the host of the base URL is allowed.
    #[serde(default)]
    pub allowed_hosts: Vec<String>,
    /// Additional allowed methods besides GET, HEAD and OPTIONS, such as `POST`.
    #[serde(default)]
    pub allow_methods: Vec<String>,
    /// Connection timeout in seconds.
    #[serde(default = "connect_timeout_secs")]
    pub connect_timeout_secs: f64,
    /// Timeout of a whole call in seconds, including redirects.
    #[serde(default = "timeout_secs")]
    pub timeout_secs: f64,
    /// Maximum bytes of a reply; a longer one is a failed call.
    #[serde(default = "max_body_bytes")]
    pub max_body_bytes: usize,
    /// Maximum redirects per call, only to allowed hosts.
    #[serde(default = "max_redirects")]
    pub max_redirects: usize,
}

impl HttpOptions {
    /// The default options for this base URL.
    pub fn new(base_url: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            headers: BTreeMap::new(),
            allowed_hosts: Vec::new(),
            allow_methods: Vec::new(),
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
