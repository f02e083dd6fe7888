//! The last stages: a sub-query for each call, the user's query, and the answer (Figures 18 to 20).

use std::collections::{BTreeSet, HashSet};

use serde_json::{Value, json};
use tooltune_rows::tools::Trajectory;

use super::asking::{
    Freedom, Given, Question, object, object_schema, sentences_schema, shown_document, shown_json,
    text_of,
};
use super::calls::results_of;
use super::items::CalledTask;
use super::origins::{facts, without_stated};
use super::{QUERY, RESPONSE, SUB_QUERIES, prompts};
use crate::ask::Asked;
use crate::error::PipelineError;
use crate::prompts::Prompts;
use crate::reply::excerpt;
use crate::report::Dropped;
use crate::run::{Made, Run};

const SAME_QUERY: &str = "its query stands in an earlier row";
const UNUSABLE: &str = "training would refuse the row";
const WITHOUT_FACTS: &str = "rows without facts, whose answer states no value of the last outputs";

/// The schema of a thought and a text, which may be long.
fn thought_and(name: &'static str) -> Value {
    let properties = [
        ("thought".to_owned(), sentences_schema()),
        (name.to_owned(), json!({"type": "string", "minLength": 1})),
    ];
    object_schema(properties.into_iter().collect(), &["thought", name])
}

/// A question for each call of each task.
pub(super) fn sub_queries(
    given: Given<'_>,
    tasks: &[CalledTask],
    prompts: &Prompts,
) -> Result<Vec<Asked>, PipelineError> {
    let mut asked = Vec::new();
    for called in tasks {
        for (idx, call) in called.calls.iter().enumerate() {
            let document = given.document(&call.name)?;
            let sources: BTreeSet<usize> = call.derived.values().map(|at| at.call + 1).collect();
            let results = results_of(given, called, &|number| {
                number <= idx && sources.contains(&number)
            });
            asked.push(given.ask(
                prompts,
                Question {
                    id: format!("{}/{}", called.task.id, idx + 1),
                    prompt: prompts::SUB_QUERY,
                    values: &[
                        ("document", &shown_document(document)),
                        (
                            "arguments",
                            &shown_json(&Value::Object(call.arguments.clone())),
                        ),
                        ("results", &shown_json(&results)),
                    ],
                    schema: thought_and("instruction"),
                    freedom: Freedom::None,
                },
            )?);
        }
    }
    Ok(asked)
}

/// Asks for the sub-queries; a task that lacks one is dropped.
pub(super) fn ask_sub_queries(
    run: &mut Run<'_>,
    tasks: Vec<CalledTask>,
    asked: &[Asked],
) -> Result<Made<CalledTask>, PipelineError> {
    let read = |_: usize, text: &str| text_of(&object(text)?, "instruction");
    let mut replies = run.ask(SUB_QUERIES, asked, &read)?.into_iter();
    let mut results = Vec::with_capacity(tasks.len());
    for mut called in tasks {
        let mut lost = None;
        for call in &mut called.calls {
            match replies.next() {
                Some(Ok(text)) => call.sub_query = text,
                Some(Err(dropped)) => lost = lost.or(Some(dropped)),
                None => {}
            }
        }
        results.push(match lost {
            Some(dropped) => Err(dropped),
            None => Ok(called),
        });
    }
    Ok(Made::of(results))
}

/// A question for each task: what the user asked.
pub(super) fn queries(
    given: Given<'_>,
    tasks: &[CalledTask],
    prompts: &Prompts,
) -> Result<Vec<Asked>, PipelineError> {
    let question = |called: &CalledTask| {
        let steps: Vec<&str> = called
            .calls
            .iter()
            .map(|call| call.sub_query.as_str())
            .collect();
        given.ask(
            prompts,
            Question {
                id: called.task.id.clone(),
                prompt: prompts::QUERY,
                values: &[("sub_queries", &shown_json(&json!(steps)))],
                schema: thought_and("query"),
                freedom: Freedom::None,
            },
        )
    };
    tasks.iter().map(question).collect()
}

/// Asks for the queries; of two that are alike, the first stays.
pub(super) fn ask_queries(
    run: &mut Run<'_>,
    given: Given<'_>,
    tasks: Vec<CalledTask>,
    asked: &[Asked],
) -> Result<Made<CalledTask>, PipelineError> {
    let read = |_: usize, text: &str| text_of(&object(text)?, "query");
    let replies = run.ask(QUERY, asked, &read)?;
    let mut seen: HashSet<String> = match given.earlier {
        Some(earlier) => earlier.queries.clone(),
        None => HashSet::new(),
    };
    let results = tasks.into_iter().zip(replies).map(|(mut called, query)| {
        let query = query?;
        if !seen.insert(normal(&query)) {
            let id = &called.task.id;
            return Err(Dropped::new(id, SAME_QUERY, excerpt(&query)));
        }
        called.query = query;
        Ok(called)
    });
    Ok(Made::of(results.collect::<Vec<_>>()))
}

/// A query without what does not tell it from others.
pub(super) fn normal(query: &str) -> String {
    let words: Vec<String> = query.split_whitespace().map(str::to_lowercase).collect();
    words.join(" ")
}

/// A question for each task: the answer.
pub(super) fn responses(
    given: Given<'_>,
    tasks: &[CalledTask],
    prompts: &Prompts,
) -> Result<Vec<Asked>, PipelineError> {
    let question = |called: &CalledTask| {
        let steps: Vec<Value> = called
            .calls
            .iter()
            .map(|call| json!({"step": call.sub_query, "result": given.shown_value(&call.output)}))
            .collect();
        given.ask(
            prompts,
            Question {
                id: called.task.id.clone(),
                prompt: prompts::RESPONSE,
                values: &[
                    ("query", &called.query),
                    ("steps", &shown_json(&Value::Array(steps))),
                ],
                schema: thought_and("final_answer"),
                freedom: Freedom::None,
            },
        )
    };
    tasks.iter().map(question).collect()
}

/// Asks for the answers, with which the rows are whole.
pub(super) fn ask_responses(
    run: &mut Run<'_>,
    given: Given<'_>,
    tasks: Vec<CalledTask>,
    asked: &[Asked],
) -> Result<Made<Trajectory>, PipelineError> {
    let read = |_: usize, text: &str| text_of(&object(text)?, "final_answer");
    let replies = run.ask(RESPONSE, asked, &read)?;
    let mut made = Made::of(tasks.into_iter().zip(replies).map(|(called, response)| {
        let row = row(called, response?);
        match row.check(given.catalogue) {
            Ok(()) => Ok(row),
            Err(fault) => Err(Dropped::new(&row.id, UNUSABLE, excerpt(&fault.to_string()))),
        }
    }));
    let n_without = made.kept.iter().filter(|row| row.facts.is_empty()).count();
    if n_without > 0 {
        made.counts.insert(WITHOUT_FACTS.to_owned(), n_without);
    }
    Ok(made)
}

fn row(called: CalledTask, response: String) -> Trajectory {
    let CalledTask {
        task,
        mut calls,
        query,
    } = called;
    let facts = facts(&calls, &query, &response);
    without_stated(&mut calls, &query);
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
