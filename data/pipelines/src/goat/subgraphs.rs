//! Stage 5: connected sub-graphs, each with a call order.

use std::collections::{BTreeMap, VecDeque};

use tooltune_rows::batches::SeededRandom;
use tooltune_synth::graph::{
    NamedEdge, NamedGraph, SubgraphSizes, connected_subgraphs, execution_order,
};

use super::items::Task;
use super::stage_prompts::StageInput;
use crate::error::PipelineError;
use crate::report::Dropped;
use crate::run::StageResult;

/// Random streams for drawing; other uses of the seed have their own streams.
const DRAW_STREAM: u64 = 0x676F_6174_6C6D_0000;
const ORDER_STREAM: u64 = 0x676F_6174_6C6D_0001;

const NO_ORDER: &str = "its APIs have no valid call order";
const NOT_DRAWN: &str = "not drawn: --rows limit reached";

/// Draws as many sub-graphs as rows are requested, and orders their calls. Sizes alternate, so that
/// a sample does not consist only of the largest sub-graphs, which are the most frequent.
///
/// # Source
///
/// GOAT, section 3.1.2: connected subgraphs with up to L nodes; cycles are broken at random.
pub(super) fn tasks(
    input: StageInput<'_>,
    edges: Vec<NamedEdge>,
) -> Result<StageResult<Task>, PipelineError> {
    let options = input.options;
    let labelled = edges.into_iter().map(|edge| (edge.label(), edge));
    let graph = NamedGraph::new(labelled, input.catalogue)?;
    let sizes = SubgraphSizes {
        min: options.min_calls,
        max: options.max_calls,
        limit: options.max_subgraphs,
    };
    let subgraphs = connected_subgraphs(graph.graph(), &sizes)?;
    let n_subgraphs = subgraphs.len();
    let subgraph_order = interleave_sizes(subgraphs, options.seed);
    let mut random = SeededRandom::new(options.seed, ORDER_STREAM);
    let mut result = StageResult::from_results([]);
    let mut n_met = 0;
    for nodes in subgraph_order {
        if result.kept.len() == options.rows {
            break;
        }
        n_met += 1;
        let names = graph.graph().names();
        match execution_order(graph.graph(), &nodes, &mut random) {
            Some(order) => result.kept.push(Task {
                id: format!("task-{:06}", result.kept.len() + 1),
                apis: order.apis.iter().map(|&api| names[api].clone()).collect(),
                edges: order
                    .edges
                    .iter()
                    .map(|edge| graph.to_named(edge))
                    .collect(),
                taken: BTreeMap::new(),
            }),
            None => {
                let names: Vec<&str> = nodes.iter().map(|&api| names[api].as_str()).collect();
                result
                    .dropped
                    .push(Dropped::new(&names.join(", "), NO_ORDER, ""));
            }
        }
    }
    result.n_in = n_subgraphs;
    if n_met < n_subgraphs {
        result
            .dropped_in_bulk
            .insert(NOT_DRAWN.to_owned(), n_subgraphs - n_met);
    }
    for task in &result.kept {
        let count_name = format!("tasks with {} calls", task.apis.len());
        *result.counts.entry(count_name).or_default() += 1;
    }
    Ok(result)
}

/// All sets in random order, alternating between sizes.
fn interleave_sizes(sets: Vec<Vec<usize>>, seed: u64) -> Vec<Vec<usize>> {
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
    fn sizes_alternate_until_all_sets_are_used() {
        let sets: Vec<Vec<usize>> = [2, 2, 3, 3, 3, 3, 4].map(|size| vec![0; size]).to_vec();
        let sizes: Vec<usize> = interleave_sizes(sets, 1).iter().map(Vec::len).collect();
        assert_eq!(sizes, [2, 3, 4, 2, 3, 3, 3]);
    }
}
