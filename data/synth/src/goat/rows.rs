//! Draws the rows of a data set: which API sets are used, how often, and which rows are kept.
//!
//! Sets of the same size take turns, in an order that all splits of a seed share. A short test set
//! therefore only uses sets that a training set of at least its length has also used, and every set
//! is used about equally often. A set that produces no new row in many draws is exhausted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value};
use tooltune_apis::{Derived, Trajectory, TrajectoryCall};
use tooltune_rows::batches::SeededRandom;

use super::api::By;
use super::binding::{self, BoundCall, Rejection};
use super::check::check;
use super::executor::GoatExecutor;
use super::language::write_texts;
use super::subgraphs::{connected_sets, neighbours};
use super::{GREATEST_MAX_CALLS, GoatSplit, GoatSynthError, GoatSynthOptions, partition};

/// Random stream for the order of the sets; other uses of the seed have their own streams.
const ORDER_STREAM: u64 = 0x676F_6174_0000_0000;
/// First random stream of the rows.
const ROW_STREAM: u64 = 0x676F_6174_0000_0001;
/// Number of draws without a new row after which a set is exhausted.
const MAX_DRAWS: usize = 400;
/// Number of draws without any connected calls after which a set is treated as unconnected.
const MAX_UNCONNECTED: usize = 200;

/// Number of calls of successive rows, by `max_calls`.
const SIZES: [&[usize]; GREATEST_MAX_CALLS] = [
    &[1],
    &[2, 1, 2, 2, 2, 1, 2, 1, 2, 2],
    &[2, 3, 2, 1, 3, 2, 2, 3, 2, 1, 2, 3, 2, 3, 1, 2, 3, 2, 1, 3],
    &[2, 3, 4, 2, 1, 3, 2, 4, 3, 2, 1, 2, 3, 4, 2, 3, 2, 1, 4, 3],
];

/// Generates the rows of `options`.
pub(super) fn generate(options: &GoatSynthOptions) -> Result<Vec<Trajectory>, GoatSynthError> {
    let is_known = (1..=GREATEST_MAX_CALLS).contains(&options.max_calls);
    let sizes = options.max_calls.checked_sub(1).and_then(|i| SIZES.get(i));
    let Some(sizes) = sizes.filter(|_| is_known) else {
        return Err(GoatSynthError::MaxCalls(options.max_calls));
    };
    let mut generator = Generator::new(options);
    let mut rows = Vec::new();
    while rows.len() < options.rows {
        match generator.next_row(sizes[rows.len() % sizes.len()]) {
            Some(mut row) => {
                row.id = format!("{}-{:05}", options.split.name(), rows.len());
                rows.push(row);
            }
            None => {
                return Err(GoatSynthError::TooMany {
                    split: options.split.name(),
                    asked: options.rows,
                    found: rows.len(),
                });
            }
        }
    }
    Ok(rows)
}

/// The drawn rows, and the sets that remain.
#[derive(Debug)]
struct Generator {
    executor: GoatExecutor,
    split: GoatSplit,
    /// Sets that may still produce a row, by size.
    remaining_sets: BTreeMap<usize, VecDeque<Vec<usize>>>,
    random: SeededRandom,
    queries: BTreeSet<String>,
    sequences: BTreeSet<String>,
}

impl Generator {
    fn new(options: &GoatSynthOptions) -> Self {
        let executor = GoatExecutor::new();
        let mut order = SeededRandom::new(options.seed, ORDER_STREAM);
        let remaining_sets = (1..=options.max_calls).map(|size| {
            let mut sets = sets_of(&executor, size, options.split);
            order.shuffle(&mut sets);
            (size, sets.into())
        });
        Self {
            remaining_sets: remaining_sets.collect(),
            executor,
            split: options.split,
            random: SeededRandom::new(options.seed, ROW_STREAM + options.split as u64),
            queries: BTreeSet::new(),
            sequences: BTreeSet::new(),
        }
    }

    /// A new row with `size` calls, or with another number if there is none; `None` if all sets are
    /// exhausted.
    fn next_row(&mut self, size: usize) -> Option<Trajectory> {
        loop {
            let has_sets = |sets: &&VecDeque<_>| !sets.is_empty();
            let size = match self.remaining_sets.get(&size).filter(has_sets) {
                Some(_) => size,
                None => {
                    *self
                        .remaining_sets
                        .iter()
                        .find(|(_, sets)| has_sets(sets))?
                        .0
                }
            };
            let set = self.remaining_sets.get_mut(&size)?.pop_front()?;
            if let Some(row) = self.draw_row(&set) {
                self.remaining_sets.get_mut(&size)?.push_back(set);
                return Some(row);
            }
        }
    }

    /// A new row that calls each API of `set`.
    fn draw_row(&mut self, set: &[usize]) -> Option<Trajectory> {
        let mut was_connected = false;
        for draw in 0..MAX_DRAWS {
            match binding::draw_calls(&self.executor, set, &mut self.random) {
                Ok(calls) => {
                    was_connected = true;
                    let row = self.build_trajectory(&calls);
                    if row.is_some() {
                        return row;
                    }
                }
                Err(Rejection::Failed) => was_connected = true,
                Err(Rejection::Unconnected) if !was_connected && draw >= MAX_UNCONNECTED => {
                    return None;
                }
                Err(Rejection::Unconnected) => {}
            }
        }
        None
    }

    /// Puts the calls into words; `None` unless the row is valid, new, and in this split.
    fn build_trajectory(&mut self, calls: &[BoundCall]) -> Option<Trajectory> {
        let catalogue = self.executor.catalogue();
        let named_calls = calls.iter().map(|call| {
            let name = catalogue.entry(call.api_idx).call_name.clone();
            (name, call.arguments_json())
        });
        let named_calls: Vec<(String, Map<String, Value>)> = named_calls.collect();
        let sequence = partition::sequence(
            named_calls
                .iter()
                .map(|(name, call_arguments)| (&name[..], call_arguments)),
        );
        // Most draws are rejected here, before any wording is generated.
        let is_in_split = |text: &str| partition::split_for(text) == Some(self.split);
        if !is_in_split(&sequence) || self.sequences.contains(&sequence) {
            return None;
        }
        let texts = write_texts(catalogue, calls, &mut self.random);
        check(calls, &texts).ok()?;
        if !is_in_split(&texts.query) || !self.queries.insert(texts.query.clone()) {
            return None;
        }
        self.sequences.insert(sequence);
        let mut subgraph: Vec<String> = named_calls.iter().map(|(name, _)| name.clone()).collect();
        subgraph.sort();
        let call_texts = calls.iter().zip(texts.sub_queries);
        let trajectory_calls = named_calls.into_iter().zip(call_texts);
        let calls = trajectory_calls.map(|((name, arguments), (call, sub_query))| TrajectoryCall {
            sub_query,
            name,
            arguments,
            output: call.output.clone(),
            derived: derived_arguments(&self.executor, calls, call),
        });
        Some(Trajectory {
            id: String::new(),
            query: texts.query,
            calls: calls.collect(),
            response: texts.response,
            subgraph,
            facts: texts.facts,
        })
    }
}

fn derived_arguments(
    executor: &GoatExecutor,
    calls: &[BoundCall],
    call: &BoundCall,
) -> BTreeMap<String, Derived> {
    let derived_values = call.arguments.iter().filter_map(|argument| {
        let source = argument.source?;
        let origin = &calls[source.call];
        let derived_values = Derived {
            call: source.call,
            path: executor
                .catalogue()
                .entry(origin.api_idx)
                .path(source.field),
            pick: origin.pick.map_or(&By::First, |pick| &pick.by).text(),
        };
        Some((argument.parameter.name.clone(), derived_values))
    });
    derived_values.collect()
}

/// The connected sets that `split` may draw from.
pub(super) fn sets_of(executor: &GoatExecutor, size: usize, split: GoatSplit) -> Vec<Vec<usize>> {
    let catalogue = executor.catalogue();
    let edges = catalogue
        .edges()
        .iter()
        .map(|edge| (edge.source, edge.target));
    let neighbours = neighbours(catalogue.entries().len(), edges);
    let is_unseen = |set: &Vec<usize>| set.iter().any(|i| catalogue.entry(*i).is_held_out());
    let mut sets = connected_sets(&neighbours, size);
    sets.retain(|set| is_unseen(set) == (split == GoatSplit::TestUnseen));
    sets
}
