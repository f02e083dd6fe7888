//! Command-line options that allow API calls of an executor, and the dry run that lists the calls.

use tooltune_apis::ApiCatalogue;
use tooltune_endpoint::SAFE_METHODS;

use super::print_line;
use crate::cli::AllowArgs;
use crate::commands::data::pipelines::table;
use crate::config::{ExecutorConfig, ExecutorKind, GoatConfig};
use crate::error::Error;
use crate::eval::suites::{PlannedCalls, planned_calls};

/// Maximum number of APIs that a dry run lists.
const MAX_LISTED: usize = 200;

/// Adds the permissions of the command line to the executor settings.
///
/// # Errors
///
/// An option does not apply to this kind of executor.
pub(super) fn allow(executor: &mut ExecutorConfig, args: &AllowArgs) -> Result<(), Error> {
    for (option, value, kind) in [
        ("--allow-method", &args.allow_method, ExecutorKind::Http),
        ("--allow-tool", &args.allow_tool, ExecutorKind::Mcp),
    ] {
        if !value.is_empty() && executor.kind != kind {
            return Err(Error::Usage(format!(
                "{option} needs an executor of kind {kind}, but its kind is {}; omit the \
                 option",
                executor.kind
            )));
        }
    }
    executor.allow_methods.extend(args.allow_method.clone());
    executor.allow_tools.extend(args.allow_tool.clone());
    Ok(())
}

/// Rejects executor options without `--execute`.
///
/// # Errors
///
/// An option is given.
pub(super) fn require_execute(args: &AllowArgs) -> Result<(), Error> {
    if args.allow_method.is_empty() && args.allow_tool.is_empty() {
        return Ok(());
    }
    Err(Error::Usage(
        "--allow-method and --allow-tool need --execute, because no calls are made without it"
            .to_owned(),
    ))
}

/// Limits on API calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallLimits {
    /// Maximum number of edges whose calls are made.
    pub(super) edges: Option<usize>,
    /// Number of tasks whose calls are made; each task calls an API at most once.
    pub(super) tasks: usize,
    /// Maximum number of all calls together.
    pub(super) all: Option<usize>,
}

/// Prints the requests that would be sent, their hosts, and the maximum number of each.
///
/// # Errors
///
/// The executor settings are invalid, or the terminal cannot be written to.
pub(super) fn print_calls(
    goat: &GoatConfig,
    catalogue: &ApiCatalogue,
    limits: CallLimits,
) -> Result<(), Error> {
    let calls = match planned_calls(goat, catalogue)? {
        PlannedCalls::Here => return Ok(()),
        PlannedCalls::Requests(calls) => calls,
        PlannedCalls::Tools(command) => {
            let allowed = match goat.executor.allow_tools.as_slice() {
                [] => String::new(),
                tools => format!(", and {}", tools.join(", ")),
            };
            return print_line(&format!(
                "calls are limited to the read-only tools of {command:?}{allowed}; the server \
                 lists its tools only when it runs"
            ));
        }
    };
    let sizes: Vec<usize> = calls
        .iter()
        .map(|call| match call.refusal {
            Some(_) => 0,
            None => catalogue
                .get(&call.name)
                .map_or(0, |api| api.parameters().count()),
        })
        .collect();
    let n_parameters: usize = sizes.iter().sum();
    let n_callable = calls.iter().filter(|call| call.refusal.is_none()).count();
    let mut table_of_calls = table(&["API", "request", "host", "calls"]);
    for (call, size) in calls.iter().zip(&sizes).take(MAX_LISTED) {
        let n_edges = match limits.edges {
            // The API is called once for each outgoing and each incoming edge.
            None => 0,
            Some(edges) => {
                let n_from = n_parameters - size;
                let n_to = size.saturating_mul(n_callable.saturating_sub(1));
                n_from.min(edges).saturating_add(n_to.min(edges))
            }
        };
        let n_calls = n_edges.saturating_add(limits.tasks);
        let n_calls = limits.all.map_or(n_calls, |all| all.min(n_calls));
        table_of_calls.add_row([
            call.name.clone(),
            call.request.clone(),
            call.host.clone(),
            match &call.refusal {
                Some(_) => "none, not allowed".to_owned(),
                None => format!("at most {n_calls}"),
            },
        ]);
    }
    print_line(&table_of_calls.trim_fmt())?;
    if calls.len() > MAX_LISTED {
        let n_more = calls.len() - MAX_LISTED;
        print_line(&format!("and {n_more} more APIs (not listed)"))?;
    }
    let n_refused = calls.len() - n_callable;
    if n_refused > 0 {
        let safe = SAFE_METHODS.join(", ");
        print_line(&format!(
            "{n_refused} of {} APIs would not be called: only {safe} requests are sent unless \
             --allow-method allows others",
            calls.len()
        ))?;
    }
    Ok(())
}
