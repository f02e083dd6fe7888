//! Finds the edges from outputs of APIs to the parameters of others.

use std::collections::{BTreeSet, HashMap};

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

/// Why there is an edge.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ground<'a> {
    /// How alike the texts of output and parameter are: their cosine.
    pub score: f32,
    /// The field of the output that fills the parameter, such as `results[].id`; empty where the
    /// output is described as a whole.
    pub field: &'a str,
}

/// A ground whose field stands in a list, since many edges come from one field.
#[derive(Debug, Clone, Copy, PartialEq)]
struct KeptGround {
    score: f32,
    field: u32,
}

/// A directed graph with several edges between two APIs, one for each parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct DependencyGraph {
    names: Vec<String>,
    edges: Vec<Edge>,
    /// Why there is each edge, where that is known, in their order.
    grounds: Vec<Option<KeptGround>>,
    fields: Vec<String>,
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
        let edges = edges.iter().map(|edge| (*edge, None));
        Self::with_grounds(apis, &edges.collect::<Vec<_>>())
    }

    /// The same with why there is each edge, where that is known; of an edge that comes twice the
    /// first ground counts.
    ///
    /// # Errors
    ///
    /// - those of [`DependencyGraph::new`]
    pub fn with_grounds(
        apis: &[(String, usize)],
        edges: &[(Edge, Option<Ground<'_>>)],
    ) -> Result<Self, GraphError> {
        let mut distinct = BTreeSet::new();
        if let Some((name, _)) = apis.iter().find(|(name, _)| !distinct.insert(name)) {
            return Err(GraphError::DuplicateName { name: name.clone() });
        }
        for (edge_idx, (edge, _)) in edges.iter().enumerate() {
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
        let mut fields = Fields::default();
        let mut kept: Vec<(Edge, Option<KeptGround>)> = Vec::with_capacity(edges.len());
        for (edge, ground) in edges {
            let ground = ground.map(|ground| fields.kept(ground)).transpose()?;
            kept.push((*edge, ground));
        }
        kept.sort_by_key(|(edge, _)| *edge);
        kept.dedup_by_key(|(edge, _)| *edge);
        let (edges, grounds) = kept.into_iter().unzip();
        Ok(Self {
            names: apis.iter().map(|(name, _)| name.clone()).collect(),
            edges,
            grounds,
            fields: fields.names,
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
        let edges = complete_edges(&sizes).map(|edge| (edge, None));
        Self::of_texts(apis, &edges.collect::<Vec<_>>())
    }

    pub(super) fn of_texts(
        apis: &[ApiTexts],
        edges: &[(Edge, Option<Ground<'_>>)],
    ) -> Result<Self, GraphError> {
        let apis: Vec<(String, usize)> = apis
            .iter()
            .map(|api| (api.name.clone(), api.inputs.len()))
            .collect();
        Self::with_grounds(&apis, edges)
    }

    /// Why there is an edge, where that is known.
    pub fn ground(&self, edge: &Edge) -> Option<Ground<'_>> {
        let position = self.edges.binary_search(edge).ok()?;
        let kept = self.grounds.get(position).copied().flatten()?;
        let field = self.fields.get(usize::try_from(kept.field).ok()?)?;
        Some(Ground {
            score: kept.score,
            field,
        })
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

/// Fields by their position in a list.
#[derive(Default)]
struct Fields<'a> {
    names: Vec<String>,
    positions: HashMap<&'a str, u32>,
}

impl<'a> Fields<'a> {
    fn kept(&mut self, ground: Ground<'a>) -> Result<KeptGround, GraphError> {
        let too_many = |_| GraphError::TooManyEdges { limit: MAX_EDGES };
        let field = match self.positions.get(ground.field) {
            Some(position) => *position,
            None => {
                let position = u32::try_from(self.names.len()).map_err(too_many)?;
                self.names.push(ground.field.to_owned());
                self.positions.insert(ground.field, position);
                position
            }
        };
        Ok(KeptGround {
            score: ground.score,
            field,
        })
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
    use super::super::similarity::OutputField;
    use super::*;

    fn texts(sizes: &[usize]) -> Vec<ApiTexts> {
        let api = |(idx, n): (usize, &usize)| ApiTexts {
            name: format!("api{idx}"),
            inputs: vec!["a port".to_owned(); *n],
            outputs: vec![OutputField::whole("a tide")],
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
