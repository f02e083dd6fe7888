//! Joins a file of questions and a file of responses into rows.
//!
//! A response is stored only once in its file and in memory, even if many questions refer to it.
//! Questions inherit the split of their response, so that questions about one response are never
//! divided between training and test.

use std::collections::HashMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_apis::{Fields, JsonLines, ToolsError, did_you_mean};
use tooltune_json::ReadError;
use tooltune_json::python::{PyValue, python_repr};

use super::answers::AnswerMetric;
use super::error::ToolQaError;
use crate::row_suite::read_unique;

/// The type of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum TaskType {
    /// The value of a key.
    Extractive,
    /// The entries that fulfil a condition.
    Filtering,
    /// A value computed from several entries.
    Aggregation,
}

impl TaskType {
    /// All types, in the order in which the classifier's output is searched.
    pub const ALL: [Self; 3] = [Self::Extractive, Self::Filtering, Self::Aggregation];

    /// The name used in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Extractive => "EXTRACTIVE",
            Self::Filtering => "FILTERING",
            Self::Aggregation => "AGGREGATION",
        }
    }
}

/// A tool response.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolResponse {
    /// Id in the files.
    pub response_id: String,
    /// The endpoint that returned it.
    pub endpoint: String,
    /// The split, such as `paper` or `extra`.
    pub split: String,
    /// The response.
    pub response: Value,
}

impl ToolResponse {
    /// Length as in the paper: number of characters of Python's `str(response)`.
    pub fn n_characters(&self) -> usize {
        python_repr(&PyValue::from(&self.response)).chars().count()
    }
}

/// A question about a response, with its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolQaRow {
    /// Id, unique among all rows.
    pub uid: String,
    /// The template of the question.
    pub task: String,
    /// The type of the question.
    pub task_type: TaskType,
    /// The metric for answers.
    pub metric: AnswerMetric,
    /// The question.
    pub question: String,
    /// The gold answer.
    pub gold_answer: String,
    /// What is known about the answer.
    pub facts: AnswerFacts,
    /// Paths of the keys that the program of the answer reads, if they are known.
    pub read_keys: Option<Vec<Vec<String>>>,
    /// The response.
    pub response: Arc<ToolResponse>,
}

/// What a row may state about its answer; generated rows do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerFacts {
    /// Largest number of keys on a path that the program of the answer reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_depth: Option<usize>,
    /// The eighth of its list, from 1, that contains the record with the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_position: Option<usize>,
    /// The size that the response was grown or cut to, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_tokens: Option<usize>,
}

/// The responses of a file by id.
#[derive(Debug, Clone, Default)]
pub struct ToolResponses {
    by_id: HashMap<String, Arc<ToolResponse>>,
}

impl ToolResponses {
    /// Reads rows `{"response_id", "endpoint", "split", "response"}` from a file of any supported
    /// format.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, or contains no rows
    /// - a row is not JSON or not an object, or a field is missing or misspelled
    /// - two rows have the same `response_id`
    pub fn read(lines: JsonLines) -> Result<Self, ToolQaError> {
        const FIELDS: [&str; 4] = ["response_id", "endpoint", "split", "response"];
        let parse = |location: &str, value: Value| {
            let fields = Fields::new(
                &value,
                "",
                "a line needs response_id, endpoint, split, response",
            );
            let response = fields.and_then(|fields| {
                fields.refuse_misspelled(&FIELDS)?;
                let response = fields.raw("response");
                Ok(ToolResponse {
                    response_id: fields.text("response_id")?.to_owned(),
                    endpoint: fields.text("endpoint")?.to_owned(),
                    split: fields.text("split")?.to_owned(),
                    response: response.ok_or_else(|| fields.missing("response"))?.clone(),
                })
            });
            response.map_err(|error| ToolQaError::from(error.at(location)))
        };
        let responses = read_unique(lines, "responses", "response_id", parse, |response| {
            &response.response_id
        })?;
        let by_id = responses
            .into_iter()
            .map(|response| (response.response_id.clone(), Arc::new(response)));
        Ok(Self {
            by_id: by_id.collect(),
        })
    }

    /// The response with an id.
    pub fn get(&self, response_id: &str) -> Option<&Arc<ToolResponse>> {
        self.by_id.get(response_id)
    }

    /// The responses, ordered by endpoint and id.
    pub fn sorted_by_id(&self) -> Vec<&ToolResponse> {
        let mut responses: Vec<&ToolResponse> =
            self.by_id.values().map(|response| &**response).collect();
        responses.sort_by_key(|response| (&response.endpoint, &response.response_id));
        responses
    }

    /// Number of responses.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are no responses.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}

/// Reads rows `{"uid", "response_id", "endpoint", "task", "task_type", "metric", "question",
/// "gold_answer"}`, all of strings, from a file of any supported format. Optional fields are the
/// integers of [`AnswerFacts`], and `read_keys`, a list of lists of strings.
///
/// # Errors
///
/// - the file cannot be read, or contains no rows
/// - a row is not JSON or not an object, or a field is missing or misspelled
/// - a task type or metric is unknown, or two rows have the same `uid`
/// - a row's response is not among `responses`, or has another endpoint
pub fn read_questions(
    lines: JsonLines,
    responses: &ToolResponses,
) -> Result<Vec<ToolQaRow>, ToolQaError> {
    let parse = |location: &str, value: Value| parse_row(location, &value, responses);
    read_unique(lines, "questions", "uid", parse, |row| &row.uid)
}

fn parse_row(
    location: &str,
    value: &Value,
    responses: &ToolResponses,
) -> Result<ToolQaRow, ToolQaError> {
    const OPTIONAL: [&str; 5] = [
        "answer_depth",
        "answer_position",
        "target_tokens",
        "read_keys",
        "program",
    ];
    const FIELDS: [&str; 8] = [
        "uid",
        "response_id",
        "endpoint",
        "task",
        "task_type",
        "metric",
        "question",
        "gold_answer",
    ];
    let (texts, facts, read_keys) = Fields::new(
        value,
        "",
        "a line needs eight fields, from uid to gold_answer",
    )
    .and_then(|fields| {
        fields.refuse_misspelled(&[&FIELDS[..], &OPTIONAL[..]].concat())?;
        let texts: Vec<String> = FIELDS
            .iter()
            .map(|name| fields.text(name).map(str::to_owned))
            .collect::<Result<_, ToolsError>>()?;
        let texts = <[String; 8]>::try_from(texts).map_err(|_| fields.missing("uid"))?;
        let facts = AnswerFacts {
            answer_depth: optional(&fields, "answer_depth", "a positive integer")?,
            answer_position: optional(&fields, "answer_position", "a positive integer")?,
            target_tokens: optional(&fields, "target_tokens", "a positive integer")?,
        };
        Ok((
            texts,
            facts,
            optional(&fields, "read_keys", "a list of lists of strings")?,
        ))
    })
    .map_err(|error| error.at(location))?;
    let [
        uid,
        response_id,
        endpoint,
        task,
        task_type,
        metric,
        question,
        gold_answer,
    ] = texts;
    let response = response_of(location, &response_id, &endpoint, responses)?;
    let types = TaskType::ALL.map(|task_type| (task_type.name(), task_type));
    let metrics = AnswerMetric::ALL.map(|metric| (metric.name(), metric));
    Ok(ToolQaRow {
        uid,
        task,
        task_type: parse_choice(location, "task_type", &task_type, &types)?,
        metric: parse_choice(location, "metric", &metric, &metrics)?,
        question,
        gold_answer,
        facts,
        read_keys,
        response,
    })
}

/// The value of an optional field; null counts as absent.
fn optional<T: DeserializeOwned>(
    fields: &Fields<'_>,
    name: &str,
    expected: &'static str,
) -> Result<Option<T>, ToolsError> {
    let value = fields.raw(name).filter(|value| !value.is_null());
    let read = |value: &Value| {
        T::deserialize(value).map_err(|_| ReadError::wrong_type(name, value, expected).into())
    };
    value.map(read).transpose()
}

fn response_of(
    location: &str,
    id: &str,
    endpoint: &str,
    responses: &ToolResponses,
) -> Result<Arc<ToolResponse>, ToolQaError> {
    let Some(response) = responses.get(id) else {
        return Err(ToolQaError::UnknownResponse {
            place: location.to_owned(),
            id: id.to_owned(),
        });
    };
    if response.endpoint != endpoint {
        return Err(ToolQaError::EndpointDiffers {
            place: location.to_owned(),
            id: id.to_owned(),
            found: endpoint.to_owned(),
            endpoint: response.endpoint.clone(),
        });
    }
    Ok(Arc::clone(response))
}

fn parse_choice<T: Copy>(
    location: &str,
    field: &'static str,
    found: &str,
    choices: &[(&str, T)],
) -> Result<T, ToolQaError> {
    let chosen_value = choices.iter().find(|(name, _)| *name == found);
    chosen_value.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        ToolQaError::UnknownChoice {
            place: location.to_owned(),
            field,
            found: found.to_owned(),
            hint: did_you_mean(found, names.iter().copied()),
            known: names.join(", "),
        }
    })
}

#[cfg(test)]
mod tests;
