//! A call in, its output or the reason of its failure out, read from the invented tables.
//!
//! Outputs hold few columns and at most four rows, so that several fit a prompt. The executor is
//! strict where a real API is: a number in quotes is no number, and a call without a row is an
//! error, not an empty list.

use std::cmp::Ordering;

use serde_json::{Map, Value, json};
use thiserror::Error;
use tooltune_agents::executors::{CallResult, Executor};

use super::api::{Api, JsonType, Operation, Order, Parameter, Restriction};
use super::catalogue::{Catalogue, Entry};
use super::functions::{self, NoResult};
use super::world::{Row, World};

/// Most rows of a list.
const MAX_ROWS: usize = 4;

/// Why a call has no output.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CallProblem {
    /// No API has this name.
    #[error("unknown API {0}; call one by its tool and name, such as TownDesk/Town Info")]
    UnknownApi(String),
    /// A required parameter is absent or null.
    #[error("{api} needs the argument {parameter}")]
    Missing {
        /// The API's own name.
        api: String,
        /// The absent parameter.
        parameter: String,
    },
    /// An argument that the API does not have.
    #[error("{api} has no parameter {argument}; it takes {known}")]
    UnknownArgument {
        /// The API's own name.
        api: String,
        /// The name that was given.
        argument: String,
        /// The parameters that exist.
        known: String,
    },
    /// An argument of another type.
    #[error("{parameter} must be of type {expected}, not {given}")]
    WrongType {
        /// The parameter.
        parameter: String,
        /// Its type.
        expected: &'static str,
        /// The value that was given, as JSON.
        given: String,
    },
    /// No row of the tables fits the arguments.
    #[error("nothing found for {0}")]
    NoRow(String),
    /// A function has no value at these arguments.
    #[error("{0}")]
    NoResult(String),
}

impl From<NoResult> for CallProblem {
    fn from(problem: NoResult) -> Self {
        Self::NoResult(problem.to_string())
    }
}

/// Executes calls to the generated APIs; pure, and the same for every data set.
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
    /// Builds the tables and the list of APIs.
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

    /// Executes one call, named `tool/api`.
    ///
    /// # Errors
    ///
    /// - the name is no API's
    /// - a required argument is absent, an argument is unknown or of another type
    /// - no row fits, or a function has no value there
    pub fn execute(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<Value, CallProblem> {
        let unknown = || CallProblem::UnknownApi(name.to_owned());
        let api_idx = self.catalogue.position(name.trim()).ok_or_else(unknown)?;
        let entry = self.catalogue.entry(api_idx);
        check_arguments(entry, arguments)?;
        self.answer(entry.api, arguments)
    }

    fn answer(&self, api: &Api, arguments: &Map<String, Value>) -> Result<Value, CallProblem> {
        let argument = &arguments[&api.parameters[0].name];
        let missing = || CallProblem::NoRow(format!("{} {argument}", api.parameters[0].name));
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
                let row = rows.find(|row| equal(&row[column], argument));
                return Ok(show(row.ok_or_else(missing)?, &api.shown));
            }
            Operation::Search { table, column } => {
                let rows = self.world.rows(table).iter();
                rows.filter(|row| contains(&row[column], argument))
                    .collect()
            }
            Operation::List {
                table,
                column,
                order,
            } => {
                let rows = self.world.rows(table).iter();
                let mut rows: Vec<&Row> =
                    rows.filter(|row| equal(&row[column], argument)).collect();
                rows.sort_by(|a, b| in_order(order, a, b));
                rows
            }
            Operation::Similar { table, key, by } => {
                let rows = self.world.rows(table);
                let is_given = |row: &&Row| equal(&row[key], argument);
                let position = rows
                    .iter()
                    .position(|row| is_given(&row))
                    .ok_or_else(missing)?;
                let alike = |row: &&Row| row[by] == rows[position][by] && !is_given(row);
                // Those after the given row come first, or all would share one list.
                let (before, after) = rows.split_at(position);
                after.iter().chain(before).filter(alike).collect()
            }
        };
        let rows = restrict(api, rows, arguments);
        if rows.is_empty() {
            return Err(missing());
        }
        let shown: Vec<Value> = rows.iter().map(|row| show(row, &api.shown)).collect();
        Ok(json!({ api.list.as_str(): shown }))
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
            let known: Vec<&str> = api.parameters.iter().map(|p| p.name.as_str()).collect();
            return Err(CallProblem::UnknownArgument {
                api: api.name.clone(),
                argument: argument.clone(),
                known: known.join(", "),
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
    let is_whole = |number: f64| number.fract() == 0.0;
    let fits = match parameter.kind.json_type {
        JsonType::Text => value.is_string(),
        JsonType::Number => value.is_number(),
        JsonType::Integer => value.as_f64().is_some_and(is_whole),
    };
    if fits {
        return Ok(());
    }
    Err(CallProblem::WrongType {
        parameter: parameter.name.clone(),
        expected: parameter.kind.json_type.spelled(),
        given: value.to_string(),
    })
}

/// Equal as a user would say: numbers by value, texts without case and outer blanks.
fn equal(cell: &Value, argument: &Value) -> bool {
    match (cell, argument) {
        (Value::Number(cell), Value::Number(argument)) => cell.as_f64() == argument.as_f64(),
        (Value::String(cell), Value::String(argument)) => {
            cell.eq_ignore_ascii_case(argument.trim())
        }
        _ => false,
    }
}

/// Whether a cell holds every word of the argument, which has at least one.
fn contains(cell: &Value, argument: &Value) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_lowercase();
    let (cell, argument) = (text(cell), text(argument));
    let has = |word: &str| cell.split_whitespace().any(|cell_word| cell_word == word);
    !argument.trim().is_empty() && argument.split_whitespace().all(has)
}

fn in_order(order: &Order, a: &Row, b: &Row) -> Ordering {
    match order {
        Order::Rising(column) => compare(&a[column], &b[column]),
        Order::Falling(column) => compare(&b[column], &a[column]),
    }
}

/// Numbers by value, texts by code point.
pub(super) fn compare(a: &Value, b: &Value) -> Ordering {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        _ => a.as_str().cmp(&b.as_str()),
    }
}

/// Applies the optional arguments and the greatest length of a list.
fn restrict<'a>(api: &Api, mut rows: Vec<&'a Row>, arguments: &Map<String, Value>) -> Vec<&'a Row> {
    let mut most = MAX_ROWS;
    for parameter in &api.parameters {
        let Some(limit) = &parameter.optional else {
            continue;
        };
        let Some(bound) = arguments.get(&parameter.name).filter(|v| !v.is_null()) else {
            continue;
        };
        match &limit.restriction {
            Restriction::Count => most = most.min(bound.as_f64().unwrap_or(0.0).max(0.0) as usize),
            Restriction::AtMost(column) => rows.retain(|row| compare(&row[column], bound).is_le()),
            Restriction::AtLeast(column) => rows.retain(|row| compare(&row[column], bound).is_ge()),
        }
    }
    rows.truncate(most);
    rows
}

fn show(row: &Row, columns: &[String]) -> Value {
    let cells = columns
        .iter()
        .map(|column| (column.clone(), row[column].clone()));
    Value::Object(cells.collect())
}
