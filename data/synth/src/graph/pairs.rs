//! Builds the retriever's training pairs, each a query and a document, from trajectories.

use std::collections::{BTreeMap, BTreeSet};

use tooltune_apis::{ApiDocument, Trajectory};

use super::error::GraphError;

/// A query, and a document that answers part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetrieverPair {
    /// Index of the trajectory with the query. All pairs of a trajectory are positives of the same
    /// query and never negatives of each other.
    pub trajectory: usize,
    /// Index of the document.
    pub document: usize,
}

/// Returns one pair per API that a trajectory calls, in the order of the first calls.
///
/// # Errors
///
/// - two documents have the same name
/// - a trajectory has no calls, or calls an API without a document
///
/// # Source
///
/// GOAT, section 3.2: the retriever is trained on (query, document) pairs of the generated tasks.
pub fn retriever_pairs(
    trajectories: &[Trajectory],
    documents: &[ApiDocument],
) -> Result<Vec<RetrieverPair>, GraphError> {
    let mut positions = BTreeMap::new();
    for (document, name) in documents.iter().map(ApiDocument::call_name).enumerate() {
        if positions.contains_key(&name) {
            return Err(GraphError::DuplicateName { name });
        }
        positions.insert(name, document);
    }
    let mut pairs = Vec::new();
    for (trajectory_idx, trajectory) in trajectories.iter().enumerate() {
        let label = || match trajectory.id.as_str() {
            "" => trajectory_idx.to_string(),
            id => format!("`{id}`"),
        };
        if trajectory.calls.is_empty() {
            return Err(GraphError::NoCalls {
                trajectory: label(),
            });
        }
        let mut called_names = BTreeSet::new();
        for call in &trajectory.calls {
            let document = *positions
                .get(&call.name)
                .ok_or_else(|| GraphError::UnknownApi {
                    trajectory: label(),
                    name: call.name.clone(),
                })?;
            if called_names.insert(document) {
                pairs.push(RetrieverPair {
                    trajectory: trajectory_idx,
                    document,
                });
            }
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn documents() -> Vec<ApiDocument> {
        let document = |name: &str| json!({"tool_name": "Harbour", "api_name": name});
        let documents = ["Tide", "Berth", "Pilot"].map(document);
        serde_json::from_value(json!(documents)).expect("documents")
    }

    fn trajectory(id: &str, names: &[&str]) -> Trajectory {
        let calls: Vec<_> = names
            .iter()
            .map(|name| json!({"sub_query": "", "name": name, "arguments": {}, "output": null}))
            .collect();
        let row = json!({"id": id, "query": "When?", "calls": calls, "response": "Now."});
        serde_json::from_value(row).expect("a trajectory")
    }

    #[test]
    fn each_called_api_becomes_one_pair() {
        let trajectories = [
            trajectory("a", &["Harbour/Pilot", "Harbour/Tide", "Harbour/Pilot"]),
            trajectory("b", &["Harbour/Tide"]),
        ];
        let pairs = retriever_pairs(&trajectories, &documents()).expect("known APIs");
        let positions_found: Vec<(usize, usize)> = pairs
            .iter()
            .map(|pair| (pair.trajectory, pair.document))
            .collect();
        assert_eq!(positions_found, [(0, 2), (0, 0), (1, 0)]);
    }

    #[test]
    fn an_unusable_row_is_an_error_with_its_id() {
        let message = |trajectory: Trajectory, documents: &[ApiDocument]| {
            retriever_pairs(&[trajectory], documents)
                .expect_err("an error")
                .to_string()
        };
        let unknown = message(trajectory("a7", &["Harbour/Tides"]), &documents());
        assert!(unknown.starts_with("trajectory `a7`: no document is named `Harbour/Tides`"));
        let empty = message(trajectory("", &[]), &documents());
        assert!(empty.starts_with("trajectory 0 has no calls"), "{empty}");
        let duplicated = [documents(), documents()].concat();
        let duplicated = message(trajectory("a", &["Harbour/Tide"]), &duplicated);
        assert!(
            duplicated.starts_with("duplicate API name `Harbour/Tide`"),
            "{duplicated}"
        );
    }
}
