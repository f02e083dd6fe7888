//! Gathers the distinct texts of a step's pairs, and which of them are no negatives of which pair.

use std::collections::BTreeMap;

use super::set::PairSet;

/// A pair of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchRow {
    /// Position in [`PairBatch::queries`].
    pub query: usize,
    /// Position in [`PairBatch::documents`].
    pub document: usize,
}

/// The texts of a step, each once, and its pairs among them.
///
/// A document that came several times would weigh as several negatives, and one that is right for
/// a query would be learned as wrong: both are the normal case where many queries share few tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairBatch {
    /// Numbers of distinct queries in the set.
    pub queries: Vec<usize>,
    /// Numbers of distinct documents in the set: right ones, then hard negatives.
    pub documents: Vec<usize>,
    /// The pairs.
    pub rows: Vec<BatchRow>,
    /// `[rows, documents]`: documents that are right for the row's query, save the row's own.
    pub excluded_documents: Vec<bool>,
    /// `[rows, queries]`: queries that the row's document is right for, save the row's own.
    pub excluded_queries: Vec<bool>,
}

/// Distinct numbers in the order in which they came.
#[derive(Default)]
struct Distinct {
    numbers: Vec<usize>,
    positions: BTreeMap<usize, usize>,
}

impl Distinct {
    fn position(&mut self, number: usize) -> usize {
        let next = self.numbers.len();
        let position = *self.positions.entry(number).or_insert(next);
        if position == next {
            self.numbers.push(number);
        }
        position
    }
}

impl PairBatch {
    /// The batch of the pairs `rows` of `set`; `mined` has further hard negatives of each pair of
    /// the set, or nothing.
    ///
    /// # Panics
    ///
    /// If there is no such pair.
    pub fn new(set: &PairSet, rows: &[usize], mined: &[Vec<usize>]) -> Self {
        let (mut queries, mut documents) = (Distinct::default(), Distinct::default());
        let batch_rows: Vec<BatchRow> = rows
            .iter()
            .map(|&row| &set.pairs()[row])
            .map(|pair| BatchRow {
                query: queries.position(pair.query),
                document: documents.position(pair.document),
            })
            .collect();
        for &row in rows {
            let given = &set.pairs()[row].negatives;
            let found = mined.get(row).into_iter().flatten();
            for &negative in given.iter().chain(found) {
                documents.position(negative);
            }
        }
        let (queries, documents) = (queries.numbers, documents.numbers);
        let is_right = |query: usize, document: usize| {
            set.relevant(queries[query]).contains(&documents[document])
        };
        let mut excluded_documents = Vec::with_capacity(rows.len() * documents.len());
        let mut excluded_queries = Vec::with_capacity(rows.len() * queries.len());
        for row in &batch_rows {
            excluded_documents
                .extend((0..documents.len()).map(|d| d != row.document && is_right(row.query, d)));
            excluded_queries
                .extend((0..queries.len()).map(|q| q != row.query && is_right(q, row.document)));
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

    fn set() -> PairSet {
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

    #[test]
    fn texts_come_once_and_right_documents_are_no_negatives() {
        let set = set();
        let batch = PairBatch::new(&set, &[0, 2, 1, 3], &[]);
        assert_eq!(batch.queries, [0, 1, 2]);
        assert_eq!(batch.documents, [0, 1, 2]);
        let rows: Vec<_> = batch
            .rows
            .iter()
            .map(|row| (row.query, row.document))
            .collect();
        assert_eq!(rows, [(0, 0), (1, 0), (0, 1), (2, 2)]);
        // q1 with a: b is right, too. q2 with a: nothing else is. q1 with b: a is.
        let excluded: Vec<&[bool]> = batch.excluded_documents.chunks(3).collect();
        assert_eq!(excluded[0], [false, true, false]);
        assert_eq!(excluded[1], [false; 3]);
        assert_eq!(excluded[2], [true, false, false]);
        // a is right for q1 and q2.
        let excluded: Vec<&[bool]> = batch.excluded_queries.chunks(3).collect();
        assert_eq!(excluded[0], [false, true, false]);
        assert_eq!(excluded[1], [true, false, false]);
        assert_eq!(excluded[2], [false; 3]);
    }

    #[test]
    fn a_right_document_outside_the_batch_rows_is_excluded_where_it_comes_as_a_negative() {
        let set = set();
        let batch = PairBatch::new(&set, &[0, 4], &[]);
        // Documents a and d, then the negatives b and e; b is right for q1.
        assert_eq!(batch.documents, [0, 3, 1, 4]);
        assert_eq!(batch.excluded_documents[..4], [false, false, true, false]);
        assert_eq!(batch.excluded_documents[4..], [false; 4]);
    }

    #[test]
    fn mined_negatives_join_the_given_ones() {
        let set = set();
        let mined = vec![vec![2], vec![], vec![], vec![], vec![4, 0]];
        let batch = PairBatch::new(&set, &[4, 0], &mined);
        assert_eq!(batch.documents, [3, 0, 1, 4, 2]);
    }
}
