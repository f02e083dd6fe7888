//! Options of an endpoint and of a request.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The option names that messages use, so that their advice fits the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionNames {
    /// The option with the address.
    pub base_url: &'static str,
    /// The option with the model.
    pub model: &'static str,
    /// The option with the variable of the key.
    pub api_key_env: &'static str,
    /// The options that allow more time, if there are any.
    pub patience: Option<&'static str>,
}

impl Default for OptionNames {
    /// The names in a config table.
    fn default() -> Self {
        Self {
            base_url: "base_url",
            model: "model",
            api_key_env: "api_key_env",
            patience: Some("timeout_secs, total_secs or retries"),
        }
    }
}

/// A chat completion server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointOptions {
    /// Base URL of `/chat/completions`, such as `https://api.openai.com/v1`.
    pub base_url: String,
    /// The model's name on the server.
    pub model: String,
    /// The environment variable with the key; absent for a server without keys.
    #[serde(default)]
    pub api_key_env: Option<String>,
    /// Connection timeout in seconds.
    #[serde(default = "connect_timeout_secs")]
    pub connect_timeout_secs: f64,
    /// Timeout of one attempt in seconds.
    #[serde(default = "timeout_secs")]
    pub timeout_secs: f64,
    /// Timeout of a request in seconds, including all attempts and waits.
    #[serde(default = "total_secs")]
    pub total_secs: f64,
    /// Number of retries after the first attempt.
    #[serde(default = "retries")]
    pub retries: usize,
    /// Seconds before the first retry; each further wait is twice as long.
    #[serde(default = "first_wait_secs")]
    pub first_wait_secs: f64,
    /// Maximum wait in seconds, unless the server requests a longer one.
    #[serde(default = "max_wait_secs")]
    pub max_wait_secs: f64,
    /// Maximum bytes of a reply.
    #[serde(default = "max_body_bytes")]
    pub max_body_bytes: usize,
    /// The option names that messages use.
    #[serde(skip)]
    pub names: OptionNames,
}

impl EndpointOptions {
    /// The default options for this server and model.
    pub fn new(base_url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            model: model.into(),
            api_key_env: None,
            connect_timeout_secs: connect_timeout_secs(),
            timeout_secs: timeout_secs(),
            total_secs: total_secs(),
            retries: retries(),
            first_wait_secs: first_wait_secs(),
            max_wait_secs: max_wait_secs(),
            max_body_bytes: max_body_bytes(),
            names: OptionNames::default(),
        }
    }
}

fn connect_timeout_secs() -> f64 {
    10.0
}

fn timeout_secs() -> f64 {
    120.0
}

fn total_secs() -> f64 {
    600.0
}

fn retries() -> usize {
    4
}

fn first_wait_secs() -> f64 {
    1.0
}

fn max_wait_secs() -> f64 {
    30.0
}

fn max_body_bytes() -> usize {
    4 << 20
}

/// The fields of a request other than its messages; the server chooses the defaults of absent ones.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChatOptions {
    /// 0 for greedy decoding.
    pub temperature: Option<f64>,
    /// Maximum tokens of the completion.
    pub max_tokens: Option<usize>,
    /// For example `{"type": "json_object"}`, passed on unchanged.
    pub response_format: Option<Value>,
    /// Any other field of the request, such as `seed` or `max_completion_tokens`.
    pub extra: Map<String, Value>,
}
