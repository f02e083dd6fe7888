//! Imports the published files: a list of questions, and the responses by application, endpoint and
//! query.
//!
//! The questions are objects with `uid`, `question`, `gold_answer`, `app`, `endpoint`, `api_query`,
//! `api_response_path`, `task`, `task_type` and `metrics.exact_match_metric`. The responses are nested
//! objects: `{app: {endpoint: {api_query: response}}}`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tooltune_apis::read_json;
use tooltune_suites::toolqa::{AnswerMetric, TaskType};

use super::{QuestionRow, ResponseRow, SynthError};

const QUESTIONS: &str = "a JSON array of objects with uid, question, gold_answer, app, endpoint, api_query, \
                         task, task_type and metrics.exact_match_metric";
const RESPONSES: &str = "nested JSON objects: {app: {endpoint: {api_query: response}}}";

/// Imported questions with their responses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PublishedSet {
    /// The questions, in file order.
    pub questions: Vec<QuestionRow>,
    /// The responses that the questions refer to, in order of first use.
    pub responses: Vec<ResponseRow>,
    /// Number of dropped questions by reason.
    pub dropped: BTreeMap<&'static str, usize>,
    /// Number of responses without a question.
    pub n_unused: usize,
}

/// Imports a file of questions and its file of responses.
///
/// Questions about another file or an unknown response, of an unknown type or comparison, or with an
/// answer that is not a string are dropped and counted. All others are kept, also those whose answer
/// their own comparison does not accept, so that results are comparable.
///
/// # Errors
///
/// A file cannot be read or has another layout, or two questions have the same `uid`.
pub fn import_published(questions: &Path, responses: &Path) -> Result<PublishedSet, SynthError> {
    let responses_file = read_json(responses)?;
    let found = responses_by_query(responses, &responses_file)?;
    let file_name = responses
        .file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let questions_file = read_json(questions)?;
    let layout = |place: String, reason: &str| layout_error(place, reason, QUESTIONS);
    let file = questions.display();
    let entries = questions_file
        .as_array()
        .ok_or_else(|| layout(file.to_string(), "not an array"))?;
    let mut set = PublishedSet::default();
    let (mut numbers, mut uids) = (HashMap::new(), HashSet::new());
    for (idx, entry) in entries.iter().enumerate() {
        let place = format!("{file}: entry {}", idx + 1);
        let entry = PublishedQuestion::deserialize(entry)
            .map_err(|error| layout(place.clone(), &error.to_string()))?;
        if !uids.insert(entry.uid.clone()) {
            return Err(layout(
                place,
                &format!("the uid {:?} occurs twice", entry.uid),
            ));
        }
        match entry.check(&file_name, &found) {
            Ok(checked) => {
                let n_used = numbers.len();
                let number = *numbers.entry(entry.query()).or_insert_with(|| {
                    set.responses.push(ResponseRow {
                        response_id: format!("{}-{}", entry.endpoint, n_used + 1),
                        endpoint: entry.endpoint.clone(),
                        split: "paper".to_owned(),
                        response: checked.response.clone(),
                    });
                    n_used
                });
                let response_id = set.responses[number].response_id.clone();
                set.questions.push(entry.row(response_id, &checked));
            }
            Err(reason) => *set.dropped.entry(reason).or_default() += 1,
        }
    }
    set.n_unused = found.len() - numbers.len();
    Ok(set)
}

fn layout_error(place: String, reason: &str, expected: &'static str) -> SynthError {
    SynthError::Layout {
        place,
        reason: reason.to_owned(),
        expected,
    }
}

/// Application, endpoint and query.
type Query = (String, String, String);

fn responses_by_query<'f>(
    path: &Path,
    file: &'f Value,
) -> Result<HashMap<Query, &'f Value>, SynthError> {
    let object = |value: &'f Value| {
        let place = path.display().to_string();
        value
            .as_object()
            .ok_or_else(|| layout_error(place, "not nested objects", RESPONSES))
    };
    let mut found = HashMap::new();
    for (app, endpoints) in object(file)? {
        for (endpoint, queries) in object(endpoints)? {
            for (query, response) in object(queries)? {
                found.insert((app.clone(), endpoint.clone(), query.clone()), response);
            }
        }
    }
    Ok(found)
}

/// A published question. Other fields, such as predictions, are ignored.
#[derive(Deserialize)]
struct PublishedQuestion {
    uid: String,
    question: String,
    gold_answer: Value,
    api_response_path: String,
    app: String,
    endpoint: String,
    api_query: String,
    task: String,
    task_type: String,
    metrics: PublishedMetrics,
}

#[derive(Deserialize)]
struct PublishedMetrics {
    exact_match_metric: String,
}

/// The parts of a question that may be unusable.
struct CheckedQuestion<'f> {
    task_type: TaskType,
    metric: AnswerMetric,
    gold_answer: String,
    response: &'f Value,
}

impl PublishedQuestion {
    fn query(&self) -> Query {
        (
            self.app.clone(),
            self.endpoint.clone(),
            self.api_query.clone(),
        )
    }

    fn check<'f>(
        &self,
        file_name: &str,
        responses: &HashMap<Query, &'f Value>,
    ) -> Result<CheckedQuestion<'f>, &'static str> {
        let path = Path::new(&self.api_response_path);
        if path.file_name().is_none_or(|name| name != file_name) {
            return Err("the question is about another file of responses");
        }
        let task_type = TaskType::ALL
            .into_iter()
            .find(|task_type| task_type.name() == self.task_type);
        Ok(CheckedQuestion {
            task_type: task_type.ok_or("the type of the question is unknown")?,
            metric: AnswerMetric::from_name(&self.metrics.exact_match_metric)
                .ok_or("the comparison is unknown")?,
            gold_answer: self
                .gold_answer
                .as_str()
                .ok_or("the answer is not a string")?
                .to_owned(),
            response: responses
                .get(&self.query())
                .ok_or("no response has the question's query")?,
        })
    }

    fn row(&self, response_id: String, checked: &CheckedQuestion<'_>) -> QuestionRow {
        QuestionRow {
            uid: self.uid.clone(),
            response_id,
            endpoint: self.endpoint.clone(),
            task: self.task.clone(),
            task_type: checked.task_type,
            metric: checked.metric,
            question: self.question.clone(),
            gold_answer: checked.gold_answer.clone(),
            made: None,
        }
    }
}
