//! Dependency graphs: edges from the outputs of APIs to parameters of other APIs.

use std::collections::{BTreeSet, HashMap};

use super::error::GraphError;
use super::similarity::ApiDescriptions;

/// Maximum number of edges. A hundred million would need a gigabyte.
pub const MAX_EDGES: usize = 20_000_000;

/// An edge: the output of one API may fill a parameter of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Edge {
    /// Index of the API with the output.
    pub source: usize,
    /// Index of the API with the parameter.
    pub target: usize,
    /// Index among the target's parameters, required ones first.
    pub parameter: usize,
}

/// The evidence for an edge.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EdgeEvidence<'a> {
    /// Cosine similarity of the descriptions of output and parameter.
    pub score: f32,
    /// Path of the output field that fills the parameter, such as `results[].id`; empty if the
    /// output is described as a whole.
    pub field: &'a str,
}

/// Evidence whose field is stored as an index, because many edges share a field.
#[derive(Debug, Clone, Copy, PartialEq)]
struct StoredEvidence {
    score: f32,
    field: u32,
}

/// A directed multigraph with one edge per parameter between two APIs.
#[derive(Debug, Clone, PartialEq)]
pub struct DependencyGraph {
    names: Vec<String>,
    edges: Vec<Edge>,
    /// Evidence of each edge, if known, in edge order.
    evidence: Vec<Option<StoredEvidence>>,
    fields: Vec<String>,
}

impl DependencyGraph {
    /// A graph of known edges, for example edges confirmed by execution.
    ///
    /// Edges are sorted and deduplicated. `n_parameters` is the number of parameters of each API.
    ///
    /// # Errors
    ///
    /// - two APIs have the same name
    /// - an edge is out of range, or connects an API to itself
    pub fn new(apis: &[(String, usize)], edges: &[Edge]) -> Result<Self, GraphError> {
        let edges = edges.iter().map(|edge| (*edge, None));
        Self::with_evidence(apis, &edges.collect::<Vec<_>>())
    }

    /// Like [`DependencyGraph::new`], with the evidence of each edge if known. If an edge is
    /// repeated, its first evidence is kept.
    ///
    /// # Errors
    ///
    /// As for [`DependencyGraph::new`].
    pub fn with_evidence(
        apis: &[(String, usize)],
        edges: &[(Edge, Option<EdgeEvidence<'_>>)],
    ) -> Result<Self, GraphError> {
        let mut distinct = BTreeSet::new();
        if let Some((name, _)) = apis.iter().find(|(name, _)| !distinct.insert(name)) {
            return Err(GraphError::DuplicateName { name: name.clone() });
        }
        for (edge_idx, (edge, _)) in edges.iter().enumerate() {
            let edge_fault = match (apis.get(edge.source), apis.get(edge.target)) {
                (None, _) | (_, None) => "refers to an unknown API",
                _ if edge.source == edge.target => "connects an API to itself",
                (_, Some((_, n))) if edge.parameter >= *n => "refers to an unknown parameter",
                _ => continue,
            };
            return Err(GraphError::BadEdge {
                edge_idx,
                edge: format!(
                    "{} -> {}, parameter {}",
                    edge.source, edge.target, edge.parameter
                ),
                fault: edge_fault,
            });
        }
        let mut fields = Fields::default();
        let mut edges_with_evidence: Vec<(Edge, Option<StoredEvidence>)> =
            Vec::with_capacity(edges.len());
        for (edge, evidence) in edges {
            let evidence = evidence
                .map(|evidence| fields.store_evidence(evidence))
                .transpose()?;
            edges_with_evidence.push((*edge, evidence));
        }
        edges_with_evidence.sort_by_key(|(edge, _)| *edge);
        edges_with_evidence.dedup_by_key(|(edge, _)| *edge);
        let (edges, evidence) = edges_with_evidence.into_iter().unzip();
        Ok(Self {
            names: apis.iter().map(|(name, _)| name.clone()).collect(),
            edges,
            evidence,
            fields: fields.names,
        })
    }

    /// The initial graph of the pipeline: an edge from every API to every parameter of every other
    /// API.
    ///
    /// [`DependencyGraph::from_similarity`] does not build this graph first, so only the edges that
    /// it keeps count toward [`MAX_EDGES`].
    ///
    /// # Errors
    ///
    /// Two APIs have the same name, or there would be more than [`MAX_EDGES`] edges.
    ///
    /// # Source
    ///
    /// GOAT, section 3.1.1: graph initialization.
    pub fn complete_graph(apis: &[ApiDescriptions]) -> Result<Self, GraphError> {
        let parameters_per_api: Vec<usize> = apis.iter().map(|api| api.inputs.len()).collect();
        if n_complete_edges(&parameters_per_api) > MAX_EDGES as u128 {
            return Err(GraphError::TooManyEdges { limit: MAX_EDGES });
        }
        let edges = complete_edges(&parameters_per_api).map(|edge| (edge, None));
        Self::from_descriptions(apis, &edges.collect::<Vec<_>>())
    }

    pub(super) fn from_descriptions(
        apis: &[ApiDescriptions],
        edges: &[(Edge, Option<EdgeEvidence<'_>>)],
    ) -> Result<Self, GraphError> {
        let apis: Vec<(String, usize)> = apis
            .iter()
            .map(|api| (api.name.clone(), api.inputs.len()))
            .collect();
        Self::with_evidence(&apis, edges)
    }

    /// The evidence of an edge, if known.
    pub fn evidence(&self, edge: &Edge) -> Option<EdgeEvidence<'_>> {
        let position = self.edges.binary_search(edge).ok()?;
        let evidence = self.evidence.get(position).copied().flatten()?;
        let field = self.fields.get(usize::try_from(evidence.field).ok()?)?;
        Some(EdgeEvidence {
            score: evidence.score,
            field,
        })
    }

    /// The names of the APIs, by index.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The edges, sorted by source, target and parameter.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// The edges between APIs of an index set, sorted by source, target and parameter.
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

/// Field paths and their indices, in order of first use.
#[derive(Default)]
struct Fields<'a> {
    names: Vec<String>,
    positions: HashMap<&'a str, u32>,
}

impl<'a> Fields<'a> {
    fn store_evidence(&mut self, evidence: EdgeEvidence<'a>) -> Result<StoredEvidence, GraphError> {
        let too_many = |_| GraphError::TooManyEdges { limit: MAX_EDGES };
        let field = match self.positions.get(evidence.field) {
            Some(position) => *position,
            None => {
                let position = u32::try_from(self.names.len()).map_err(too_many)?;
                self.names.push(evidence.field.to_owned());
                self.positions.insert(evidence.field, position);
                position
            }
        };
        Ok(StoredEvidence {
            score: evidence.score,
            field,
        })
    }
}

fn complete_edges(parameters_per_api: &[usize]) -> impl Iterator<Item = Edge> {
    (0..parameters_per_api.len()).flat_map(move |source| {
        let targets = (0..parameters_per_api.len()).filter(move |target| *target != source);
        targets.flat_map(move |target| {
            (0..parameters_per_api[target]).map(move |parameter| Edge {
                source,
                target,
                parameter,
            })
        })
    })
}

/// Number of edges of the complete graph: one to each parameter from every other API.
pub fn n_complete_edges(parameters_per_api: &[usize]) -> u128 {
    let n_parameters: u128 = parameters_per_api.iter().map(|n| *n as u128).sum();
    n_parameters * (parameters_per_api.len() as u128).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::super::similarity::OutputField;
    use super::*;

    fn texts(sizes: &[usize]) -> Vec<ApiDescriptions> {
        let api = |(idx, n): (usize, &usize)| ApiDescriptions {
            name: format!("api{idx}"),
            inputs: vec!["a port".to_owned(); *n],
            outputs: vec![OutputField::single_text("a tide")],
        };
        sizes.iter().enumerate().map(api).collect()
    }

    #[test]
    fn the_complete_graph_has_an_edge_for_each_parameter_and_each_other_api() {
        let graph = DependencyGraph::complete_graph(&texts(&[2, 0, 3])).expect("small");
        assert_eq!(graph.edges().len() as u128, n_complete_edges(&[2, 0, 3]));
        assert_eq!(graph.edges().len(), 10);
        assert!(graph.edges().iter().all(|edge| edge.source != edge.target));
        let distinct: BTreeSet<&Edge> = graph.edges().iter().collect();
        assert_eq!(distinct.len(), 10);
        assert_eq!(n_complete_edges(&[]), 0);
        assert_eq!(n_complete_edges(&[5]), 0);
    }

    #[test]
    fn edges_within_a_set_connect_only_its_members() {
        let graph = DependencyGraph::complete_graph(&texts(&[1, 1, 1, 2])).expect("small");
        let inner_edges = graph.edges_within(&[3, 1, 3]);
        let node_pairs: Vec<(usize, usize)> =
            inner_edges.iter().map(|e| (e.source, e.target)).collect();
        assert_eq!(node_pairs, [(1, 3), (1, 3), (3, 1)]);
        assert_eq!(graph.edges_within(&[2]), []);
    }

    #[test]
    fn a_too_large_graph_is_an_error_before_it_is_built() {
        let error =
            DependencyGraph::complete_graph(&texts(&[4; 5_000])).expect_err("a hundred million");
        assert!(matches!(error, GraphError::TooManyEdges { .. }));
        assert_eq!(n_complete_edges(&[usize::MAX; 3]), 6 * usize::MAX as u128);
    }

    #[test]
    fn an_impossible_edge_is_an_error_with_its_apis() {
        let apis = [("tide".to_owned(), 1), ("berth".to_owned(), 2)];
        let edge = |source, target, parameter| Edge {
            source,
            target,
            parameter,
        };
        let error_of =
            |bad_edge: Edge| match DependencyGraph::new(&apis, &[edge(0, 1, 1), bad_edge]) {
                Err(error) => error.to_string(),
                Ok(graph) => panic!("{graph:?}"),
            };
        assert!(
            error_of(edge(0, 2, 0))
                .starts_with("edge 1 (0 -> 2, parameter 0) refers to an unknown API")
        );
        assert!(error_of(edge(1, 1, 0)).contains("connects an API to itself"));
        assert!(error_of(edge(1, 0, 1)).contains("refers to an unknown parameter"));
        let duplicated = [apis[0].clone(), apis[0].clone()];
        let error = DependencyGraph::new(&duplicated, &[]).expect_err("one name");
        assert!(matches!(error, GraphError::DuplicateName { .. }));
    }
}
