//! Suites with their own files and one prompt per row.
//!
//! A [`RowSuite`] defines the rows, the prompt of a row and the scores of an output. Requests,
//! predictions, means, tables, reports and an operation of `tooltune score` are derived from the
//! [`RowSuite`] and from the measures that its [`SuiteInfo`] lists.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt::Debug;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tooltune_apis::{JsonLines, ToolsError};

use crate::bootstrap::{Estimate, ratio_estimate};
use crate::operations::{InputField, LineError, Operation, Request};
use crate::registry::{SampleScores, SuiteInfo};

/// A suite with one prompt per row, whose outputs are scored one by one.
pub trait RowSuite: Debug {
    /// A row of its files.
    type Row: Debug;
    /// The gold value, which the score of an output depends on.
    type Gold: Serialize + DeserializeOwned;
    /// The scores of an output, an object with the fields of the suite's measures.
    type Scores: Serialize;
    /// Why rows cannot be read or prompts cannot be built; [`RowError`] unless the suite has its
    /// own.
    type Error;

    /// Registry entry of the suite.
    const SUITE: &'static SuiteInfo;
    /// Type of its lines in `predictions.jsonl`, one of its [`SampleScores`].
    const LINES: &'static str;
    /// The plural noun for rows in messages.
    const NOUN: &'static str;
    /// Description of the gold value for `tooltune score`.
    const GOLD: &'static str;

    /// Reads the rows of a file; [`read_rows`] for rows that `serde` deserializes.
    ///
    /// # Errors
    ///
    /// The file or one of its rows cannot be read, or two rows have the same id.
    fn read(&self, lines: JsonLines) -> Result<Vec<Self::Row>, Self::Error>;

    /// The id of a row.
    fn id(row: &Self::Row) -> &str;

    /// The gold value of a row.
    fn gold(row: &Self::Row) -> Self::Gold;

    /// The prompt of a row, one user message.
    ///
    /// # Errors
    ///
    /// The prompt cannot be built from the row.
    fn prompt(&self, row: &Self::Row) -> Result<String, Self::Error>;

    /// Scores an output. An output that was cut off is passed as an empty string.
    fn score(gold: &Self::Gold, output: &str) -> Self::Scores;

    /// Keys of the metrics of an evaluation.
    fn metrics() -> &'static [&'static str] {
        Self::SUITE.metrics
    }

    /// The line of an output in `predictions.jsonl`, if it differs from the standard line: the
    /// completion with `prompt`, `gold` and `score`.
    fn own_line(_row: &Self::Row, _output: &str) -> Option<Value> {
        None
    }

    /// The report over all rows and outputs, if it differs from the standard report: the mean of
    /// each metric, also per file.
    fn own_report(_rows: &[Self::Row], _outputs: &[&str]) -> Option<RowReport> {
        None
    }
}

/// A report over the rows of a suite.
#[derive(Debug, Clone, PartialEq)]
pub struct RowReport {
    /// The fields of `metrics.json`.
    pub fields: Map<String, Value>,
    /// The metrics for a terminal.
    pub table: String,
}

/// Why rows cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// A file or one of its lines cannot be read.
    #[error(transparent)]
    File(#[from] ToolsError),

    /// A line lacks a field, or a field is unknown or has the wrong type.
    #[error("{place}: {reason}; correct this row")]
    Row {
        /// `file:line`.
        place: String,
        /// What is wrong, with the name of the field.
        reason: String,
    },

    /// Two lines have the same id.
    #[error("{place}: duplicate {field} {id:?} (first at {first}); make the ids unique")]
    DuplicateId {
        /// `file:line` of the second line.
        place: String,
        /// Name of the id field.
        field: &'static str,
        /// The id.
        id: String,
        /// `file:line` of the first line.
        first: String,
    },
}

/// Reads the rows of a suite, JSON objects whose field `id` is unique.
///
/// # Errors
///
/// The file or one of its rows cannot be read, two rows have the same id, or there are no rows.
pub fn read_rows<S: RowSuite>(lines: JsonLines) -> Result<Vec<S::Row>, RowError>
where
    S::Row: DeserializeOwned,
{
    let parse = |place: &str, value: Value| {
        serde_json::from_value(value).map_err(|error| RowError::Row {
            place: place.to_owned(),
            reason: error.to_string(),
        })
    };
    read_unique(lines, S::NOUN, "id", parse, |row| S::id(row))
}

/// Parses each line of a file of `what`. Each value of the field `id_field` may occur only once.
///
/// # Errors
///
/// The file or a line cannot be read, two lines have the same id, or there are no lines.
pub(crate) fn read_unique<T, E: From<RowError>>(
    mut lines: JsonLines,
    what: &'static str,
    id_field: &'static str,
    mut parse: impl FnMut(&str, Value) -> Result<T, E>,
    id: impl Fn(&T) -> &str,
) -> Result<Vec<T>, E> {
    let mut first_places = HashMap::new();
    let mut rows = Vec::new();
    for line in &mut lines {
        let (place, value) = line.map_err(RowError::from)?;
        let row = parse(&place, value)?;
        require_unique(&mut first_places, id_field, id(&row), place)?;
        rows.push(row);
    }
    if rows.is_empty() {
        Err(empty_error(lines.path(), what).into())
    } else {
        Ok(rows)
    }
}

/// Records where an id occurs; a second occurrence is an error.
pub(crate) fn require_unique(
    first_places: &mut HashMap<String, String>,
    field: &'static str,
    id: &str,
    place: String,
) -> Result<(), RowError> {
    if let Some(first) = first_places.get(id) {
        return Err(RowError::DuplicateId {
            place,
            field,
            id: id.to_owned(),
            first: first.clone(),
        });
    }
    first_places.insert(id.to_owned(), place);
    Ok(())
}

/// The error for a file or folder without `what`.
pub(crate) fn empty_error(path: &Path, what: &'static str) -> RowError {
    let place = path.display().to_string();
    ToolsError::Empty { what }.at(place).into()
}

impl SampleScores {
    /// The means of the measures over lines, with their intervals, in table order. A measure is
    /// left out if no line has it.
    pub fn means(&self, lines: &[impl Borrow<Value>]) -> Vec<(&'static str, Estimate)> {
        let mean = |measure: &super::SampleMeasure| {
            let scores = lines.iter().map(|line| measure.score("", line.borrow()));
            let terms = scores.map(|score| {
                score.map_or((0.0, 0.0), |score| {
                    (score.score * score.weight, score.weight)
                })
            });
            Some((measure.key, ratio_estimate(&terms.collect::<Vec<_>>())?))
        };
        self.measures.iter().filter_map(mean).collect()
    }
}

/// The operation of `tooltune score` that scores an output as an evaluation does. Its name consists
/// of the suite and the type of lines.
pub const fn score_operation<S: RowSuite>(
    name: &'static str,
    definition: &'static str,
) -> Operation {
    Operation {
        name,
        fields: const {
            &[
                InputField::new("gold", S::GOLD),
                InputField::new("output", "the model's output, a string"),
            ]
        },
        definition,
        run: score_output::<S>,
    }
}

fn score_output<S: RowSuite>(request: &Request<'_>) -> Result<Value, LineError> {
    let gold = S::Gold::deserialize(request.input.value("gold")?);
    let gold = gold.map_err(|_| request.input.wrong_type("gold", S::GOLD))?;
    Ok(json!(S::score(&gold, request.input.text("output")?)))
}

#[cfg(test)]
mod tests;
