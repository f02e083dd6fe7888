//! Stage 4: keeps an edge if the output of an executed call fills the parameter of a second call
//! that succeeds (Figures 15 and 16). Each edge needs three requests and two API calls.

use serde_json::{Map, Value};
use tooltune_agents::executors::{CallResult, Executor};
use tooltune_synth::graph::NamedEdge;

use super::graph::reason_of;
use super::stage_prompts::{
    Question, Sampling, StageInput, arguments_schema, parse_arguments, parse_verdict,
    shown_document, shown_json, unusable_reason, verdict_schema,
};
use super::{EXECUTE, prompts};
use crate::api_calls::ApiCall;
use crate::ask::ItemPrompt;
use crate::error::PipelineError;
use crate::prompts::Prompts;
use crate::reply::excerpt;
use crate::report::Dropped;
use crate::run::{Run, StageResult};

const UNUSED: &str = "the second call does not use the result of the first";

/// An edge's state, or the reason why it was dropped.
type State<T> = Result<T, Dropped>;

/// Number of requests per edge, and of API calls per edge.
pub(super) const REQUESTS_PER_EDGE: usize = 3;
pub(super) const CALLS_PER_EDGE: usize = 2;

/// Keeps the edges that are confirmed by executed calls.
///
/// # Source
///
/// GOAT, section 3.1.1: filtering via API call execution.
pub(super) fn execute(
    run: &mut Run<'_>,
    input: StageInput<'_>,
    edges: Vec<NamedEdge>,
    executor: &mut dyn Executor,
) -> Result<StageResult<NamedEdge>, PipelineError> {
    let first_results = first_calls(run, input, &edges)?;
    let outputs = make_calls(run, &edges, first_results, "first", executor)?;
    let second = second_calls(run, input, &edges, &outputs)?;
    let second_arguments: Vec<State<Map<String, Value>>> = second
        .iter()
        .map(|state| state.as_ref().map(|call| call.arguments.clone()))
        .map(|state| state.map_err(Clone::clone))
        .collect();
    let second_results = make_calls(run, &edges, second, "second", executor)?;
    let evidence = Evidence {
        outputs,
        arguments: second_arguments,
        answers: second_results,
    };
    let outcomes = checks(run, input, &edges, evidence)?;
    let kept = edges.into_iter().zip(outcomes);
    Ok(StageResult::from_results(
        kept.map(|(edge, outcome)| outcome.map(|()| edge)),
    ))
}

/// The first request of each edge. Later requests depend on its reply.
pub(super) fn first_questions(
    input: StageInput<'_>,
    edges: &[NamedEdge],
    prompts: &Prompts,
) -> Result<Vec<ItemPrompt>, PipelineError> {
    let question = |edge: &NamedEdge| {
        let document = input.document(&edge.source)?;
        input.ask(
            prompts,
            Question {
                id: format!("{}/first", edge.label()),
                prompt: prompts::FIRST_CALL,
                values: &[("document", &shown_document(document))],
                schema: arguments_schema(document),
                sampling: Sampling::Sampled,
            },
        )
    };
    edges.iter().map(question).collect()
}

fn first_calls(
    run: &mut Run<'_>,
    input: StageInput<'_>,
    edges: &[NamedEdge],
) -> Result<Vec<State<ApiCall>>, PipelineError> {
    let item_prompts = first_questions(input, edges, run.prompts())?;
    let parse_reply = |idx: usize, text: &str| {
        let name = &edges[idx].source;
        let document = input.document(name).map_err(|error| error.to_string())?;
        Ok(ApiCall {
            name: name.clone(),
            arguments: parse_arguments(text, document)?,
        })
    };
    run.ask(EXECUTE, &item_prompts, &parse_reply)
}

/// Makes the calls of the remaining edges; a failing call drops its edge.
fn make_calls(
    run: &mut Run<'_>,
    edges: &[NamedEdge],
    calls: Vec<State<ApiCall>>,
    which: &str,
    executor: &mut dyn Executor,
) -> Result<Vec<State<CallResult>>, PipelineError> {
    let complete_calls: Vec<ApiCall> = calls.iter().flatten().cloned().collect();
    let mut results = run
        .call_apis(EXECUTE, &complete_calls, executor)?
        .into_iter();
    let states = edges.iter().zip(calls).map(|(edge, call)| {
        let call = call?;
        let result = results.next().unwrap_or_else(|| CallResult::failure(""));
        match unusable_reason(&result) {
            Some((what, why)) => {
                let detail = excerpt(&format!("{}: {why}", call.text()));
                let reason = format!("the {which} call {what}");
                Err(Dropped::new(&edge.label(), reason, detail))
            }
            None => Ok(result),
        }
    });
    Ok(states.collect())
}

fn second_calls(
    run: &mut Run<'_>,
    input: StageInput<'_>,
    edges: &[NamedEdge],
    outputs: &[State<CallResult>],
) -> Result<Vec<State<ApiCall>>, PipelineError> {
    let mut item_prompts = Vec::new();
    let mut targets = Vec::new();
    for (edge, output) in edges.iter().zip(outputs) {
        let Ok(output) = output else { continue };
        let document = input.document(&edge.target)?;
        item_prompts.push(input.ask(
            run.prompts(),
            Question {
                id: format!("{}/second", edge.label()),
                prompt: prompts::NEXT_CALL,
                values: &[
                    ("document", &shown_document(document)),
                    ("parameter", &edge.parameter),
                    ("reason", &reason_of(edge)),
                    ("result", &input.shown_result(&output.output)),
                ],
                schema: arguments_schema(document),
                sampling: Sampling::Greedy,
            },
        )?);
        targets.push((edge, document));
    }
    let parse_reply = |idx: usize, text: &str| {
        let (edge, document) = targets[idx];
        let arguments = parse_arguments(text, document)?;
        if !arguments.contains_key(&edge.parameter) {
            return Err(format!("the reply has no \"{}\"", edge.parameter));
        }
        Ok(ApiCall {
            name: edge.target.clone(),
            arguments,
        })
    };
    let replies = run.ask(EXECUTE, &item_prompts, &parse_reply)?;
    Ok(merge_replies(outputs, replies))
}

/// The results of the two calls of each edge.
struct Evidence {
    /// Results of the first calls.
    outputs: Vec<State<CallResult>>,
    /// Arguments of the second calls.
    arguments: Vec<State<Map<String, Value>>>,
    /// Results of the second calls.
    answers: Vec<State<CallResult>>,
}

fn checks(
    run: &mut Run<'_>,
    input: StageInput<'_>,
    edges: &[NamedEdge],
    evidence: Evidence,
) -> Result<Vec<State<()>>, PipelineError> {
    let Evidence {
        outputs,
        arguments,
        answers: second_results,
    } = evidence;
    let mut item_prompts = Vec::new();
    for (idx, edge) in edges.iter().enumerate() {
        let (Ok(output), Ok(arguments), Ok(_)) =
            (&outputs[idx], &arguments[idx], &second_results[idx])
        else {
            continue;
        };
        let arguments_json = shown_json(&Value::Object(arguments.clone()));
        item_prompts.push(input.ask(
            run.prompts(),
            Question {
                id: format!("{}/check", edge.label()),
                prompt: prompts::CHECK_CALL,
                values: &[
                    ("result", &input.shown_result(&output.output)),
                    ("parameter", &edge.parameter),
                    ("arguments", &arguments_json),
                ],
                schema: verdict_schema(),
                sampling: Sampling::Greedy,
            },
        )?);
    }
    let verdicts = run.ask(EXECUTE, &item_prompts, &|_, text| parse_verdict(text))?;
    let verdicts = merge_replies(&second_results, verdicts)
        .into_iter()
        .zip(edges);
    Ok(verdicts
        .map(|(verdict, edge)| {
            let verdict = verdict?;
            if verdict.is_connectable {
                return Ok(());
            }
            let detail = excerpt(&verdict.reason);
            Err(Dropped::new(&edge.label(), UNUSED, detail))
        })
        .collect())
}

/// Merges the replies into the states that are `Ok`, in order; other states are unchanged. An
/// unparsable reply drops its edge.
fn merge_replies<T, U>(states: &[State<T>], replies: Vec<State<U>>) -> Vec<State<U>> {
    let mut replies = replies.into_iter();
    let next_state = |state: &State<T>| match state {
        Ok(_) => replies
            .next()
            .unwrap_or_else(|| Err(Dropped::new("", crate::ask::NO_REPLY, ""))),
        Err(dropped) => Err(dropped.clone()),
    };
    states.iter().map(next_state).collect()
}
