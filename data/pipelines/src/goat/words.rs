//! Stages 7 to 9: a sub-query for each call, the user's query, and the answer (Figures 18 to 20).

use std::collections::{BTreeSet, HashSet};

use serde_json::{Value, json};
use tooltune_apis::Trajectory;

use super::calls::results_of;
use super::items::CalledTask;
use super::origins::{new_facts, remove_stated};
use super::stage_prompts::{
    Question, Sampling, StageInput, object_schema, parse_object, sentences_schema, shown_document,
    shown_json, string_field,
};
use super::{QUERY, RESPONSE, SUB_QUERIES, prompts};
use crate::ask::ItemPrompt;
use crate::error::PipelineError;
use crate::prompts::Prompts;
use crate::reply::excerpt;
use crate::report::Dropped;
use crate::run::{Run, StageResult};

const SAME_QUERY: &str = "same query as an earlier row";
const UNUSABLE: &str = "training would reject the row";
const WITHOUT_FACTS: &str = "rows without facts: the answer states no value of the final outputs";

/// The schema of an object with a thought and a field that may be long.
fn thought_and_field(name: &'static str) -> Value {
    let properties = [
        ("thought".to_owned(), sentences_schema()),
        (name.to_owned(), json!({"type": "string", "minLength": 1})),
    ];
    object_schema(properties.into_iter().collect(), &["thought", name])
}

/// One question per call of each task.
pub(super) fn sub_queries(
    input: StageInput<'_>,
    tasks: &[CalledTask],
    prompts: &Prompts,
) -> Result<Vec<ItemPrompt>, PipelineError> {
    let mut item_prompts = Vec::new();
    for called_task in tasks {
        for (idx, call) in called_task.calls.iter().enumerate() {
            let document = input.document(&call.name)?;
            let sources: BTreeSet<usize> = call
                .derived
                .values()
                .map(|origin| origin.call + 1)
                .collect();
            let results = results_of(input, called_task, &|number| {
                number <= idx && sources.contains(&number)
            });
            item_prompts.push(input.ask(
                prompts,
                Question {
                    id: format!("{}/{}", called_task.task.id, idx + 1),
                    prompt: prompts::SUB_QUERY,
                    values: &[
                        ("document", &shown_document(document)),
                        (
                            "arguments",
                            &shown_json(&Value::Object(call.arguments.clone())),
                        ),
                        ("results", &shown_json(&results)),
                    ],
                    schema: thought_and_field("instruction"),
                    sampling: Sampling::Greedy,
                },
            )?);
        }
    }
    Ok(item_prompts)
}

/// Requests the sub-queries; a task is dropped if one of its sub-queries is missing.
pub(super) fn ask_sub_queries(
    run: &mut Run<'_>,
    tasks: Vec<CalledTask>,
    item_prompts: &[ItemPrompt],
) -> Result<StageResult<CalledTask>, PipelineError> {
    let parse_reply = |_: usize, text: &str| string_field(&parse_object(text)?, "instruction");
    let mut replies = run
        .ask(SUB_QUERIES, item_prompts, &parse_reply)?
        .into_iter();
    let mut results = Vec::with_capacity(tasks.len());
    for mut called in tasks {
        let mut first_dropped = None;
        for call in &mut called.calls {
            match replies.next() {
                Some(Ok(text)) => call.sub_query = text,
                Some(Err(dropped)) => first_dropped = first_dropped.or(Some(dropped)),
                None => {}
            }
        }
        results.push(match first_dropped {
            Some(dropped) => Err(dropped),
            None => Ok(called),
        });
    }
    Ok(StageResult::from_results(results))
}

/// One question per task: the user's query.
pub(super) fn queries(
    input: StageInput<'_>,
    tasks: &[CalledTask],
    prompts: &Prompts,
) -> Result<Vec<ItemPrompt>, PipelineError> {
    let question = |called_task: &CalledTask| {
        let steps: Vec<&str> = called_task
            .calls
            .iter()
            .map(|call| call.sub_query.as_str())
            .collect();
        input.ask(
            prompts,
            Question {
                id: called_task.task.id.clone(),
                prompt: prompts::QUERY,
                values: &[("sub_queries", &shown_json(&json!(steps)))],
                schema: thought_and_field("query"),
                sampling: Sampling::Greedy,
            },
        )
    };
    tasks.iter().map(question).collect()
}

/// Requests the queries. If several are equal, only the first is kept.
pub(super) fn ask_queries(
    run: &mut Run<'_>,
    input: StageInput<'_>,
    tasks: Vec<CalledTask>,
    item_prompts: &[ItemPrompt],
) -> Result<StageResult<CalledTask>, PipelineError> {
    let parse_reply = |_: usize, text: &str| string_field(&parse_object(text)?, "query");
    let replies = run.ask(QUERY, item_prompts, &parse_reply)?;
    let mut seen: HashSet<String> = match input.earlier {
        Some(earlier) => earlier.queries.clone(),
        None => HashSet::new(),
    };
    let results = tasks.into_iter().zip(replies).map(|(mut called, query)| {
        let query = query?;
        if !seen.insert(normalize_query(&query)) {
            let id = &called.task.id;
            return Err(Dropped::new(id, SAME_QUERY, excerpt(&query)));
        }
        called.query = query;
        Ok(called)
    });
    Ok(StageResult::from_results(results.collect::<Vec<_>>()))
}

/// Normalizes a query for comparison.
pub(super) fn normalize_query(query: &str) -> String {
    let words: Vec<String> = query.split_whitespace().map(str::to_lowercase).collect();
    words.join(" ")
}

/// One question per task: the answer.
pub(super) fn responses(
    input: StageInput<'_>,
    tasks: &[CalledTask],
    prompts: &Prompts,
) -> Result<Vec<ItemPrompt>, PipelineError> {
    let question = |called_task: &CalledTask| {
        let steps: Vec<Value> = called_task
            .calls
            .iter()
            .map(|call| json!({"step": call.sub_query, "result": input.shown_value(&call.output)}))
            .collect();
        input.ask(
            prompts,
            Question {
                id: called_task.task.id.clone(),
                prompt: prompts::RESPONSE,
                values: &[
                    ("query", &called_task.query),
                    ("steps", &shown_json(&Value::Array(steps))),
                ],
                schema: thought_and_field("final_answer"),
                sampling: Sampling::Greedy,
            },
        )
    };
    tasks.iter().map(question).collect()
}

/// Requests the answers, which complete the rows.
pub(super) fn ask_responses(
    run: &mut Run<'_>,
    input: StageInput<'_>,
    tasks: Vec<CalledTask>,
    item_prompts: &[ItemPrompt],
) -> Result<StageResult<Trajectory>, PipelineError> {
    let parse_reply = |_: usize, text: &str| string_field(&parse_object(text)?, "final_answer");
    let replies = run.ask(RESPONSE, item_prompts, &parse_reply)?;
    let mut result = StageResult::from_results(tasks.into_iter().zip(replies).map(
        |(called_task, response)| {
            let row = to_trajectory(called_task, response?);
            match row.check(input.catalogue) {
                Ok(()) => Ok(row),
                Err(fault) => Err(Dropped::new(&row.id, UNUSABLE, excerpt(&fault.to_string()))),
            }
        },
    ));
    let n_without = result
        .kept
        .iter()
        .filter(|row| row.facts.is_empty())
        .count();
    if n_without > 0 {
        result.counts.insert(WITHOUT_FACTS.to_owned(), n_without);
    }
    Ok(result)
}

fn to_trajectory(called_task: CalledTask, response: String) -> Trajectory {
    let CalledTask {
        task,
        mut calls,
        query,
    } = called_task;
    let facts = new_facts(&calls, &query, &response);
    remove_stated(&mut calls, &query);
    let mut subgraph = task.apis;
    subgraph.sort();
    Trajectory {
        id: task.id,
        query,
        calls,
        response,
        subgraph,
        facts,
    }
}
