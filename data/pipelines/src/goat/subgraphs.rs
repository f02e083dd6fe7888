//! The fifth stage: connected sub-graphs, and for each an order of calls.

use std::collections::{BTreeMap, VecDeque};

use tooltune_rows::batches::SeededRandom;
use tooltune_synth::graph::{
    NamedEdge, NamedGraph, SubgraphSizes, connected_subgraphs, execution_order,
};

use super::asking::Given;
use super::items::Task;
use crate::error::PipelineError;
use crate::report::Dropped;
use crate::run::Made;

/// Streams of the draws; other uses of a seed have streams of their own.
const DRAW_STREAM: u64 = 0x676F_6174_6C6D_0000;
const ORDER_STREAM: u64 = 0x676F_6174_6C6D_0001;

const NO_ORDER: &str = "its APIs have no order of calls";
const NOT_DRAWN: &str = "not drawn, since --rows takes no more";

/// Draws sub-graphs, as many as there are to be rows, and orders their calls. Sizes take turns, so
/// that a part of all sub-graphs is not made of the largest alone, of which there are most.
///
/// # Source
///
/// GOAT, section 3.1.2: connected subgraphs with up to L nodes; cycles are broken at random.
pub(super) fn tasks(given: Given<'_>, edges: Vec<NamedEdge>) -> Result<Made<Task>, PipelineError> {
    let options = given.options;
    let named = edges.into_iter().map(|edge| (edge.label(), edge));
    let graph = NamedGraph::new(named, given.catalogue)?;
    let sizes = SubgraphSizes {
        min: options.min_calls,
        max: options.max_calls,
        limit: options.max_subgraphs,
    };
    let subgraphs = connected_subgraphs(graph.graph(), &sizes)?;
    let n_subgraphs = subgraphs.len();
    let drawn = in_turns(subgraphs, options.seed);
    let mut random = SeededRandom::new(options.seed, ORDER_STREAM);
    let mut made = Made::of([]);
    let mut n_met = 0;
    for nodes in drawn {
        if made.kept.len() == options.rows {
            break;
        }
        n_met += 1;
        let names = graph.graph().names();
        match execution_order(graph.graph(), &nodes, &mut random) {
            Some(order) => made.kept.push(Task {
                id: format!("task-{:06}", made.kept.len() + 1),
                apis: order.apis.iter().map(|&api| names[api].clone()).collect(),
                edges: order.edges.iter().map(|edge| graph.named(edge)).collect(),
                taken: BTreeMap::new(),
            }),
            None => {
                let names: Vec<&str> = nodes.iter().map(|&api| names[api].as_str()).collect();
                made.dropped
                    .push(Dropped::new(&names.join(", "), NO_ORDER, ""));
            }
        }
    }
    made.n_in = n_subgraphs;
    if n_met < n_subgraphs {
        made.dropped_in_bulk
            .insert(NOT_DRAWN.to_owned(), n_subgraphs - n_met);
    }
    for task in &made.kept {
        let counted = format!("tasks of {} calls", task.apis.len());
        *made.counts.entry(counted).or_default() += 1;
    }
    Ok(made)
}

/// All sets in an order of chance, one of each size in turn.
fn in_turns(sets: Vec<Vec<usize>>, seed: u64) -> Vec<Vec<usize>> {
    let mut random = SeededRandom::new(seed, DRAW_STREAM);
    let mut by_size: BTreeMap<usize, Vec<Vec<usize>>> = BTreeMap::new();
    for set in sets {
        by_size.entry(set.len()).or_default().push(set);
    }
    let mut waiting: VecDeque<VecDeque<Vec<usize>>> = by_size
        .into_values()
        .map(|mut sets| {
            random.shuffle(&mut sets);
            sets.into()
        })
        .collect();
    let mut order = Vec::new();
    while let Some(mut sets) = waiting.pop_front() {
        if let Some(set) = sets.pop_front() {
            order.push(set);
            waiting.push_back(sets);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_turns_until_all_sets_are_met() {
        let sets: Vec<Vec<usize>> = [2, 2, 3, 3, 3, 3, 4].map(|size| vec![0; size]).to_vec();
        let sizes: Vec<usize> = in_turns(sets, 1).iter().map(Vec::len).collect();
        assert_eq!(sizes, [2, 3, 4, 2, 3, 3, 3]);
    }
}
