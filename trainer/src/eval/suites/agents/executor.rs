//! The table `[goat.executor]` to what answers calls.

use std::path::Path;
use std::time::Duration;

use tooltune_agents::executors::{
    CannedExecutor, Executor, RecordingExecutor, ReplayExecutor, WithGlobalFunctions,
    without_global_functions,
};
use tooltune_endpoint::http::HttpConfigError;
use tooltune_endpoint::{
    HttpExecutor, HttpOptions, McpError, McpExecutor, McpOptions, ToolBenchExecutor,
    ToolBenchOptions,
};
use tooltune_rows::tools::{ApiCatalogue, RequestBodies, import_openapi_operations_file};
use tooltune_synth::goat::{self, GoatExecutor};

use crate::config::{ExecutorConfig, ExecutorKind, GoatConfig};
use crate::error::Error;
use crate::interrupt;

/// A day: the longest wait for a server that is waited for.
const MOST_SECS: f64 = 86_400.0;

/// Opens what answers the calls to the APIs of `catalogue`, and records them where it is to.
///
/// # Errors
///
/// A file that cannot be read or recorded in, an address or header that cannot be used, or an API
/// that nothing answers.
pub fn open_executor(
    config: &GoatConfig,
    catalogue: &ApiCatalogue,
) -> Result<Box<dyn Executor>, Error> {
    let executor = opened(config, catalogue)?;
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

/// The executor with the global functions beside it, if the documents have them.
fn opened(config: &GoatConfig, catalogue: &ApiCatalogue) -> Result<Box<dyn Executor>, Error> {
    let (others, has_global_functions) = without_global_functions(catalogue)?;
    let executor = executor_of(config, &others)?;
    Ok(match has_global_functions {
        true => Box::new(WithGlobalFunctions::over(executor)),
        false => executor,
    })
}

/// The executor of all documents but those of the global functions.
fn executor_of(config: &GoatConfig, catalogue: &ApiCatalogue) -> Result<Box<dyn Executor>, Error> {
    let executor = &config.executor;
    match executor.kind {
        ExecutorKind::Synthetic => {
            let known = ApiCatalogue::new(goat::documents())?;
            let source = "write [goat.executor] with kind = \"replay\", \"canned\", \"http\", \"mcp\" or \
                          \"stabletoolbench\"; \
                          without it, calls are answered by the APIs of `tooltune data synth goat`";
            all_known(&config.documents, catalogue, &known, source)?;
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
            let executor = http_executor(executor)?;
            let source = format!(
                "goat.executor.specification is {specification}; make the documents of it: \
                 `tooltune data import openapi`"
            );
            all_known(&config.documents, catalogue, executor.catalogue(), &source)?;
            Ok(Box::new(executor))
        }
        ExecutorKind::Mcp => {
            let executor = McpExecutor::start(&mcp_options(executor), interrupt::flag());
            let executor = executor.map_err(|error| mcp_error("goat.executor", &error))?;
            let source = "the server of goat.executor.command has no such tool; make the documents \
                          of it: `tooltune data import mcp`";
            all_known(&config.documents, catalogue, executor.catalogue(), source)?;
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
        ..McpOptions::new(mcp.command.clone())
    }
}

/// Why an MCP server that `place` names is of no use.
pub fn mcp_error(place: &str, error: &McpError) -> Error {
    match error {
        McpError::Stopped => Error::Stopped,
        error => Error::Usage(format!("{place}: {error}")),
    }
}

fn http_executor(http: &ExecutorConfig) -> Result<HttpExecutor, Error> {
    let operations =
        import_openapi_operations_file(&http.specification, RequestBodies::AsParameters)?;
    let options = HttpOptions {
        headers: http.headers.0.iter().cloned().collect(),
        allowed_hosts: http.allowed_hosts.clone(),
        connect_timeout_secs: http.connect_timeout_secs,
        timeout_secs: http.timeout_secs,
        ..HttpOptions::new(http.base_url.clone())
    };
    let executor = HttpExecutor::new(operations, &options).map_err(|error| config_error(&error))?;
    Ok(executor.stopped_by(interrupt::flag()))
}

/// Refuses documents of an API that nothing answers.
fn all_known(
    documents: &Path,
    catalogue: &ApiCatalogue,
    known: &ApiCatalogue,
    source: &str,
) -> Result<(), Error> {
    let mut names = catalogue.iter().map(|document| document.call_name());
    match names.find(|name| known.get(name).is_none()) {
        None => Ok(()),
        Some(foreign) => Err(Error::Usage(format!(
            "{}: nothing executes {foreign:?}{}: {source}",
            documents.display(),
            known.hint(&foreign)
        ))),
    }
}
