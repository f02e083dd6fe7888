//! Edges by the names of their APIs, as files hold them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tooltune_rows::tools::{ApiCatalogue, JsonLines};

use super::dependencies::{DependencyGraph, Edge, Ground};
use super::error::GraphError;

/// An edge by names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedEdge {
    /// The API whose output it is.
    pub source: String,
    /// The API that has the parameter.
    pub target: String,
    /// The parameter's name.
    pub parameter: String,
    /// The field of the output that fills it, where the document says which there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// How alike the texts are: their cosine, to four places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// How the output fills the parameter, in words, where a model has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl NamedEdge {
    /// The edge of a graph.
    pub fn of(edge: &Edge, graph: &DependencyGraph, catalogue: &ApiCatalogue) -> Self {
        let ground = graph.ground(edge);
        let rounded = |score: f32| (f64::from(score) * 1e4).round() / 1e4;
        let documents = catalogue.documents();
        let parameter = documents[edge.target].parameters().nth(edge.parameter);
        Self {
            source: documents[edge.source].call_name(),
            target: documents[edge.target].call_name(),
            parameter: parameter.map_or_else(String::new, |parameter| parameter.name.clone()),
            field: ground
                .map(|ground| ground.field.to_owned())
                .filter(|field| !field.is_empty()),
            score: ground.map(|ground| rounded(ground.score)),
            reason: None,
        }
    }

    /// Its source, target and parameter in one text.
    pub fn label(&self) -> String {
        format!("{} > {} > {}", self.source, self.target, self.parameter)
    }

    fn position(&self, place: &str, catalogue: &ApiCatalogue) -> Result<Edge, GraphError> {
        let bad = |reason: String| GraphError::Named {
            place: place.to_owned(),
            reason,
        };
        let is_cosine = |score: f64| (-1.0..=1.0).contains(&score);
        if let Some(score) = self.score.filter(|score| !is_cosine(*score)) {
            return Err(bad(format!(
                "score is {score}, but a cosine is from -1 to 1"
            )));
        }
        let position = |name: &str| {
            let hint = || format!("no document is named {name:?}{}", catalogue.hint(name));
            catalogue.position(name).ok_or_else(|| bad(hint()))
        };
        let (source, target) = (position(&self.source)?, position(&self.target)?);
        let mut parameters = catalogue.documents()[target].parameters();
        let parameter = parameters.position(|parameter| parameter.name == self.parameter);
        let Self {
            target: name,
            parameter: wanted,
            ..
        } = self;
        Ok(Edge {
            source,
            target,
            parameter: parameter
                .ok_or_else(|| bad(format!("{name} has no parameter {wanted:?}")))?,
        })
    }
}

/// A graph whose edges are known by their names, too.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedGraph {
    graph: DependencyGraph,
    edges: BTreeMap<Edge, NamedEdge>,
}

impl NamedGraph {
    /// A graph of edges between the APIs of `catalogue`, each with its place; of an edge that comes
    /// twice the first counts.
    ///
    /// # Errors
    ///
    /// - an edge names an API or a parameter that is not there, leads from an API to itself, or has
    ///   a score that is no cosine
    pub fn new(
        edges: impl IntoIterator<Item = (String, NamedEdge)>,
        catalogue: &ApiCatalogue,
    ) -> Result<Self, GraphError> {
        let mut named: BTreeMap<Edge, NamedEdge> = BTreeMap::new();
        let mut given = Vec::new();
        for (place, edge) in edges {
            let position = edge.position(&place, catalogue)?;
            given.push(position);
            named.entry(position).or_insert(edge);
        }
        let grounded: Vec<_> = given
            .iter()
            .map(|edge| {
                let named = &named[edge];
                let ground = named.score.map(|score| Ground {
                    score: score as f32,
                    field: named.field.as_deref().unwrap_or_default(),
                });
                (*edge, ground)
            })
            .collect();
        let apis: Vec<(String, usize)> = catalogue
            .iter()
            .map(|document| (document.call_name(), document.parameters().count()))
            .collect();
        let graph = DependencyGraph::with_grounds(&apis, &grounded)?;
        Ok(Self {
            graph,
            edges: named,
        })
    }

    /// The graph of a file of edges, JSON Lines.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, or a line is no edge
    /// - those of [`NamedGraph::new`]
    pub fn read(path: &Path, catalogue: &ApiCatalogue) -> Result<Self, GraphError> {
        let mut edges = Vec::new();
        for line in JsonLines::open(path)? {
            let (place, value) = line?;
            let edge: NamedEdge =
                serde_json::from_value(value).map_err(|error| GraphError::Named {
                    place: place.clone(),
                    reason: format!(
                        "{error}; each line is {{\"source\": API, \"target\": API, \"parameter\": \
                         name}}, and may have field, score and reason"
                    ),
                })?;
            edges.push((place, edge));
        }
        Self::new(edges, catalogue)
    }

    /// The edges of a graph by their names.
    pub fn of(graph: DependencyGraph, catalogue: &ApiCatalogue) -> Self {
        let named = |edge: &Edge| (*edge, NamedEdge::of(edge, &graph, catalogue));
        let edges = graph.edges().iter().map(named).collect();
        Self { graph, edges }
    }

    /// The graph.
    pub fn graph(&self) -> &DependencyGraph {
        &self.graph
    }

    /// An edge of the graph by its names, as it was given.
    ///
    /// # Panics
    ///
    /// The edge is of another graph, which is a mistake of the caller.
    pub fn named(&self, edge: &Edge) -> NamedEdge {
        self.edges[edge].clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tooltune_rows::tools::ApiDocument;

    use super::*;

    fn catalogue() -> ApiCatalogue {
        let document = |name: &str| {
            let document = json!({"api_name": name, "required_parameters": [{"name": "port"}]});
            ApiDocument::try_from(document).expect("a document")
        };
        ApiCatalogue::new(vec![document("Tide"), document("Berth")]).expect("two names")
    }

    #[test]
    fn edges_come_back_as_they_were_given_and_a_bad_one_is_named() {
        let edge = |source: &str, parameter: &str, score: f64| NamedEdge {
            source: source.to_owned(),
            target: "Berth".to_owned(),
            parameter: parameter.to_owned(),
            field: None,
            score: Some(score),
            reason: Some("the port".to_owned()),
        };
        let graph = |edge: NamedEdge| NamedGraph::new([("e:1".to_owned(), edge)], &catalogue());
        let good = edge("Tide", "port", 0.25);
        let named = graph(good.clone()).expect("an edge");
        let edges = named.graph().edges();
        assert_eq!((edges.len(), named.named(&edges[0])), (1, good.clone()));
        assert_eq!(good.label(), "Tide > Berth > port");
        for (bad, expected) in [
            (
                edge("Tides", "port", 0.5),
                "e:1: no document is named \"Tides\", did you mean \"Tide\"?",
            ),
            (
                edge("Tide", "ports", 0.5),
                "e:1: Berth has no parameter \"ports\"",
            ),
            (edge("Tide", "port", 2.0), "e:1: score is 2"),
            (edge("Berth", "port", 0.5), "leads from an API to itself"),
        ] {
            let message = graph(bad).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
