//! Parses the question type from a model's output, and scores a classifier.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tooltune_apis::JsonLines;

use super::error::ToolQaError;
use super::prompts::PromptSet;
use super::rows::{TaskType, ToolQaRow, ToolResponses, read_questions};
use super::schemas::Schemas;
use super::suite::SUITE;
use crate::bootstrap::indicator;
use crate::bootstrap::{Estimate, estimates};
use crate::registry::SuiteInfo;
use crate::row_suite::{RowReport, RowSuite};

/// The label that the published results use for an output without a type.
pub const PARSING_ERROR: &str = "parsing error";

const MARK: &str = "category:";

impl TaskType {
    /// Parses the type from a classifier's output; `None` if the output names no type.
    ///
    /// Only the text between the first and the second `category:` is searched. If there is no
    /// `category:`, the whole output is searched. If the text names several types, the first in the
    /// order of [`TaskType::ALL`] is used, regardless of the positions.
    ///
    /// # Source
    ///
    /// The published classifier.
    pub fn from_output(output: &str) -> Option<Self> {
        let after_mark = output.split(MARK).nth(1).unwrap_or(output).to_lowercase();
        let is_named = |task_type: &Self| after_mark.contains(&task_type.name().to_lowercase());
        Self::ALL.into_iter().find(is_named)
    }
}

/// The accuracy of a classifier of question types.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassifierReport {
    /// Number of questions.
    pub n: usize,
    /// Fraction of questions with the right type; an output without a type is wrong.
    pub accuracy: Estimate,
    /// Accuracy for the questions of each type.
    pub by_type: BTreeMap<TaskType, Estimate>,
    /// Number of outputs without a type.
    pub n_parse_errors: usize,
}

impl ClassifierReport {
    /// Scores pairs of gold type and output.
    ///
    /// # Errors
    ///
    /// There are no pairs.
    pub fn new(outputs: &[(TaskType, &str)]) -> Result<Self, ToolQaError> {
        let types: Vec<(TaskType, Option<TaskType>)> = outputs
            .iter()
            .map(|(gold, output)| (*gold, TaskType::from_output(output)))
            .collect();
        let accuracy = |of_type: Option<TaskType>| {
            let correct = types
                .iter()
                .filter(|(gold, _)| of_type.is_none_or(|task_type| task_type == *gold));
            let hits: Vec<[f64; 1]> = correct
                .map(|(gold, predicted)| [indicator(*predicted == Some(*gold))])
                .collect();
            (!hits.is_empty()).then(|| estimates(&hits)[0])
        };
        let by_type = TaskType::ALL
            .into_iter()
            .filter_map(|task_type| Some((task_type, accuracy(Some(task_type))?)));
        Ok(Self {
            n: outputs.len(),
            accuracy: accuracy(None).ok_or(ToolQaError::NoSamples)?,
            by_type: by_type.collect(),
            n_parse_errors: types
                .iter()
                .filter(|(_, predicted)| predicted.is_none())
                .count(),
        })
    }
}

/// A suite of rows with one question each, whose answer is the type of the question.
#[derive(Debug)]
pub struct QuestionClassifier {
    /// The prompts.
    pub prompts: PromptSet,
    /// The schemas in the prompts.
    pub schemas: Schemas,
    /// The responses that the questions refer to.
    pub responses: ToolResponses,
}

/// The scores of a classifier's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ClassifierScores {
    /// Whether the output names the gold type.
    pub accuracy: bool,
    /// Whether the output names no type.
    pub parse_error_rate: bool,
}

impl RowSuite for QuestionClassifier {
    type Row = ToolQaRow;
    type Gold = TaskType;
    type Scores = ClassifierScores;
    type Error = ToolQaError;

    const SUITE: &'static SuiteInfo = &SUITE;
    const LINES: &'static str = "classification";
    const NOUN: &'static str = "questions";
    const GOLD: &'static str = "\"EXTRACTIVE\", \"FILTERING\" or \"AGGREGATION\"";

    fn read(&self, lines: JsonLines) -> Result<Vec<ToolQaRow>, ToolQaError> {
        read_questions(lines, &self.responses)
    }

    fn id(row: &ToolQaRow) -> &str {
        &row.uid
    }

    fn gold(row: &ToolQaRow) -> TaskType {
        row.task_type
    }

    fn prompt(&self, row: &ToolQaRow) -> Result<String, ToolQaError> {
        let schema = self.schemas.text(row)?;
        Ok(self.prompts.classifier(&row.question, &schema))
    }

    fn score(gold: &TaskType, output: &str) -> ClassifierScores {
        let named_type = TaskType::from_output(output);
        ClassifierScores {
            accuracy: named_type == Some(*gold),
            parse_error_rate: named_type.is_none(),
        }
    }

    fn metrics() -> &'static [&'static str] {
        &["accuracy"]
    }

    fn own_line(row: &ToolQaRow, output: &str) -> Option<Value> {
        Some(json!({"id": row.uid, "task_type": row.task_type, "prediction": output}))
    }

    fn own_report(rows: &[ToolQaRow], outputs: &[&str]) -> Option<RowReport> {
        let outputs = rows.iter().zip(outputs);
        let outputs = outputs.map(|(row, output)| (row.task_type, *output));
        let report = ClassifierReport::new(&outputs.collect::<Vec<_>>()).ok()?;
        Some(RowReport {
            table: classifier_table(&report),
            fields: match json!(report) {
                Value::Object(fields) => fields,
                _ => Map::new(),
            },
        })
    }
}

/// The accuracy of all questions and of each type, for a terminal.
fn classifier_table(report: &ClassifierReport) -> String {
    let mut table = format!("{:<32} {:.4}\n", "accuracy", report.accuracy.value);
    for (task_type, accuracy) in &report.by_type {
        let name = format!("accuracy, {}", task_type.name());
        table.push_str(&format!("{name:<32} {:.4}\n", accuracy.value));
    }
    let n_parse_errors = report.n_parse_errors;
    table.push_str(&format!(
        "{:<32} {n_parse_errors}\n",
        "outputs without a type"
    ));
    table + &format!("{:<32} {}", "n", report.n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_task_type_is_read_after_the_marker_or_from_the_whole_output() {
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
            assert_eq!(TaskType::from_output(output), expected, "{output}");
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
            .map(|(task_type, accuracy)| (*task_type, accuracy.value))
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
