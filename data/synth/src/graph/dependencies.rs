//! Finds the edges from outputs of APIs to the parameters of others.

use std::collections::BTreeSet;

use super::error::GraphError;
use super::similarity::ApiTexts;

/// Edges that a graph may have; a hundred million would be a gigabyte of guesses.
pub const MAX_EDGES: usize = 20_000_000;

/// The output of one API may fill a parameter of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Edge {
    /// Position of the API whose output it is.
    pub source: usize,
    /// Position of the API that has the parameter.
    pub target: usize,
    /// Position among the target's parameters, the required ones first.
    pub parameter: usize,
}

/// A directed graph with several edges between two APIs, one for each parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DependencyGraph {
    names: Vec<String>,
    edges: Vec<Edge>,
}

impl DependencyGraph {
    /// A graph of edges that are known, such as those that survived execution.
    ///
    /// Edges are kept in order, each once. `n_parameters` are those of each API.
    ///
    /// # Errors
    ///
    /// - two APIs have one name
    /// - an edge is out of range, or leads from an API to itself
    pub fn new(apis: &[(String, usize)], edges: &[Edge]) -> Result<Self, GraphError> {
        let mut distinct = BTreeSet::new();
        if let Some((name, _)) = apis.iter().find(|(name, _)| !distinct.insert(name)) {
            return Err(GraphError::DuplicateName { name: name.clone() });
        }
        for (edge_idx, edge) in edges.iter().enumerate() {
            let fault = match (apis.get(edge.source), apis.get(edge.target)) {
                (None, _) | (_, None) => "names an API that is not there",
                _ if edge.source == edge.target => "leads from an API to itself",
                (_, Some((_, n))) if edge.parameter >= *n => "names a parameter that is not there",
                _ => continue,
            };
            return Err(GraphError::BadEdge {
                edge_idx,
                edge: format!(
                    "{} -> {}, parameter {}",
                    edge.source, edge.target, edge.parameter
                ),
                fault,
            });
        }
        let edges: BTreeSet<Edge> = edges.iter().copied().collect();
        Ok(Self {
            names: apis.iter().map(|(name, _)| name.clone()).collect(),
            edges: edges.into_iter().collect(),
        })
    }

    /// The graph that the pipeline begins with: every ordered pair of APIs, every parameter.
    ///
    /// # Errors
    ///
    /// - two APIs have one name, or there would be more than [`MAX_EDGES`] edges; the similarity
    ///   filter ([`DependencyGraph::by_similarity`]) does not need this graph
    ///
    /// # Source
    ///
    /// GOAT, section 3.1.1: graph initialization.
    pub fn complete(apis: &[ApiTexts]) -> Result<Self, GraphError> {
        let sizes: Vec<usize> = apis.iter().map(|api| api.inputs.len()).collect();
        if n_complete_edges(&sizes) > MAX_EDGES as u128 {
            return Err(GraphError::TooManyEdges { limit: MAX_EDGES });
        }
        let edges: Vec<Edge> = complete_edges(&sizes).collect();
        Self::of_texts(apis, &edges)
    }

    pub(super) fn of_texts(apis: &[ApiTexts], edges: &[Edge]) -> Result<Self, GraphError> {
        let apis: Vec<(String, usize)> = apis
            .iter()
            .map(|api| (api.name.clone(), api.inputs.len()))
            .collect();
        Self::new(&apis, edges)
    }

    /// The APIs' names, by position.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The edges, by source, target and parameter.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// The edges between APIs of a set of positions, by source, target and parameter.
    pub fn edges_within(&self, nodes: &[usize]) -> Vec<Edge> {
        let sources: BTreeSet<usize> = nodes.iter().copied().collect();
        let outgoing = sources.iter().flat_map(|source| {
            let start = self.edges.partition_point(|edge| edge.source < *source);
            self.edges[start..]
                .iter()
                .take_while(|edge| edge.source == *source)
        });
        outgoing
            .filter(|edge| sources.contains(&edge.target))
            .copied()
            .collect()
    }
}

fn complete_edges(sizes: &[usize]) -> impl Iterator<Item = Edge> {
    (0..sizes.len()).flat_map(move |source| {
        let targets = (0..sizes.len()).filter(move |target| *target != source);
        targets.flat_map(move |target| {
            (0..sizes[target]).map(move |parameter| Edge {
                source,
                target,
                parameter,
            })
        })
    })
}

/// The number of edges of the complete graph: each parameter has one from every other API.
pub fn n_complete_edges(parameters_per_api: &[usize]) -> u128 {
    let n_parameters: u128 = parameters_per_api.iter().map(|n| *n as u128).sum();
    n_parameters * (parameters_per_api.len() as u128).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(sizes: &[usize]) -> Vec<ApiTexts> {
        let api = |(idx, n): (usize, &usize)| ApiTexts {
            name: format!("api{idx}"),
            inputs: vec!["a port".to_owned(); *n],
            output: "a tide".to_owned(),
        };
        sizes.iter().enumerate().map(api).collect()
    }

    #[test]
    fn the_complete_graph_has_an_edge_for_each_parameter_and_each_other_api() {
        let graph = DependencyGraph::complete(&texts(&[2, 0, 3])).expect("small");
        assert_eq!(graph.edges().len() as u128, n_complete_edges(&[2, 0, 3]));
        assert_eq!(graph.edges().len(), 10);
        assert!(graph.edges().iter().all(|edge| edge.source != edge.target));
        let distinct: BTreeSet<&Edge> = graph.edges().iter().collect();
        assert_eq!(distinct.len(), 10);
        assert_eq!(n_complete_edges(&[]), 0);
        assert_eq!(n_complete_edges(&[5]), 0);
    }

    #[test]
    fn edges_within_a_set_are_those_between_its_members() {
        let graph = DependencyGraph::complete(&texts(&[1, 1, 1, 2])).expect("small");
        let within = graph.edges_within(&[3, 1, 3]);
        let ends: Vec<(usize, usize)> = within.iter().map(|e| (e.source, e.target)).collect();
        assert_eq!(ends, [(1, 3), (1, 3), (3, 1)]);
        assert_eq!(graph.edges_within(&[2]), []);
    }

    #[test]
    fn too_large_a_graph_is_an_error_before_it_is_made() {
        let error = DependencyGraph::complete(&texts(&[4; 5_000])).expect_err("a hundred million");
        assert!(matches!(error, GraphError::TooManyEdges { .. }));
        assert_eq!(n_complete_edges(&[usize::MAX; 3]), 6 * usize::MAX as u128);
    }

    #[test]
    fn an_edge_that_cannot_be_is_named() {
        let apis = [("tide".to_owned(), 1), ("berth".to_owned(), 2)];
        let edge = |source, target, parameter| Edge {
            source,
            target,
            parameter,
        };
        let fault = |bad: Edge| match DependencyGraph::new(&apis, &[edge(0, 1, 1), bad]) {
            Err(error) => error.to_string(),
            Ok(graph) => panic!("{graph:?}"),
        };
        assert!(fault(edge(0, 2, 0)).starts_with("edge 1 (0 -> 2, parameter 0) names an API"));
        assert!(fault(edge(1, 1, 0)).contains("leads from an API to itself"));
        assert!(fault(edge(1, 0, 1)).contains("names a parameter"));
        let twice = [apis[0].clone(), apis[0].clone()];
        let error = DependencyGraph::new(&twice, &[]).expect_err("one name");
        assert!(matches!(error, GraphError::DuplicateName { .. }));
    }
}
