//! One query's ranking and gold documents to the measures of that query.

use std::collections::BTreeSet;

/// Why a query cannot be scored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RetrievalError {
    /// A query without a gold document has no recall.
    #[error("the query has no gold document; give at least one, or leave the query out")]
    EmptyGold,
    /// A data set without queries has no mean.
    #[error("there is no query to report; give at least one")]
    NoQueries,
}

/// Where the gold documents of a query stand in its ranking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankedGold {
    /// Ranks of the gold documents found, from 1, ascending.
    ranks: Vec<usize>,
    n_gold: usize,
}

impl RankedGold {
    /// Finds the gold documents in a ranking, best first.
    ///
    /// Documents that occur again, in the ranking or among the gold ones, do not count again.
    ///
    /// # Errors
    ///
    /// - there is no gold document
    pub fn new<T: Ord>(ranked: &[T], gold: &[T]) -> Result<Self, RetrievalError> {
        let gold: BTreeSet<&T> = gold.iter().collect();
        if gold.is_empty() {
            return Err(RetrievalError::EmptyGold);
        }
        let mut seen = BTreeSet::new();
        let distinct = ranked.iter().filter(|document| seen.insert(*document));
        let ranks = (1..)
            .zip(distinct)
            .filter(|(_, document)| gold.contains(document))
            .map(|(rank, _)| rank)
            .collect();
        Ok(Self {
            ranks,
            n_gold: gold.len(),
        })
    }

    /// Share of the gold documents among the first `k`.
    pub fn recall_at(&self, k: usize) -> f64 {
        self.n_within(k) as f64 / self.n_gold as f64
    }

    /// Share of the gold documents among as many as there are gold ones; precision is the same.
    ///
    /// # Source
    ///
    /// GOAT, Table 6: Recall@GT.
    pub fn recall_at_gt(&self) -> f64 {
        self.recall_at(self.n_gold)
    }

    /// 1 if any gold document is among the first `k`, else 0.
    pub fn accuracy_at(&self, k: usize) -> f64 {
        if self.n_within(k) > 0 { 1.0 } else { 0.0 }
    }

    /// One over the rank of the first gold document; 0 if it is not among the first `k`.
    pub fn reciprocal_rank_at(&self, k: usize) -> f64 {
        let first = self.ranks.first().filter(|rank| **rank <= k);
        first.map_or(0.0, |rank| 1.0 / *rank as f64)
    }

    /// Discounted gain of the first `k` over that of the best ranking possible; gains are 0 and 1.
    pub fn ndcg_at(&self, k: usize) -> f64 {
        let gain = |rank: usize| 1.0 / ((rank + 1) as f64).log2();
        let found: f64 = self.within(k).map(|rank| gain(*rank)).sum();
        let best: f64 = (1..=self.n_gold.min(k)).map(gain).sum();
        if best == 0.0 { 0.0 } else { found / best }
    }

    /// Mean precision at the ranks of gold documents among the first `k`, over as many as could
    /// be there: the smaller of `k` and the number of gold documents.
    pub fn average_precision_at(&self, k: usize) -> f64 {
        let precisions = (1..).zip(self.within(k));
        let sum: f64 = precisions
            .map(|(n_found, rank)| f64::from(n_found) / *rank as f64)
            .sum();
        match self.n_gold.min(k) {
            0 => 0.0,
            n_possible => sum / n_possible as f64,
        }
    }

    fn within(&self, k: usize) -> impl Iterator<Item = &usize> {
        self.ranks.iter().take_while(move |rank| **rank <= k)
    }

    fn n_within(&self, k: usize) -> usize {
        self.within(k).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranked(ranked: &str, gold: &str) -> RankedGold {
        let documents =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        RankedGold::new(&documents(ranked), &documents(gold)).expect("gold documents")
    }

    #[test]
    fn recall_counts_distinct_documents() {
        let query = ranked("a x a b c", "b a a");
        assert_eq!(query.recall_at(1), 0.5);
        assert_eq!(query.recall_at(3), 1.0);
        assert_eq!(query.recall_at_gt(), 0.5);
        assert_eq!(ranked("a", "a z").recall_at(5), 0.5);
        assert_eq!(ranked("", "a").recall_at(5), 0.0);
    }

    #[test]
    fn nothing_is_among_the_first_zero() {
        let query = ranked("a", "a");
        let measures = [
            query.recall_at(0),
            query.accuracy_at(0),
            query.reciprocal_rank_at(0),
            query.ndcg_at(0),
            query.average_precision_at(0),
        ];
        assert_eq!(measures, [0.0; 5]);
    }

    #[test]
    fn a_perfect_ranking_scores_one_and_a_late_hit_is_discounted() {
        let best = ranked("a b x", "b a");
        assert_eq!(best.ndcg_at(10), 1.0);
        assert_eq!(best.average_precision_at(100), 1.0);
        assert_eq!(best.reciprocal_rank_at(10), 1.0);
        let late = ranked("x y a", "a");
        assert_eq!(late.ndcg_at(10), 0.5);
        assert_eq!(late.reciprocal_rank_at(10), 1.0 / 3.0);
        assert_eq!(late.reciprocal_rank_at(2), 0.0);
        assert_eq!((late.accuracy_at(2), late.accuracy_at(3)), (0.0, 1.0));
    }

    #[test]
    fn a_query_without_gold_is_an_error() {
        assert_eq!(RankedGold::new(&["a"], &[]), Err(RetrievalError::EmptyGold));
    }
}
