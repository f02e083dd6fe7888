//! Edges identified by API names, as stored in files.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tooltune_apis::{ApiCatalogue, JsonLines};

use super::dependencies::{DependencyGraph, Edge, EdgeEvidence};
use super::error::GraphError;

/// An edge identified by names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedEdge {
    /// The API with the output.
    pub source: String,
    /// The API with the parameter.
    pub target: String,
    /// Name of the parameter.
    pub parameter: String,
    /// The output field that fills it, if the document declares fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Cosine similarity of the descriptions, to four decimals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// A model's explanation of how the output fills the parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl NamedEdge {
    /// The names of an edge of a graph.
    pub fn from_edge(edge: &Edge, graph: &DependencyGraph, catalogue: &ApiCatalogue) -> Self {
        let evidence = graph.evidence(edge);
        let rounded = |score: f32| (f64::from(score) * 1e4).round() / 1e4;
        let documents = catalogue.documents();
        let parameter = documents[edge.target].parameters().nth(edge.parameter);
        Self {
            source: documents[edge.source].call_name(),
            target: documents[edge.target].call_name(),
            parameter: parameter.map_or_else(String::new, |parameter| parameter.name.clone()),
            field: evidence
                .map(|evidence| evidence.field.to_owned())
                .filter(|field| !field.is_empty()),
            score: evidence.map(|evidence| rounded(evidence.score)),
            reason: None,
        }
    }

    /// Source, target and parameter as one string.
    pub fn label(&self) -> String {
        format!("{} > {} > {}", self.source, self.target, self.parameter)
    }

    fn resolve(&self, location: &str, catalogue: &ApiCatalogue) -> Result<Edge, GraphError> {
        let edge_error = |reason: String| GraphError::Named {
            place: location.to_owned(),
            reason,
        };
        let is_cosine = |score: f64| (-1.0..=1.0).contains(&score);
        if let Some(score) = self.score.filter(|score| !is_cosine(*score)) {
            return Err(edge_error(format!(
                "score is {score}; it must be a cosine from -1 to 1"
            )));
        }
        let position = |name: &str| {
            let hint = || format!("no document is named {name:?}{}", catalogue.hint(name));
            catalogue.position(name).ok_or_else(|| edge_error(hint()))
        };
        let (source, target) = (position(&self.source)?, position(&self.target)?);
        let mut parameters = catalogue.documents()[target].parameters();
        let parameter = parameters.position(|parameter| parameter.name == self.parameter);
        let Self {
            target: name,
            parameter: parameter_name,
            ..
        } = self;
        Ok(Edge {
            source,
            target,
            parameter: parameter
                .ok_or_else(|| edge_error(format!("{name} has no parameter {parameter_name:?}")))?,
        })
    }
}

/// A graph with the names of its edges.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedGraph {
    graph: DependencyGraph,
    edges: BTreeMap<Edge, NamedEdge>,
}

impl NamedGraph {
    /// A graph of edges between the APIs of `catalogue`. Each edge comes with its location, for
    /// errors. If an edge is repeated, the first one is kept.
    ///
    /// # Errors
    ///
    /// An edge refers to an unknown API or parameter, connects an API to itself, or has a score
    /// that is not a cosine.
    pub fn new(
        edges: impl IntoIterator<Item = (String, NamedEdge)>,
        catalogue: &ApiCatalogue,
    ) -> Result<Self, GraphError> {
        let mut edges_by_key: BTreeMap<Edge, NamedEdge> = BTreeMap::new();
        let mut resolved_edges = Vec::new();
        for (location, edge) in edges {
            let resolved = edge.resolve(&location, catalogue)?;
            resolved_edges.push(resolved);
            edges_by_key.entry(resolved).or_insert(edge);
        }
        let edges_with_evidence: Vec<_> = resolved_edges
            .iter()
            .map(|edge| {
                let edges_by_key = &edges_by_key[edge];
                let evidence = edges_by_key.score.map(|score| EdgeEvidence {
                    score: score as f32,
                    field: edges_by_key.field.as_deref().unwrap_or_default(),
                });
                (*edge, evidence)
            })
            .collect();
        let apis: Vec<(String, usize)> = catalogue
            .iter()
            .map(|document| (document.call_name(), document.parameters().count()))
            .collect();
        let graph = DependencyGraph::with_evidence(&apis, &edges_with_evidence)?;
        Ok(Self {
            graph,
            edges: edges_by_key,
        })
    }

    /// Reads the graph from a JSON Lines file of edges.
    ///
    /// # Errors
    ///
    /// The file cannot be read, a line is not an edge, or as for [`NamedGraph::new`].
    pub fn read(path: &Path, catalogue: &ApiCatalogue) -> Result<Self, GraphError> {
        let mut edges = Vec::new();
        for line in JsonLines::open(path)? {
            let (location, value) = line?;
            let edge: NamedEdge =
                serde_json::from_value(value).map_err(|error| GraphError::Named {
                    place: location.clone(),
                    reason: format!(
                        "{error}; each line is {{\"source\": API, \"target\": API, \"parameter\": \
                         name}}, and may have field, score and reason"
                    ),
                })?;
            edges.push((location, edge));
        }
        Self::new(edges, catalogue)
    }

    /// Adds names to the edges of a graph.
    pub fn from_graph(graph: DependencyGraph, catalogue: &ApiCatalogue) -> Self {
        let to_named = |edge: &Edge| (*edge, NamedEdge::from_edge(edge, &graph, catalogue));
        let edges = graph.edges().iter().map(to_named).collect();
        Self { graph, edges }
    }

    /// The graph.
    pub fn graph(&self) -> &DependencyGraph {
        &self.graph
    }

    /// The named edge for an edge of the graph, as given.
    ///
    /// # Panics
    ///
    /// If the edge belongs to another graph, which is a bug in the caller.
    pub fn to_named(&self, edge: &Edge) -> NamedEdge {
        self.edges[edge].clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tooltune_apis::ApiDocument;

    use super::*;

    fn catalogue() -> ApiCatalogue {
        let document = |name: &str| {
            let document = json!({"api_name": name, "required_parameters": [{"name": "port"}]});
            ApiDocument::try_from(document).expect("a document")
        };
        ApiCatalogue::new(vec![document("Tide"), document("Berth")]).expect("two names")
    }

    #[test]
    fn edges_are_returned_unchanged_and_an_invalid_one_is_reported() {
        let edge = |source: &str, parameter: &str, score: f64| NamedEdge {
            source: source.to_owned(),
            target: "Berth".to_owned(),
            parameter: parameter.to_owned(),
            field: None,
            score: Some(score),
            reason: Some("the port".to_owned()),
        };
        let graph = |edge: NamedEdge| NamedGraph::new([("e:1".to_owned(), edge)], &catalogue());
        let valid_edge = edge("Tide", "port", 0.25);
        let named_graph = graph(valid_edge.clone()).expect("an edge");
        let edges = named_graph.graph().edges();
        assert_eq!(
            (edges.len(), named_graph.to_named(&edges[0])),
            (1, valid_edge.clone())
        );
        assert_eq!(valid_edge.label(), "Tide > Berth > port");
        for (bad_edge, expected) in [
            (
                edge("Tides", "port", 0.5),
                "e:1: no document is named \"Tides\", did you mean \"Tide\"?",
            ),
            (
                edge("Tide", "ports", 0.5),
                "e:1: Berth has no parameter \"ports\"",
            ),
            (edge("Tide", "port", 2.0), "e:1: score is 2"),
            (edge("Berth", "port", 0.5), "connects an API to itself"),
        ] {
            let message = graph(bad_edge).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
