//! Evaluates the edges of each stage against edges with known truth.
//!
//! # Source
//!
//! GOAT, appendix A.2 and Table 7.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;
use serde_json::Value;
use tooltune_apis::{ApiCatalogue, JsonLines};
use tooltune_synth::graph::{NamedEdge, NamedGraph};

use super::graph::n_complete;
use super::{EXECUTE, FILTER, GRAPH, STAGES};
use crate::error::PipelineError;
use crate::run::read_items;

/// The field of a line that states whether its edge holds.
const HOLDS: &str = "holds";

/// The known truth of edges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeTruth {
    /// Edges with known truth.
    labelled: BTreeMap<String, bool>,
    /// Number of edges of the over-complete graph.
    n_complete: usize,
}

/// Precision and recall of a stage's edges.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EdgeScores {
    /// The stage; `all` before the first one.
    pub stage: &'static str,
    /// Number of edges that the stage kept.
    pub n_edges: usize,
    /// Number of these edges with known truth.
    pub n_labelled: usize,
    /// Number of these labelled edges that hold.
    pub n_true: usize,
    /// Fraction of the labelled edges that hold.
    pub precision: Option<f64>,
    /// Fraction of all edges known to hold that the stage kept.
    pub recall: Option<f64>,
}

impl EdgeTruth {
    /// Reads edges with known truth as JSON Lines, in the format of the stages. A line with `holds`
    /// false is an edge that does not hold. In a file with such lines, unlisted edges are ignored;
    /// in a file without them, unlisted edges do not hold.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, a line is not an edge, or its `holds` is not a boolean
    /// - an edge names an unknown API or parameter, or is listed both ways
    /// - no edge holds
    pub fn read(path: &Path, catalogue: &ApiCatalogue) -> Result<Self, PipelineError> {
        let mut labels = BTreeMap::new();
        for line in JsonLines::open(path)? {
            let (location, mut value) = line?;
            let edge_label = match value
                .as_object_mut()
                .and_then(|fields| fields.remove(HOLDS))
            {
                None => true,
                Some(Value::Bool(edge_label)) => edge_label,
                Some(other) => {
                    return Err(truth_error(&location, &format!("\"{HOLDS}\" is {other}")));
                }
            };
            let edge: NamedEdge = serde_json::from_value(value)
                .map_err(|error| truth_error(&location, &error.to_string()))?;
            let label = edge.label();
            NamedGraph::new([(location.clone(), edge)], catalogue)?;
            if labels
                .insert(label, edge_label)
                .is_some_and(|old| old != edge_label)
            {
                return Err(truth_error(
                    &location,
                    "an earlier line has the opposite label for this edge",
                ));
            }
        }
        if !labels.values().any(|edge_label| *edge_label) {
            let path = path.display();
            return Err(PipelineError::Usage(format!(
                "{path} has no edge that holds, so recall is undefined; add some"
            )));
        }
        Ok(Self {
            labelled: labels,
            n_complete: n_complete(catalogue),
        })
    }

    /// The scores of the completed stages of a folder.
    ///
    /// # Errors
    ///
    /// Its files cannot be read.
    pub fn scores(&self, dir: &Path) -> Result<Vec<EdgeScores>, PipelineError> {
        let mut scores = vec![self.total_scores()];
        for stage in [GRAPH, FILTER, EXECUTE] {
            if let Some(edges) = read_items::<NamedEdge>(dir, STAGES, stage)? {
                scores.push(self.stage_scores(stage, &edges));
            }
        }
        Ok(scores)
    }

    fn n_true_edges(&self) -> usize {
        self.labelled.values().filter(|is_true| **is_true).count()
    }

    fn is_partial(&self) -> bool {
        self.labelled.values().any(|is_true| !is_true)
    }

    fn total_scores(&self) -> EdgeScores {
        let n_labelled = match self.is_partial() {
            true => self.labelled.len(),
            false => self.n_complete,
        };
        self.score("all", self.n_complete, n_labelled, self.n_true_edges())
    }

    fn stage_scores(&self, stage: &'static str, edges: &[NamedEdge]) -> EdgeScores {
        let edge_labels: BTreeSet<String> = edges.iter().map(NamedEdge::label).collect();
        let known: Vec<bool> = edge_labels
            .iter()
            .filter_map(|label| self.labelled.get(label).copied())
            .collect();
        let n_true = known.iter().filter(|is_true| **is_true).count();
        let n_labelled = match self.is_partial() {
            true => known.len(),
            false => edge_labels.len(),
        };
        self.score(stage, edge_labels.len(), n_labelled, n_true)
    }

    fn score(
        &self,
        stage: &'static str,
        n_edges: usize,
        n_labelled: usize,
        n_true: usize,
    ) -> EdgeScores {
        let part = |n: usize| (n > 0).then(|| n_true as f64 / n as f64);
        EdgeScores {
            stage,
            n_edges,
            n_labelled,
            n_true,
            precision: part(n_labelled),
            recall: part(self.n_true_edges()),
        }
    }
}

fn truth_error(location: &str, reason: &str) -> PipelineError {
    PipelineError::Usage(format!(
        "{location}: {reason}; each line is {{\"source\": API, \"target\": API, \"parameter\": name}}, \
         and may have \"{HOLDS}\": true or false"
    ))
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
        ApiCatalogue::new(["Tide", "Berth", "Wind"].map(document).to_vec()).expect("names")
    }

    fn edge(source: &str, target: &str) -> NamedEdge {
        let edge = json!({"source": source, "target": target, "parameter": "port"});
        serde_json::from_value(edge).expect("an edge")
    }

    fn read(lines: &[Value]) -> Result<EdgeTruth, PipelineError> {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("edges.jsonl");
        let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
        std::fs::write(&path, lines.join("\n")).expect("a file");
        EdgeTruth::read(&path, &catalogue())
    }

    #[test]
    fn edges_without_a_label_are_wrong_unless_wrong_edges_are_labelled() {
        let true_edge = |source: &str, target: &str| json!(edge(source, target));
        let fails = |source: &str, target: &str| {
            let mut line = json!(edge(source, target));
            line[HOLDS] = json!(false);
            line
        };
        let edges = [
            edge("Tide", "Berth"),
            edge("Wind", "Berth"),
            edge("Wind", "Tide"),
        ];
        let truth_of = |lines: &[Value]| {
            let truth = read(lines).expect("edges");
            let (total, stage) = (truth.total_scores(), truth.stage_scores(GRAPH, &edges));
            let numbers =
                |truth_of: &EdgeScores| (truth_of.n_edges, truth_of.n_labelled, truth_of.n_true);
            (
                numbers(&total),
                numbers(&stage),
                stage.precision,
                stage.recall,
            )
        };
        let complete = truth_of(&[true_edge("Tide", "Berth"), true_edge("Berth", "Tide")]);
        assert_eq!(complete, ((6, 6, 2), (3, 3, 1), Some(1.0 / 3.0), Some(0.5)));
        let part = truth_of(&[true_edge("Tide", "Berth"), fails("Wind", "Berth")]);
        assert_eq!(part, ((6, 2, 1), (3, 2, 1), Some(0.5), Some(1.0)));
        let duplicate = [true_edge("Tide", "Berth"), fails("Tide", "Berth")];
        for (lines, expected) in [
            (&duplicate[..], "the opposite"),
            (&duplicate[1..], "no edge that holds"),
            (&[json!({"source": "Tide"})], "missing field"),
            (&[true_edge("Tides", "Berth")], "did you mean \"Tide\""),
        ] {
            let message = read(lines).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
