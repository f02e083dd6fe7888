//! Hard negatives: the wrong documents that the present encoder takes for right.

use tooltune_data::pairs::PairSet;

use crate::error::Error;
use crate::eval::documents::{encode, ranked};
use crate::eval::encoder::MiniLmEncoder;

/// For each pair of `set`, the `n` documents nearest to its query that are not right for it.
///
/// # Errors
///
/// A text that the tokenizer refuses.
pub fn hardest_negatives(
    set: &PairSet,
    encoder: &MiniLmEncoder,
    n: usize,
) -> Result<Vec<Vec<usize>>, Error> {
    let documents = encode(encoder, set.documents())?;
    let of_query: Vec<Vec<usize>> = encode(encoder, set.queries())?
        .iter()
        .enumerate()
        .map(|(query, vector)| {
            let right = set.relevant(query);
            let nearest = ranked(&documents, vector, n + right.len());
            let wrong = nearest
                .into_iter()
                .filter(|document| !right.contains(document));
            wrong.take(n).collect()
        })
        .collect();
    Ok(set
        .pairs()
        .iter()
        .map(|pair| of_query[pair.query].clone())
        .collect())
}
