//! The sixth stage: the calls of each task, executed as they are made (Figure 17).
//!
//! All tasks go forward together, one call each: a call that no edge leads to is made up; else the
//! values of its edges are taken from earlier results first, and what is missing is made up then.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tooltune_agents::executors::Executor;
use tooltune_rows::tools::{ApiDocument, TrajectoryCall};
use tooltune_synth::graph::NamedEdge;

use super::asking::{
    Freedom, Given, Question, arguments, arguments_schema, checked, shown_document, shown_json,
    some_arguments_schema, useless, written_arguments,
};
use super::graph::reason_of;
use super::items::{CalledTask, Task};
use super::origins::derived;
use super::{CALLS, earlier, prompts};
use crate::api_calls::ApiCall;
use crate::ask::Asked;
use crate::error::PipelineError;
use crate::prompts::Prompts;
use crate::reply::excerpt;
use crate::report::Dropped;
use crate::run::{Made, Run};

const NOT_FOUND: &str = "arguments of an edge that stand in no earlier output";

type Arguments = Map<String, Value>;

/// A task and how far it has come.
type State = Result<CalledTask, Dropped>;

/// Makes the calls of all tasks; a task of which one fails is dropped.
///
/// # Source
///
/// GOAT, section 3.1.2: API call generation and execution.
pub(super) fn make(
    run: &mut Run<'_>,
    given: Given<'_>,
    tasks: Vec<Task>,
    executor: &mut dyn Executor,
) -> Result<Made<CalledTask>, PipelineError> {
    let n_rounds = tasks.iter().map(|task| task.apis.len()).max().unwrap_or(0);
    let mut states: Vec<State> = tasks
        .into_iter()
        .map(|task| {
            Ok(CalledTask {
                task,
                calls: Vec::new(),
                query: String::new(),
            })
        })
        .collect();
    for place in 0..n_rounds {
        round(run, given, place, &mut states, executor)?;
    }
    let differing = |state: State| state.and_then(earlier::differing);
    let mut made = Made::of(states.into_iter().map(differing));
    let n_lost: usize = made.kept.iter().map(n_not_found).sum();
    if n_lost > 0 {
        made.counts.insert(NOT_FOUND.to_owned(), n_lost);
    }
    Ok(made)
}

/// Edges whose value a model has made of something else than a value of an output.
fn n_not_found(called: &CalledTask) -> usize {
    let is_lost = |edge: &&NamedEdge| {
        let call = called.calls.iter().find(|call| call.name == edge.target);
        call.is_none_or(|call| !call.derived.contains_key(&edge.parameter))
    };
    called.task.edges.iter().filter(is_lost).count()
}

/// The call of one task that is to be made next.
struct Next<'a> {
    /// The task among all.
    task_idx: usize,
    document: &'a ApiDocument,
    /// The edges that lead to it.
    edges: Vec<NamedEdge>,
}

impl Next<'_> {
    /// The parameters that earlier results fill.
    fn wanted(&self) -> Vec<&str> {
        let names = self.edges.iter().map(|edge| edge.parameter.as_str());
        names.collect()
    }

    /// Whether the API takes anything that no edge leads to.
    fn has_others(&self) -> bool {
        let wanted = self.wanted();
        let mut names = self.document.parameters().map(|p| p.name.as_str());
        names.any(|name| !wanted.contains(&name))
    }
}

/// One call of each task that has come so far and has another one to make.
fn round(
    run: &mut Run<'_>,
    given: Given<'_>,
    place: usize,
    states: &mut [State],
    executor: &mut dyn Executor,
) -> Result<(), PipelineError> {
    let mut nexts = Vec::new();
    for (task_idx, state) in states.iter().enumerate() {
        let Ok(CalledTask { task, .. }) = state else {
            continue;
        };
        let Some(api) = task.apis.get(place) else {
            continue;
        };
        let edges = task.edges.iter().filter(|edge| edge.target == *api);
        nexts.push(Next {
            task_idx,
            document: given.document(api)?,
            edges: edges.cloned().collect(),
        });
    }
    let mut asked = Vec::with_capacity(nexts.len());
    for next in &nexts {
        if let Ok(called) = &states[next.task_idx] {
            asked.push(begin(given, next, called, place, run.prompts())?);
        }
    }
    let begun = run.ask(CALLS, &asked, &|idx, text| read_begun(&nexts[idx], text))?;
    let complete = complete(run, given, place, &nexts, &begun, states)?;
    let calls: Vec<Result<ApiCall, Dropped>> = nexts
        .iter()
        .zip(complete)
        .map(|(next, arguments)| {
            Ok(ApiCall {
                name: next.document.call_name(),
                arguments: arguments?,
            })
        })
        .collect();
    let there: Vec<ApiCall> = calls.iter().flatten().cloned().collect();
    let mut results = run.call_apis(CALLS, &there, executor)?.into_iter();
    for (next, call) in nexts.iter().zip(calls) {
        let result = match &call {
            Ok(_) => results.next(),
            Err(_) => None,
        };
        let state = &mut states[next.task_idx];
        let outcome = match (call, result, &mut *state) {
            (Ok(call), Some(result), Ok(called)) => match useless(&result) {
                Some((what, why)) => {
                    let detail = excerpt(&format!("{}: {why}", call.shown()));
                    Err(Dropped::new(
                        &called.task.id,
                        format!("a call {what}"),
                        detail,
                    ))
                }
                None => {
                    called.push(call, result.output);
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
        let derived = derived(&call.name, &call.arguments, &self.calls, &self.task.edges);
        self.calls.push(TrajectoryCall {
            sub_query: String::new(),
            name: call.name,
            arguments: call.arguments,
            output,
            derived,
        });
    }
}

/// The first request of a call.
fn begin(
    given: Given<'_>,
    next: &Next<'_>,
    called: &CalledTask,
    place: usize,
    prompts: &Prompts,
) -> Result<Asked, PipelineError> {
    let id = |what: &str| format!("{}/{}/{what}", called.task.id, place + 1);
    let document = shown_document(next.document);
    if next.edges.is_empty() {
        let taken = called.task.taken.get(&next.document.call_name());
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
            schema: arguments_schema(next.document),
            freedom: Freedom::Invents,
        };
        return given.ask(prompts, question);
    }
    let number = |edge: &NamedEdge| {
        let call = called
            .calls
            .iter()
            .position(|call| call.name == edge.source);
        call.map(|call| call + 1)
    };
    let wanted: Vec<Value> = next
        .edges
        .iter()
        .map(|edge| {
            json!({"parameter": edge.parameter, "result": number(edge), "reason": reason_of(edge)})
        })
        .collect();
    let sources: Vec<usize> = next.edges.iter().filter_map(number).collect();
    let results = results_of(given, called, &|number| sources.contains(&number));
    let question = Question {
        id: id("fill"),
        prompt: prompts::FILL_CALL,
        values: &[
            ("document", &document),
            ("wanted", &shown_json(&Value::Array(wanted))),
            ("results", &shown_json(&results)),
        ],
        schema: some_arguments_schema(next.document, &next.wanted()),
        freedom: Freedom::None,
    };
    given.ask(prompts, question)
}

/// The results of some calls, by their numbers from 1, with the names of their APIs.
pub(super) fn results_of(
    given: Given<'_>,
    called: &CalledTask,
    is_wanted: &dyn Fn(usize) -> bool,
) -> Value {
    let results = called.calls.iter().enumerate().filter_map(|(idx, call)| {
        let number = idx + 1;
        is_wanted(number).then(|| {
            let output = given.shown_value(&call.output);
            json!({"number": number, "api": call.name, "result": output})
        })
    });
    Value::Array(results.collect())
}

fn read_begun(next: &Next<'_>, text: &str) -> Result<Arguments, String> {
    if next.edges.is_empty() {
        return arguments(text, next.document);
    }
    let mut filled = written_arguments(text, next.document)?;
    let wanted = next.wanted();
    if let Some(name) = wanted.iter().find(|name| !filled.contains_key(**name)) {
        return Err(format!("the reply has no \"{name}\""));
    }
    filled.retain(|name, _| wanted.contains(&name.as_str()));
    let fit = next.document.check_values(&filled, "arguments");
    fit.map_err(|error| error.to_string())?;
    if !next.has_others() {
        checked(&filled, next.document)?;
    }
    Ok(filled)
}

/// Adds what no edge leads to; what is filled stays as it is.
fn complete(
    run: &mut Run<'_>,
    given: Given<'_>,
    place: usize,
    nexts: &[Next<'_>],
    begun: &[Result<Arguments, Dropped>],
    states: &[State],
) -> Result<Vec<Result<Arguments, Dropped>>, PipelineError> {
    let mut asked = Vec::new();
    let mut open: BTreeMap<usize, usize> = BTreeMap::new();
    for (idx, (next, filled)) in nexts.iter().zip(begun).enumerate() {
        let (Ok(filled), Ok(called)) = (filled, &states[next.task_idx]) else {
            continue;
        };
        if next.edges.is_empty() || !next.has_others() {
            continue;
        }
        open.insert(idx, asked.len());
        asked.push(given.ask(
            run.prompts(),
            Question {
                id: format!("{}/{}/complete", called.task.id, place + 1),
                prompt: prompts::COMPLETE_CALL,
                values: &[
                    ("document", &shown_document(next.document)),
                    ("arguments", &shown_json(&Value::Object(filled.clone()))),
                ],
                schema: arguments_schema(next.document),
                freedom: Freedom::Invents,
            },
        )?);
    }
    let places: Vec<usize> = open.keys().copied().collect();
    let read = |n: usize, text: &str| {
        let next = &nexts[places[n]];
        let mut arguments = written_arguments(text, next.document)?;
        if let Ok(filled) = &begun[places[n]] {
            arguments.extend(filled.clone());
        }
        checked(&arguments, next.document)?;
        Ok(arguments)
    };
    let mut replies: Vec<_> = run
        .ask(CALLS, &asked, &read)?
        .into_iter()
        .map(Some)
        .collect();
    let result = |(idx, filled): (usize, &Result<Arguments, Dropped>)| {
        let reply = open.get(&idx).and_then(|place| replies[*place].take());
        reply.unwrap_or_else(|| filled.clone())
    };
    Ok(begun.iter().enumerate().map(result).collect())
}

/// The requests that the calls of a task take at most.
pub(super) fn n_requests(task: &Task, given: Given<'_>) -> usize {
    let of_api = |api: &String| {
        let wanted: Vec<&str> = task
            .edges
            .iter()
            .filter(|edge| edge.target == *api)
            .map(|edge| edge.parameter.as_str())
            .collect();
        let document = given.catalogue.get(api);
        let mut names = document.into_iter().flat_map(ApiDocument::parameters);
        let has_others = names.any(|parameter| !wanted.contains(&parameter.name.as_str()));
        1 + usize::from(!wanted.is_empty() && has_others)
    };
    task.apis.iter().map(of_api).sum()
}
