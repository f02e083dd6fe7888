//! Hard negatives: the wrong documents that the present encoder takes for right.

use tooltune_data::benchmarks::slot::SentenceEncoder;
use tooltune_data::pairs::PairSet;

use crate::error::Error;
use crate::eval::documents::ranked;
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
    let vectors = |texts: &[String]| {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        encoder.encode(&texts)
    };
    let documents = vectors(set.documents())?;
    let of_query: Vec<Vec<usize>> = vectors(set.queries())?
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
