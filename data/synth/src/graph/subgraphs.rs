//! Enumerates all connected sub-graphs of given sizes, each once.
//!
//! The enumeration extends a set from its first node by exclusive neighbours, which reaches every
//! connected set in exactly one way. No set is looked up, so the time is proportional to the
//! output. Edge direction is ignored: a sub-graph is a set of nodes connected by edges in either
//! direction, with all edges between them.

use std::collections::BTreeSet;

use crate::budgets::SUBGRAPH_NODES;

use super::dependencies::DependencyGraph;
use super::error::GraphError;

/// Sizes of the sub-graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubgraphSizes {
    /// Minimum number of nodes, at least 1.
    pub min: usize,
    /// Maximum number of nodes.
    pub max: usize,
    /// Maximum number of sets visited, including those smaller than `min`.
    pub limit: usize,
}

impl Default for SubgraphSizes {
    /// Two to four nodes, like the paper's longest tasks, and at most a million sets.
    fn default() -> Self {
        Self {
            min: 2,
            max: 4,
            limit: 1_000_000,
        }
    }
}

/// Lists every weakly connected set of nodes of the given sizes, each once.
///
/// Sets and the list are sorted by name (`[a, b]` before `[a, b, c]` before `[b, c]`).
///
/// # Errors
///
/// - the sizes are 0 or in the wrong order
/// - more than `sizes.limit` sets are visited, or the result has more than [`SUBGRAPH_NODES`] nodes
///
/// # Source
///
/// GOAT, section 3.1.2 (connected subgraphs with up to L nodes); Wernicke 2006, "Efficient
/// detection of network motifs", algorithm ESU.
pub fn connected_subgraphs(
    graph: &DependencyGraph,
    sizes: &SubgraphSizes,
) -> Result<Vec<Vec<usize>>, GraphError> {
    if sizes.min == 0 || sizes.max < sizes.min {
        let SubgraphSizes { min, max, .. } = *sizes;
        return Err(GraphError::BadSizes { min, max });
    }
    let names = graph.names();
    let mut by_name: Vec<usize> = (0..names.len()).collect();
    by_name.sort_unstable_by_key(|node| &names[*node]);
    let mut enumeration = Enumeration {
        neighbours: neighbours(graph, &by_name),
        sizes: *sizes,
        is_in_or_adjacent: vec![false; names.len()],
        set: Vec::new(),
        n_met: 0,
        n_nodes: 0,
        found: Vec::new(),
    };
    for root in 0..names.len() {
        enumeration.grow_from(root)?;
    }
    let mut found = enumeration.found;
    found.sort_unstable();
    let to_names = |set: Vec<usize>| set.into_iter().map(|rank| by_name[rank]).collect();
    Ok(found.into_iter().map(to_names).collect())
}

/// For each node by its rank in name order, the ranks of its neighbours in either direction.
fn neighbours(graph: &DependencyGraph, by_name: &[usize]) -> Vec<Vec<usize>> {
    let mut rank_of = vec![0; by_name.len()];
    for (rank, node) in by_name.iter().enumerate() {
        rank_of[*node] = rank;
    }
    let mut sets = vec![BTreeSet::new(); by_name.len()];
    for edge in graph.edges() {
        let (source, target) = (rank_of[edge.source], rank_of[edge.target]);
        sets[source].insert(target);
        sets[target].insert(source);
    }
    sets.into_iter()
        .map(|set| set.into_iter().collect())
        .collect()
}

struct Enumeration {
    neighbours: Vec<Vec<usize>>,
    sizes: SubgraphSizes,
    /// Whether a node is in the set or adjacent to it.
    is_in_or_adjacent: Vec<bool>,
    set: Vec<usize>,
    n_met: usize,
    /// Total number of nodes of the found sets.
    n_nodes: usize,
    found: Vec<Vec<usize>>,
}

impl Enumeration {
    fn grow_from(&mut self, root: usize) -> Result<(), GraphError> {
        self.is_in_or_adjacent[root] = true;
        let added = self.add_node(root, root);
        self.grow(root, added.clone())?;
        self.remove_nodes(&added);
        self.is_in_or_adjacent[root] = false;
        Ok(())
    }

    /// Visits the current set and all its extensions by the candidates. Nodes smaller than the root
    /// are skipped, because their sets have been visited already.
    fn grow(&mut self, root: usize, mut candidates: Vec<usize>) -> Result<(), GraphError> {
        self.add_set()?;
        if self.set.len() == self.sizes.max {
            return Ok(());
        }
        while let Some(next_node) = candidates.pop() {
            let added = self.add_node(next_node, root);
            self.grow(root, [candidates.as_slice(), &added].concat())?;
            self.remove_nodes(&added);
        }
        Ok(())
    }

    fn add_set(&mut self) -> Result<(), GraphError> {
        self.n_met += 1;
        if self.n_met > self.sizes.limit {
            let limit = self.sizes.limit;
            return Err(GraphError::TooManySubgraphs { limit });
        }
        if self.set.len() >= self.sizes.min {
            self.n_nodes += self.set.len();
            if self.n_nodes > SUBGRAPH_NODES {
                return Err(GraphError::LargeSubgraphs);
            }
            let mut set = self.set.clone();
            set.sort_unstable();
            self.found.push(set);
        }
        Ok(())
    }

    /// Adds a node to the set; returns its new neighbours above the root.
    fn add_node(&mut self, node: usize, root: usize) -> Vec<usize> {
        self.set.push(node);
        // A set of maximum size is not extended, so its neighbours are not needed.
        if self.set.len() == self.sizes.max {
            return Vec::new();
        }
        let is_in_or_adjacent = &self.is_in_or_adjacent;
        let fresh = self.neighbours[node].iter().copied();
        let added: Vec<usize> = fresh
            .filter(|n| *n > root && !is_in_or_adjacent[*n])
            .collect();
        for neighbour in &added {
            self.is_in_or_adjacent[*neighbour] = true;
        }
        added
    }

    fn remove_nodes(&mut self, added: &[usize]) {
        self.set.pop();
        for neighbour in added {
            self.is_in_or_adjacent[*neighbour] = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};
    use tooltune_apis::{ApiCatalogue, JsonLines};
    use tooltune_rows::batches::SeededRandom;

    use super::*;
    use crate::graph::Edge;

    fn graph(n_nodes: usize, pairs: &[(usize, usize)]) -> DependencyGraph {
        let apis: Vec<(String, usize)> = (0..n_nodes)
            .map(|node| (format!("n{node:03}"), 1))
            .collect();
        let edges: Vec<Edge> = pairs
            .iter()
            .map(|(source, target)| Edge {
                source: *source,
                target: *target,
                parameter: 0,
            })
            .collect();
        DependencyGraph::new(&apis, &edges).expect("fit edges")
    }

    fn sizes(min: usize, max: usize) -> SubgraphSizes {
        SubgraphSizes {
            min,
            max,
            ..SubgraphSizes::default()
        }
    }

    /// Finds connected sets by testing every set of nodes.
    fn subgraphs_by_trial(graph: &DependencyGraph, sizes: &SubgraphSizes) -> Vec<Vec<usize>> {
        let n_nodes = graph.names().len();
        let mut sets: Vec<Vec<usize>> = (1_usize..1 << n_nodes)
            .map(|bits| (0..n_nodes).filter(|node| bits >> node & 1 == 1).collect())
            .filter(|set: &Vec<usize>| (sizes.min..=sizes.max).contains(&set.len()))
            .filter(|set| is_connected(graph, set))
            .collect();
        sets.sort();
        sets
    }

    fn is_connected(graph: &DependencyGraph, set: &[usize]) -> bool {
        let edges = graph.edges_within(set);
        let mut reached = BTreeSet::from([set[0]]);
        for _ in set {
            for edge in &edges {
                if reached.contains(&edge.source) || reached.contains(&edge.target) {
                    reached.extend([edge.source, edge.target]);
                }
            }
        }
        reached.len() == set.len()
    }

    #[test]
    fn the_subgraphs_of_a_path_are_ordered_by_name() {
        let path = graph(4, &[(0, 1), (2, 1), (2, 3)]);
        let subgraphs = connected_subgraphs(&path, &sizes(2, 3)).expect("few");
        let expected: [&[usize]; 5] = [&[0, 1], &[0, 1, 2], &[1, 2], &[1, 2, 3], &[2, 3]];
        assert_eq!(subgraphs, expected);
        let single = connected_subgraphs(&path, &sizes(1, 1)).expect("few");
        assert_eq!(single, [[0], [1], [2], [3]]);
    }

    #[test]
    fn subgraphs_of_random_graphs_equal_brute_force() {
        let mut random = SeededRandom::new(8, 0);
        for _ in 0..120 {
            let n_nodes = 1 + random.below(9);
            let n_edges = random.below(2 * n_nodes);
            let pairs: Vec<(usize, usize)> = (0..n_edges)
                .map(|_| (random.below(n_nodes), random.below(n_nodes)))
                .filter(|(source, target)| source != target)
                .collect();
            let graph = graph(n_nodes, &pairs);
            let min = 1 + random.below(3);
            let subgraph_sizes = sizes(min, min + random.below(4));
            let subgraphs = connected_subgraphs(&graph, &subgraph_sizes).expect("few");
            assert_eq!(
                subgraphs,
                subgraphs_by_trial(&graph, &subgraph_sizes),
                "{pairs:?} {subgraph_sizes:?}"
            );
        }
    }

    /// `scripts/fixtures/subgraphs.py` found the expected sets with networkx, by testing every set
    /// of nodes.
    #[test]
    fn the_subgraphs_of_eighteen_apis_equal_networkx() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/subgraphs");
        let rows = |name: &str| -> Vec<Value> {
            let lines = JsonLines::open(&folder.join(name)).expect("the fixture");
            lines.map(|line| line.expect("a line").1).collect()
        };
        let catalogue = ApiCatalogue::read(&folder.join("documents.jsonl")).expect("documents");
        let position = |name: &Value| {
            let name = name.as_str().expect("a name");
            catalogue.position(name).expect("a document")
        };
        let edges: Vec<Edge> = rows("edges.jsonl")
            .iter()
            .map(|edge| Edge {
                source: position(&edge["source"]),
                target: position(&edge["target"]),
                parameter: catalogue.documents()[position(&edge["target"])]
                    .parameters()
                    .position(|parameter| edge["parameter"] == parameter.name)
                    .expect("a parameter"),
            })
            .collect();
        let apis: Vec<(String, usize)> = catalogue
            .iter()
            .map(|document| (document.call_name(), document.parameters().count()))
            .collect();
        let graph = DependencyGraph::new(&apis, &edges).expect("fit edges");
        assert_eq!(graph.edges().len(), 32);
        let subgraphs = connected_subgraphs(&graph, &SubgraphSizes::default()).expect("few");
        let named_subgraphs: Vec<Value> = subgraphs
            .iter()
            .map(|nodes| {
                let names: Vec<&str> = nodes.iter().map(|&n| graph.names()[n].as_str()).collect();
                json!({ "apis": names })
            })
            .collect();
        assert_eq!(named_subgraphs, rows("subgraphs.jsonl"));
    }

    #[test]
    fn the_order_is_by_name_and_not_by_position() {
        let apis = ["c", "a", "b"].map(|name| (name.to_owned(), 1));
        let edge = |source, target| Edge {
            source,
            target,
            parameter: 0,
        };
        let graph = DependencyGraph::new(&apis, &[edge(0, 1), edge(2, 0)]).expect("fit edges");
        let subgraphs = connected_subgraphs(&graph, &sizes(2, 3)).expect("few");
        let expected: [&[usize]; 3] = [&[1, 2, 0], &[1, 0], &[2, 0]];
        assert_eq!(subgraphs, expected);
    }

    #[test]
    fn a_graph_with_too_many_subgraphs_is_an_early_error() {
        let star: Vec<(usize, usize)> = (1..2_000).map(|leaf| (0, leaf)).collect();
        let small_sizes = SubgraphSizes {
            limit: 5_000,
            ..SubgraphSizes::default()
        };
        let error =
            connected_subgraphs(&graph(2_000, &star), &small_sizes).expect_err("a billion sets");
        assert!(matches!(
            error,
            GraphError::TooManySubgraphs { limit: 5_000 }
        ));
        for (min, max) in [(0, 2), (3, 2)] {
            let error = connected_subgraphs(&graph(2, &[]), &sizes(min, max)).expect_err("sizes");
            assert!(matches!(error, GraphError::BadSizes { .. }));
        }
    }
}
