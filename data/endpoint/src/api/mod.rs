//! Executes calls on a real server, as described by its OpenAPI specification.
//!
//! A server error, such as a refused connection, an HTML page or a timeout, becomes a failed call
//! with a plain message. No call is repeated, because a request that was interrupted may already
//! have had its effect.

mod exchange;
mod methods;
mod options;
mod request;
mod style;
mod values;

#[cfg(test)]
mod safety_tests;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::{Map, Value};
use tooltune_agents::executors::{CallResult, Executor};
use tooltune_agents::executors::{describe_parameters, missing_argument};
use tooltune_apis::{ApiCatalogue, ApiDocument, ApiOperation, EndpointTemplates};
use tooltune_json as json;
use tooltune_json::json_schema::FormatRule;
use ureq::http::{Method, StatusCode, header};

use crate::border;
use crate::http::{
    AllowedHosts, BaseUrl, ClientOptions, Connections, Environment, HttpClient, HttpConfigError,
    HttpReply, Redactor, SecretHeaders, checked_bytes, checked_secs, excerpt, process_environment,
};

use exchange::CallFailure;
use methods::AllowedMethods;
pub use methods::SAFE_METHODS;
pub use options::HttpOptions;
use values::fit_argument;

/// Statuses of a busy server, or of a proxy that cannot reach it. They are unrelated to the call.
pub(crate) const BUSY: [u16; 5] = [408, 429, 502, 503, 504];

/// Sends each call to a server.
#[derive(Debug)]
pub struct HttpExecutor {
    /// The documents of `operations`, in the same order.
    catalogue: ApiCatalogue,
    operations: Vec<ApiOperation>,
    /// Indices of operations by the names that their documents do not use: `METHOD /path` or
    /// `operationId`.
    by_other_name: HashMap<String, usize>,
    templates: EndpointTemplates,
    methods: AllowedMethods,
    client: HttpClient,
    base: BaseUrl,
    allowed: AllowedHosts,
    secrets: SecretHeaders,
    redactor: Redactor,
    timeout: Duration,
    max_redirects: usize,
    /// Set when the work is stopped.
    stop: Arc<AtomicBool>,
}

impl HttpExecutor {
    /// Creates an executor whose headers come from this process's environment.
    ///
    /// # Errors
    ///
    /// As for [`HttpExecutor::with_environment`].
    pub fn new(
        operations: Vec<ApiOperation>,
        options: &HttpOptions,
    ) -> Result<Self, HttpConfigError> {
        Self::with_environment(operations, options, &process_environment)
    }

    /// Creates an executor without sending a request.
    ///
    /// # Errors
    ///
    /// - The base URL is invalid, or its host is not allowed.
    /// - The environment variable of a header is not set, or its value cannot be sent.
    /// - A time, a limit or an allowed host is invalid.
    /// - There is no operation, or an operation occurs twice.
    pub fn with_environment(
        operations: Vec<ApiOperation>,
        options: &HttpOptions,
        environment: Environment<'_>,
    ) -> Result<Self, HttpConfigError> {
        let base = BaseUrl::parse("base_url", &options.base_url)?;
        let allowed = AllowedHosts::parse(&options.allowed_hosts, &base)?;
        let secrets = SecretHeaders::read(&options.headers, environment)?;
        let catalogue = catalogue(&operations)?;
        let endpoints: Vec<String> = operations.iter().map(endpoint).collect();
        let connect_timeout = checked_secs("connect_timeout_secs", options.connect_timeout_secs)?;
        Ok(Self {
            templates: EndpointTemplates::new(endpoints.iter().map(String::as_str)),
            by_other_name: index_other_names(&operations, endpoints),
            methods: AllowedMethods::parse(&options.allow_methods)?,
            client: HttpClient::new(&ClientOptions {
                connect_timeout,
                max_body_bytes: checked_bytes("max_body_bytes", options.max_body_bytes)?,
                connections: Connections::Closed,
                is_loopback: base.origin().is_loopback(),
            })?,
            timeout: checked_secs("timeout_secs", options.timeout_secs)?,
            max_redirects: options.max_redirects,
            redactor: secrets.redactor(),
            catalogue,
            operations,
            base,
            allowed,
            secrets,
            stop: Arc::default(),
        })
    }

    /// Returns this executor with a stop flag. A call is abandoned as soon as `stop` is set. The
    /// result is a failed call; it is unknown whether the server executed it.
    #[must_use]
    pub fn with_stop_flag(self, stop: Arc<AtomicBool>) -> Self {
        Self { stop, ..self }
    }

    /// The documents of the operations, in order.
    pub fn catalogue(&self) -> &ApiCatalogue {
        &self.catalogue
    }

    /// Whether an operation has this name: the name of its document, its `operationId`, or `METHOD
    /// /path`.
    pub fn has_operation(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// The server, as `host:port`.
    pub fn host(&self) -> String {
        self.base.origin().to_string()
    }

    /// `METHOD /path` of the operation of this name.
    pub fn endpoint(&self, name: &str) -> Option<String> {
        self.find(name).map(endpoint)
    }

    fn find(&self, name: &str) -> Option<&ApiOperation> {
        let position = self.catalogue.position(name);
        let position = position.or_else(|| self.by_other_name.get(name).copied());
        self.operations.get(position?)
    }

    fn answer_call(
        &self,
        api_name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<CallResult, String> {
        let mut arguments = arguments.clone();
        let operation = self.operation(api_name, &mut arguments)?;
        if let Some(reason) = self.methods.refusal(operation) {
            return Err(reason);
        }
        let is_sent_anyway = |name: &str| self.secrets.has(name);
        let arguments = fit_arguments(&operation.document, &arguments, &is_sent_anyway)?;
        let name = operation.document.call_name();
        let request = request::build_call_request(operation, &arguments);
        let request = request.map_err(|reason| format!("{name}: {reason}"))?;
        let method = request.method.clone();
        match self.exchange(request) {
            Ok(reply) => Ok(self.result(&name, &method, reply)),
            Err(CallFailure::Refused(reason)) => Err(format!("{name}: {reason}")),
            Err(CallFailure::Unanswered(reason)) => {
                Ok(CallResult::unanswered(format!("{name}: {reason}")))
            }
        }
    }

    /// The operation with this name. Arguments contained in the name itself are added.
    fn operation(
        &self,
        api_name: &str,
        arguments: &mut Map<String, Value>,
    ) -> Result<&ApiOperation, String> {
        if let Some(operation) = self.find(api_name) {
            return Ok(operation);
        }
        let unknown = || format!("unknown API {api_name:?}{}", self.catalogue.hint(api_name));
        let call = self.templates.resolve(api_name).ok_or_else(unknown)?;
        for (name, value) in call.arguments {
            arguments.entry(name).or_insert(Value::String(value));
        }
        self.find(&call.name).ok_or_else(unknown)
    }

    /// Converts a reply to the result of the call.
    fn result(&self, name: &str, method: &Method, reply: HttpReply) -> CallResult {
        let status = reply.status;
        let kind = reply.header(&header::CONTENT_TYPE).unwrap_or("").to_owned();
        let is_text = std::str::from_utf8(&reply.body).is_ok();
        let body = String::from_utf8_lossy(&reply.body).into_owned();
        let parsed = match is_text && !reply.is_cut {
            true => json::parse(&body).ok(),
            false => None,
        };
        // Remove secrets from the decoded reply: in its raw text they may be escaped.
        let output = parsed
            .clone()
            .map(|value| self.redactor.redact_value(value));
        let body = match &output {
            Some(output) if Some(output) != parsed.as_ref() => output.to_string(),
            _ => self.redactor.redact(body),
        };
        let body_excerpt = match excerpt(&body) {
            body_excerpt if body_excerpt.is_empty() => "with an empty body".to_owned(),
            body_excerpt => format!("with: {body_excerpt}"),
        };
        let status_message = format!("{name} was answered {}", status_text(status));
        let has_no_body = [StatusCode::NO_CONTENT, StatusCode::RESET_CONTENT].contains(&status)
            || method == Method::HEAD;
        let exception = match &output {
            _ if !is_text && status.is_success() && !reply.is_cut => {
                format!("{status_message}, but not in UTF-8, {body_excerpt}")
            }
            _ if !status.is_success() => format!("{status_message} {body_excerpt}"),
            Some(_) => return CallResult::success(output.unwrap_or_default()),
            None if body.is_empty() && has_no_body => return CallResult::success(Value::Null),
            None if reply.is_cut => {
                let limit = reply.body.len();
                format!("{status_message} with more than {limit} bytes, which is the limit")
            }
            None if body.trim().is_empty() => format!("{status_message} with an empty body"),
            None => {
                let kind = match kind.as_str() {
                    "" => String::new(),
                    kind => format!(" ({})", excerpt(&self.redactor.redact(kind.to_owned()))),
                };
                format!("{status_message}, but not in JSON{kind}, {body_excerpt}")
            }
        };
        CallResult {
            is_unanswered: BUSY.contains(&status.as_u16()),
            ..CallResult::new(output.unwrap_or_default(), Some(exception))
        }
    }
}

/// Formats an operation as `METHOD /path`.
fn endpoint(operation: &ApiOperation) -> String {
    format!("{} {}", operation.document.method, operation.path)
}

/// The operation names that the documents do not use; the first of two duplicates wins.
fn index_other_names(
    operations: &[ApiOperation],
    endpoints: Vec<String>,
) -> HashMap<String, usize> {
    let mut positions = HashMap::new();
    for (position, (operation, endpoint)) in operations.iter().zip(endpoints).enumerate() {
        let id = &operation.document.operation_id;
        for name in [endpoint, id.clone()] {
            if !name.is_empty() {
                positions.entry(name).or_insert(position);
            }
        }
    }
    positions
}

/// Converts a call's arguments to the declared types. Drops nulls unless the parameter accepts
/// null. Also drops arguments for which `is_sent_anyway` returns true, because the client sends
/// them itself.
///
/// # Errors
///
/// - An argument is not declared, cannot be converted to its type, or violates its schema.
/// - A required argument is missing.
pub(crate) fn fit_arguments(
    document: &ApiDocument,
    arguments: &Map<String, Value>,
    is_sent_anyway: &dyn Fn(&str) -> bool,
) -> Result<Map<String, Value>, String> {
    let name = document.call_name();
    let mut checked = Map::new();
    for (argument, value) in arguments {
        let Some(parameter) = document.parameter(argument) else {
            if value.is_null() {
                continue;
            }
            let parameters = describe_parameters(document);
            return Err(format!(
                "{name} has no parameter {argument:?}; {parameters}"
            ));
        };
        if value.is_null() {
            if parameter.accepts_null() {
                checked.insert(argument.clone(), Value::Null);
            }
            continue;
        }
        let value = fit_argument(parameter, value).ok_or_else(|| {
            let kind = &parameter.kind;
            format!(
                "{name}: argument {argument:?} must be {kind}, got {}",
                shorten_value(value)
            )
        })?;
        checked.insert(argument.clone(), value);
    }
    // The server decides which values of a format it accepts.
    document
        .check_values(&checked, "arguments", FormatRule::Annotated)
        .map_err(|error| error.to_string())?;
    let mut arguments_with_nulls = checked.clone();
    for parameter in document
        .parameters()
        .filter(|declared| is_sent_anyway(&declared.name))
    {
        checked.remove(&parameter.name);
        arguments_with_nulls.insert(parameter.name.clone(), Value::Bool(true));
    }
    match missing_argument(document, &arguments_with_nulls) {
        Some(parameter) => Err(format!(
            "{name} needs {parameter:?}; {}",
            describe_parameters(document)
        )),
        None => Ok(checked),
    }
}

impl Executor for HttpExecutor {
    fn refusal(&self, name: &str) -> Option<String> {
        let operation = self.operation(name.trim(), &mut Map::new()).ok()?;
        self.methods.refusal(operation)
    }

    fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult {
        let result = self.answer_call(name.trim(), arguments);
        border::without_secrets(&self.redactor, result.unwrap_or_else(CallResult::failure))
    }
}

fn catalogue(operations: &[ApiOperation]) -> Result<ApiCatalogue, HttpConfigError> {
    let bad_documents = |reason| HttpConfigError::BadOption {
        field: "the specification",
        reason,
    };
    if operations.is_empty() {
        return Err(bad_documents("has no operation to call".to_owned()));
    }
    let documents = operations
        .iter()
        .map(|operation| operation.document.clone());
    ApiCatalogue::new(documents.collect())
        .map_err(|error| bad_documents(format!("is refused: {error}")))
}

/// Formats a status, such as `404 Not Found`.
pub(crate) fn status_text(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("{} {reason}", status.as_u16()),
        None => status.as_u16().to_string(),
    }
}

/// Formats a value for a message.
fn shorten_value(value: &Value) -> String {
    excerpt(&value.to_string())
}
