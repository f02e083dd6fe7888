//! Assigns the pairs to steps by a seed, such that every step has a negative document.
//!
//! A pair that is alone in its batch, or shares its document with all others, has no negatives: its
//! loss is 0, and the step would have no effect. Such a batch is merged into the next one, and the
//! last batch of an epoch into the previous one. The order depends only on seed and epoch, as in
//! [`StepOrder`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use tooltune_rows::batches::{
    BatchError, Cursor, GroupByLength, OrderOptions, Packing, Shuffle, StepOrder,
};

use super::set::PairSet;

/// Options that determine the pairs of each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairOrderOptions {
    /// The run's seed.
    pub seed: u64,
    /// Number of pairs per step, at least 1.
    pub batch_size: usize,
    /// Number of hard negatives that will be mined per pair.
    pub hard_negatives: usize,
}

/// All steps of one epoch, in order.
type Steps = Vec<Vec<usize>>;

/// The pairs of each step in each epoch.
#[derive(Debug)]
pub struct PairOrder {
    order: StepOrder,
    options: PairOrderOptions,
    candidates: Candidates,
    /// The steps of the last used epoch. Steps are requested in order, so caching one epoch is
    /// enough.
    cached: Mutex<Option<(u64, Arc<Steps>)>>,
}

/// The documents of each pair, and the positives of its query.
#[derive(Debug)]
struct Candidates {
    queries: Vec<usize>,
    /// Per pair: its own document, then its negatives.
    documents: Vec<Vec<usize>>,
    /// Positives per query.
    relevant: Vec<BTreeSet<usize>>,
    n_documents: usize,
    mines_negatives: bool,
}

impl Candidates {
    fn new(set: &PairSet, hard_negatives: usize) -> Self {
        let documents = set.pairs().iter().map(|pair| {
            let own_document = std::iter::once(pair.document);
            own_document.chain(pair.negatives.iter().copied()).collect()
        });
        Self {
            queries: set.pairs().iter().map(|pair| pair.query).collect(),
            documents: documents.collect(),
            relevant: (0..set.queries().len())
                .map(|query| set.relevant_documents(query).clone())
                .collect(),
            n_documents: set.documents().len(),
            mines_negatives: hard_negatives > 0,
        }
    }

    fn positive_documents(&self, pair: usize) -> &BTreeSet<usize> {
        &self.relevant[self.queries[pair]]
    }

    /// Whether one of the pairs has a negative among the documents of all pairs.
    fn has_negatives(&self, pairs: &[usize]) -> bool {
        let finds = |pair: usize| {
            self.mines_negatives && self.positive_documents(pair).len() < self.n_documents
        };
        let mut documents = pairs.iter().flat_map(|&pair| &self.documents[pair]);
        pairs.iter().any(|&pair| finds(pair))
            || documents.any(|document| {
                pairs
                    .iter()
                    .any(|&pair| !self.positive_documents(pair).contains(document))
            })
    }

    /// Maximum number of pairs in a batch without negatives.
    fn max_pairs_without_negatives(&self) -> usize {
        if self.mines_negatives
            && self
                .relevant
                .iter()
                .all(|right| right.len() < self.n_documents)
        {
            return 0;
        }
        let mut pairs_of_document: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (pair, documents) in self.documents.iter().enumerate() {
            pairs_of_document
                .entry(documents[0])
                .or_default()
                .push(pair);
        }
        let same_right = |right: &BTreeSet<usize>| {
            let own_pairs = right
                .iter()
                .filter_map(|document| pairs_of_document.get(document));
            own_pairs
                .flatten()
                .filter(|pair| self.documents[**pair].iter().all(|d| right.contains(d)))
                .count()
        };
        self.relevant.iter().map(same_right).max().unwrap_or(0)
    }
}

impl PairOrder {
    /// The order of the pairs of a set.
    ///
    /// # Errors
    ///
    /// There are no pairs, or the batch size is 0.
    pub fn new(set: &PairSet, options: PairOrderOptions) -> Result<Self, BatchError> {
        let order = OrderOptions {
            seed: options.seed,
            per_device_train_batch_size: options.batch_size,
            gradient_accumulation_steps: 1,
            packing: Packing::None,
            group_by_length: GroupByLength::Off,
            shuffle: Shuffle::On,
        };
        Ok(Self {
            order: StepOrder::new(vec![1; set.pairs().len()], order)?,
            options,
            candidates: Candidates::new(set, options.hard_negatives),
            cached: Mutex::new(None),
        })
    }

    fn n_pairs(&self) -> usize {
        self.candidates.queries.len()
    }

    /// Whether any pair has a negative.
    pub fn can_learn(&self) -> bool {
        let all_pairs: Vec<usize> = (0..self.n_pairs()).collect();
        self.candidates.has_negatives(&all_pairs)
    }

    /// Number of pairs that would have no negatives in a batch of their own.
    pub fn n_pairs_without_negatives(&self) -> usize {
        let all_pairs = 0..self.n_pairs();
        all_pairs
            .filter(|&pair| !self.candidates.has_negatives(&[pair]))
            .count()
    }

    /// Number of batches of `epoch` that had no negatives and were merged into another batch.
    pub fn n_joined(&self, epoch: u64) -> usize {
        let n_batches = self.order.steps_in_epoch(epoch);
        n_batches - self.steps(epoch).len()
    }

    /// Number of optimizer steps of `epoch`. Epochs may differ slightly if many pairs share few
    /// documents.
    pub fn steps_in_epoch(&self, epoch: u64) -> usize {
        self.steps(epoch).len()
    }

    /// Number of optimizer steps of `epochs` epochs, of which the last may be partial; at least
    /// one.
    pub fn steps_in_epochs(&self, epochs: f64) -> u64 {
        let n_whole = epochs.floor() as u64;
        let whole_epochs = if self.epochs_differ() {
            (0..n_whole)
                .map(|epoch| self.steps_in_epoch(epoch) as u64)
                .sum()
        } else {
            n_whole.saturating_mul(self.steps_in_epoch(0) as u64)
        };
        let part = match epochs.fract() {
            0.0 => 0.0,
            part => self.steps_in_epoch(n_whole) as f64 * part,
        };
        whole_epochs.saturating_add(part.ceil() as u64).max(1)
    }

    /// Whether the number of merged batches is random.
    fn epochs_differ(&self) -> bool {
        let n_max = self.candidates.max_pairs_without_negatives();
        match self.n_pairs() % self.options.batch_size {
            // The last batch has one pair, and all other batches have negatives. Whether the pair
            // has negatives of its own is random, unless it is the same for all pairs.
            1 if n_max < self.options.batch_size => {
                !matches!(self.n_pairs_without_negatives(), n if n == 0 || n == self.n_pairs())
            }
            0 => n_max >= self.options.batch_size,
            n_last => n_max >= n_last,
        }
    }

    /// The pairs of the step at `cursor`, and the cursor of the next step.
    ///
    /// A cursor at or after the end of its epoch means the first step of the next epoch.
    pub fn next(&self, cursor: Cursor) -> (Vec<usize>, Cursor) {
        let Cursor {
            epoch,
            step_in_epoch,
        } = cursor;
        let steps = self.steps(epoch);
        let cursor_at = |epoch, step_in_epoch| Cursor {
            epoch,
            step_in_epoch,
        };
        match steps.get(step_in_epoch as usize) {
            None => self.next(cursor_at(epoch + 1, 0)),
            Some(pairs) if step_in_epoch + 1 < steps.len() as u64 => {
                (pairs.clone(), cursor_at(epoch, step_in_epoch + 1))
            }
            Some(pairs) => (pairs.clone(), cursor_at(epoch + 1, 0)),
        }
    }

    fn steps(&self, epoch: u64) -> Arc<Steps> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some((cached_epoch, steps)) if *cached_epoch == epoch => Arc::clone(steps),
            _ => {
                let steps = Arc::new(self.merge_batches(epoch));
                *cached = Some((epoch, Arc::clone(&steps)));
                steps
            }
        }
    }

    /// The batches of an epoch, each with a negative.
    fn merge_batches(&self, epoch: u64) -> Steps {
        let mut steps = Steps::new();
        let mut pending_pairs = Vec::new();
        for batch in 0..self.order.steps_in_epoch(epoch) {
            pending_pairs.extend(self.order.step(epoch, batch).concat());
            if self.candidates.has_negatives(&pending_pairs) {
                steps.push(std::mem::take(&mut pending_pairs));
            }
        }
        match steps.last_mut() {
            Some(last) => last.append(&mut pending_pairs),
            // Training is impossible; callers check `can_learn` first.
            None => steps.push(pending_pairs),
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair_set(pairs: &[(&str, &str)]) -> PairSet {
        let mut set = PairSet::default();
        for (query, document) in pairs {
            set.push(String::new(), query, document, &[])
                .expect("a pair");
        }
        set
    }

    fn pair_order(set: &PairSet, batch_size: usize, hard_negatives: usize) -> PairOrder {
        let options = PairOrderOptions {
            seed: 3,
            batch_size,
            hard_negatives,
        };
        PairOrder::new(set, options).expect("an order")
    }

    fn seven_pairs() -> PairSet {
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        pair_set(&names.map(|name| (name, name)))
    }

    fn batch_sizes(order: &PairOrder, epoch: u64) -> Vec<usize> {
        order.steps(epoch).iter().map(Vec::len).collect()
    }

    #[test]
    fn a_single_last_pair_joins_the_previous_batch() {
        let set = seven_pairs();
        let six = pair_order(&set, 6, 0);
        assert_eq!(batch_sizes(&six, 0), [7]);
        assert_eq!((six.n_joined(0), six.steps_in_epochs(2.5)), (1, 3));
        let three = pair_order(&set, 3, 0);
        assert_eq!(batch_sizes(&three, 4), [3, 4]);
        assert_eq!(three.steps_in_epochs(100_000.0), 200_000);
        // A mined document is a negative, so the pair can be alone.
        assert_eq!(batch_sizes(&pair_order(&set, 6, 1), 0), [6, 1]);
        let five = pair_order(&set, 5, 0);
        assert_eq!((batch_sizes(&five, 0), five.n_joined(0)), (vec![5, 2], 0));
    }

    /// Invariant: Every retriever step has at least one negative.
    #[test]
    fn a_batch_with_one_document_is_merged_with_another() {
        let mut pairs: Vec<(String, &str)> = (0..9).map(|i| (format!("q{i}"), "same")).collect();
        pairs.push(("other".to_owned(), "other"));
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(q, d)| (q.as_str(), *d)).collect();
        let set = pair_set(&pairs);
        let order = pair_order(&set, 3, 0);
        let mut total = 0;
        for epoch in 0..20 {
            let steps = order.steps(epoch);
            let mut seen_pairs: Vec<usize> = steps.concat();
            seen_pairs.sort_unstable();
            assert_eq!(seen_pairs, (0..10).collect::<Vec<_>>(), "each pair once");
            for step in steps.iter() {
                assert!(order.candidates.has_negatives(step), "{step:?}");
            }
            total += steps.len() as u64;
        }
        assert_eq!(order.steps_in_epochs(20.0), total);
    }

    #[test]
    fn steps_continue_from_any_cursor() {
        let set = seven_pairs();
        let order = pair_order(&set, 3, 0);
        let mut cursor = Cursor::default();
        let mut step_sizes = Vec::new();
        for _ in 0..6 {
            let (pairs, next_cursor) = order.next(cursor);
            // Simulate a resumed run, which has no cached steps.
            let second_order = super::PairOrder::new(&set, order.options).expect("an order");
            assert_eq!(second_order.next(cursor), (pairs.clone(), next_cursor));
            step_sizes.push(pairs.len());
            cursor = next_cursor;
        }
        assert_eq!(step_sizes, [3, 4, 3, 4, 3, 4]);
        assert_eq!(
            cursor,
            Cursor {
                epoch: 3,
                step_in_epoch: 0
            }
        );
    }

    #[test]
    fn pairs_without_negatives_are_counted() {
        let one_document = pair_set(&[("q", "d"), ("p", "d")]);
        let unusable = pair_order(&one_document, 2, 0);
        assert!(!unusable.can_learn());
        assert!(!pair_order(&one_document, 2, 3).can_learn());
        let mut two = seven_pairs();
        two.push(String::new(), "h", "h", &["a".to_owned()])
            .expect("a pair");
        let two = pair_order(&two, 7, 0);
        assert!(two.can_learn());
        assert_eq!(two.n_pairs_without_negatives(), 7);
        let total: usize = (0..40).map(|epoch| two.steps_in_epoch(epoch)).sum();
        assert_eq!(two.steps_in_epochs(40.0), total as u64);
        assert!((41..80).contains(&total), "by chance: {total}");
    }
}
