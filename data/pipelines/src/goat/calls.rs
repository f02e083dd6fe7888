//! Stage 6: the calls of each task, executed as they are generated (Figure 17).
//!
//! All tasks advance together, one call at a time. The model makes up the arguments of a call
//! without edges. For a call with edges, it first extracts the values of the edges from earlier
//! results, and then makes up the missing arguments.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tooltune_agents::executors::Executor;
use tooltune_apis::{ApiDocument, TrajectoryCall};
use tooltune_json::json_schema::FormatRule;
use tooltune_synth::graph::NamedEdge;

use super::graph::reason_of;
use super::items::{CalledTask, Task};
use super::origins::find_origins;
use super::stage_prompts::{
    Question, Sampling, StageInput, arguments_schema, check_arguments, parse_arguments,
    parse_written_arguments, shown_document, shown_json, some_arguments_schema, unusable_reason,
};
use super::{CALLS, earlier, prompts};
use crate::api_calls::ApiCall;
use crate::ask::ItemPrompt;
use crate::error::PipelineError;
use crate::prompts::Prompts;
use crate::reply::excerpt;
use crate::report::Dropped;
use crate::run::{Run, StageResult};

const NOT_FOUND: &str = "edge arguments not found in any earlier output";

/// Drop reason of tasks of an earlier run with calls that this executor refuses.
const REFUSED: &str = "the executor does not make one of the calls, because it may change data";

type Arguments = Map<String, Value>;

/// A task, or the reason why it was dropped.
type State = Result<CalledTask, Dropped>;

/// Makes the calls of all tasks; a task with a failing call is dropped.
///
/// # Source
///
/// GOAT, section 3.1.2: API call generation and execution.
pub(super) fn make_calls(
    run: &mut Run<'_>,
    input: StageInput<'_>,
    tasks: Vec<Task>,
    executor: &mut dyn Executor,
) -> Result<StageResult<CalledTask>, PipelineError> {
    let n_rounds = tasks.iter().map(|task| task.apis.len()).max().unwrap_or(0);
    let refusal_of = |task: &Task| task.apis.iter().find_map(|api| executor.refusal(api));
    let mut states: Vec<State> = tasks
        .into_iter()
        .map(|task| {
            if let Some(reason) = refusal_of(&task) {
                return Err(Dropped::new(&task.id, REFUSED, reason));
            }
            Ok(CalledTask {
                task,
                calls: Vec::new(),
                query: String::new(),
            })
        })
        .collect();
    for call_idx in 0..n_rounds {
        next_round(run, input, call_idx, &mut states, executor)?;
    }
    let with_changes = |state: State| state.and_then(earlier::require_changes);
    let mut result = StageResult::from_results(states.into_iter().map(with_changes));
    let n_not_found: usize = result.kept.iter().map(count_not_found).sum();
    if n_not_found > 0 {
        result.counts.insert(NOT_FOUND.to_owned(), n_not_found);
    }
    Ok(result)
}

/// Number of edge arguments that the model did not take from an output.
fn count_not_found(called_task: &CalledTask) -> usize {
    let is_not_found = |edge: &&NamedEdge| {
        let call = called_task
            .calls
            .iter()
            .find(|call| call.name == edge.target);
        call.is_none_or(|call| !call.derived.contains_key(&edge.parameter))
    };
    called_task.task.edges.iter().filter(is_not_found).count()
}

/// The next call of a task.
struct NextCall<'a> {
    /// Index of the task.
    task_idx: usize,
    document: &'a ApiDocument,
    /// The edges that lead to the call.
    edges: Vec<NamedEdge>,
}

impl NextCall<'_> {
    /// The parameters filled by earlier results.
    fn edge_parameters(&self) -> Vec<&str> {
        let names = self.edges.iter().map(|edge| edge.parameter.as_str());
        names.collect()
    }

    /// Whether the API has parameters without an edge.
    fn has_parameters_without_edge(&self) -> bool {
        let wanted = self.edge_parameters();
        let mut names = self.document.parameters().map(|p| p.name.as_str());
        names.any(|name| !wanted.contains(&name))
    }
}

/// Makes the next call of each remaining task that has one.
fn next_round(
    run: &mut Run<'_>,
    input: StageInput<'_>,
    call_idx: usize,
    states: &mut [State],
    executor: &mut dyn Executor,
) -> Result<(), PipelineError> {
    let mut next_calls = Vec::new();
    for (task_idx, state) in states.iter().enumerate() {
        let Ok(CalledTask { task, .. }) = state else {
            continue;
        };
        let Some(api) = task.apis.get(call_idx) else {
            continue;
        };
        let edges = task.edges.iter().filter(|edge| edge.target == *api);
        next_calls.push(NextCall {
            task_idx,
            document: input.document(api)?,
            edges: edges.cloned().collect(),
        });
    }
    let mut item_prompts = Vec::with_capacity(next_calls.len());
    for next_call in &next_calls {
        if let Ok(called_task) = &states[next_call.task_idx] {
            item_prompts.push(first_request(
                input,
                next_call,
                called_task,
                call_idx,
                run.prompts(),
            )?);
        }
    }
    let first_arguments = run.ask(CALLS, &item_prompts, &|idx, text| {
        parse_first_arguments(&next_calls[idx], text)
    })?;
    let complete = fill_remaining(run, input, call_idx, &next_calls, &first_arguments, states)?;
    let calls: Vec<Result<ApiCall, Dropped>> = next_calls
        .iter()
        .zip(complete)
        .map(|(next_call, arguments)| {
            Ok(ApiCall {
                name: next_call.document.call_name(),
                arguments: arguments?,
            })
        })
        .collect();
    let complete_calls: Vec<ApiCall> = calls.iter().flatten().cloned().collect();
    let mut results = run.call_apis(CALLS, &complete_calls, executor)?.into_iter();
    for (next_call, call) in next_calls.iter().zip(calls) {
        let result = match &call {
            Ok(_) => results.next(),
            Err(_) => None,
        };
        let state = &mut states[next_call.task_idx];
        let outcome = match (call, result, &mut *state) {
            (Ok(call), Some(result), Ok(called_task)) => match unusable_reason(&result) {
                Some((what, why)) => {
                    let detail = excerpt(&format!("{}: {why}", call.text()));
                    Err(Dropped::new(
                        &called_task.task.id,
                        format!("a call {what}"),
                        detail,
                    ))
                }
                None => {
                    called_task.push(call, result.output);
                    Ok(())
                }
            },
            (Err(dropped), _, _) => Err(dropped),
            _ => Ok(()),
        };
        if let Err(dropped) = outcome {
            *state = Err(dropped);
        }
    }
    Ok(())
}

impl CalledTask {
    fn push(&mut self, call: ApiCall, output: Value) {
        let derived = find_origins(&call.name, &call.arguments, &self.calls, &self.task.edges);
        self.calls.push(TrajectoryCall {
            sub_query: String::new(),
            name: call.name,
            arguments: call.arguments,
            output,
            derived,
        });
    }
}

/// The first request for the arguments of a call.
fn first_request(
    input: StageInput<'_>,
    next_call: &NextCall<'_>,
    called_task: &CalledTask,
    call_idx: usize,
    prompts: &Prompts,
) -> Result<ItemPrompt, PipelineError> {
    let id = |what: &str| format!("{}/{}/{what}", called_task.task.id, call_idx + 1);
    let document = shown_document(next_call.document);
    if next_call.edges.is_empty() {
        let taken = called_task.task.taken.get(&next_call.document.call_name());
        let taken = taken.filter(|arguments| !arguments.is_empty());
        let taken = taken.map(|arguments| shown_json(&json!([arguments])));
        let both = [
            ("document", document.as_str()),
            ("taken", taken.as_deref().unwrap_or_default()),
        ];
        let (prompt, values) = match taken {
            Some(_) => (prompts::OTHER_CALL, &both[..]),
            None => (prompts::FIRST_CALL, &both[..1]),
        };
        let question = Question {
            id: id("first"),
            prompt,
            values,
            schema: arguments_schema(next_call.document),
            sampling: Sampling::Sampled,
        };
        return input.ask(prompts, question);
    }
    let number = |edge: &NamedEdge| {
        let call = called_task
            .calls
            .iter()
            .position(|call| call.name == edge.source);
        call.map(|call| call + 1)
    };
    let wanted_arguments: Vec<Value> = next_call
        .edges
        .iter()
        .map(|edge| {
            json!({"parameter": edge.parameter, "result": number(edge), "reason": reason_of(edge)})
        })
        .collect();
    let sources: Vec<usize> = next_call.edges.iter().filter_map(number).collect();
    let results = results_of(input, called_task, &|number| sources.contains(&number));
    let question = Question {
        id: id("fill"),
        prompt: prompts::FILL_CALL,
        values: &[
            ("document", &document),
            ("wanted", &shown_json(&Value::Array(wanted_arguments))),
            ("results", &shown_json(&results)),
        ],
        schema: some_arguments_schema(next_call.document, &next_call.edge_parameters()),
        sampling: Sampling::Greedy,
    };
    input.ask(prompts, question)
}

/// Results of calls, numbered from 1, with the names of their APIs.
pub(super) fn results_of(
    input: StageInput<'_>,
    called_task: &CalledTask,
    is_included: &dyn Fn(usize) -> bool,
) -> Value {
    let results = called_task
        .calls
        .iter()
        .enumerate()
        .filter_map(|(idx, call)| {
            let number = idx + 1;
            is_included(number).then(|| {
                let output = input.shown_value(&call.output);
                json!({"number": number, "api": call.name, "result": output})
            })
        });
    Value::Array(results.collect())
}

fn parse_first_arguments(next_call: &NextCall<'_>, text: &str) -> Result<Arguments, String> {
    if next_call.edges.is_empty() {
        return parse_arguments(text, next_call.document);
    }
    let mut filled = parse_written_arguments(text, next_call.document)?;
    let wanted = next_call.edge_parameters();
    if let Some(name) = wanted.iter().find(|name| !filled.contains_key(**name)) {
        return Err(format!("the reply has no \"{name}\""));
    }
    filled.retain(|name, _| wanted.contains(&name.as_str()));
    let asserted = FormatRule::Asserted;
    let fit = next_call
        .document
        .check_values(&filled, "arguments", asserted);
    fit.map_err(|error| error.to_string())?;
    if !next_call.has_parameters_without_edge() {
        check_arguments(&filled, next_call.document)?;
    }
    Ok(filled)
}

/// Requests the arguments without an edge; arguments with an edge are unchanged.
fn fill_remaining(
    run: &mut Run<'_>,
    input: StageInput<'_>,
    call_idx: usize,
    next_calls: &[NextCall<'_>],
    first_arguments: &[Result<Arguments, Dropped>],
    states: &[State],
) -> Result<Vec<Result<Arguments, Dropped>>, PipelineError> {
    let mut item_prompts = Vec::new();
    let mut reply_idx_of: BTreeMap<usize, usize> = BTreeMap::new();
    for (idx, (next, filled)) in next_calls.iter().zip(first_arguments).enumerate() {
        let (Ok(filled), Ok(called)) = (filled, &states[next.task_idx]) else {
            continue;
        };
        if next.edges.is_empty() || !next.has_parameters_without_edge() {
            continue;
        }
        reply_idx_of.insert(idx, item_prompts.len());
        item_prompts.push(input.ask(
            run.prompts(),
            Question {
                id: format!("{}/{}/complete", called.task.id, call_idx + 1),
                prompt: prompts::COMPLETE_CALL,
                values: &[
                    ("document", &shown_document(next.document)),
                    ("arguments", &shown_json(&Value::Object(filled.clone()))),
                ],
                schema: arguments_schema(next.document),
                sampling: Sampling::Sampled,
            },
        )?);
    }
    let next_idxs: Vec<usize> = reply_idx_of.keys().copied().collect();
    let parse_reply = |n: usize, text: &str| {
        let next = &next_calls[next_idxs[n]];
        let mut arguments = parse_written_arguments(text, next.document)?;
        if let Ok(filled) = &first_arguments[next_idxs[n]] {
            arguments.extend(filled.clone());
        }
        check_arguments(&arguments, next.document)?;
        Ok(arguments)
    };
    let mut replies: Vec<_> = run
        .ask(CALLS, &item_prompts, &parse_reply)?
        .into_iter()
        .map(Some)
        .collect();
    let result = |(idx, filled): (usize, &Result<Arguments, Dropped>)| {
        let reply = reply_idx_of
            .get(&idx)
            .and_then(|call_idx| replies[*call_idx].take());
        reply.unwrap_or_else(|| filled.clone())
    };
    Ok(first_arguments.iter().enumerate().map(result).collect())
}

/// Maximum number of requests for the calls of a task.
pub(super) fn n_requests(task: &Task, input: StageInput<'_>) -> usize {
    let n_requests_of_api = |api: &String| {
        let wanted: Vec<&str> = task
            .edges
            .iter()
            .filter(|edge| edge.target == *api)
            .map(|edge| edge.parameter.as_str())
            .collect();
        let document = input.catalogue.get(api);
        let mut names = document.into_iter().flat_map(ApiDocument::parameters);
        let has_parameters_without_edge =
            names.any(|parameter| !wanted.contains(&parameter.name.as_str()));
        1 + usize::from(!wanted.is_empty() && has_parameters_without_edge)
    };
    task.apis.iter().map(n_requests_of_api).sum()
}
