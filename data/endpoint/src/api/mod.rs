//! Calls answered by a real server, as the operations of its OpenAPI specification say.
//!
//! Whatever the server does, a refused connection, a page of HTML, silence, is a failed call that
//! says so in plain words. The decision to question: no call is repeated, since nobody knows
//! whether a request that broke off has already had its effect.

mod exchange;
mod options;
mod request;
mod style;
mod values;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::{Map, Value};
use tooltune_agents::executors::{CallResult, Executor};
use tooltune_agents::executors::{missing_argument, parameters_taken};
use tooltune_rows::json;
use tooltune_rows::tools::{ApiCatalogue, ApiDocument, ApiOperation, EndpointTemplates};
use ureq::http::{Method, StatusCode, header};

use crate::http::{
    AllowedHosts, BaseUrl, Blots, ClientOptions, Connections, Environment, HttpClient,
    HttpConfigError, HttpReply, SecretHeaders, checked_bytes, checked_secs, excerpt,
    process_environment,
};

use exchange::NoReply;
pub use options::HttpOptions;
use values::fitted;

/// Statuses of a server that is busy, or of one before it that reaches none: they say nothing of the
/// call.
pub(crate) const BUSY: [u16; 5] = [408, 429, 502, 503, 504];

/// Sends each call to a server.
#[derive(Debug)]
pub struct HttpExecutor {
    /// The documents of `operations`, in their order.
    catalogue: ApiCatalogue,
    operations: Vec<ApiOperation>,
    templates: EndpointTemplates,
    client: HttpClient,
    base: BaseUrl,
    allowed: AllowedHosts,
    secrets: SecretHeaders,
    blots: Blots,
    timeout: Duration,
    max_redirects: usize,
    /// Whether the work was stopped.
    stop: Arc<AtomicBool>,
}

impl HttpExecutor {
    /// Makes an executor whose headers come from the environment of this process.
    ///
    /// # Errors
    ///
    /// - those of [`HttpExecutor::with_environment`]
    pub fn new(
        operations: Vec<ApiOperation>,
        options: &HttpOptions,
    ) -> Result<Self, HttpConfigError> {
        Self::with_environment(operations, options, &process_environment)
    }

    /// Makes an executor; nothing is sent yet.
    ///
    /// # Errors
    ///
    /// - the base URL is none, or its host is not allowed
    /// - the variable of a header is not set, or its value cannot be sent
    /// - a time, a limit or an allowed host is none
    /// - there is no operation, or one comes twice
    pub fn with_environment(
        operations: Vec<ApiOperation>,
        options: &HttpOptions,
        environment: Environment<'_>,
    ) -> Result<Self, HttpConfigError> {
        let base = BaseUrl::parse("base_url", &options.base_url)?;
        let allowed = AllowedHosts::parse(&options.allowed_hosts, &base)?;
        let secrets = SecretHeaders::read(&options.headers, environment)?;
        let catalogue = catalogue(&operations)?;
        let names: Vec<String> = catalogue.iter().map(ApiDocument::call_name).collect();
        let connect_timeout = checked_secs("connect_timeout_secs", options.connect_timeout_secs)?;
        Ok(Self {
            templates: EndpointTemplates::new(names.iter().map(String::as_str)),
            client: HttpClient::new(&ClientOptions {
                connect_timeout,
                max_body_bytes: checked_bytes("max_body_bytes", options.max_body_bytes)?,
                connections: Connections::Closed,
                is_loopback: base.origin().is_loopback(),
            }),
            timeout: checked_secs("timeout_secs", options.timeout_secs)?,
            max_redirects: options.max_redirects,
            blots: secrets.blots(),
            catalogue,
            operations,
            base,
            allowed,
            secrets,
            stop: Arc::default(),
        })
    }

    /// The same, which gives up a call at once when `stop` is set; its result is then a failed
    /// call, and nobody knows whether the server has done what it was asked.
    #[must_use]
    pub fn stopped_by(self, stop: Arc<AtomicBool>) -> Self {
        Self { stop, ..self }
    }

    /// The documents of the operations, in order.
    pub fn catalogue(&self) -> &ApiCatalogue {
        &self.catalogue
    }

    fn answer(&self, given: &str, arguments: &Map<String, Value>) -> Result<CallResult, String> {
        let mut arguments = arguments.clone();
        arguments.retain(|_, value| !value.is_null());
        let operation = self.operation(given, &mut arguments)?;
        let is_sent_anyway = |name: &str| self.secrets.has(name);
        let arguments = fitted_arguments(&operation.document, &arguments, &is_sent_anyway)?;
        let name = operation.document.call_name();
        let request = request::request(operation, &arguments);
        let request = request.map_err(|reason| format!("{name}: {reason}"))?;
        let method = request.method.clone();
        match self.exchange(request) {
            Ok(reply) => Ok(self.result(&name, &method, reply)),
            Err(NoReply::Refused(reason)) => Err(format!("{name}: {reason}")),
            Err(NoReply::Unanswered(reason)) => {
                Ok(CallResult::unanswered(format!("{name}: {reason}")))
            }
        }
    }

    /// The operation that a name means; arguments that stand in the name itself are added.
    fn operation(
        &self,
        given: &str,
        arguments: &mut Map<String, Value>,
    ) -> Result<&ApiOperation, String> {
        if let Some(position) = self.catalogue.position(given) {
            return Ok(&self.operations[position]);
        }
        let unknown = || format!("unknown API {given:?}{}", self.catalogue.hint(given));
        let call = self.templates.resolve(given).ok_or_else(unknown)?;
        let position = self.catalogue.position(&call.name);
        for (name, value) in call.arguments {
            arguments.entry(name).or_insert(Value::String(value));
        }
        Ok(&self.operations[position.ok_or_else(unknown)?])
    }

    /// What a reply means for the call.
    fn result(&self, name: &str, method: &Method, reply: HttpReply) -> CallResult {
        let status = reply.status;
        let kind = reply.header(&header::CONTENT_TYPE).unwrap_or("").to_owned();
        let is_text = std::str::from_utf8(&reply.body).is_ok();
        let body = self
            .blots
            .blot(String::from_utf8_lossy(&reply.body).into_owned());
        let said = match excerpt(&body) {
            said if said.is_empty() => "with an empty body".to_owned(),
            said => format!("with: {said}"),
        };
        let output = if is_text && !reply.is_cut {
            json::parse(&body).ok()
        } else {
            None
        };
        let answered = format!("{name} was answered {}", status_text(status));
        let has_no_body = [StatusCode::NO_CONTENT, StatusCode::RESET_CONTENT].contains(&status)
            || method == Method::HEAD;
        let exception = match &output {
            _ if !is_text && status.is_success() && !reply.is_cut => {
                format!("{answered}, but not in UTF-8, {said}")
            }
            _ if !status.is_success() => format!("{answered} {said}"),
            Some(_) => return CallResult::success(output.unwrap_or_default()),
            None if body.is_empty() && has_no_body => return CallResult::success(Value::Null),
            None if reply.is_cut => {
                let limit = reply.body.len();
                format!("{answered} with more than {limit} bytes, which is the limit")
            }
            None if body.trim().is_empty() => format!("{answered} with an empty body"),
            None => {
                let kind = match kind.as_str() {
                    "" => String::new(),
                    kind => format!(" ({})", excerpt(&self.blots.blot(kind.to_owned()))),
                };
                format!("{answered}, but not in JSON{kind}, {said}")
            }
        };
        CallResult {
            is_unanswered: BUSY.contains(&status.as_u16()),
            ..CallResult::of(output.unwrap_or_default(), Some(exception))
        }
    }
}

/// The arguments of a call as values of the declared types, without nulls and without those of which
/// `is_sent_anyway` says that nobody need give them.
///
/// # Errors
///
/// - an argument is not declared, cannot be of its type, or breaks its schema
/// - a required one is missing
pub(crate) fn fitted_arguments(
    document: &ApiDocument,
    arguments: &Map<String, Value>,
    is_sent_anyway: &dyn Fn(&str) -> bool,
) -> Result<Map<String, Value>, String> {
    let name = document.call_name();
    let mut checked = Map::new();
    let given = arguments.iter().filter(|(_, value)| !value.is_null());
    for (argument, value) in given {
        let Some(parameter) = document.parameter(argument) else {
            let takes = parameters_taken(document);
            return Err(format!("{name} has no parameter {argument:?}; {takes}"));
        };
        let value = fitted(parameter, value).ok_or_else(|| {
            let kind = &parameter.kind;
            format!(
                "{name}: argument {argument:?} must be {kind}, got {}",
                shown(value)
            )
        })?;
        checked.insert(argument.clone(), value);
    }
    document
        .check_values(&checked, "arguments")
        .map_err(|error| error.to_string())?;
    let mut given = checked.clone();
    for parameter in document
        .parameters()
        .filter(|one| is_sent_anyway(&one.name))
    {
        checked.remove(&parameter.name);
        given.insert(parameter.name.clone(), Value::Bool(true));
    }
    match missing_argument(document, &given) {
        Some(parameter) => Err(format!(
            "{name} needs {parameter:?}; {}",
            parameters_taken(document)
        )),
        None => Ok(checked),
    }
}

impl Executor for HttpExecutor {
    fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult {
        self.answer(name.trim(), arguments)
            .unwrap_or_else(CallResult::failure)
    }
}

fn catalogue(operations: &[ApiOperation]) -> Result<ApiCatalogue, HttpConfigError> {
    let bad = |reason| HttpConfigError::BadOption {
        field: "the specification",
        reason,
    };
    if operations.is_empty() {
        return Err(bad("has no operation to call".to_owned()));
    }
    let documents = operations
        .iter()
        .map(|operation| operation.document.clone());
    ApiCatalogue::new(documents.collect()).map_err(|error| bad(format!("is refused: {error}")))
}

/// `404 Not Found`.
pub(crate) fn status_text(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("{} {reason}", status.as_u16()),
        None => status.as_u16().to_string(),
    }
}

/// A value as a message quotes it.
fn shown(value: &Value) -> String {
    excerpt(&value.to_string())
}
