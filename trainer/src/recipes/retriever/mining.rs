//! Mines hard negatives: wrong documents that the current encoder ranks highest.

use tooltune_agents::pairs::PairSet;

use crate::encoder::documents::{highest, scores};
use crate::encoder::{MiniLmEncoder, TextIds};
use crate::error::Error;
use crate::retriever::Division;

/// Returns, for each pair of `set`, the `n` wrong documents nearest to its query. `queries` and
/// `documents` are the token IDs of the texts of `set`, which the processes of `division` embed.
///
/// # Errors
///
/// A process was lost.
pub fn hardest_negatives(
    set: &PairSet,
    queries: &TextIds,
    documents: &TextIds,
    encoder: &MiniLmEncoder,
    n: usize,
    division: &mut dyn Division,
) -> Result<Vec<Vec<usize>>, Error> {
    let documents = encoder.comparison_embeddings(documents, division)?;
    let of_query: Vec<Vec<usize>> = encoder
        .comparison_embeddings(queries, division)?
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
    Ok(pairs.map(|pair| of_query[pair.query].clone()).collect())
}
