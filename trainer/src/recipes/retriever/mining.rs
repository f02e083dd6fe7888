//! Mines hard negatives: wrong documents that the current encoder ranks highest.

use tooltune_agents::pairs::PairSet;

use crate::encoder::documents::{highest, scores};
use crate::encoder::{MiniLmEncoder, TextIds};

/// Returns, for each pair of `set`, the `n` wrong documents nearest to its query. `queries` and
/// `documents` are the token IDs of the texts of `set`.
pub fn hardest_negatives(
    set: &PairSet,
    queries: &TextIds,
    documents: &TextIds,
    encoder: &MiniLmEncoder,
    n: usize,
) -> Vec<Vec<usize>> {
    let documents = encoder.comparison_embeddings(documents);
    let of_query: Vec<Vec<usize>> = encoder
        .comparison_embeddings(queries)
        .iter()
        .enumerate()
        .map(|(query, vector)| {
            let right = set.relevant_documents(query);
            let nearest = highest(&scores(&documents, vector), n + right.len());
            let wrong = nearest
                .into_iter()
                .filter(|document| !right.contains(document));
            wrong.take(n).collect()
        })
        .collect();
    let pairs = set.pairs().iter();
    pairs.map(|pair| of_query[pair.query].clone()).collect()
}
