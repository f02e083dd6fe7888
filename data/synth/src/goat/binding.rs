//! Draws calls with bound arguments for a connected set of APIs, and executes them.
//!
//! Calls are drawn before their wording. One edge is drawn for each parameter that an earlier call
//! can fill, the other values are drawn from the tables, and every call is executed before it is
//! put into words. A selection such as "the cheapest" is rejected if rows tie or the list has only
//! one row, so that a query never has two correct answers.

use std::cmp::Ordering;

use serde_json::{Map, Value, json};
use tooltune_rows::batches::SeededRandom;

use super::api::{By, Field, Kind, Operation, Parameter, Pick, Values};
use super::catalogue::{Catalogue, Edge};
use super::executor::{GoatExecutor, compare};
use crate::slot::{happens, pick};

/// Percentage of optional arguments of the last calls that are set.
const OPTIONAL_PERCENT: usize = 20;

/// An executed call.
#[derive(Debug, Clone)]
pub(super) struct BoundCall {
    pub(super) api_idx: usize,
    pub(super) arguments: Vec<Argument>,
    pub(super) output: Value,
    /// How later calls select a row of the output; it is the same for all of them.
    pub(super) pick: Option<&'static Pick>,
    /// Whether no later call uses the output.
    pub(super) is_sink: bool,
}

/// An argument and its origin.
#[derive(Debug, Clone)]
pub(super) struct Argument {
    pub(super) parameter: &'static Parameter,
    pub(super) value: Value,
    /// An output of an earlier call; `None` if the query states the value.
    pub(super) source: Option<Source>,
}

/// An output of an earlier call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    pub(super) call: usize,
    pub(super) field: &'static Field,
}

/// Why a draw produced no calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rejection {
    /// The drawn edges do not connect the set.
    Unconnected,
    /// A call failed, or a selection was ambiguous.
    Failed,
}

impl BoundCall {
    pub(super) fn arguments_json(&self) -> Map<String, Value> {
        let pairs = self.arguments.iter();
        pairs
            .map(|a| (a.parameter.name.clone(), a.value.clone()))
            .collect()
    }
}

/// Draws one call to each API of `set`, in an executable order.
pub(super) fn draw_calls(
    executor: &GoatExecutor,
    set: &[usize],
    random: &mut SeededRandom,
) -> Result<Vec<BoundCall>, Rejection> {
    let edges = draw_edges(executor.catalogue(), set, random);
    if !is_connected(&edges, set) {
        return Err(Rejection::Unconnected);
    }
    let order = executable_order(executor.catalogue(), &edges, set);
    let mut calls: Vec<BoundCall> = Vec::new();
    for &api_idx in &order {
        let call = bind_calls(executor, api_idx, &order, &edges, &calls, random);
        calls.push(call.ok_or(Rejection::Failed)?);
    }
    Ok(calls)
}

/// Draws one edge for each parameter that an earlier API in a random order can fill.
fn draw_edges(catalogue: &Catalogue, set: &[usize], random: &mut SeededRandom) -> Vec<Edge> {
    let mut order = set.to_vec();
    random.shuffle(&mut order);
    let mut edges = Vec::new();
    for (position, &target) in order.iter().enumerate() {
        for parameter in catalogue.entry(target).required_parameters() {
            let candidates: Vec<Edge> = catalogue
                .edges()
                .iter()
                .filter(|edge| {
                    edge.target == target
                        && edge.parameter.name == parameter.name
                        && order[..position].contains(&edge.source)
                })
                .copied()
                .collect();
            if !candidates.is_empty() {
                edges.push(*pick(&candidates, random));
            }
        }
    }
    edges
}

fn is_connected(edges: &[Edge], set: &[usize]) -> bool {
    let mut connected = vec![set[0]];
    let mut next_idx = 0;
    while let Some(&node) = connected.get(next_idx) {
        next_idx += 1;
        for edge in edges {
            for (from, to) in [(edge.source, edge.target), (edge.target, edge.source)] {
                if from == node && !connected.contains(&to) {
                    connected.push(to);
                }
            }
        }
    }
    connected.len() == set.len()
}

/// Orders APIs so that sources come before targets; ties are broken by name (Kahn 1962).
fn executable_order(catalogue: &Catalogue, edges: &[Edge], set: &[usize]) -> Vec<usize> {
    let mut remaining_apis = set.to_vec();
    remaining_apis.sort_by_key(|api_idx| &catalogue.entry(*api_idx).call_name);
    let mut order = Vec::new();
    while !remaining_apis.is_empty() {
        let is_ready = |api_idx: &usize| {
            let mut sources = edges.iter().filter(|edge| edge.target == *api_idx);
            sources.all(|edge| order.contains(&edge.source))
        };
        let ready = remaining_apis.iter().position(is_ready);
        order.push(
            remaining_apis.remove(ready.expect("edges follow an order, so one API is ready")),
        );
    }
    order
}

/// Binds and executes one call after the earlier `calls`; `None` if that is impossible.
fn bind_calls(
    executor: &GoatExecutor,
    api_idx: usize,
    order: &[usize],
    edges: &[Edge],
    calls: &[BoundCall],
    random: &mut SeededRandom,
) -> Option<BoundCall> {
    let entry = executor.catalogue().entry(api_idx);
    let is_sink = edges.iter().all(|edge| edge.source != api_idx);
    let mut arguments = Vec::new();
    for parameter in &entry.api.parameters {
        let is_filled =
            |edge: &&Edge| edge.target == api_idx && edge.parameter.name == parameter.name;
        let edge = edges.iter().find(is_filled);
        let argument = match edge {
            Some(edge) => {
                let call = order.iter().position(|other| *other == edge.source)?;
                let field = edge.field;
                let value = value_used(executor.catalogue(), &calls[call], field)?;
                if is_stated(&value, parameter, calls) {
                    return None;
                }
                Argument {
                    parameter,
                    value,
                    source: Some(Source { call, field }),
                }
            }
            None if parameter.is_required() || (is_sink && happens(OPTIONAL_PERCENT, random)) => {
                Argument {
                    parameter,
                    value: fixed_value(executor, parameter.kind, random),
                    source: None,
                }
            }
            None => continue,
        };
        arguments.push(argument);
    }
    let mut call = BoundCall {
        api_idx,
        arguments,
        output: Value::Null,
        pick: None,
        is_sink,
    };
    call.output = executor
        .execute(&entry.call_name, &call.arguments_json())
        .ok()?;
    if !is_sink && !entry.api.picks.is_empty() {
        call.pick = Some(random.below(entry.api.picks.len())).map(|i| &entry.api.picks[i]);
    }
    Some(call)
}

/// Whether the query already states the value: "the region of the longest trail in Ashvale".
fn is_stated(value: &Value, parameter: &Parameter, calls: &[BoundCall]) -> bool {
    let mut earlier_arguments = calls.iter().flat_map(|call| &call.arguments);
    earlier_arguments.any(|argument| {
        let has_same_kind = argument.parameter.kind.name == parameter.kind.name;
        argument.source.is_none() && has_same_kind && argument.value == *value
    })
}

/// The output value that a later call uses; `None` if the selection is ambiguous.
fn value_used(catalogue: &Catalogue, call: &BoundCall, field: &Field) -> Option<Value> {
    let api = catalogue.entry(call.api_idx).api;
    if api.list.is_empty() {
        return call.output.get(&field.column).cloned();
    }
    let rows = call.output[&api.list].as_array()?;
    let row = match call.pick {
        Some(pick) => choose_row(&pick.by, rows)?,
        // A search must identify one row; a second match would make it ambiguous.
        None if matches!(api.operation, Operation::Search { .. }) && rows.len() == 1 => &rows[0],
        None => return None,
    };
    row.get(&field.column).cloned()
}

/// The row that `by` selects from at least two; `None` if the best two tie.
pub(super) fn choose_row<'a>(by: &By, rows: &'a [Value]) -> Option<&'a Value> {
    if rows.len() < 2 {
        return None;
    }
    let best = |column: &str, sign: fn(Ordering) -> Ordering| {
        let mut sorted: Vec<&Value> = rows.iter().collect();
        sorted.sort_by(|a, b| sign(compare(&a[column], &b[column])));
        (compare(&sorted[0][column], &sorted[1][column]).is_ne()).then_some(sorted[0])
    };
    match by {
        By::First => rows.first(),
        By::Last => rows.last(),
        By::Min(column) => best(column, |order| order),
        By::Max(column) => best(column, Ordering::reverse),
    }
}

fn fixed_value(executor: &GoatExecutor, kind: &Kind, random: &mut SeededRandom) -> Value {
    match &kind.values {
        Values::Column(table, column) => {
            let rows = executor.world().rows(table);
            pick(rows, random)[column].clone()
        }
        Values::Integers(low, high) => {
            json!(low + random.below((high - low + 1) as usize) as i64)
        }
        Values::Choice(texts) => json!(pick(texts, random)),
    }
}
