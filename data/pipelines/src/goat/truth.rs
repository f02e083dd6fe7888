//! How right the edges are after each stage, by edges that somebody has settled.
//!
//! # Source
//!
//! GOAT, appendix A.2 and Table 7.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;
use serde_json::Value;
use tooltune_rows::tools::{ApiCatalogue, JsonLines};
use tooltune_synth::graph::{NamedEdge, NamedGraph};

use super::graph::n_complete;
use super::{EXECUTE, FILTER, GRAPH, STAGES};
use crate::error::PipelineError;
use crate::run::read_items;

/// The field of a line that says whether its edge holds.
const HOLDS: &str = "holds";

/// Which edges hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeTruth {
    /// Settled edges; whether each holds.
    settled: BTreeMap<String, bool>,
    /// Edges of the over-complete graph.
    n_complete: usize,
}

/// How right the edges of a stage are.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EdgeScores {
    /// The stage; `all` before the first.
    pub stage: &'static str,
    /// Edges that it has kept.
    pub n_edges: usize,
    /// Those of them that are settled.
    pub n_settled: usize,
    /// Those of these that hold.
    pub n_right: usize,
    /// Part of the settled ones that hold.
    pub precision: Option<f64>,
    /// Part of those that hold that it has kept.
    pub recall: Option<f64>,
}

impl EdgeTruth {
    /// Reads settled edges, JSON Lines as those of the stages. A line whose `holds` is false is an
    /// edge that does not hold; if a file has such lines, edges that it does not name count nowhere,
    /// else they do not hold.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, a line is no edge, or its `holds` is neither true nor false
    /// - an edge names an API or a parameter that there is not, or is both
    /// - no edge holds
    pub fn read(path: &Path, catalogue: &ApiCatalogue) -> Result<Self, PipelineError> {
        let mut settled = BTreeMap::new();
        for line in JsonLines::open(path)? {
            let (place, mut value) = line?;
            let holds = match value
                .as_object_mut()
                .and_then(|fields| fields.remove(HOLDS))
            {
                None => true,
                Some(Value::Bool(holds)) => holds,
                Some(other) => return Err(bad(&place, &format!("\"{HOLDS}\" is {other}"))),
            };
            let edge: NamedEdge =
                serde_json::from_value(value).map_err(|error| bad(&place, &error.to_string()))?;
            let label = edge.label();
            NamedGraph::new([(place.clone(), edge)], catalogue)?;
            if settled.insert(label, holds).is_some_and(|old| old != holds) {
                return Err(bad(
                    &place,
                    "an earlier line says the opposite of this edge",
                ));
            }
        }
        if !settled.values().any(|holds| *holds) {
            let path = path.display();
            return Err(PipelineError::Usage(format!(
                "{path} has no edge that holds, so that there is no recall; name some"
            )));
        }
        Ok(Self {
            settled,
            n_complete: n_complete(catalogue),
        })
    }

    /// The scores of the stages of a folder that are done.
    ///
    /// # Errors
    ///
    /// Its files cannot be read.
    pub fn scores(&self, dir: &Path) -> Result<Vec<EdgeScores>, PipelineError> {
        let mut scores = vec![self.of_all()];
        for stage in [GRAPH, FILTER, EXECUTE] {
            if let Some(edges) = read_items::<NamedEdge>(dir, STAGES, stage)? {
                scores.push(self.of(stage, &edges));
            }
        }
        Ok(scores)
    }

    fn n_true(&self) -> usize {
        self.settled.values().filter(|holds| **holds).count()
    }

    fn is_partial(&self) -> bool {
        self.settled.values().any(|holds| !holds)
    }

    fn of_all(&self) -> EdgeScores {
        let n_settled = match self.is_partial() {
            true => self.settled.len(),
            false => self.n_complete,
        };
        self.score("all", self.n_complete, n_settled, self.n_true())
    }

    fn of(&self, stage: &'static str, edges: &[NamedEdge]) -> EdgeScores {
        let kept: BTreeSet<String> = edges.iter().map(NamedEdge::label).collect();
        let settled: Vec<bool> = kept
            .iter()
            .filter_map(|label| self.settled.get(label).copied())
            .collect();
        let n_right = settled.iter().filter(|holds| **holds).count();
        let n_settled = match self.is_partial() {
            true => settled.len(),
            false => kept.len(),
        };
        self.score(stage, kept.len(), n_settled, n_right)
    }

    fn score(
        &self,
        stage: &'static str,
        n_edges: usize,
        n_settled: usize,
        n_right: usize,
    ) -> EdgeScores {
        let part = |n: usize| (n > 0).then(|| n_right as f64 / n as f64);
        EdgeScores {
            stage,
            n_edges,
            n_settled,
            n_right,
            precision: part(n_settled),
            recall: part(self.n_true()),
        }
    }
}

fn bad(place: &str, reason: &str) -> PipelineError {
    PipelineError::Usage(format!(
        "{place}: {reason}; each line is {{\"source\": API, \"target\": API, \"parameter\": name}}, \
         and may have \"{HOLDS}\": true or false"
    ))
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
    fn unnamed_edges_are_wrong_unless_wrong_ones_are_named() {
        let holds = |source: &str, target: &str| json!(edge(source, target));
        let fails = |source: &str, target: &str| {
            let mut line = json!(edge(source, target));
            line[HOLDS] = json!(false);
            line
        };
        let kept = [
            edge("Tide", "Berth"),
            edge("Wind", "Berth"),
            edge("Wind", "Tide"),
        ];
        let of = |lines: &[Value]| {
            let truth = read(lines).expect("edges");
            let (all, stage) = (truth.of_all(), truth.of(GRAPH, &kept));
            let numbers = |of: &EdgeScores| (of.n_edges, of.n_settled, of.n_right);
            (
                numbers(&all),
                numbers(&stage),
                stage.precision,
                stage.recall,
            )
        };
        let whole = of(&[holds("Tide", "Berth"), holds("Berth", "Tide")]);
        assert_eq!(whole, ((6, 6, 2), (3, 3, 1), Some(1.0 / 3.0), Some(0.5)));
        let part = of(&[holds("Tide", "Berth"), fails("Wind", "Berth")]);
        assert_eq!(part, ((6, 2, 1), (3, 2, 1), Some(0.5), Some(1.0)));
        let twice = [holds("Tide", "Berth"), fails("Tide", "Berth")];
        for (lines, expected) in [
            (&twice[..], "the opposite"),
            (&twice[1..], "no edge that holds"),
            (&[json!({"source": "Tide"})], "missing field"),
            (&[holds("Tides", "Berth")], "did you mean \"Tide\""),
        ] {
            let message = read(lines).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
