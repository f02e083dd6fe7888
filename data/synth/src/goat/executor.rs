//! Executes calls against the synthetic tables.
//!
//! Outputs have few columns and at most four rows, so that several outputs fit into a prompt. The
//! executor is as strict as a real API: a quoted number is not a number, and a call without a
//! matching row is an error, not an empty list.

use std::cmp::Ordering;

use serde_json::{Map, Value, json};
use thiserror::Error;
use tooltune_agents::executors::{CallResult, Executor};

use super::api::{Api, JsonType, Operation, Order, Parameter, Restriction};
use super::catalogue::{Catalogue, Entry};
use super::functions::{self, NoResult};
use super::world::{Row, World};

/// Maximum number of rows in a list.
const MAX_ROWS: usize = 4;

/// Why a call has no output.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CallProblem {
    /// No API has this name.
    #[error("unknown API {0}; call one by its tool and name, such as TownDesk/Town Info")]
    UnknownApi(String),
    /// A required parameter is missing or null.
    #[error("{api} needs the argument {parameter}")]
    Missing {
        /// Name of the API.
        api: String,
        /// The missing parameter.
        parameter: String,
    },
    /// The API does not have this parameter.
    #[error("{api} has no parameter {argument}; its parameters are {known}")]
    UnknownArgument {
        /// Name of the API.
        api: String,
        /// Name of the argument.
        argument: String,
        /// The existing parameters.
        known: String,
    },
    /// An argument has the wrong type.
    #[error("{parameter} must be of type {expected}, not {given}")]
    WrongType {
        /// The parameter.
        parameter: String,
        /// The type of the parameter.
        expected: &'static str,
        /// The value as JSON.
        given: String,
    },
    /// No row of the tables matches the arguments.
    #[error("nothing found for {0}")]
    NoRow(String),
    /// A function is undefined for these arguments.
    #[error("{0}")]
    NoResult(String),
}

impl From<NoResult> for CallProblem {
    fn from(problem: NoResult) -> Self {
        Self::NoResult(problem.to_string())
    }
}

/// Executes calls to the synthetic APIs. It has no state and is the same for every data set.
#[derive(Debug, Clone)]
pub struct GoatExecutor {
    catalogue: Catalogue,
    world: World,
}

impl Default for GoatExecutor {
    fn default() -> Self {
        Self::new()
    }
}

impl GoatExecutor {
    /// Builds the tables and the catalogue of APIs.
    pub fn new() -> Self {
        Self {
            catalogue: Catalogue::new(),
            world: World::new(),
        }
    }

    pub(super) fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    pub(super) fn world(&self) -> &World {
        &self.world
    }

    /// Executes a call; `name` is `tool/api`.
    ///
    /// # Errors
    ///
    /// - the API is unknown
    /// - a required argument is missing, or an argument is unknown or has the wrong type
    /// - no row matches, or a function is undefined for the arguments
    pub fn execute(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<Value, CallProblem> {
        let unknown = || CallProblem::UnknownApi(name.to_owned());
        let api_idx = self.catalogue.position(name.trim()).ok_or_else(unknown)?;
        let entry = self.catalogue.entry(api_idx);
        check_arguments(entry, arguments)?;
        self.answer_call(entry.api, arguments)
    }

    fn answer_call(&self, api: &Api, arguments: &Map<String, Value>) -> Result<Value, CallProblem> {
        let argument = &arguments[&api.parameters[0].name];
        let no_row = || CallProblem::NoRow(format!("{} {argument}", api.parameters[0].name));
        let rows: Vec<&Row> = match &api.operation {
            Operation::Compute(function) => {
                let values: Vec<&Value> =
                    api.parameters.iter().map(|p| &arguments[&p.name]).collect();
                return Ok(functions::compute(*function, &values, |code| {
                    self.rate_of(code)
                })?);
            }
            Operation::Get { table, column } => {
                let mut rows = self.world.rows(table).iter();
                let row = rows.find(|row| is_equal(&row[column], argument));
                return Ok(shown_columns(row.ok_or_else(no_row)?, &api.shown));
            }
            Operation::Search { table, column } => {
                let rows = self.world.rows(table).iter();
                rows.filter(|row| contains_text(&row[column], argument))
                    .collect()
            }
            Operation::List {
                table,
                column,
                order,
            } => {
                let rows = self.world.rows(table).iter();
                let mut rows: Vec<&Row> = rows
                    .filter(|row| is_equal(&row[column], argument))
                    .collect();
                rows.sort_by(|a, b| compare_rows(order, a, b));
                rows
            }
            Operation::Similar { table, key, by } => {
                let rows = self.world.rows(table);
                let is_same_row = |row: &&Row| is_equal(&row[key], argument);
                let position = rows
                    .iter()
                    .position(|row| is_same_row(&row))
                    .ok_or_else(no_row)?;
                let is_similar = |row: &&Row| row[by] == rows[position][by] && !is_same_row(row);
                // Start after the given row; otherwise every argument would return the same rows.
                let (rows_before, rows_after) = rows.split_at(position);
                rows_after
                    .iter()
                    .chain(rows_before)
                    .filter(is_similar)
                    .collect()
            }
        };
        let rows = restrict(api, rows, arguments);
        if rows.is_empty() {
            return Err(no_row());
        }
        let shown_rows: Vec<Value> = rows
            .iter()
            .map(|row| shown_columns(row, &api.shown))
            .collect();
        Ok(json!({ api.list.as_str(): shown_rows }))
    }

    fn rate_of(&self, code: &str) -> Option<f64> {
        let mut rows = self.world.rows("currencies").iter();
        rows.find(|row| row["code"] == code)?["rate"].as_f64()
    }
}

impl Executor for GoatExecutor {
    fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult {
        match self.execute(name, arguments) {
            Ok(output) => CallResult::success(output),
            Err(problem) => CallResult::failure(problem.to_string()),
        }
    }
}

fn check_arguments(entry: &Entry, arguments: &Map<String, Value>) -> Result<(), CallProblem> {
    let api = entry.api;
    for argument in arguments.keys() {
        if !api.parameters.iter().any(|p| p.name == *argument) {
            let parameter_names: Vec<&str> =
                api.parameters.iter().map(|p| p.name.as_str()).collect();
            return Err(CallProblem::UnknownArgument {
                api: api.name.clone(),
                argument: argument.clone(),
                known: parameter_names.join(", "),
            });
        }
    }
    for parameter in &api.parameters {
        match arguments.get(&parameter.name) {
            None | Some(Value::Null) if parameter.is_required() => {
                return Err(CallProblem::Missing {
                    api: api.name.clone(),
                    parameter: parameter.name.clone(),
                });
            }
            None | Some(Value::Null) => {}
            Some(value) => check_type(parameter, value)?,
        }
    }
    Ok(())
}

fn check_type(parameter: &Parameter, value: &Value) -> Result<(), CallProblem> {
    let is_integer = |number: f64| number.fract() == 0.0;
    let fits = match parameter.kind.json_type {
        JsonType::Text => value.is_string(),
        JsonType::Number => value.is_number(),
        JsonType::Integer => value.as_f64().is_some_and(is_integer),
    };
    if fits {
        return Ok(());
    }
    Err(CallProblem::WrongType {
        parameter: parameter.name.clone(),
        expected: parameter.kind.json_type.name(),
        given: value.to_string(),
    })
}

/// Loose equality: numbers by value, strings ignoring case and surrounding whitespace.
fn is_equal(cell: &Value, argument: &Value) -> bool {
    match (cell, argument) {
        (Value::Number(cell), Value::Number(argument)) => cell.as_f64() == argument.as_f64(),
        (Value::String(cell), Value::String(argument)) => {
            cell.eq_ignore_ascii_case(argument.trim())
        }
        _ => false,
    }
}

/// Whether a cell contains every word of the argument; false if the argument has no words.
fn contains_text(cell: &Value, argument: &Value) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_lowercase();
    let (cell, argument) = (text(cell), text(argument));
    let has = |word: &str| cell.split_whitespace().any(|cell_word| cell_word == word);
    !argument.trim().is_empty() && argument.split_whitespace().all(has)
}

fn compare_rows(order: &Order, a: &Row, b: &Row) -> Ordering {
    match order {
        Order::Ascending(column) => compare(&a[column], &b[column]),
        Order::Descending(column) => compare(&b[column], &a[column]),
    }
}

/// Compares numbers by value and strings by code point.
pub(super) fn compare(a: &Value, b: &Value) -> Ordering {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        _ => a.as_str().cmp(&b.as_str()),
    }
}

/// Applies the optional arguments and the maximum list length.
fn restrict<'a>(api: &Api, mut rows: Vec<&'a Row>, arguments: &Map<String, Value>) -> Vec<&'a Row> {
    let mut max_rows = MAX_ROWS;
    for parameter in &api.parameters {
        let Some(limit) = &parameter.optional else {
            continue;
        };
        let Some(bound) = arguments.get(&parameter.name).filter(|v| !v.is_null()) else {
            continue;
        };
        match &limit.restriction {
            Restriction::Count => {
                max_rows = max_rows.min(bound.as_f64().unwrap_or(0.0).max(0.0) as usize)
            }
            Restriction::AtMost(column) => rows.retain(|row| compare(&row[column], bound).is_le()),
            Restriction::AtLeast(column) => rows.retain(|row| compare(&row[column], bound).is_ge()),
        }
    }
    rows.truncate(max_rows);
    rows
}

fn shown_columns(row: &Row, columns: &[String]) -> Value {
    let cells = columns
        .iter()
        .map(|column| (column.clone(), row[column].clone()));
    Value::Object(cells.collect())
}
