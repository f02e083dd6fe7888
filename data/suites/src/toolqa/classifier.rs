//! Reads the type of a question from a model's output, and scores a classifier by its types.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::error::ToolQaError;
use super::rows::TaskType;
use crate::bootstrap::indicator;
use crate::bootstrap::{Estimate, estimates};

/// What an output without a type is called in the published results.
pub const PARSING_ERROR: &str = "parsing error";

const MARK: &str = "category:";

impl TaskType {
    /// Reads the type out of a classifier's output; nothing where none is named.
    ///
    /// What stands between the first `category:` and the next counts, or the whole output where
    /// there is none. If it names several types the first in the order of [`TaskType::ALL`] counts,
    /// wherever it stands.
    ///
    /// # Source
    ///
    /// The published classifier.
    pub fn of_output(output: &str) -> Option<Self> {
        let named = output.split(MARK).nth(1).unwrap_or(output).to_lowercase();
        let is_named = |task_type: &Self| named.contains(&task_type.name().to_lowercase());
        Self::ALL.into_iter().find(is_named)
    }
}

/// How well a classifier knows the types of questions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassifierReport {
    /// Number of questions.
    pub n: usize,
    /// Share of questions whose type was named; an output without a type is wrong.
    pub accuracy: Estimate,
    /// The same for the questions of each type.
    pub by_type: BTreeMap<TaskType, Estimate>,
    /// Outputs that name no type.
    pub n_parse_errors: usize,
}

impl ClassifierReport {
    /// Gathers pairs of gold type and output.
    ///
    /// # Errors
    ///
    /// - there is no pair
    pub fn new(outputs: &[(TaskType, &str)]) -> Result<Self, ToolQaError> {
        let read: Vec<(TaskType, Option<TaskType>)> = outputs
            .iter()
            .map(|(gold, output)| (*gold, TaskType::of_output(output)))
            .collect();
        let accuracy = |of_type: Option<TaskType>| {
            let counted = read
                .iter()
                .filter(|(gold, _)| of_type.is_none_or(|one| one == *gold));
            let hits: Vec<[f64; 1]> = counted
                .map(|(gold, found)| [indicator(*found == Some(*gold))])
                .collect();
            (!hits.is_empty()).then(|| estimates(&hits)[0])
        };
        let by_type = TaskType::ALL
            .into_iter()
            .filter_map(|one| Some((one, accuracy(Some(one))?)));
        Ok(Self {
            n: outputs.len(),
            accuracy: accuracy(None).ok_or(ToolQaError::NoSamples)?,
            by_type: by_type.collect(),
            n_parse_errors: read.iter().filter(|(_, found)| found.is_none()).count(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_after_the_mark_counts_and_without_a_mark_the_whole() {
        let rows = [
            (
                "Final answer, category: Filtering",
                Some(TaskType::Filtering),
            ),
            (
                "It filters entries. category: AGGREGATION.",
                Some(TaskType::Aggregation),
            ),
            (
                "not extractive, category: filtering category: extractive",
                Some(TaskType::Filtering),
            ),
            (
                "category: filtering, hardly extractive",
                Some(TaskType::Extractive),
            ),
            ("Filtering or aggregation", Some(TaskType::Filtering)),
            ("extractive category: none of them", None),
            ("", None),
        ];
        for (output, expected) in rows {
            assert_eq!(TaskType::of_output(output), expected, "{output}");
        }
    }

    #[test]
    fn outputs_without_a_type_are_wrong_and_counted() {
        let outputs = [
            (TaskType::Extractive, "category: extractive"),
            (TaskType::Extractive, "no idea"),
            (TaskType::Filtering, "category: filtering"),
            (TaskType::Filtering, "category: aggregation"),
        ];
        let report = ClassifierReport::new(&outputs).expect("outputs");
        assert_eq!((report.n, report.n_parse_errors), (4, 1));
        assert_eq!(report.accuracy.value, 0.5);
        let types: Vec<(TaskType, f64)> = report
            .by_type
            .iter()
            .map(|(one, accuracy)| (*one, accuracy.value))
            .collect();
        assert_eq!(
            types,
            [(TaskType::Extractive, 0.5), (TaskType::Filtering, 0.5)]
        );
        assert!(matches!(
            ClassifierReport::new(&[]),
            Err(ToolQaError::NoSamples)
        ));
    }
}
