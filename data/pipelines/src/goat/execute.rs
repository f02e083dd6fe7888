//! The fourth stage: an edge stays if the output of a call that was made fills the parameter of a
//! second call that works (Figures 15 and 16). Three requests and two calls of APIs an edge.

use serde_json::{Map, Value};
use tooltune_agents::executors::{CallResult, Executor};
use tooltune_synth::graph::NamedEdge;

use super::asking::{
    Freedom, Given, Question, arguments, arguments_schema, shown_document, shown_json, useless,
    verdict, verdict_schema,
};
use super::graph::reason_of;
use super::{EXECUTE, prompts};
use crate::api_calls::ApiCall;
use crate::ask::Asked;
use crate::error::PipelineError;
use crate::prompts::Prompts;
use crate::reply::excerpt;
use crate::report::Dropped;
use crate::run::{Made, Run};

const UNUSED: &str = "the second call does not use what the first one returned";

/// How far an edge has come.
type State<T> = Result<T, Dropped>;

/// Requests of an edge, and calls of APIs.
pub(super) const REQUESTS_PER_EDGE: usize = 3;
pub(super) const CALLS_PER_EDGE: usize = 2;

/// Keeps the edges that hold when their APIs are called.
///
/// # Source
///
/// GOAT, section 3.1.1: filtering via API call execution.
pub(super) fn execute(
    run: &mut Run<'_>,
    given: Given<'_>,
    edges: Vec<NamedEdge>,
    executor: &mut dyn Executor,
) -> Result<Made<NamedEdge>, PipelineError> {
    let first = first_calls(run, given, &edges)?;
    let outputs = made(run, &edges, first, "first", executor)?;
    let second = second_calls(run, given, &edges, &outputs)?;
    let called: Vec<State<Map<String, Value>>> = second
        .iter()
        .map(|state| state.as_ref().map(|call| call.arguments.clone()))
        .map(|state| state.map_err(Clone::clone))
        .collect();
    let answers = made(run, &edges, second, "second", executor)?;
    let evidence = Evidence {
        outputs,
        arguments: called,
        answers,
    };
    let outcomes = checks(run, given, &edges, evidence)?;
    let kept = edges.into_iter().zip(outcomes);
    Ok(Made::of(kept.map(|(edge, outcome)| outcome.map(|()| edge))))
}

/// The first request of each edge, which is all that is known before any is answered.
pub(super) fn first_questions(
    given: Given<'_>,
    edges: &[NamedEdge],
    prompts: &Prompts,
) -> Result<Vec<Asked>, PipelineError> {
    let question = |edge: &NamedEdge| {
        let document = given.document(&edge.source)?;
        given.ask(
            prompts,
            Question {
                id: format!("{}/first", edge.label()),
                prompt: prompts::FIRST_CALL,
                values: &[("document", &shown_document(document))],
                schema: arguments_schema(document),
                freedom: Freedom::Invents,
            },
        )
    };
    edges.iter().map(question).collect()
}

fn first_calls(
    run: &mut Run<'_>,
    given: Given<'_>,
    edges: &[NamedEdge],
) -> Result<Vec<State<ApiCall>>, PipelineError> {
    let asked = first_questions(given, edges, run.prompts())?;
    let read = |idx: usize, text: &str| {
        let name = &edges[idx].source;
        let document = given.document(name).map_err(|error| error.to_string())?;
        Ok(ApiCall {
            name: name.clone(),
            arguments: arguments(text, document)?,
        })
    };
    run.ask(EXECUTE, &asked, &read)
}

/// Makes the calls that there are; one that fails ends its edge.
fn made(
    run: &mut Run<'_>,
    edges: &[NamedEdge],
    calls: Vec<State<ApiCall>>,
    which: &str,
    executor: &mut dyn Executor,
) -> Result<Vec<State<CallResult>>, PipelineError> {
    let there: Vec<ApiCall> = calls.iter().flatten().cloned().collect();
    let mut results = run.call_apis(EXECUTE, &there, executor)?.into_iter();
    let states = edges.iter().zip(calls).map(|(edge, call)| {
        let call = call?;
        let result = results.next().unwrap_or_else(|| CallResult::failure(""));
        match useless(&result) {
            Some((what, why)) => {
                let detail = excerpt(&format!("{}: {why}", call.shown()));
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
    given: Given<'_>,
    edges: &[NamedEdge],
    outputs: &[State<CallResult>],
) -> Result<Vec<State<ApiCall>>, PipelineError> {
    let mut asked = Vec::new();
    let mut targets = Vec::new();
    for (edge, output) in edges.iter().zip(outputs) {
        let Ok(output) = output else { continue };
        let document = given.document(&edge.target)?;
        asked.push(given.ask(
            run.prompts(),
            Question {
                id: format!("{}/second", edge.label()),
                prompt: prompts::NEXT_CALL,
                values: &[
                    ("document", &shown_document(document)),
                    ("parameter", &edge.parameter),
                    ("reason", &reason_of(edge)),
                    ("result", &given.shown(&output.output)),
                ],
                schema: arguments_schema(document),
                freedom: Freedom::None,
            },
        )?);
        targets.push((edge, document));
    }
    let read = |idx: usize, text: &str| {
        let (edge, document) = targets[idx];
        let arguments = arguments(text, document)?;
        if !arguments.contains_key(&edge.parameter) {
            return Err(format!("the reply has no \"{}\"", edge.parameter));
        }
        Ok(ApiCall {
            name: edge.target.clone(),
            arguments,
        })
    };
    let replies = run.ask(EXECUTE, &asked, &read)?;
    Ok(spread(outputs, replies))
}

/// What came of the two calls of each edge.
struct Evidence {
    /// Of the first calls.
    outputs: Vec<State<CallResult>>,
    /// Of the second calls.
    arguments: Vec<State<Map<String, Value>>>,
    /// Of the second calls, too.
    answers: Vec<State<CallResult>>,
}

fn checks(
    run: &mut Run<'_>,
    given: Given<'_>,
    edges: &[NamedEdge],
    evidence: Evidence,
) -> Result<Vec<State<()>>, PipelineError> {
    let Evidence {
        outputs,
        arguments,
        answers,
    } = evidence;
    let mut asked = Vec::new();
    for (idx, edge) in edges.iter().enumerate() {
        let (Ok(output), Ok(arguments), Ok(_)) = (&outputs[idx], &arguments[idx], &answers[idx])
        else {
            continue;
        };
        let shown = shown_json(&Value::Object(arguments.clone()));
        asked.push(given.ask(
            run.prompts(),
            Question {
                id: format!("{}/check", edge.label()),
                prompt: prompts::CHECK_CALL,
                values: &[
                    ("result", &given.shown(&output.output)),
                    ("parameter", &edge.parameter),
                    ("arguments", &shown),
                ],
                schema: verdict_schema(),
                freedom: Freedom::None,
            },
        )?);
    }
    let verdicts = run.ask(EXECUTE, &asked, &|_, text| verdict(text))?;
    let verdicts = spread(&answers, verdicts).into_iter().zip(edges);
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

/// The replies, at the places of those that were asked about; the others stay what they are. A reply
/// that cannot be read is that of its edge.
fn spread<T, U>(states: &[State<T>], replies: Vec<State<U>>) -> Vec<State<U>> {
    let mut replies = replies.into_iter();
    let place = |state: &State<T>| match state {
        Ok(_) => replies
            .next()
            .unwrap_or_else(|| Err(Dropped::new("", crate::ask::NO_REPLY, ""))),
        Err(dropped) => Err(dropped.clone()),
    };
    states.iter().map(place).collect()
}
