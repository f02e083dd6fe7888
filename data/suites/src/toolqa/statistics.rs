//! Computes Tables 1 and 4 of the paper for questions about tool outputs.
//!
//! Lengths are characters of Python's `str(response)`, as in the paper.

use std::collections::BTreeMap;

use tooltune_json::python::{PyValue, python_repr};
use tooltune_rows::statistics::{
    Count, FileStatistics, GroupStatistics, Measures, TokenCount, summarise,
};

use super::rows::{TaskType, ToolQaRow, ToolResponse, ToolResponses, read_questions};
use crate::registry::SuiteFile;

/// The tool outputs.
pub(super) const RESPONSES: SuiteFile = SuiteFile {
    rows: "tool outputs",
    fields: &["response_id", "response"],
    refers: None,
    statistics: |input| {
        let responses = ToolResponses::read(input.lines(input.file)?)?;
        Ok(response_statistics(
            &responses.sorted_by_id(),
            input.count_tokens,
        ))
    },
};

/// The questions about them.
pub(super) const QUESTIONS: SuiteFile = SuiteFile {
    rows: "questions about tool outputs",
    fields: &["response_id", "question"],
    refers: Some(
        "questions about tool outputs, whose lengths are part of the statistics: pass the file \
         of the tool outputs",
    ),
    statistics: |input| {
        let responses = ToolResponses::read(input.lines(input.referred.unwrap_or(input.file))?)?;
        let questions = read_questions(input.lines(input.file)?, &responses)?;
        Ok(question_statistics(&questions, input.count_tokens))
    },
};

/// Measures questions: the number of each type per endpoint, and the lengths of their responses.
///
/// # Source
///
/// "How Good Are LLMs at Processing Tool Outputs?", Table 1, whose mean lengths are over questions.
fn question_statistics(rows: &[ToolQaRow], count_tokens: TokenCount<'_>) -> FileStatistics {
    let mut measures = Measures::default();
    let mut by_endpoint: BTreeMap<&str, Vec<&ToolQaRow>> = BTreeMap::new();
    for row in rows {
        let names = ["question_characters", "question_tokens"];
        measures.add_text(names, &row.question, count_tokens);
        let names = ["gold_answer_characters", "gold_answer_tokens"];
        measures.add_text(names, &row.gold_answer, count_tokens);
        by_endpoint
            .entry(&row.response.endpoint)
            .or_default()
            .push(row);
    }
    let groups = by_endpoint.into_iter().filter_map(|(endpoint, rows)| {
        let lengths = rows.iter().map(|row| row.response.n_characters() as f64);
        Some(GroupStatistics {
            name: endpoint.to_owned(),
            measure: summarise("response_characters", lengths.collect())?,
            counts: counts_by_type(&rows),
        })
    });
    FileStatistics {
        groups: groups.collect(),
        counts: counts_by_type(&rows.iter().collect::<Vec<_>>()),
        measures: measures.statistics(),
    }
}

fn counts_by_type(rows: &[&ToolQaRow]) -> Vec<Count> {
    let mut counts = vec![Count::new("questions", rows.len())];
    counts.extend(TaskType::ALL.map(|task_type| {
        let of_type = rows.iter().filter(|row| row.task_type == task_type);
        Count::new(task_type.name().to_lowercase(), of_type.count())
    }));
    counts
}

/// Measures responses: their lengths, overall and by endpoint.
///
/// # Source
///
/// "How Good Are LLMs at Processing Tool Outputs?", Table 4.
fn response_statistics(
    responses: &[&ToolResponse],
    count_tokens: TokenCount<'_>,
) -> FileStatistics {
    let mut measures = Measures::default();
    let mut by_endpoint: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for response in responses {
        let text = python_repr(&PyValue::from(&response.response));
        let names = ["response_characters", "response_tokens"];
        measures.add_text(names, &text, count_tokens);
        let lengths = by_endpoint.entry(&response.endpoint).or_default();
        lengths.push(text.chars().count() as f64);
    }
    let groups = by_endpoint.into_iter().filter_map(|(endpoint, lengths)| {
        Some(GroupStatistics {
            name: endpoint.to_owned(),
            counts: vec![Count::new("responses", lengths.len())],
            measure: summarise("response_characters", lengths)?,
        })
    });
    FileStatistics {
        counts: vec![Count::new("responses", responses.len())],
        groups: groups.collect(),
        measures: measures.statistics(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::toolqa::{AnswerFacts, AnswerMetric};

    fn response(endpoint: &str, length: usize) -> ToolResponse {
        ToolResponse {
            response_id: "r".to_owned(),
            endpoint: endpoint.to_owned(),
            split: String::new(),
            // Python's `str` also prints the quotes.
            response: json!("x".repeat(length - 2)),
        }
    }

    #[test]
    fn lengths_equal_the_papers_tables() {
        let quays = Arc::new(response("quays", 10));
        let long = Arc::new(response("quays", 40));
        let tides = Arc::new(response("tides", 7));
        let row = |response: &Arc<ToolResponse>, task_type| ToolQaRow {
            uid: String::new(),
            task: String::new(),
            task_type,
            metric: AnswerMetric::AccuracyString,
            question: "Wo?".to_owned(),
            gold_answer: "4".to_owned(),
            facts: AnswerFacts::default(),
            read_keys: None,
            response: Arc::clone(response),
        };
        let rows = [
            row(&quays, TaskType::Filtering),
            row(&quays, TaskType::Extractive),
            row(&long, TaskType::Filtering),
            row(&tides, TaskType::Aggregation),
        ];
        let statistics = question_statistics(&rows, None);
        let counts = |counts: &[Count]| counts.iter().map(|count| count.n).collect::<Vec<_>>();
        assert_eq!(counts(&statistics.counts), [4, 1, 2, 1]);
        assert_eq!(statistics.groups[0].name, "quays");
        assert_eq!(counts(&statistics.groups[0].counts), [3, 1, 2, 0]);
        assert_eq!(statistics.groups[0].measure.mean, 20.0);
        let names: Vec<&str> = statistics
            .measures
            .iter()
            .map(|measure| measure.name)
            .collect();
        assert_eq!(names, ["question_characters", "gold_answer_characters"]);

        let statistics = response_statistics(&[&quays, &long, &tides], Some(&|_| 3));
        assert_eq!(statistics.counts[0].n, 3);
        let quays = &statistics.groups[0];
        assert_eq!((quays.counts[0].n, quays.measure.mean), (2, 25.0));
        let stdev = (2.0_f64 * 15.0 * 15.0).sqrt();
        assert!((quays.measure.stdev - stdev).abs() < 1e-9);
        assert_eq!(statistics.measures[1].mean, 3.0);
    }
}
