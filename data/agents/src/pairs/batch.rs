//! Collects the distinct texts of a step's pairs, and masks texts that are not negatives of a pair.

use std::collections::BTreeMap;

use super::set::PairSet;

/// A pair of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchRow {
    /// Index into [`PairBatch::queries`].
    pub query: usize,
    /// Index into [`PairBatch::documents`].
    pub document: usize,
}

/// The distinct texts of a step, and its pairs.
///
/// Without this deduplication, a repeated document would count as several negatives, and a positive
/// document of a query could be trained as a negative. Both are common if many queries share few
/// tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairBatch {
    /// Indices of the distinct queries in the set.
    pub queries: Vec<usize>,
    /// Indices of the distinct documents in the set: positives, then hard negatives.
    pub documents: Vec<usize>,
    /// The pairs.
    pub rows: Vec<BatchRow>,
    /// `[rows, documents]`: documents that are positive for the row's query, except the row's own.
    pub excluded_documents: Vec<bool>,
    /// `[rows, queries]`: queries for which the row's document is positive, except the row's own.
    pub excluded_queries: Vec<bool>,
}

/// Distinct numbers in order of first appearance.
#[derive(Default)]
struct NumberIndex {
    numbers: Vec<usize>,
    positions: BTreeMap<usize, usize>,
}

impl NumberIndex {
    fn index_of(&mut self, number: usize) -> usize {
        let next_index = self.numbers.len();
        let position = *self.positions.entry(number).or_insert(next_index);
        if position == next_index {
            self.numbers.push(number);
        }
        position
    }
}

impl PairBatch {
    /// The batch of the pairs `rows` of `pair_set`; `mined` has additional hard negatives for each pair
    /// of the set, or is empty.
    ///
    /// # Panics
    ///
    /// If a pair does not exist.
    pub fn new(set: &PairSet, rows: &[usize], mined: &[Vec<usize>]) -> Self {
        let (mut queries, mut documents) = (NumberIndex::default(), NumberIndex::default());
        let batch_rows: Vec<BatchRow> = rows
            .iter()
            .map(|&row| &set.pairs()[row])
            .map(|pair| BatchRow {
                query: queries.index_of(pair.query),
                document: documents.index_of(pair.document),
            })
            .collect();
        for &row in rows {
            let labelled_negatives = &set.pairs()[row].negatives;
            let mined_negatives = mined.get(row).into_iter().flatten();
            for &negative in labelled_negatives.iter().chain(mined_negatives) {
                documents.index_of(negative);
            }
        }
        let (queries, documents) = (queries.numbers, documents.numbers);
        let is_positive = |query: usize, document: usize| {
            set.relevant_documents(queries[query])
                .contains(&documents[document])
        };
        let mut excluded_documents = Vec::with_capacity(rows.len() * documents.len());
        let mut excluded_queries = Vec::with_capacity(rows.len() * queries.len());
        for row in &batch_rows {
            excluded_documents.extend(
                (0..documents.len()).map(|d| d != row.document && is_positive(row.query, d)),
            );
            excluded_queries
                .extend((0..queries.len()).map(|q| q != row.query && is_positive(q, row.document)));
        }
        Self {
            queries,
            documents,
            rows: batch_rows,
            excluded_documents,
            excluded_queries,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair_set() -> PairSet {
        let mut set = PairSet::default();
        let pairs = [("q1", "a"), ("q1", "b"), ("q2", "a"), ("q3", "c")];
        for (query, document) in pairs {
            set.push(String::new(), query, document, &[])
                .expect("a pair");
        }
        set.push(String::new(), "q4", "d", &["b".into(), "e".into()])
            .expect("a pair");
        set
    }

    /// Invariant: Positive documents and duplicate texts are never negatives.
    #[test]
    fn texts_are_deduplicated_and_right_documents_are_not_negatives() {
        let set = pair_set();
        let batch = PairBatch::new(&set, &[0, 2, 1, 3], &[]);
        assert_eq!(batch.queries, [0, 1, 2]);
        assert_eq!(batch.documents, [0, 1, 2]);
        let rows: Vec<_> = batch
            .rows
            .iter()
            .map(|row| (row.query, row.document))
            .collect();
        assert_eq!(rows, [(0, 0), (1, 0), (0, 1), (2, 2)]);
        // For q1 with a, b is also positive. For q2 with a, no other document is positive. For q1
        // with b, a is also positive.
        let excluded: Vec<&[bool]> = batch.excluded_documents.chunks(3).collect();
        assert_eq!(excluded[0], [false, true, false]);
        assert_eq!(excluded[1], [false; 3]);
        assert_eq!(excluded[2], [true, false, false]);
        // a is positive for q1 and q2.
        let excluded: Vec<&[bool]> = batch.excluded_queries.chunks(3).collect();
        assert_eq!(excluded[0], [false, true, false]);
        assert_eq!(excluded[1], [true, false, false]);
        assert_eq!(excluded[2], [false; 3]);
    }

    #[test]
    fn a_right_document_of_another_pair_is_masked_as_a_negative() {
        let set = pair_set();
        let batch = PairBatch::new(&set, &[0, 4], &[]);
        // Documents a and d, then the negatives b and e; b is positive for q1.
        assert_eq!(batch.documents, [0, 3, 1, 4]);
        assert_eq!(batch.excluded_documents[..4], [false, false, true, false]);
        assert_eq!(batch.excluded_documents[4..], [false; 4]);
    }

    #[test]
    fn mined_negatives_are_added_to_labelled_ones() {
        let set = pair_set();
        let mined = vec![vec![2], vec![], vec![], vec![], vec![4, 0]];
        let batch = PairBatch::new(&set, &[4, 0], &mined);
        assert_eq!(batch.documents, [3, 0, 1, 4, 2]);
    }
}
