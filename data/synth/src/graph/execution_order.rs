//! Orders the APIs of a sub-graph for execution.
//!
//! APIs may depend on each other in cycles. Random edges of cycles are removed until there is no
//! cycle. Then each parameter keeps one edge, because it has one value. Removing an edge of a cycle
//! never disconnects a sub-graph, but removing one of two edges into the same parameter may. Edges
//! are therefore drawn again until all APIs are connected; a sub-graph for which this fails has no
//! order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use tooltune_rows::batches::SeededRandom;

use super::dependencies::{DependencyGraph, Edge};
use super::error::GraphError;

/// Maximum number of draws per sub-graph.
const N_DRAWS: usize = 64;

/// The calls of a task, before they have arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionOrder {
    /// Indices of the APIs; each comes after the APIs that it depends on.
    pub apis: Vec<usize>,
    /// The edges that fill arguments: at most one per parameter, always from an earlier API to a
    /// later one.
    pub edges: Vec<Edge>,
}

/// Orders the APIs of a sub-graph; `None` if no drawn selection of edges connects them all.
///
/// The same graph, nodes and state of `random` give the same order.
///
/// # Source
///
/// GOAT, section 3.1.2: random edges of cycles are broken, then a topological sort.
pub fn execution_order(
    graph: &DependencyGraph,
    nodes: &[usize],
    random: &mut SeededRandom,
) -> Option<ExecutionOrder> {
    let all_edges = graph.edges_within(nodes);
    let edges = (0..N_DRAWS)
        .map(|_| {
            let mut edges = all_edges.clone();
            break_cycles(&mut edges, random);
            draw_edge_per_parameter(&edges, random)
        })
        .find(|chosen_edges| is_connected(nodes, chosen_edges))?;
    let names: Vec<&str> = nodes
        .iter()
        .map(|node| graph.names()[*node].as_str())
        .collect();
    let position = |node: usize| nodes.iter().position(|own_node| *own_node == node);
    let pairs: Vec<(usize, usize)> = edges
        .iter()
        .filter_map(|edge| Some((position(edge.source)?, position(edge.target)?)))
        .collect();
    let order = topological_order(&names, &pairs).ok()?;
    Some(ExecutionOrder {
        apis: order.into_iter().map(|idx| nodes[idx]).collect(),
        edges,
    })
}

/// Orders nodes so that every edge points forward; ties are broken by the smallest name. Edges are
/// pairs of indices into `names` and may be parallel.
///
/// # Errors
///
/// The edges form a cycle.
///
/// # Panics
///
/// If an edge is out of range, which is a bug in the caller.
///
/// # Source
///
/// Kahn 1962, "Topological sorting of large networks".
pub fn topological_order(
    names: &[&str],
    edges: &[(usize, usize)],
) -> Result<Vec<usize>, GraphError> {
    let mut n_open = vec![0_usize; names.len()];
    let mut targets = vec![Vec::new(); names.len()];
    for (source, target) in edges {
        n_open[*target] += 1;
        targets[*source].push(*target);
    }
    let free = (0..names.len()).filter(|node| n_open[*node] == 0);
    let mut ready: BinaryHeap<_> = free.map(|node| Reverse((names[node], node))).collect();
    let mut order = Vec::with_capacity(names.len());
    while let Some(Reverse((_, node))) = ready.pop() {
        order.push(node);
        for target in &targets[node] {
            n_open[*target] -= 1;
            if n_open[*target] == 0 {
                ready.push(Reverse((names[*target], *target)));
            }
        }
    }
    match n_open.iter().position(|n| *n > 0) {
        Some(node) => Err(GraphError::Cyclic {
            name: names[node].to_owned(),
        }),
        None => Ok(order),
    }
}

/// Removes random edges of cycles until there is no cycle.
fn break_cycles(edges: &mut Vec<Edge>, random: &mut SeededRandom) {
    loop {
        let on_cycles: Vec<usize> = (0..edges.len())
            .filter(|idx| is_reachable(edges, edges[*idx].target, edges[*idx].source))
            .collect();
        if on_cycles.is_empty() {
            return;
        }
        edges.remove(on_cycles[random.below(on_cycles.len())]);
    }
}

fn is_reachable(edges: &[Edge], from: usize, to: usize) -> bool {
    let mut reached = BTreeSet::from([from]);
    let mut pending = vec![from];
    while let Some(node) = pending.pop() {
        if node == to {
            return true;
        }
        let outgoing = edges.iter().filter(|edge| edge.source == node);
        pending.extend(
            outgoing
                .map(|edge| edge.target)
                .filter(|target| reached.insert(*target)),
        );
    }
    false
}

fn draw_edge_per_parameter(edges: &[Edge], random: &mut SeededRandom) -> Vec<Edge> {
    let mut by_parameter: BTreeMap<(usize, usize), Vec<Edge>> = BTreeMap::new();
    for edge in edges {
        let key = (edge.target, edge.parameter);
        by_parameter.entry(key).or_default().push(*edge);
    }
    let mut chosen_edges: Vec<Edge> = by_parameter
        .into_values()
        .map(|edges| edges[random.below(edges.len())])
        .collect();
    chosen_edges.sort_unstable();
    chosen_edges
}

fn is_connected(nodes: &[usize], edges: &[Edge]) -> bool {
    let Some(first_node) = nodes.first() else {
        return false;
    };
    let both_ways: Vec<Edge> = edges
        .iter()
        .flat_map(|edge| {
            let back_edge = Edge {
                source: edge.target,
                target: edge.source,
                parameter: edge.parameter,
            };
            [*edge, back_edge]
        })
        .collect();
    nodes
        .iter()
        .all(|node| is_reachable(&both_ways, *first_node, *node))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(n_nodes: usize, edges: &[(usize, usize, usize)]) -> DependencyGraph {
        let apis: Vec<(String, usize)> = (0..n_nodes)
            .map(|node| (char::from(b'a' + node as u8).to_string(), 4))
            .collect();
        let edges: Vec<Edge> = edges
            .iter()
            .map(|(source, target, parameter)| Edge {
                source: *source,
                target: *target,
                parameter: *parameter,
            })
            .collect();
        DependencyGraph::new(&apis, &edges).expect("fit edges")
    }

    fn assert_valid(order: &ExecutionOrder, n_nodes: usize) {
        let position = |node| order.apis.iter().position(|own_node| *own_node == node);
        assert_eq!(order.apis.iter().collect::<BTreeSet<_>>().len(), n_nodes);
        assert!(
            order
                .edges
                .iter()
                .all(|edge| position(edge.source) < position(edge.target))
        );
        let parameters: BTreeSet<_> = order
            .edges
            .iter()
            .map(|e| (e.target, e.parameter))
            .collect();
        assert_eq!(parameters.len(), order.edges.len());
        assert!(is_connected(&order.apis, &order.edges));
    }

    #[test]
    fn dependencies_come_first_with_ties_broken_by_name() {
        let diamond = graph(5, &[(4, 1, 0), (4, 0, 0), (0, 2, 0), (1, 2, 1), (1, 3, 0)]);
        let order = execution_order(&diamond, &[0, 1, 2, 3, 4], &mut SeededRandom::new(1, 0));
        assert_eq!(order.expect("an order").apis, [4, 0, 1, 2, 3]);
        assert!(topological_order(&["b", "a"], &[(0, 1), (1, 0)]).is_err());
        assert!(topological_order(&["a"], &[(0, 0)]).is_err());
        assert!(topological_order(&[], &[]).expect("no cycle").is_empty());
    }

    #[test]
    fn any_cycle_is_broken_without_losing_an_api() {
        let ring = [
            (0, 1, 0),
            (1, 2, 0),
            (2, 3, 0),
            (3, 0, 0),
            (1, 0, 1),
            (0, 1, 1),
            (3, 1, 2),
        ];
        let graph = graph(4, &ring);
        let mut orders = BTreeSet::new();
        for seed in 0..60 {
            let mut random = SeededRandom::new(seed, 0);
            let order = execution_order(&graph, &[0, 1, 2, 3], &mut random).expect("an order");
            assert_valid(&order, 4);
            let repeated = execution_order(&graph, &[0, 1, 2, 3], &mut SeededRandom::new(seed, 0));
            assert_eq!(repeated.as_ref(), Some(&order));
            orders.insert(order.apis);
        }
        assert!(orders.len() > 3, "{orders:?}");
    }

    #[test]
    fn a_parameter_keeps_one_edge_and_the_graph_must_stay_connected() {
        let mut random = SeededRandom::new(3, 0);
        let rivals = graph(3, &[(0, 2, 0), (1, 2, 0)]);
        assert_eq!(execution_order(&rivals, &[0, 1, 2], &mut random), None);
        // Only the draw with the first edge keeps node 0.
        let narrow = graph(3, &[(0, 2, 0), (1, 2, 0), (1, 2, 1)]);
        for _ in 0..20 {
            let order = execution_order(&narrow, &[0, 1, 2], &mut random).expect("an order");
            assert_valid(&order, 3);
            assert_eq!(order.edges.len(), 2);
        }
    }

    #[test]
    fn a_single_api_has_an_order_and_an_empty_set_has_none() {
        let mut random = SeededRandom::new(4, 0);
        let graph = graph(3, &[(0, 1, 0)]);
        let single = execution_order(&graph, &[2], &mut random).expect("an order");
        assert_eq!((single.apis, single.edges), (vec![2], vec![]));
        assert_eq!(execution_order(&graph, &[], &mut random), None);
        assert_eq!(execution_order(&graph, &[0, 2], &mut random), None);
    }
}
