//! Joins two files of JSON Lines, questions and responses, in rows that hold both.
//!
//! A response stands once in its file and once in memory, however many questions are about it.
//! A response belongs to one split, and a question to the split of its response: questions about
//! one response must not be divided between training and test.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_rows::python::{PyValue, python_repr};
use tooltune_rows::tools::{Fields, JsonLines, ToolsError, did_you_mean};

use super::answers::AnswerMetric;
use super::error::ToolQaError;

/// What a question asks of the response.
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
    /// Every type, in the order in which the classifier's output is searched.
    pub const ALL: [Self; 3] = [Self::Extractive, Self::Filtering, Self::Aggregation];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Extractive => "EXTRACTIVE",
            Self::Filtering => "FILTERING",
            Self::Aggregation => "AGGREGATION",
        }
    }
}

/// What a tool returned.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolResponse {
    /// Its id in the files.
    pub response_id: String,
    /// The endpoint that returned it.
    pub endpoint: String,
    /// Such as `paper` or `extra`.
    pub split: String,
    /// The response.
    pub response: Value,
}

impl ToolResponse {
    /// Its length as the paper counts it: characters of Python's `str(response)`.
    pub fn n_characters(&self) -> usize {
        python_repr(&PyValue::from(&self.response)).chars().count()
    }
}

/// A question about a response, with its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolQaRow {
    /// Its id, unique among all rows.
    pub uid: String,
    /// The template that the question was made from.
    pub task: String,
    /// What it asks.
    pub task_type: TaskType,
    /// How an answer is compared.
    pub metric: AnswerMetric,
    /// The question.
    pub question: String,
    /// The right answer.
    pub gold_answer: String,
    /// What it is about.
    pub response: Arc<ToolResponse>,
}

/// The responses of a file by their ids.
#[derive(Debug, Clone, Default)]
pub struct ToolResponses {
    by_id: HashMap<String, Arc<ToolResponse>>,
}

impl ToolResponses {
    /// Reads `{"response_id", "endpoint", "split", "response"}` lines, gzip-compressed or not.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, or holds no line
    /// - a line is not JSON or no object, lacks a field, or misspells one
    /// - two lines have one `response_id`
    pub fn read(path: &Path) -> Result<Self, ToolQaError> {
        const FIELDS: [&str; 4] = ["response_id", "endpoint", "split", "response"];
        let mut places = HashMap::new();
        let mut by_id = HashMap::new();
        for line in JsonLines::open(path)? {
            let (place, value) = line?;
            let fields = Fields::new(
                &value,
                "",
                "a line has response_id, endpoint, split, response",
            );
            let response = fields.and_then(|fields| {
                fields.no_misspelling_of(&FIELDS)?;
                let response = fields.raw("response");
                Ok(ToolResponse {
                    response_id: fields.text("response_id")?.to_owned(),
                    endpoint: fields.text("endpoint")?.to_owned(),
                    split: fields.text("split")?.to_owned(),
                    response: response.ok_or_else(|| fields.missing("response"))?.clone(),
                })
            });
            let response = response.map_err(|error| error.at(&place))?;
            let id = response.response_id.clone();
            only_once(&mut places, "response_id", &id, place)?;
            by_id.insert(id, Arc::new(response));
        }
        if by_id.is_empty() {
            Err(nothing(path, "responses"))
        } else {
            Ok(Self { by_id })
        }
    }

    /// The response with that id.
    pub fn get(&self, response_id: &str) -> Option<&Arc<ToolResponse>> {
        self.by_id.get(response_id)
    }

    /// The responses, by endpoint and id.
    pub fn in_order(&self) -> Vec<&ToolResponse> {
        let mut responses: Vec<&ToolResponse> = self.by_id.values().map(|one| &**one).collect();
        responses.sort_by_key(|one| (&one.endpoint, &one.response_id));
        responses
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}

/// Reads `{"uid", "response_id", "endpoint", "task", "task_type", "metric", "question",
/// "gold_answer"}` lines, gzip-compressed or not, all fields texts.
///
/// # Errors
///
/// - the file cannot be read, or holds no line
/// - a line is not JSON or no object, lacks a field, or misspells one
/// - a task type or metric is unknown, or two lines have one `uid`
/// - a line's response is not among `responses`, or is of another endpoint
pub fn read_questions(
    path: &Path,
    responses: &ToolResponses,
) -> Result<Vec<ToolQaRow>, ToolQaError> {
    let mut places = HashMap::new();
    let mut rows = Vec::new();
    for line in JsonLines::open(path)? {
        let (place, value) = line?;
        let row = row(&place, &value, responses)?;
        only_once(&mut places, "uid", &row.uid, place)?;
        rows.push(row);
    }
    if rows.is_empty() {
        Err(nothing(path, "questions"))
    } else {
        Ok(rows)
    }
}

fn row(place: &str, value: &Value, responses: &ToolResponses) -> Result<ToolQaRow, ToolQaError> {
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
    let texts = Fields::new(
        value,
        "",
        "a line has eight fields, from uid to gold_answer",
    )
    .and_then(|fields| {
        fields.no_misspelling_of(&FIELDS)?;
        let texts: Vec<String> = FIELDS
            .iter()
            .map(|name| fields.text(name).map(str::to_owned))
            .collect::<Result<_, ToolsError>>()?;
        <[String; 8]>::try_from(texts).map_err(|_| fields.missing("uid"))
    })
    .map_err(|error| error.at(place))?;
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
    let response = response_of(place, &response_id, &endpoint, responses)?;
    let types = TaskType::ALL.map(|task_type| (task_type.name(), task_type));
    let metrics = AnswerMetric::ALL.map(|metric| (metric.name(), metric));
    Ok(ToolQaRow {
        uid,
        task,
        task_type: choice(place, "task_type", &task_type, &types)?,
        metric: choice(place, "metric", &metric, &metrics)?,
        question,
        gold_answer,
        response,
    })
}

fn response_of(
    place: &str,
    id: &str,
    endpoint: &str,
    responses: &ToolResponses,
) -> Result<Arc<ToolResponse>, ToolQaError> {
    let Some(response) = responses.get(id) else {
        return Err(ToolQaError::UnknownResponse {
            place: place.to_owned(),
            id: id.to_owned(),
        });
    };
    if response.endpoint != endpoint {
        return Err(ToolQaError::OtherEndpoint {
            place: place.to_owned(),
            id: id.to_owned(),
            found: endpoint.to_owned(),
            endpoint: response.endpoint.clone(),
        });
    }
    Ok(Arc::clone(response))
}

fn choice<T: Copy>(
    place: &str,
    field: &'static str,
    found: &str,
    choices: &[(&str, T)],
) -> Result<T, ToolQaError> {
    let chosen = choices.iter().find(|(name, _)| *name == found);
    chosen.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        ToolQaError::UnknownChoice {
            place: place.to_owned(),
            field,
            found: found.to_owned(),
            hint: did_you_mean(found, names.iter().copied()),
            known: names.join(", "),
        }
    })
}

/// Notes where an id stands; it must not stand anywhere else.
pub(super) fn only_once(
    places: &mut HashMap<String, String>,
    field: &'static str,
    id: &str,
    place: String,
) -> Result<(), ToolQaError> {
    if let Some(first) = places.get(id) {
        return Err(ToolQaError::DuplicateId {
            place,
            field,
            id: id.to_owned(),
            first: first.clone(),
        });
    }
    places.insert(id.to_owned(), place);
    Ok(())
}

pub(super) fn nothing(path: &Path, what: &'static str) -> ToolQaError {
    let place = path.display().to_string();
    ToolsError::Empty { what }.at(place).into()
}

#[cfg(test)]
mod tests;
