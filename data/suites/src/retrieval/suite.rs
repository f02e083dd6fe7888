//! Registers the retrieval suite.

use serde_json::Value;

use crate::ranking::{RankedGold, RetrievalMetrics};
use crate::registry::{LineFields, SampleScores, SuiteInfo, SuiteNeeds, higher_better};

/// Queries to rankings of documents.
pub static SUITE: SuiteInfo = SuiteInfo {
    name: "retrieval",
    about: "Queries to a ranking of documents by the retriever.",
    metrics: &RetrievalMetrics::<f64>::NAMES,
    plain_names: &[
        ("recall_at_gt", "recall at the number of gold documents"),
        ("mrr_at_10", "MRR at 10"),
        ("ndcg_at_10", "NDCG at 10"),
        ("map_at_100", "MAP at 100"),
    ],
    default_metric: "retrieval.mrr_at_10",
    needs: SuiteNeeds {
        generator: false,
        retriever: true,
        ..SuiteNeeds::GENERATOR
    },
    samples: &[SampleScores {
        of: "retrieval",
        fields: LineFields {
            id: "query",
            prompt: &["query"],
            gold: &["gold"],
            output: &[],
            finish_reason: &[],
        },
        kinds: &["ranking"],
        // A line contains only the first ten documents, so it does not determine MAP@100.
        measures: &[
            higher_better("recall_at_gt").computed_by(recall_at_gt),
            higher_better("recall_at_1").computed_by(|line| Some(ranking(line)?.recall_at(1))),
            higher_better("recall_at_3").computed_by(|line| Some(ranking(line)?.recall_at(3))),
            higher_better("recall_at_5").computed_by(|line| Some(ranking(line)?.recall_at(5))),
            higher_better("recall_at_10").computed_by(|line| Some(ranking(line)?.recall_at(10))),
            higher_better("accuracy_at_1").computed_by(|line| Some(ranking(line)?.accuracy_at(1))),
            higher_better("accuracy_at_3").computed_by(|line| Some(ranking(line)?.accuracy_at(3))),
            higher_better("accuracy_at_5").computed_by(|line| Some(ranking(line)?.accuracy_at(5))),
            higher_better("accuracy_at_10")
                .computed_by(|line| Some(ranking(line)?.accuracy_at(10))),
            higher_better("mrr_at_10")
                .computed_by(|line| Some(ranking(line)?.reciprocal_rank_at(10))),
            higher_better("ndcg_at_10").computed_by(|line| Some(ranking(line)?.ndcg_at(10))),
        ],
        groups: &[],
    }],
    ..SuiteInfo::EMPTY
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

/// `None` if there are more gold documents than documents in the line.
fn recall_at_gt(line: &Value) -> Option<f64> {
    let is_shown = positions(line, "gold")?.len() <= positions(line, "ranked")?.len();
    is_shown
        .then(|| Some(ranking(line)?.recall_at_gt()))
        .flatten()
}
