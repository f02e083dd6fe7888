//! Executes calls as StableToolBench does: from the benchmark's published cache, and through a real
//! or simulated server with the benchmark's interface.
//!
//! Such a server accepts a `POST` with category, tool, API and the arguments as a JSON string, and
//! returns `{"error", "response"}`. Its cache maps arguments, as Python prints them, to the same
//! replies. Calls are looked up by the meaning of their arguments, so arguments that are written
//! differently also match.
//!
//! # Source
//!
//! `server/main.py` and `rapidapi_multithread.py` of THUNLP-MT/StableToolBench.

mod cache;
mod names;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tooltune_agents::executors::{CallResult, Executor, container_literal, unrecorded_message};
use tooltune_apis::{ApiCatalogue, ApiDocument};
use ureq::http::{HeaderValue, Request, header};

use crate::api::{BUSY, status_text};
use crate::border;
use crate::http::{
    BaseUrl, ClientOptions, Connections, Environment, HttpClient, HttpConfigError, Redactor,
    SecretHeaders, checked_bytes, checked_secs, excerpt, process_environment,
};
use cache::AnswerCache;
use names::ToolBenchNames;

/// The name of the key, in the header and the body.
const KEY: &str = "toolbench_key";

/// Sources of replies; the cache or the server must be given.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolBenchOptions {
    /// The server's address, such as `http://localhost:8080/virtual`.
    pub service_url: Option<String>,
    /// The environment variable with the server's key.
    pub key_variable: Option<String>,
    /// The cache folder, `tool_response_cache`.
    pub cache: Option<PathBuf>,
    /// Connection timeout in seconds.
    pub connect_timeout_secs: f64,
    /// Timeout of a whole call in seconds.
    pub timeout_secs: f64,
    /// Maximum bytes of a reply; a longer one is a failed call.
    pub max_body_bytes: usize,
}

impl Default for ToolBenchOptions {
    fn default() -> Self {
        Self {
            service_url: None,
            key_variable: None,
            cache: None,
            connect_timeout_secs: 5.0,
            timeout_secs: 20.0,
            max_body_bytes: 1 << 20,
        }
    }
}

/// Queries the cache, then the server.
#[derive(Debug)]
pub struct ToolBenchExecutor {
    catalogue: ApiCatalogue,
    cache: Option<AnswerCache>,
    server: Option<Server>,
    fault: Option<String>,
}

#[derive(Debug)]
struct Server {
    client: HttpClient,
    url: String,
    secrets: SecretHeaders,
    redactor: Redactor,
    timeout: Duration,
    stop: Arc<AtomicBool>,
}

impl ToolBenchExecutor {
    /// Creates an executor whose key comes from this process's environment.
    ///
    /// # Errors
    ///
    /// As for [`ToolBenchExecutor::with_environment`].
    pub fn new(
        catalogue: ApiCatalogue,
        options: &ToolBenchOptions,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, HttpConfigError> {
        Self::with_environment(catalogue, options, stop, &process_environment)
    }

    /// Creates an executor without sending a request. Waits end at once when `stop` is set.
    ///
    /// # Errors
    ///
    /// - There is neither a cache nor a server.
    /// - The address is invalid, the variable of the key is not set, or a time is invalid.
    /// - A document lacks its tool or category.
    pub fn with_environment(
        catalogue: ApiCatalogue,
        options: &ToolBenchOptions,
        stop: Arc<AtomicBool>,
        environment: Environment<'_>,
    ) -> Result<Self, HttpConfigError> {
        let bad_option = |field, reason: String| HttpConfigError::BadOption { field, reason };
        if let Some(document) = catalogue
            .iter()
            .find(|document| document.tool_name.is_empty() || document.category_name.is_empty())
        {
            return Err(bad_option(
                "the documents",
                format!(
                    "lack the tool and category of {:?}; create them with `tooltune data import \
                     stabletoolbench`",
                    document.call_name()
                ),
            ));
        }
        if options.cache.is_none() && options.service_url.is_none() {
            return Err(bad_option(
                "service_url",
                "is missing, and there is no cache either; give one of them".to_owned(),
            ));
        }
        let url = options.service_url.as_deref();
        Ok(Self {
            server: url
                .map(|url| Server::new(url, options, stop, environment))
                .transpose()?,
            cache: options.cache.as_deref().map(AnswerCache::new),
            catalogue,
            fault: None,
        })
    }

    fn answer(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult {
        let Some(document) = self.catalogue.get(name) else {
            let hint = self.catalogue.hint(name);
            return CallResult::failure(format!("unknown API {name:?}{hint}"));
        };
        let names = ToolBenchNames::from_document(document);
        let input = names::request_input(arguments);
        if let Some(cache) = &mut self.cache {
            match cache.answer(&names, &input) {
                Ok(Some(answer)) => return read_answer(name, &answer),
                Ok(None) => {}
                Err(message) => {
                    self.fault = Some(message.clone());
                    return CallResult::unanswered(message);
                }
            }
        }
        match &self.server {
            Some(server) => server.answer(document, &names, &input),
            None => CallResult::failure(unrecorded_message(document, arguments)),
        }
    }
}

impl Executor for ToolBenchExecutor {
    fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult {
        self.answer(name.trim(), arguments)
    }

    fn fault(&self) -> Option<String> {
        self.fault.clone()
    }
}

impl Server {
    fn new(
        url: &str,
        options: &ToolBenchOptions,
        stop: Arc<AtomicBool>,
        environment: Environment<'_>,
    ) -> Result<Self, HttpConfigError> {
        let base = BaseUrl::parse("service_url", url)?;
        let variable = options.key_variable.clone();
        let variables = variable.map(|variable| (KEY.to_owned(), variable));
        let variables: BTreeMap<String, String> = variables.into_iter().collect();
        let secrets = SecretHeaders::read(&variables, environment)?;
        Ok(Self {
            client: HttpClient::new(&ClientOptions {
                connect_timeout: checked_secs(
                    "connect_timeout_secs",
                    options.connect_timeout_secs,
                )?,
                max_body_bytes: checked_bytes("max_body_bytes", options.max_body_bytes)?,
                connections: Connections::Closed,
                is_loopback: base.origin().is_loopback(),
            })?,
            url: base.join(""),
            redactor: secrets.redactor(),
            secrets,
            timeout: checked_secs("timeout_secs", options.timeout_secs)?,
            stop,
        })
    }

    fn answer(
        &self,
        document: &ApiDocument,
        names: &ToolBenchNames,
        input: &Map<String, Value>,
    ) -> CallResult {
        let name = document.call_name();
        let key = self.secrets.headers().first();
        let key = key.and_then(|(_, value)| value.to_str().ok());
        let body = json!({
            "category": document.category_name,
            "tool_name": names.tool,
            "api_name": names.api,
            "tool_input": Value::Object(input.clone()).to_string(),
            "strip": "",
            KEY: key.unwrap_or_default(),
        });
        let mut request = Request::post(&self.url)
            .header(header::ACCEPT, HeaderValue::from_static("application/json"))
            .header(header::CONTENT_TYPE, "application/json");
        for (header, value) in self.secrets.headers() {
            request = request.header(header, value);
        }
        let request = match request.body(Some(body.to_string().into_bytes())) {
            Ok(request) => request,
            Err(error) => {
                return CallResult::failure(format!("{name}: the request cannot be sent: {error}"));
            }
        };
        let reply = match self.client.send_unless(request, self.timeout, &self.stop) {
            Ok(reply) => reply,
            Err(fault) => {
                let fault = self.redactor.redact(fault.to_string());
                return CallResult::unanswered(format!("{name}: {fault}"));
            }
        };
        let body = String::from_utf8_lossy(&reply.body).into_owned();
        let answer = tooltune_json::parse(&body)
            .ok()
            .filter(|_| !reply.is_cut)
            .map(|answer| self.redactor.redact_value(answer));
        let body = self.redactor.redact(body);
        match answer {
            Some(answer) if reply.status.is_success() => {
                border::without_secrets(&self.redactor, read_answer(&name, &answer))
            }
            _ => CallResult {
                is_unanswered: BUSY.contains(&reply.status.as_u16()),
                ..CallResult::failure(format!(
                    "{name} was answered {}, but without an error and a response: {}",
                    status_text(reply.status),
                    excerpt(&body)
                ))
            },
        }
    }
}

/// Converts `{"error", "response"}` to a result. A response string that contains a list or an
/// object, in JSON or Python syntax, becomes that value.
fn read_answer(name: &str, answer: &Value) -> CallResult {
    let Some(response) = answer.get("response") else {
        return CallResult::failure(format!(
            "{name} was answered without a response: {}",
            excerpt(&answer.to_string())
        ));
    };
    let output = match response {
        Value::String(text) => container_literal(text).unwrap_or_else(|| response.clone()),
        other => other.clone(),
    };
    let exception = match answer.get("error") {
        None | Some(Value::Null) => None,
        Some(Value::String(error)) if error.trim().is_empty() => None,
        Some(Value::String(error)) => Some(excerpt(error)),
        Some(other) => Some(excerpt(&other.to_string())),
    };
    CallResult::new(output, exception)
}
