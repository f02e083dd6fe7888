//! Measures one query's ranking against its gold documents.

use std::collections::BTreeSet;

/// Why a query or data set cannot be scored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RetrievalError {
    /// A query without gold documents has no recall.
    #[error("the query has no gold documents; add at least one, or remove the query")]
    EmptyGold,
    /// A data set without queries has no mean.
    #[error("no queries to report; provide at least one")]
    NoQueries,
}

/// Ranks of the gold documents of a query.
///
/// The order of documents with equal scores is undefined, so each measure is its expected value
/// over all their orders. An encoder that gives all documents the same score therefore scores at
/// chance level, regardless of the order of the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankedGold {
    /// The groups of equal scores that contain gold documents, best group first.
    ties: Vec<Tie>,
    n_gold: usize,
}

/// Documents of equal score, some of them gold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tie {
    /// Number of documents with a higher score.
    n_above: usize,
    /// Number of documents with this score.
    n: usize,
    /// Number of gold documents in the group, at least one.
    n_gold: usize,
}

impl Tie {
    /// Number of documents of the group among the first `k` of the ranking.
    fn n_within(&self, k: usize) -> usize {
        k.saturating_sub(self.n_above).min(self.n)
    }

    /// Fraction of the group that is gold.
    fn tie_share(&self) -> f64 {
        self.n_gold as f64 / self.n as f64
    }

    /// Probabilities that the first gold document is the first, second, … document of the tie.
    fn first_gold(&self) -> impl Iterator<Item = f64> {
        let (n, n_gold) = (self.n, self.n_gold);
        let mut none_before = 1.0;
        (0..n).map(move |n_before| {
            // If only gold documents are left, the next one is gold.
            let hit = (n_gold as f64 / (n - n_before) as f64).min(1.0);
            let rank_here = none_before * hit;
            none_before *= 1.0 - hit;
            rank_here
        })
    }
}

impl RankedGold {
    /// Finds the gold documents in a ranking without ties, best first.
    ///
    /// Repeated documents in the ranking or among the gold documents count once.
    ///
    /// # Errors
    ///
    /// There is no gold document.
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

    /// Ranks documents by score and finds the gold documents; document `i` has `scores[i]`. A tie
    /// contains all scores that are less than `tie_width` below its highest score.
    ///
    /// # Errors
    ///
    /// There is no gold document.
    pub fn from_scores(
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

    /// Fraction of the gold documents among the first `k`.
    pub fn recall_at(&self, k: usize) -> f64 {
        let n_found: f64 = self
            .ties
            .iter()
            .map(|tie| {
                // Exact for integers if the tie is not split at `k`.
                (tie.n_gold * tie.n_within(k)) as f64 / tie.n as f64
            })
            .sum();
        // Adding zero turns the empty sum, -0, into 0.
        (n_found + 0.0) / self.n_gold as f64
    }

    /// Recall among the first n documents, where n is the number of gold documents. This is equal
    /// to the precision.
    ///
    /// # Source
    ///
    /// GOAT, Table 6: Recall@GT.
    pub fn recall_at_gt(&self) -> f64 {
        self.recall_at(self.n_gold)
    }

    /// 1 if a gold document is among the first `k`, otherwise 0. With ties, the probability of
    /// this.
    pub fn accuracy_at(&self, k: usize) -> f64 {
        let Some(first_tie) = self.ties.first() else {
            return 0.0;
        };
        match first_tie.n_within(k) {
            0 => 0.0,
            n if n == first_tie.n => 1.0,
            n => first_tie.first_gold().take(n).sum(),
        }
    }

    /// Reciprocal rank of the first gold document; 0 if it is not among the first `k`.
    pub fn reciprocal_rank_at(&self, k: usize) -> f64 {
        let Some(first_tie) = self.ties.first() else {
            return 0.0;
        };
        let ranks = first_tie.n_above + 1..=k;
        let reciprocal_ranks = ranks.zip(first_tie.first_gold());
        let expected: f64 = reciprocal_ranks
            .map(|(rank, probability)| probability / rank as f64)
            .sum();
        expected + 0.0
    }

    /// Discounted cumulative gain of the first `k`, divided by the gain of the ideal ranking. The
    /// gain of a document is 0 or 1.
    pub fn ndcg_at(&self, k: usize) -> f64 {
        let gain = |rank: usize| 1.0 / ((rank + 1) as f64).log2();
        let tie_gain = |tie: &Tie| -> f64 {
            let ranks = tie.n_above + 1..=tie.n_above + tie.n_within(k);
            tie.tie_share() * ranks.map(gain).sum::<f64>()
        };
        let gain_at: f64 = self.ties.iter().map(tie_gain).sum();
        let best: f64 = (1..=self.n_gold.min(k)).map(gain).sum();
        if best == 0.0 {
            0.0
        } else {
            (gain_at + 0.0) / best
        }
    }

    /// Mean precision at the ranks of gold documents among the first `k`, divided by the smaller of
    /// `k` and the number of gold documents.
    pub fn average_precision_at(&self, k: usize) -> f64 {
        let mut n_found = 0;
        let mut sum = 0.0;
        for tie in &self.ties {
            // Expected fraction of gold documents among the other documents of a gold document's
            // tie.
            let others = (tie.n_gold - 1) as f64 / (tie.n - 1).max(1) as f64;
            sum += (0..tie.n_within(k))
                .map(|n_before| {
                    let n_gold = (n_found + 1) as f64 + n_before as f64 * others;
                    tie.tie_share() * n_gold / (tie.n_above + n_before + 1) as f64
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

    fn rank_letters(ranked: &str, gold: &str) -> RankedGold {
        let documents =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        RankedGold::new(&documents(ranked), &documents(gold)).expect("gold documents")
    }

    #[test]
    fn recall_counts_distinct_documents() {
        let query = rank_letters("a x a b c", "b a a");
        assert_eq!(query.recall_at(1), 0.5);
        assert_eq!(query.recall_at(3), 1.0);
        assert_eq!(query.recall_at_gt(), 0.5);
        assert_eq!(rank_letters("a", "a z").recall_at(5), 0.5);
        let recall = rank_letters("", "a").recall_at(5);
        assert!(recall == 0.0 && recall.is_sign_positive(), "{recall}");
    }

    #[test]
    fn measures_at_zero_are_zero() {
        let query = rank_letters("a", "a");
        let measures = [
            query.recall_at(0),
            query.accuracy_at(0),
            query.reciprocal_rank_at(0),
            query.ndcg_at(0),
            query.average_precision_at(0),
        ];
        assert_eq!(measures, [0.0; 5]);
        // A negative zero would be printed as -0 in reports.
        assert!(measures.iter().all(|measure| measure.is_sign_positive()));
    }

    #[test]
    fn a_perfect_ranking_scores_one_and_a_later_hit_scores_less() {
        let best = rank_letters("a b x", "b a");
        assert_eq!(best.ndcg_at(10), 1.0);
        assert_eq!(best.average_precision_at(100), 1.0);
        assert_eq!(best.reciprocal_rank_at(10), 1.0);
        let late = rank_letters("x y a", "a");
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
    fn permutations(items: &[usize]) -> Vec<Vec<usize>> {
        if items.is_empty() {
            return vec![Vec::new()];
        }
        let with_first = |i: usize| {
            let mut other_items = items.to_vec();
            let first_item = other_items.remove(i);
            permutations(&other_items)
                .into_iter()
                .map(move |other_items| [vec![first_item], other_items].concat())
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

    /// Means over all orders of seven documents that are consistent with their scores.
    fn mean_over_orders(scores: &[usize], gold: &[usize], k: usize) -> [f64; 6] {
        let all: Vec<usize> = (0..scores.len()).collect();
        let is_sorted = |order: &Vec<usize>| order.is_sorted_by(|&a, &b| scores[a] >= scores[b]);
        let orders: Vec<Vec<usize>> = permutations(&all).into_iter().filter(is_sorted).collect();
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

        /// Invariant: Documents with equal scores share their ranks, whatever their order in the
        /// index.
        #[test]
        fn tied_scores_give_the_mean_over_all_orders(
            scores in proptest::collection::vec(0usize..3, 1..7),
            gold in proptest::collection::btree_set(0usize..8, 1..5),
            k in 0usize..9,
        ) {
            let gold: Vec<usize> = gold.into_iter().collect();
            let as_numbers: Vec<f64> = scores.iter().map(|&score| score as f64).collect();
            let ranked_gold = RankedGold::from_scores(&as_numbers, &gold, 1e-7).expect("gold documents");
            let expected = mean_over_orders(&scores, &gold, k);
            for (ranked_gold, expected) in measures(&ranked_gold, k).into_iter().zip(expected) {
                proptest::prop_assert!((ranked_gold - expected).abs() < 1e-12, "{ranked_gold} {expected}");
            }
        }
    }

    #[test]
    fn a_constant_encoder_scores_like_chance() {
        let scores = [0.5; 275];
        let query = RankedGold::from_scores(&scores, &[0], 0.0).expect("a gold document");
        assert!((query.recall_at(5) - 5.0 / 275.0).abs() < 1e-15);
        assert!((query.accuracy_at(5) - 5.0 / 275.0).abs() < 1e-15);
        let harmonic: f64 = (1..=10).map(|rank| 1.0 / f64::from(rank)).sum();
        assert!((query.reciprocal_rank_at(10) - harmonic / 275.0).abs() < 1e-15);
    }

    #[test]
    fn scores_within_a_rounding_step_are_tied() {
        let step = f64::from(f32::EPSILON);
        let first_wins = |wins_by: f64| {
            let scores = [0.7, 0.7 - wins_by];
            let query = RankedGold::from_scores(&scores, &[1], step).expect("a gold document");
            query.recall_at(1)
        };
        assert_eq!([first_wins(0.5 * step), first_wins(2.0 * step)], [0.5, 0.0]);
        let ranked_gold = RankedGold::from_scores(&[f64::NAN, 1.0], &[0], step).expect("gold");
        assert_eq!(ranked_gold.recall_at(2), 1.0);
    }
}
