//! Orders the APIs of a sub-graph as they are called.
//!
//! An API may need what another returns that itself needs the first: random edges of cycles are
//! taken away until none is left. Then each parameter keeps one edge, as it takes one value.
//! The decision to question: an edge of a cycle never holds a sub-graph together, but one of two
//! edges into the same parameter may; choices are drawn anew until all APIs hang together, and a
//! sub-graph for which none is found has no order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use tooltune_rows::batches::SeededRandom;

use super::dependencies::{DependencyGraph, Edge};
use super::error::GraphError;

/// Draws of edges before a sub-graph is given up.
const N_DRAWS: usize = 64;

/// The calls of a task, before they have arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionOrder {
    /// Positions of the APIs, each after those that it depends on.
    pub apis: Vec<usize>,
    /// The edges that give arguments their values: at most one for each parameter, from an
    /// earlier API to a later one.
    pub edges: Vec<Edge>,
}

/// Orders the APIs of a sub-graph; none if they cannot all depend on each other.
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
    let all = graph.edges_within(nodes);
    let edges = (0..N_DRAWS)
        .map(|_| {
            let mut edges = all.clone();
            break_cycles(&mut edges, random);
            one_for_each_parameter(&edges, random)
        })
        .find(|chosen| is_connected(nodes, chosen))?;
    let names: Vec<&str> = nodes
        .iter()
        .map(|node| graph.names()[*node].as_str())
        .collect();
    let place = |node: usize| nodes.iter().position(|own| *own == node);
    let pairs: Vec<(usize, usize)> = edges
        .iter()
        .filter_map(|edge| Some((place(edge.source)?, place(edge.target)?)))
        .collect();
    let order = topological_order(&names, &pairs).ok()?;
    Some(ExecutionOrder {
        apis: order.into_iter().map(|at| nodes[at]).collect(),
        edges,
    })
}

/// Orders nodes so that every edge leads forward; of several that could come next, the one with
/// the smallest name does. Edges are pairs of positions in `names`; parallel ones do no harm.
///
/// # Errors
///
/// - the edges form a cycle
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

/// Removes random edges that lie on cycles until there is no cycle.
fn break_cycles(edges: &mut Vec<Edge>, random: &mut SeededRandom) {
    loop {
        let on_cycles: Vec<usize> = (0..edges.len())
            .filter(|at| reaches(edges, edges[*at].target, edges[*at].source))
            .collect();
        if on_cycles.is_empty() {
            return;
        }
        edges.remove(on_cycles[random.below(on_cycles.len())]);
    }
}

fn reaches(edges: &[Edge], from: usize, to: usize) -> bool {
    let mut reached = BTreeSet::from([from]);
    let mut open = vec![from];
    while let Some(node) = open.pop() {
        if node == to {
            return true;
        }
        let next = edges.iter().filter(|edge| edge.source == node);
        open.extend(
            next.map(|edge| edge.target)
                .filter(|target| reached.insert(*target)),
        );
    }
    false
}

fn one_for_each_parameter(edges: &[Edge], random: &mut SeededRandom) -> Vec<Edge> {
    let mut by_parameter: BTreeMap<(usize, usize), Vec<Edge>> = BTreeMap::new();
    for edge in edges {
        let key = (edge.target, edge.parameter);
        by_parameter.entry(key).or_default().push(*edge);
    }
    let mut chosen: Vec<Edge> = by_parameter
        .into_values()
        .map(|edges| edges[random.below(edges.len())])
        .collect();
    chosen.sort_unstable();
    chosen
}

fn is_connected(nodes: &[usize], edges: &[Edge]) -> bool {
    let Some(first) = nodes.first() else {
        return false;
    };
    let both_ways: Vec<Edge> = edges
        .iter()
        .flat_map(|edge| {
            let back = Edge {
                source: edge.target,
                target: edge.source,
                parameter: edge.parameter,
            };
            [*edge, back]
        })
        .collect();
    nodes.iter().all(|node| reaches(&both_ways, *first, *node))
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
        let place = |node| order.apis.iter().position(|own| *own == node);
        assert_eq!(order.apis.iter().collect::<BTreeSet<_>>().len(), n_nodes);
        assert!(
            order
                .edges
                .iter()
                .all(|edge| place(edge.source) < place(edge.target))
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
    fn dependencies_come_first_and_the_smaller_name_among_equals() {
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
            let again = execution_order(&graph, &[0, 1, 2, 3], &mut SeededRandom::new(seed, 0));
            assert_eq!(again.as_ref(), Some(&order));
            orders.insert(order.apis);
        }
        assert!(orders.len() > 3, "{orders:?}");
    }

    #[test]
    fn a_parameter_takes_one_value_and_the_rest_must_hang_together() {
        let mut random = SeededRandom::new(3, 0);
        let rivals = graph(3, &[(0, 2, 0), (1, 2, 0)]);
        assert_eq!(execution_order(&rivals, &[0, 1, 2], &mut random), None);
        // Only the draw that takes the first edge keeps node 0.
        let narrow = graph(3, &[(0, 2, 0), (1, 2, 0), (1, 2, 1)]);
        for _ in 0..20 {
            let order = execution_order(&narrow, &[0, 1, 2], &mut random).expect("an order");
            assert_valid(&order, 3);
            assert_eq!(order.edges.len(), 2);
        }
    }

    #[test]
    fn one_api_is_an_order_and_none_is_not() {
        let mut random = SeededRandom::new(4, 0);
        let graph = graph(3, &[(0, 1, 0)]);
        let single = execution_order(&graph, &[2], &mut random).expect("an order");
        assert_eq!((single.apis, single.edges), (vec![2], vec![]));
        assert_eq!(execution_order(&graph, &[], &mut random), None);
        assert_eq!(execution_order(&graph, &[0, 2], &mut random), None);
    }
}
