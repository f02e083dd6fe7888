//! Measures one query's ranking against its gold documents.

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
///
/// Documents of equal scores stand in no order, so each measure is its expected value over all
/// orders of them: an encoder that tells nothing apart scores what chance does, whichever documents
/// an index names first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankedGold {
    /// The documents of equal scores among which are gold ones, best first.
    ties: Vec<Tie>,
    n_gold: usize,
}

/// Documents of one score, of which some are gold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tie {
    /// Documents that score higher.
    n_above: usize,
    /// Documents of this score.
    n: usize,
    /// Gold ones among them, at least one.
    n_gold: usize,
}

impl Tie {
    /// How many of these documents are among the first `k` of the ranking.
    fn n_within(&self, k: usize) -> usize {
        k.saturating_sub(self.n_above).min(self.n)
    }

    /// The share of gold ones.
    fn share(&self) -> f64 {
        self.n_gold as f64 / self.n as f64
    }

    /// The probabilities that the first gold one is at the first, second, ... place of these.
    fn first_gold(&self) -> impl Iterator<Item = f64> {
        let (n, n_gold) = (self.n, self.n_gold);
        let mut none_before = 1.0;
        (0..n).map(move |n_before| {
            // Of the documents that are left, all gold ones are among them.
            let hit = (n_gold as f64 / (n - n_before) as f64).min(1.0);
            let here = none_before * hit;
            none_before *= 1.0 - hit;
            here
        })
    }
}

impl RankedGold {
    /// Finds the gold documents in a ranking without ties, best first.
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
        let ties = distinct
            .enumerate()
            .filter(|(_, document)| gold.contains(document))
            .map(|(n_above, _)| Tie {
                n_above,
                n: 1,
                n_gold: 1,
            })
            .collect();
        Ok(Self {
            ties,
            n_gold: gold.len(),
        })
    }

    /// Ranks documents by their scores, document `i` having `scores[i]`, and finds the gold ones
    /// among them. Scores less than `tie_width` below the highest of a tie belong to that tie.
    ///
    /// # Errors
    ///
    /// - there is no gold document
    pub fn of_scores(
        scores: &[f64],
        gold: &[usize],
        tie_width: f64,
    ) -> Result<Self, RetrievalError> {
        let gold: BTreeSet<usize> = gold.iter().copied().collect();
        if gold.is_empty() {
            return Err(RetrievalError::EmptyGold);
        }
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let mut ties = Vec::new();
        let mut n_above = 0;
        while n_above < order.len() {
            let rest = &order[n_above..];
            let highest = scores[rest[0]];
            let is_tied = |document: &&usize| {
                let score = scores[**document];
                score == highest || highest - score < tie_width
            };
            let n = rest.iter().take_while(is_tied).count().max(1);
            let tied = rest[..n].iter();
            let n_gold = tied.filter(|document| gold.contains(*document)).count();
            if n_gold > 0 {
                ties.push(Tie { n_above, n, n_gold });
            }
            n_above += n;
        }
        Ok(Self {
            ties,
            n_gold: gold.len(),
        })
    }

    /// Share of the gold documents among the first `k`.
    pub fn recall_at(&self, k: usize) -> f64 {
        let found: f64 = self
            .ties
            .iter()
            .map(|tie| {
                // Whole numbers stay whole where a tie is not cut.
                (tie.n_gold * tie.n_within(k)) as f64 / tie.n as f64
            })
            .sum();
        // Zero is added because the sum of nothing is -0.
        (found + 0.0) / self.n_gold as f64
    }

    /// Share of the gold documents among as many as there are gold ones; precision is the same.
    ///
    /// # Source
    ///
    /// GOAT, Table 6: Recall@GT.
    pub fn recall_at_gt(&self) -> f64 {
        self.recall_at(self.n_gold)
    }

    /// 1 if any gold document is among the first `k`, else 0; between ties its probability.
    pub fn accuracy_at(&self, k: usize) -> f64 {
        let Some(first) = self.ties.first() else {
            return 0.0;
        };
        match first.n_within(k) {
            0 => 0.0,
            n if n == first.n => 1.0,
            n => first.first_gold().take(n).sum(),
        }
    }

    /// One over the rank of the first gold document; 0 if it is not among the first `k`.
    pub fn reciprocal_rank_at(&self, k: usize) -> f64 {
        let Some(first) = self.ties.first() else {
            return 0.0;
        };
        let ranks = first.n_above + 1..=k;
        let places = ranks.zip(first.first_gold());
        let expected: f64 = places
            .map(|(rank, probability)| probability / rank as f64)
            .sum();
        expected + 0.0
    }

    /// Discounted gain of the first `k` over that of the best ranking possible; gains are 0 and 1.
    pub fn ndcg_at(&self, k: usize) -> f64 {
        let gain = |rank: usize| 1.0 / ((rank + 1) as f64).log2();
        let of_tie = |tie: &Tie| -> f64 {
            let ranks = tie.n_above + 1..=tie.n_above + tie.n_within(k);
            tie.share() * ranks.map(gain).sum::<f64>()
        };
        let found: f64 = self.ties.iter().map(of_tie).sum();
        let best: f64 = (1..=self.n_gold.min(k)).map(gain).sum();
        if best == 0.0 {
            0.0
        } else {
            (found + 0.0) / best
        }
    }

    /// Mean precision at the ranks of gold documents among the first `k`, over as many as could
    /// be there: the smaller of `k` and the number of gold documents.
    pub fn average_precision_at(&self, k: usize) -> f64 {
        let mut n_found = 0;
        let mut sum = 0.0;
        for tie in &self.ties {
            // Of a gold document's neighbours in its tie, so many are gold.
            let others = (tie.n_gold - 1) as f64 / (tie.n - 1).max(1) as f64;
            sum += (0..tie.n_within(k))
                .map(|n_before| {
                    let n_gold = (n_found + 1) as f64 + n_before as f64 * others;
                    tie.share() * n_gold / (tie.n_above + n_before + 1) as f64
                })
                .sum::<f64>();
            n_found += tie.n_gold;
        }
        match self.n_gold.min(k) {
            0 => 0.0,
            n_possible => sum / n_possible as f64,
        }
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
        let found = ranked("", "a").recall_at(5);
        assert!(found == 0.0 && found.is_sign_positive(), "{found}");
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
        // Reports would show -0.
        assert!(measures.iter().all(|measure| measure.is_sign_positive()));
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

    /// Every order of `items`.
    fn orders(items: &[usize]) -> Vec<Vec<usize>> {
        if items.is_empty() {
            return vec![Vec::new()];
        }
        let with_first = |i: usize| {
            let mut rest = items.to_vec();
            let first = rest.remove(i);
            orders(&rest)
                .into_iter()
                .map(move |rest| [vec![first], rest].concat())
        };
        (0..items.len()).flat_map(with_first).collect()
    }

    fn measures(query: &RankedGold, k: usize) -> [f64; 6] {
        [
            query.recall_at(k),
            query.recall_at_gt(),
            query.accuracy_at(k),
            query.reciprocal_rank_at(k),
            query.ndcg_at(k),
            query.average_precision_at(k),
        ]
    }

    /// Means over every order of seven documents that is an order of their scores.
    fn over_all_orders(scores: &[usize], gold: &[usize], k: usize) -> [f64; 6] {
        let all: Vec<usize> = (0..scores.len()).collect();
        let is_sorted = |order: &Vec<usize>| order.is_sorted_by(|&a, &b| scores[a] >= scores[b]);
        let orders: Vec<Vec<usize>> = orders(&all).into_iter().filter(is_sorted).collect();
        let mut sums = [0.0; 6];
        for order in &orders {
            let query = RankedGold::new(order, gold).expect("gold documents");
            for (sum, measure) in sums.iter_mut().zip(measures(&query, k)) {
                *sum += measure;
            }
        }
        sums.map(|sum| sum / orders.len() as f64)
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

        #[test]
        fn ties_have_the_expected_value_over_their_orders(
            scores in proptest::collection::vec(0usize..3, 1..7),
            gold in proptest::collection::btree_set(0usize..8, 1..5),
            k in 0usize..9,
        ) {
            let gold: Vec<usize> = gold.into_iter().collect();
            let as_numbers: Vec<f64> = scores.iter().map(|&score| score as f64).collect();
            let found = RankedGold::of_scores(&as_numbers, &gold, 1e-7).expect("gold documents");
            let expected = over_all_orders(&scores, &gold, k);
            for (found, expected) in measures(&found, k).into_iter().zip(expected) {
                proptest::prop_assert!((found - expected).abs() < 1e-12, "{found} {expected}");
            }
        }
    }

    #[test]
    fn a_constant_encoder_scores_what_chance_does() {
        let scores = [0.5; 275];
        let query = RankedGold::of_scores(&scores, &[0], 0.0).expect("a gold document");
        assert!((query.recall_at(5) - 5.0 / 275.0).abs() < 1e-15);
        assert!((query.accuracy_at(5) - 5.0 / 275.0).abs() < 1e-15);
        let harmonic: f64 = (1..=10).map(|rank| 1.0 / f64::from(rank)).sum();
        assert!((query.reciprocal_rank_at(10) - harmonic / 275.0).abs() < 1e-15);
    }

    #[test]
    fn scores_within_a_rounding_step_are_tied_and_others_are_not() {
        let step = f64::from(f32::EPSILON);
        let first_wins = |below: f64| {
            let scores = [0.7, 0.7 - below];
            let query = RankedGold::of_scores(&scores, &[1], step).expect("a gold document");
            query.recall_at(1)
        };
        assert_eq!([first_wins(0.5 * step), first_wins(2.0 * step)], [0.5, 0.0]);
        let nothing = RankedGold::of_scores(&[f64::NAN, 1.0], &[0], step).expect("gold");
        assert_eq!(nothing.recall_at(2), 1.0);
    }
}
