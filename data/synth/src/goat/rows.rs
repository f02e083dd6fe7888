//! Options in, rows out: which sets of APIs are drawn, how often, and which rows are kept.
//!
//! Sets of a size take turns in an order that all splits of a seed share. A short test set thus
//! meets the sets that a training set of its length or more has met before, and every set is met
//! about equally often. A set that gives nothing new for many draws is done with.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value};
use tooltune_rows::batches::SeededRandom;
use tooltune_rows::tools::{Derived, Trajectory, TrajectoryCall};

use super::api::By;
use super::binding::{self, BoundCall, Rejection};
use super::check::check;
use super::executor::GoatExecutor;
use super::language::tell;
use super::subgraphs::{connected_sets, neighbours};
use super::{GREATEST_MAX_CALLS, GoatSplit, GoatSynthError, GoatSynthOptions, partition};

/// Stream of the order of the sets; other uses of a seed have streams of their own.
const ORDER_STREAM: u64 = 0x676F_6174_0000_0000;
/// Stream base of the rows.
const ROW_STREAM: u64 = 0x676F_6174_0000_0001;
/// Draws without a new row after which a set is done with.
const MAX_DRAWS: usize = 400;
/// Draws without any connection after which a set is taken for one that has none.
const MAX_UNLINKED: usize = 200;

/// Numbers of calls of successive rows, by `max_calls`.
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

/// What has been drawn, and what can still be.
#[derive(Debug)]
struct Generator {
    executor: GoatExecutor,
    split: GoatSplit,
    /// Sets that may still give a row, by size.
    waiting: BTreeMap<usize, VecDeque<Vec<usize>>>,
    random: SeededRandom,
    queries: BTreeSet<String>,
    sequences: BTreeSet<String>,
}

impl Generator {
    fn new(options: &GoatSynthOptions) -> Self {
        let executor = GoatExecutor::new();
        let mut order = SeededRandom::new(options.seed, ORDER_STREAM);
        let waiting = (1..=options.max_calls).map(|size| {
            let mut sets = sets_of(&executor, size, options.split);
            order.shuffle(&mut sets);
            (size, sets.into())
        });
        Self {
            waiting: waiting.collect(),
            executor,
            split: options.split,
            random: SeededRandom::new(options.seed, ROW_STREAM + options.split as u64),
            queries: BTreeSet::new(),
            sequences: BTreeSet::new(),
        }
    }

    /// A new row of `size` calls, or of another size if there is none; `None` at the end.
    fn next_row(&mut self, size: usize) -> Option<Trajectory> {
        loop {
            let is_left = |sets: &&VecDeque<_>| !sets.is_empty();
            let size = match self.waiting.get(&size).filter(is_left) {
                Some(_) => size,
                None => *self.waiting.iter().find(|(_, sets)| is_left(sets))?.0,
            };
            let set = self.waiting.get_mut(&size)?.pop_front()?;
            if let Some(row) = self.row_of(&set) {
                self.waiting.get_mut(&size)?.push_back(set);
                return Some(row);
            }
        }
    }

    /// A new row that calls each API of `set`.
    fn row_of(&mut self, set: &[usize]) -> Option<Trajectory> {
        let mut is_linked = false;
        for draw in 0..MAX_DRAWS {
            match binding::draw(&self.executor, set, &mut self.random) {
                Ok(calls) => {
                    is_linked = true;
                    let row = self.row(&calls);
                    if row.is_some() {
                        return row;
                    }
                }
                Err(Rejection::NoValue) => is_linked = true,
                Err(Rejection::Unlinked) if !is_linked && draw >= MAX_UNLINKED => return None,
                Err(Rejection::Unlinked) => {}
            }
        }
        None
    }

    /// The calls in words, if they are good, new, and of this split.
    fn row(&mut self, calls: &[BoundCall]) -> Option<Trajectory> {
        let catalogue = self.executor.catalogue();
        let named = calls.iter().map(|call| {
            let name = catalogue.entry(call.api_idx).call_name.clone();
            (name, call.arguments_json())
        });
        let named: Vec<(String, Map<String, Value>)> = named.collect();
        let sequence = partition::sequence(named.iter().map(|(name, given)| (&name[..], given)));
        // Most draws end here, before any word is said.
        let is_of_split = |text: &str| partition::share_of(text) == Some(self.split);
        if !is_of_split(&sequence) || self.sequences.contains(&sequence) {
            return None;
        }
        let told = tell(catalogue, calls, &mut self.random);
        check(calls, &told).ok()?;
        if !is_of_split(&told.query) || !self.queries.insert(told.query.clone()) {
            return None;
        }
        self.sequences.insert(sequence);
        let mut subgraph: Vec<String> = named.iter().map(|(name, _)| name.clone()).collect();
        subgraph.sort();
        let words = calls.iter().zip(told.sub_queries);
        let trajectory_calls = named.into_iter().zip(words);
        let calls = trajectory_calls.map(|((name, arguments), (call, sub_query))| TrajectoryCall {
            sub_query,
            name,
            arguments,
            output: call.output.clone(),
            derived: derived_of(&self.executor, calls, call),
        });
        Some(Trajectory {
            id: String::new(),
            query: told.query,
            calls: calls.collect(),
            response: told.response,
            subgraph,
            facts: told.facts,
        })
    }
}

fn derived_of(
    executor: &GoatExecutor,
    calls: &[BoundCall],
    call: &BoundCall,
) -> BTreeMap<String, Derived> {
    let derived = call.arguments.iter().filter_map(|argument| {
        let source = argument.source?;
        let origin = &calls[source.call];
        let derived = Derived {
            call: source.call,
            path: executor
                .catalogue()
                .entry(origin.api_idx)
                .path(source.field),
            pick: origin.pick.map_or(&By::First, |pick| &pick.by).spelled(),
        };
        Some((argument.parameter.name.clone(), derived))
    });
    derived.collect()
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
