//! Lists the suite retrieval for the registry.

use serde_json::Value;

use crate::ranking::{RankedGold, RetrievalMetrics};
use crate::registry::{Needs, SampleScores, SuiteInfo, more};

/// Queries become rankings of documents.
pub static SUITE: SuiteInfo = SuiteInfo {
    name: "retrieval",
    about: "Queries to a ranking of documents, with the retriever.",
    metrics: &RetrievalMetrics::<f64>::NAMES,
    words: &[
        ("recall_at_gt", "recall at the number of golds"),
        ("mrr_at_10", "MRR at 10"),
        ("ndcg_at_10", "NDCG at 10"),
        ("map_at_100", "MAP at 100"),
    ],
    flat_metrics: &[],
    lower_is_better: &[],
    default_metric: "retrieval.recall_at_5",
    needs: Needs {
        generator: false,
        retriever: true,
        ..Needs::GENERATOR
    },
    operations: &[],
    metrics_mark: "recall_at_gt",
    ranked_by: &[],
    own_files: &[],
    samples: &[SampleScores {
        of: "retrieval",
        id: "query",
        mark: "ranked",
        // A line has the first ten documents only, so that MAP@100 does not follow from it.
        measures: &[
            more("recall_at_gt").by(recall_at_gt),
            more("recall_at_1").by(|line| Some(ranking(line)?.recall_at(1))),
            more("recall_at_3").by(|line| Some(ranking(line)?.recall_at(3))),
            more("recall_at_5").by(|line| Some(ranking(line)?.recall_at(5))),
            more("recall_at_10").by(|line| Some(ranking(line)?.recall_at(10))),
            more("accuracy_at_1").by(|line| Some(ranking(line)?.accuracy_at(1))),
            more("accuracy_at_3").by(|line| Some(ranking(line)?.accuracy_at(3))),
            more("accuracy_at_5").by(|line| Some(ranking(line)?.accuracy_at(5))),
            more("accuracy_at_10").by(|line| Some(ranking(line)?.accuracy_at(10))),
            more("mrr_at_10").by(|line| Some(ranking(line)?.reciprocal_rank_at(10))),
            more("ndcg_at_10").by(|line| Some(ranking(line)?.ndcg_at(10))),
        ],
    }],
};

fn positions(line: &Value, name: &str) -> Option<Vec<u64>> {
    line.get(name)?
        .as_array()?
        .iter()
        .map(Value::as_u64)
        .collect()
}

fn ranking(line: &Value) -> Option<RankedGold> {
    RankedGold::new(&positions(line, "ranked")?, &positions(line, "gold")?).ok()
}

/// Absent where more documents are right than the line shows.
fn recall_at_gt(line: &Value) -> Option<f64> {
    let is_shown = positions(line, "gold")?.len() <= positions(line, "ranked")?.len();
    is_shown
        .then(|| Some(ranking(line)?.recall_at_gt()))
        .flatten()
}
