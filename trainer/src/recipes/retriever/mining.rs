//! Hard negatives: the wrong documents that the present encoder takes for right.

use tooltune_agents::pairs::PairSet;

use crate::encoder::documents::{highest, scores};
use crate::encoder::{MiniLmEncoder, TextIds};

/// For each pair of `set`, the `n` documents nearest to its query that are not right for it; the ids
/// are those of the set's queries and documents.
pub fn hardest_negatives(
    set: &PairSet,
    queries: &TextIds,
    documents: &TextIds,
    encoder: &MiniLmEncoder,
    n: usize,
) -> Vec<Vec<usize>> {
    let documents = encoder.compared(documents);
    let of_query: Vec<Vec<usize>> = encoder
        .compared(queries)
        .iter()
        .enumerate()
        .map(|(query, vector)| {
            let right = set.relevant(query);
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
