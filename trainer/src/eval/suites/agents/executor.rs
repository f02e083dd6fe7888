//! Opens the executor of `[goat.executor]`, which answers API calls.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use tooltune_agents::executors::{
    CannedExecutor, Executor, RecordingExecutor, ReplayExecutor, WithGlobalFunctions,
    without_global_functions,
};
use tooltune_apis::{ApiCatalogue, ApiOperation, RequestBodies, import_openapi_operations_file};
use tooltune_endpoint::http::{HttpConfigError, without_secrets};
use tooltune_endpoint::{
    HttpExecutor, HttpOptions, McpError, McpExecutor, McpOptions, ToolBenchExecutor,
    ToolBenchOptions,
};
use tooltune_synth::goat::{self, GoatExecutor};

use crate::config::{ExecutorConfig, ExecutorKind, GoatConfig};
use crate::error::Error;
use crate::interrupt;

/// Longest wait for a server: one day.
const MOST_SECS: f64 = 86_400.0;

/// Opens the executor for the APIs of `catalogue`, and records its results if configured.
///
/// # Errors
///
/// A file cannot be read or written, an address or header is invalid, or an API has no
/// implementation.
pub fn open_executor(
    config: &GoatConfig,
    catalogue: &ApiCatalogue,
) -> Result<Box<dyn Executor>, Error> {
    let executor = open_kind(config, catalogue)?;
    Ok(match &config.executor.record {
        None => executor,
        Some(path) => {
            let recording = RecordingExecutor::open(path, catalogue.clone(), executor);
            Box::new(
                recording
                    .map_err(|error| Error::Usage(format!("goat.executor.record: {error}")))?,
            )
        }
    })
}

/// Opens the executor, with the global functions if the documents have them.
fn open_kind(config: &GoatConfig, catalogue: &ApiCatalogue) -> Result<Box<dyn Executor>, Error> {
    let (others, has_global_functions) = without_global_functions(catalogue)?;
    let executor = executor_of(config, &others)?;
    Ok(match has_global_functions {
        true => Box::new(WithGlobalFunctions::with_fallback(executor)),
        false => executor,
    })
}

/// Opens the executor of all documents except the global functions.
fn executor_of(config: &GoatConfig, catalogue: &ApiCatalogue) -> Result<Box<dyn Executor>, Error> {
    let executor = &config.executor;
    match executor.kind {
        ExecutorKind::Synthetic => {
            let known = ApiCatalogue::new(goat::documents())?;
            let source = "set kind in [goat.executor] to \"replay\", \"canned\", \"http\", \
                          \"mcp\" or \"stabletoolbench\"; without it, calls are answered by the \
                          APIs of `tooltune data synth goat`";
            let is_known = |name: &str| known.get(name).is_some();
            all_known(&config.documents, catalogue, &is_known, &known, source)?;
            Ok(Box::new(GoatExecutor::new()))
        }
        ExecutorKind::Replay => {
            let (recorded, set) = (&executor.recorded, executor.set);
            let executor = ReplayExecutor::read(recorded, set, catalogue.clone())?;
            Ok(Box::new(executor))
        }
        ExecutorKind::Canned => {
            let executor = CannedExecutor::read(&executor.responses, catalogue.clone())?;
            Ok(Box::new(executor))
        }
        ExecutorKind::Http => {
            let specification = executor.specification.display();
            let executor = http_executor(executor)?.with_stop_flag(interrupt::flag());
            let source = format!(
                "create the documents from goat.executor.specification = {specification} with \
                 `tooltune data import openapi`"
            );
            // Documents may name operations by id or by path.
            let is_known = |name: &str| executor.has_operation(name);
            let known = executor.catalogue();
            all_known(&config.documents, catalogue, &is_known, known, &source)?;
            Ok(Box::new(executor))
        }
        ExecutorKind::Mcp => {
            let executor = McpExecutor::start(&mcp_options(executor), interrupt::flag());
            let executor = executor.map_err(|error| mcp_error("goat.executor", &error))?;
            let source = "the server of goat.executor.command has no such tool; create the \
                          documents from it with `tooltune data import mcp`";
            let known = executor.catalogue();
            let is_known = |name: &str| known.get(name).is_some();
            all_known(&config.documents, catalogue, &is_known, known, source)?;
            Ok(Box::new(executor))
        }
        ExecutorKind::Stabletoolbench => {
            let options = toolbench_options(executor);
            let executor = ToolBenchExecutor::new(catalogue.clone(), &options, interrupt::flag());
            Ok(Box::new(executor.map_err(|error| config_error(&error))?))
        }
    }
}

fn toolbench_options(executor: &ExecutorConfig) -> ToolBenchOptions {
    ToolBenchOptions {
        service_url: executor.service_url.clone(),
        key_variable: executor.toolbench_key_env.clone(),
        cache: executor.cache.clone(),
        connect_timeout_secs: executor.connect_timeout_secs,
        timeout_secs: executor.timeout_secs,
        ..ToolBenchOptions::default()
    }
}

fn config_error(error: &HttpConfigError) -> Error {
    Error::Usage(format!("goat.executor: {error}"))
}

fn mcp_options(mcp: &ExecutorConfig) -> McpOptions {
    McpOptions {
        environment: mcp.environment.clone(),
        start_timeout: Duration::from_secs_f64(mcp.start_timeout_secs.min(MOST_SECS)),
        timeout: Duration::from_secs_f64(mcp.timeout_secs.min(MOST_SECS)),
        allow_tools: mcp.allow_tools.clone(),
        ..McpOptions::new(mcp.command.clone())
    }
}

/// The error for an MCP server that cannot be used; `option` names its setting.
pub fn mcp_error(option: &'static str, error: &McpError) -> Error {
    match error {
        McpError::Stopped => Error::Stopped,
        error if error.is_settings_error() => Error::Usage(format!("{option}: {error}")),
        error => Error::Endpoint {
            option,
            message: error.to_string(),
        },
    }
}

fn http_executor(http: &ExecutorConfig) -> Result<HttpExecutor, Error> {
    let executor = HttpExecutor::new(operations(http)?, &http_options(http));
    executor.map_err(|error| config_error(&error))
}

fn operations(http: &ExecutorConfig) -> Result<Vec<ApiOperation>, Error> {
    let bodies = RequestBodies::AsParameters;
    Ok(import_openapi_operations_file(&http.specification, bodies)?)
}

fn http_options(http: &ExecutorConfig) -> HttpOptions {
    HttpOptions {
        headers: http.headers.0.iter().cloned().collect(),
        allowed_hosts: http.allowed_hosts.clone(),
        allow_methods: http.allow_methods.clone(),
        connect_timeout_secs: http.connect_timeout_secs,
        timeout_secs: http.timeout_secs,
        ..HttpOptions::new(http.base_url.clone())
    }
}

/// APIs that an executor does not call because calls may change data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedApis {
    names: Vec<String>,
    /// Why the first one is not called, and how to allow it.
    reason: String,
    n_all: usize,
}

impl RefusedApis {
    /// Finds the APIs of a catalogue that are not called; `None` if all are.
    pub fn find(executor: &dyn Executor, catalogue: &ApiCatalogue) -> Option<Self> {
        let mut refused = Self {
            names: Vec::new(),
            reason: String::new(),
            n_all: catalogue.len(),
        };
        for name in catalogue.iter().map(|document| document.call_name()) {
            if let Some(reason) = executor.refusal(&name) {
                if refused.names.is_empty() {
                    refused.reason = reason;
                }
                refused.names.push(name);
            }
        }
        (!refused.names.is_empty()).then_some(refused)
    }

    /// Whether every API is blocked.
    pub fn are_all(&self) -> bool {
        self.names.len() == self.n_all
    }
}

impl fmt::Display for RefusedApis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const N_NAMED: usize = 5;
        let listed: Vec<&str> = self
            .names
            .iter()
            .take(N_NAMED)
            .map(String::as_str)
            .collect();
        let n_more = self.names.len() - listed.len();
        let more = match n_more {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        write!(
            f,
            "{} of {} APIs are not called: {}{more}. {}",
            self.names.len(),
            self.n_all,
            listed.join(", "),
            self.reason
        )
    }
}

/// Calls that an executor would make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlannedCalls {
    /// No requests: the executor runs in this process.
    Here,
    /// Requests to servers.
    Requests(Vec<PlannedCall>),
    /// Tool calls to the server that this command starts.
    Tools(Vec<String>),
}

/// The request for calls of an API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedCall {
    /// API name.
    pub name: String,
    /// Method and path.
    pub request: String,
    /// Host of the request.
    pub host: String,
    /// Why the request is not sent.
    pub refusal: Option<String>,
}

/// Plans the calls of a catalogue's APIs. Starts and sends nothing, and needs no environment
/// variables.
///
/// # Errors
///
/// A specification cannot be read, or an address or method is invalid.
pub fn planned_calls(config: &GoatConfig, catalogue: &ApiCatalogue) -> Result<PlannedCalls, Error> {
    let executor = &config.executor;
    let (others, _) = without_global_functions(catalogue)?;
    let names = others.iter().map(|document| document.call_name());
    Ok(match executor.kind {
        ExecutorKind::Synthetic | ExecutorKind::Replay | ExecutorKind::Canned => PlannedCalls::Here,
        ExecutorKind::Mcp => PlannedCalls::Tools(executor.command.clone()),
        ExecutorKind::Stabletoolbench => match &executor.service_url {
            None => PlannedCalls::Here,
            Some(url) => {
                let call = |name| PlannedCall {
                    name,
                    request: "POST to the virtual server".to_owned(),
                    host: without_secrets(url),
                    refusal: None,
                };
                PlannedCalls::Requests(names.map(call).collect())
            }
        },
        ExecutorKind::Http => {
            let unset = |_: &str| Some("unused".to_owned());
            let options = http_options(executor);
            let http = HttpExecutor::with_environment(operations(executor)?, &options, &unset)
                .map_err(|error| config_error(&error))?;
            let call = |name: String| PlannedCall {
                request: http.endpoint(&name).unwrap_or_default(),
                host: http.host(),
                refusal: http.refusal(&name),
                name,
            };
            PlannedCalls::Requests(names.map(call).collect())
        }
    })
}

/// Checks that the executor implements every API of the documents.
fn all_known(
    documents: &Path,
    catalogue: &ApiCatalogue,
    is_known: &dyn Fn(&str) -> bool,
    known: &ApiCatalogue,
    source: &str,
) -> Result<(), Error> {
    let mut names = catalogue.iter().map(|document| document.call_name());
    match names.find(|name| !is_known(name)) {
        None => Ok(()),
        Some(foreign) => Err(Error::Usage(format!(
            "{}: no executor handles {foreign:?}{}: {source}",
            documents.display(),
            known.hint(&foreign)
        ))),
    }
}
