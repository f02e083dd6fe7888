//! Reads tool responses, and finds the lists of records and the scalar fields in them.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value};
use tooltune_apis::{JsonLines, ToolsError};

use super::SynthError;
use super::words::path_words;

/// Minimum number of records of a list.
const MIN_RECORDS: usize = 3;
/// Maximum number of lists and of other fields that are used per response.
const MAX_LISTS: usize = 64;
/// Maximum number of fields of a list.
const MAX_FIELDS: usize = 200;
/// Maximum depth at which lists, and fields within a record, are searched.
const MAX_DEPTH: usize = 8;
/// Maximum number of characters of a value in a question.
pub(super) const MAX_VALUE: usize = 80;

/// A tool response to ask about.
#[derive(Debug, Clone, PartialEq)]
pub struct InputResponse {
    /// Id in the file.
    pub response_id: String,
    /// The endpoint that returned it.
    pub endpoint: String,
    /// The split.
    pub split: String,
    /// The response.
    pub response: Value,
}

/// Reads responses: rows `{"response_id", "endpoint", "split", "response"}`, of which only
/// `response` is required, or any other JSON values, which are responses themselves.
///
/// An absent id is the position in the file, an absent endpoint is `api` or the name of the file, and
/// an absent split is `synth`.
///
/// # Errors
///
/// A file cannot be read or has no rows, or a field has the wrong type.
pub fn read_responses(files: Vec<JsonLines>) -> Result<Vec<InputResponse>, SynthError> {
    let mut responses: Vec<InputResponse> = Vec::new();
    let mut ids = HashSet::new();
    for lines in files {
        let path = lines.path().to_owned();
        let stem = path.file_name().map_or_else(String::new, |name| {
            let name = name.to_string_lossy();
            name.split('.').next().unwrap_or_default().to_owned()
        });
        let n_before = responses.len();
        for line in lines {
            let (place, value) = line?;
            let number = responses.len() - n_before + 1;
            let read =
                input_response(value, &stem, number).map_err(|error| error.at(place.clone()))?;
            if !ids.insert(read.response_id.clone()) {
                return Err(SynthError::DuplicateId {
                    place,
                    id: read.response_id,
                });
            }
            responses.push(read);
        }
        if responses.len() == n_before {
            return Err(SynthError::NoResponses { path });
        }
    }
    Ok(responses)
}

fn input_response(value: Value, stem: &str, number: usize) -> Result<InputResponse, ToolsError> {
    let default_id = format!("{stem}-{number}");
    let text = |map: &Map<String, Value>, name: &str| match map.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(ToolsError::from(tooltune_json::ReadError::wrong_type(
            name, other, "a string",
        ))),
    };
    match value {
        Value::Object(mut map) if map.contains_key("response") => {
            let endpoint = match text(&map, "endpoint")? {
                None => text(&map, "api")?,
                endpoint => endpoint,
            };
            Ok(InputResponse {
                response_id: text(&map, "response_id")?.unwrap_or(default_id),
                endpoint: endpoint.unwrap_or_else(|| stem.to_owned()),
                split: text(&map, "split")?.unwrap_or_else(|| "synth".to_owned()),
                response: map.remove("response").unwrap_or_default(),
            })
        }
        response => Ok(InputResponse {
            response_id: default_id,
            endpoint: stem.to_owned(),
            split: "synth".to_owned(),
            response,
        }),
    }
}

/// The kind of a field's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Number,
    Flag,
}

/// A scalar field of the records of a list, or of the response.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Field {
    /// Keys, from the record or from the response.
    pub(super) keys: Vec<String>,
    /// The keys as words.
    pub(super) words: String,
    /// The kind of all its values.
    pub(super) kind: Kind,
    /// Number of records with a value.
    pub(super) n_present: usize,
    /// Number of different values.
    pub(super) n_distinct: usize,
    /// Whether all values can be quoted in a question and listed with commas.
    pub(super) is_quotable: bool,
}

/// A list of records.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RecordList {
    /// Keys from the response to the list.
    pub(super) keys: Vec<String>,
    /// Number of records.
    pub(super) n: usize,
    /// Fields with values of one kind, and different words.
    pub(super) fields: Vec<Field>,
}

/// What a response contains.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Shape {
    /// The lists of at least three records.
    pub(super) lists: Vec<RecordList>,
    /// Scalars outside of lists.
    pub(super) scalars: Vec<Field>,
}

impl Shape {
    pub(super) fn new(response: &Value) -> Self {
        let mut shape = Self::default();
        shape.search(response, &mut Vec::new());
        shape.scalars = with_different_words(shape.scalars);
        shape
    }

    fn search(&mut self, value: &Value, keys: &mut Vec<String>) {
        match value {
            Value::Object(map) if keys.len() < MAX_DEPTH => {
                for (key, value) in map {
                    keys.push(key.clone());
                    self.search(value, keys);
                    keys.pop();
                }
            }
            Value::Array(records) if self.lists.len() < MAX_LISTS => {
                self.lists.extend(record_list(keys, records));
            }
            scalar if !keys.is_empty() && self.scalars.len() < MAX_LISTS => {
                let mut column = Column::default();
                column.add(scalar);
                self.scalars.extend(column.field(keys));
            }
            _ => {}
        }
    }
}

/// The fields of a list of records; `None` if it has fewer than three, or items that are not objects.
pub(super) fn record_list(keys: &[String], records: &[Value]) -> Option<RecordList> {
    if records.len() < MIN_RECORDS || !records.iter().all(Value::is_object) {
        return None;
    }
    let mut columns: indexmap::IndexMap<Vec<String>, Column> = indexmap::IndexMap::new();
    for record in records {
        add_columns(record, &mut Vec::new(), &mut columns);
    }
    let fields = columns
        .iter()
        .filter_map(|(keys, column)| column.field(keys));
    Some(RecordList {
        keys: keys.to_vec(),
        n: records.len(),
        fields: with_different_words(fields.collect()),
    })
}

fn add_columns(
    value: &Value,
    keys: &mut Vec<String>,
    columns: &mut indexmap::IndexMap<Vec<String>, Column>,
) {
    match value {
        Value::Object(map) if keys.len() < MAX_DEPTH => {
            for (key, value) in map {
                keys.push(key.clone());
                add_columns(value, keys, columns);
                keys.pop();
            }
        }
        Value::Array(_) | Value::Object(_) | Value::Null => {}
        scalar => {
            if !columns.contains_key(keys) {
                if columns.len() >= MAX_FIELDS {
                    return;
                }
                columns.insert(keys.clone(), Column::default());
            }
            if let Some(column) = columns.get_mut(keys) {
                column.add(scalar);
            }
        }
    }
}

#[derive(Default)]
struct Column {
    kind: Option<Kind>,
    is_mixed: bool,
    n: usize,
    distinct: BTreeSet<String>,
    is_unquotable: bool,
}

impl Column {
    fn add(&mut self, scalar: &Value) {
        let kind = match scalar {
            Value::String(_) => Kind::Text,
            Value::Number(_) => Kind::Number,
            Value::Bool(_) => Kind::Flag,
            _ => return,
        };
        self.is_mixed |= self.kind.is_some_and(|earlier| earlier != kind);
        self.kind = Some(kind);
        self.n += 1;
        let text = super::program::scalar_text(scalar).unwrap_or_default();
        self.is_unquotable |= text.is_empty()
            || text.chars().count() > MAX_VALUE
            || text.contains(['"', ',', '{', '}'])
            || text.contains(char::is_control);
        self.distinct.insert(text);
    }

    /// `None` if the values have different kinds, or the keys have no words or too many.
    fn field(&self, keys: &[String]) -> Option<Field> {
        let words = path_words(keys);
        let is_short = (1..=MAX_VALUE).contains(&words.chars().count());
        Some(Field {
            keys: keys.to_vec(),
            kind: self.kind.filter(|_| !self.is_mixed && is_short)?,
            words,
            n_present: self.n,
            n_distinct: self.distinct.len(),
            is_quotable: !self.is_unquotable,
        })
    }
}

/// Removes fields with the same words, because a question cannot distinguish them.
fn with_different_words(fields: Vec<Field>) -> Vec<Field> {
    let mut counts = std::collections::HashMap::new();
    for field in &fields {
        *counts.entry(field.words.clone()).or_insert(0) += 1;
    }
    let is_alone = |field: &Field| counts.get(&field.words) == Some(&1);
    fields.into_iter().filter(is_alone).collect()
}
