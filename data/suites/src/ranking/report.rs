//! Averages the queries of a data set, with intervals.

use serde::{Deserialize, Serialize};

use super::ranked_gold::{RankedGold, RetrievalError};
use crate::bootstrap::{Estimate, estimates};
use crate::markdown::{markdown_table, percent};
use crate::named_metrics::named_columns;

/// One value per measure, all as fractions in 0..=1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RetrievalMetrics<T> {
    /// Recall among the first n documents, where n is the number of gold documents.
    pub recall_at_gt: T,
    /// Recall at rank 1.
    pub recall_at_1: T,
    /// Recall among the first 3.
    pub recall_at_3: T,
    /// Recall among the first 5, the number of documents in GOAT's prompts.
    pub recall_at_5: T,
    /// Recall among the first 10.
    pub recall_at_10: T,
    /// Fraction of queries with a gold document in first place.
    pub accuracy_at_1: T,
    /// Fraction of queries with a gold document among the first 3.
    pub accuracy_at_3: T,
    /// Fraction of queries with a gold document among the first 5.
    pub accuracy_at_5: T,
    /// Fraction of queries with a gold document among the first 10.
    pub accuracy_at_10: T,
    /// Mean reciprocal rank among the first 10.
    pub mrr_at_10: T,
    /// Normalised discounted cumulative gain of the first 10.
    pub ndcg_at_10: T,
    /// Mean average precision among the first 100.
    pub map_at_100: T,
}

named_columns!(
    RetrievalMetrics,
    [
        recall_at_gt,
        recall_at_1,
        recall_at_3,
        recall_at_5,
        recall_at_10,
        accuracy_at_1,
        accuracy_at_3,
        accuracy_at_5,
        accuracy_at_10,
        mrr_at_10,
        ndcg_at_10,
        map_at_100
    ]
);

impl RetrievalMetrics<f64> {
    /// The measures of one query.
    pub fn from_query(query: &RankedGold) -> Self {
        Self {
            recall_at_gt: query.recall_at_gt(),
            recall_at_1: query.recall_at(1),
            recall_at_3: query.recall_at(3),
            recall_at_5: query.recall_at(5),
            recall_at_10: query.recall_at(10),
            accuracy_at_1: query.accuracy_at(1),
            accuracy_at_3: query.accuracy_at(3),
            accuracy_at_5: query.accuracy_at(5),
            accuracy_at_10: query.accuracy_at(10),
            mrr_at_10: query.reciprocal_rank_at(10),
            ndcg_at_10: query.ndcg_at(10),
            map_at_100: query.average_precision_at(100),
        }
    }
}

/// The measures of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RetrievalReport {
    /// Number of queries.
    pub n: usize,
    /// Means over the queries, each with its bootstrap 95 % interval (1,000 resamples, fixed seed).
    #[serde(flatten)]
    pub metrics: RetrievalMetrics<Estimate>,
}

impl RetrievalReport {
    /// Averages the queries of a data set.
    ///
    /// # Errors
    ///
    /// There is no query.
    ///
    /// # Source
    ///
    /// sentence-transformers 6.2.0, `InformationRetrievalEvaluator`;
    /// `data/suites/tests/fixtures/retrieval` compares the means.
    pub fn new(queries: &[RankedGold]) -> Result<Self, RetrievalError> {
        if queries.is_empty() {
            return Err(RetrievalError::NoQueries);
        }
        let rows: Vec<[f64; 12]> = queries
            .iter()
            .map(|query| RetrievalMetrics::from_query(query).columns())
            .collect();
        Ok(Self {
            n: queries.len(),
            metrics: RetrievalMetrics::from_columns(estimates(&rows)),
        })
    }

    /// The estimate of a measure of [`RetrievalMetrics::NAMES`]; `None` for other names.
    pub fn value(&self, name: &str) -> Option<Estimate> {
        let index = RetrievalMetrics::<Estimate>::NAMES
            .iter()
            .position(|known| *known == name)?;
        Some(self.metrics.columns()[index])
    }
}

/// Measures shown in a table, as indices into [`RetrievalMetrics::NAMES`].
const SHOWN: [usize; 6] = [0, 3, 5, 9, 10, 11];

/// Formats reports as a Markdown table in per cent, one named line per report.
pub fn retrieval_table(reports: &[(&str, &RetrievalReport)]) -> String {
    let names = SHOWN.map(|index| format!("{} %", RetrievalMetrics::<f64>::NAMES[index]));
    let line = |(name, report): &(&str, &RetrievalReport)| {
        let columns = report.metrics.columns();
        let cells = SHOWN.iter().map(|&index| percent(columns[index]));
        let line = [(*name).to_owned(), report.n.to_string()].into_iter();
        line.chain(cells).collect::<Vec<_>>()
    };
    let headings = format!("retrieval | n | {}", names.join(" | "));
    markdown_table(&headings, reports.iter().map(line))
}

#[cfg(test)]
mod tests {
    use tooltune_json as json;

    use super::*;
    use serde_json::Value;

    const CASES: &str = include_str!("../../tests/fixtures/retrieval/cases.jsonl");

    fn documents(value: &Value) -> Vec<&str> {
        let items = value.as_array().expect("an array");
        items
            .iter()
            .map(|item| item.as_str().expect("a name"))
            .collect()
    }

    #[test]
    fn means_agree_with_sentence_transformers() {
        let mut n_compared = 0;
        for line in CASES.lines() {
            let case = json::parse(line).expect("a case");
            let queries: Vec<RankedGold> = case["queries"]
                .as_array()
                .expect("queries")
                .iter()
                .map(|query| {
                    RankedGold::new(&documents(&query["ranked"]), &documents(&query["gold"]))
                        .expect("gold documents")
                })
                .collect();
            let report = RetrievalReport::new(&queries).expect("queries");
            for (name, expected) in case["expected"].as_object().expect("measures") {
                let actual = report.value(name).expect("a known measure").value;
                let expected = expected.as_f64().expect("a number");
                assert!(
                    (actual - expected).abs() < 1e-12,
                    "{name}: {actual} for {expected}"
                );
                n_compared += 1;
            }
        }
        assert!(n_compared >= 300, "{n_compared} compared");
    }

    #[test]
    fn a_table_has_one_line_per_report() {
        let hit = RankedGold::new(&["a", "b"], &["a"]).expect("gold");
        let report = RetrievalReport::new(&[hit]).expect("a query");
        let table = retrieval_table(&[("step 0", &report)]);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(
            lines[0].starts_with("| retrieval | n | recall_at_gt % | recall_at_5 % |"),
            "{table}"
        );
        assert_eq!(
            lines[2],
            format!("| step 0 | 1 |{}", " 100.0 [20.7, 100.0] |".repeat(6))
        );
        assert_eq!(report.value("recall"), None);
        assert_eq!(RetrievalReport::new(&[]), Err(RetrievalError::NoQueries));
    }
}
