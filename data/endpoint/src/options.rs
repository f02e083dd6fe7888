//! What a configuration says of an endpoint, and what a request says beside its messages.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The names by which messages speak of options, so that they advise what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionNames {
    /// That of the address.
    pub base_url: &'static str,
    /// That of the model.
    pub model: &'static str,
    /// That of the variable which holds the key.
    pub api_key_env: &'static str,
    /// Those that give an answer more time, where there are some.
    pub patience: Option<&'static str>,
}

impl Default for OptionNames {
    /// Those of a table.
    fn default() -> Self {
        Self {
            base_url: "base_url",
            model: "model",
            api_key_env: "api_key_env",
            patience: Some("timeout_secs, total_secs or retries"),
        }
    }
}

/// A server of chat completions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointOptions {
    /// Where `/chat/completions` is to be found, such as `https://api.openai.com/v1`.
    pub base_url: String,
    /// The model, by the server's name for it.
    pub model: String,
    /// The environment variable that holds the key; absent for a server that needs none.
    #[serde(default)]
    pub api_key_env: Option<String>,
    /// Seconds until a connection stands.
    #[serde(default = "connect_timeout_secs")]
    pub connect_timeout_secs: f64,
    /// Seconds for one attempt.
    #[serde(default = "timeout_secs")]
    pub timeout_secs: f64,
    /// Seconds for a request with all its attempts and waits.
    #[serde(default = "total_secs")]
    pub total_secs: f64,
    /// Attempts after the first.
    #[serde(default = "retries")]
    pub retries: usize,
    /// Seconds before the second attempt; each later wait is twice as long.
    #[serde(default = "first_wait_secs")]
    pub first_wait_secs: f64,
    /// Seconds of the longest wait that the server did not ask for.
    #[serde(default = "max_wait_secs")]
    pub max_wait_secs: f64,
    /// Bytes of an answer.
    #[serde(default = "max_body_bytes")]
    pub max_body_bytes: usize,
    /// How messages name these options.
    #[serde(skip)]
    pub names: OptionNames,
}

impl EndpointOptions {
    /// The options of a configuration that says nothing else.
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

/// What a request says beside its messages; what is absent is the server's own choice.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChatOptions {
    /// 0 for the likeliest text.
    pub temperature: Option<f64>,
    /// Tokens that the text may have.
    pub max_tokens: Option<usize>,
    /// Such as `{"type": "json_object"}`, handed on as it is.
    pub response_format: Option<Value>,
    /// Any other field of the request, such as `seed` or `max_completion_tokens`.
    pub extra: Map<String, Value>,
}
