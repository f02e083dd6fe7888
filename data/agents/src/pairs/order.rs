//! Pairs and a seed in, the pairs of every step out: no step without a wrong document.
//!
//! A pair that is alone in its batch, or shares its document with all others of it, has nothing to
//! be told apart from: its loss is 0, and the step would teach nothing. Such a batch joins the next
//! one, and the last of an epoch the one before it. The order stays a pure function of seed and
//! epoch, as [`StepOrder`] is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use tooltune_rows::batches::{
    BatchError, Cursor, GroupByLength, OrderOptions, Packing, Shuffle, StepOrder,
};

use super::set::PairSet;

/// What decides which pairs make a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairOrderOptions {
    /// The run's seed.
    pub seed: u64,
    /// Pairs of a step, at least 1.
    pub batch_size: usize,
    /// Hard negatives that will be found for each pair.
    pub hard_negatives: usize,
}

/// All steps of one epoch, in order.
type Steps = Vec<Vec<usize>>;

/// Which pairs each step of each epoch learns from.
#[derive(Debug)]
pub struct PairOrder {
    order: StepOrder,
    options: PairOrderOptions,
    candidates: Candidates,
    /// The steps used last: they are asked for in order, so one epoch is enough.
    cached: Mutex<Option<(u64, Arc<Steps>)>>,
}

/// What each pair brings into a batch, and what is wrong for its query.
#[derive(Debug)]
struct Candidates {
    queries: Vec<usize>,
    /// Of each pair: its own document, then its negatives.
    documents: Vec<Vec<usize>>,
    /// Of each query.
    relevant: Vec<BTreeSet<usize>>,
    n_documents: usize,
    finds_negatives: bool,
}

impl Candidates {
    fn new(set: &PairSet, hard_negatives: usize) -> Self {
        let documents = set.pairs().iter().map(|pair| {
            let own = std::iter::once(pair.document);
            own.chain(pair.negatives.iter().copied()).collect()
        });
        Self {
            queries: set.pairs().iter().map(|pair| pair.query).collect(),
            documents: documents.collect(),
            relevant: (0..set.queries().len())
                .map(|query| set.relevant(query).clone())
                .collect(),
            n_documents: set.documents().len(),
            finds_negatives: hard_negatives > 0,
        }
    }

    fn right(&self, pair: usize) -> &BTreeSet<usize> {
        &self.relevant[self.queries[pair]]
    }

    /// Whether one of the pairs has a wrong document among those of all.
    fn has_negatives(&self, pairs: &[usize]) -> bool {
        let finds = |pair: usize| self.finds_negatives && self.right(pair).len() < self.n_documents;
        let mut documents = pairs.iter().flat_map(|&pair| &self.documents[pair]);
        pairs.iter().any(|&pair| finds(pair))
            || documents.any(|document| {
                pairs
                    .iter()
                    .any(|&pair| !self.right(pair).contains(document))
            })
    }

    /// The most pairs that could be in a batch without a wrong document.
    fn most_without_negatives(&self) -> usize {
        if self.finds_negatives
            && self
                .relevant
                .iter()
                .all(|right| right.len() < self.n_documents)
        {
            return 0;
        }
        let mut of_document: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (pair, documents) in self.documents.iter().enumerate() {
            of_document.entry(documents[0]).or_default().push(pair);
        }
        let alike = |right: &BTreeSet<usize>| {
            let own = right
                .iter()
                .filter_map(|document| of_document.get(document));
            own.flatten()
                .filter(|pair| self.documents[**pair].iter().all(|d| right.contains(d)))
                .count()
        };
        self.relevant.iter().map(alike).max().unwrap_or(0)
    }
}

impl PairOrder {
    /// The order of the pairs of a set.
    ///
    /// # Errors
    ///
    /// - there is no pair, or the batch size is 0
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

    /// Whether any pair has a wrong document.
    pub fn can_learn(&self) -> bool {
        let all: Vec<usize> = (0..self.n_pairs()).collect();
        self.candidates.has_negatives(&all)
    }

    /// Pairs that have no wrong document where they are alone.
    pub fn n_alone_without_negatives(&self) -> usize {
        let all = 0..self.n_pairs();
        all.filter(|&pair| !self.candidates.has_negatives(&[pair]))
            .count()
    }

    /// Batches of `epoch` that had no wrong document and joined another.
    pub fn n_joined(&self, epoch: u64) -> usize {
        let n_batches = self.order.steps_in_epoch(epoch);
        n_batches - self.steps(epoch).len()
    }

    /// Optimizer steps of `epoch`; epochs can differ by a few where many pairs share few documents.
    pub fn steps_in_epoch(&self, epoch: u64) -> usize {
        self.steps(epoch).len()
    }

    /// Optimizer steps of so many epochs, the last one perhaps in part; at least one.
    pub fn steps_in_epochs(&self, epochs: f64) -> u64 {
        let n_whole = epochs.floor() as u64;
        let whole = if self.epochs_differ() {
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
        whole.saturating_add(part.ceil() as u64).max(1)
    }

    /// Whether chance decides how many batches join others.
    fn epochs_differ(&self) -> bool {
        let most = self.candidates.most_without_negatives();
        match self.n_pairs() % self.options.batch_size {
            // All pairs are alike, or the last one may or may not have negatives of its own.
            1 if most < self.options.batch_size => {
                !matches!(self.n_alone_without_negatives(), n if n == 0 || n == self.n_pairs())
            }
            0 => most >= self.options.batch_size,
            n_last => most >= n_last,
        }
    }

    /// The pairs of the step at `cursor` and the cursor of the step after it.
    ///
    /// A cursor at or past the end of its epoch means the first step of the next epoch.
    pub fn next(&self, cursor: Cursor) -> (Vec<usize>, Cursor) {
        let Cursor {
            epoch,
            step_in_epoch,
        } = cursor;
        let steps = self.steps(epoch);
        let at = |epoch, step_in_epoch| Cursor {
            epoch,
            step_in_epoch,
        };
        match steps.get(step_in_epoch as usize) {
            None => self.next(at(epoch + 1, 0)),
            Some(pairs) if step_in_epoch + 1 < steps.len() as u64 => {
                (pairs.clone(), at(epoch, step_in_epoch + 1))
            }
            Some(pairs) => (pairs.clone(), at(epoch + 1, 0)),
        }
    }

    fn steps(&self, epoch: u64) -> Arc<Steps> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some((cached_epoch, steps)) if *cached_epoch == epoch => Arc::clone(steps),
            _ => {
                let steps = Arc::new(self.joined(epoch));
                *cached = Some((epoch, Arc::clone(&steps)));
                steps
            }
        }
    }

    /// The batches of an epoch, each with a wrong document.
    fn joined(&self, epoch: u64) -> Steps {
        let mut steps = Steps::new();
        let mut waiting = Vec::new();
        for batch in 0..self.order.steps_in_epoch(epoch) {
            waiting.extend(self.order.step(epoch, batch).concat());
            if self.candidates.has_negatives(&waiting) {
                steps.push(std::mem::take(&mut waiting));
            }
        }
        match steps.last_mut() {
            Some(last) => last.append(&mut waiting),
            // Nothing can be learned: a caller asks `can_learn` first.
            None => steps.push(waiting),
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &[(&str, &str)]) -> PairSet {
        let mut set = PairSet::default();
        for (query, document) in pairs {
            set.push(String::new(), query, document, &[])
                .expect("a pair");
        }
        set
    }

    fn order(set: &PairSet, batch_size: usize, hard_negatives: usize) -> PairOrder {
        let options = PairOrderOptions {
            seed: 3,
            batch_size,
            hard_negatives,
        };
        PairOrder::new(set, options).expect("an order")
    }

    fn seven() -> PairSet {
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        set(&names.map(|name| (name, name)))
    }

    fn sizes(order: &PairOrder, epoch: u64) -> Vec<usize> {
        order.steps(epoch).iter().map(Vec::len).collect()
    }

    #[test]
    fn a_last_pair_joins_the_batch_before_it() {
        let set = seven();
        let six = order(&set, 6, 0);
        assert_eq!(sizes(&six, 0), [7]);
        assert_eq!((six.n_joined(0), six.steps_in_epochs(2.5)), (1, 3));
        let three = order(&set, 3, 0);
        assert_eq!(sizes(&three, 4), [3, 4]);
        assert_eq!(three.steps_in_epochs(100_000.0), 200_000);
        // A mined document is wrong for it, so it can be alone.
        assert_eq!(sizes(&order(&set, 6, 1), 0), [6, 1]);
        let five = order(&set, 5, 0);
        assert_eq!((sizes(&five, 0), five.n_joined(0)), (vec![5, 2], 0));
    }

    #[test]
    fn a_batch_of_one_document_joins_another() {
        let mut pairs: Vec<(String, &str)> = (0..9).map(|i| (format!("q{i}"), "same")).collect();
        pairs.push(("other".to_owned(), "other"));
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(q, d)| (q.as_str(), *d)).collect();
        let set = set(&pairs);
        let order = order(&set, 3, 0);
        let mut total = 0;
        for epoch in 0..20 {
            let steps = order.steps(epoch);
            let mut seen: Vec<usize> = steps.concat();
            seen.sort_unstable();
            assert_eq!(seen, (0..10).collect::<Vec<_>>(), "each pair once");
            for step in steps.iter() {
                assert!(order.candidates.has_negatives(step), "{step:?}");
            }
            total += steps.len() as u64;
        }
        assert_eq!(order.steps_in_epochs(20.0), total);
    }

    #[test]
    fn steps_follow_from_any_cursor() {
        let set = seven();
        let order = order(&set, 3, 0);
        let mut cursor = Cursor::default();
        let mut walked = Vec::new();
        for _ in 0..6 {
            let (pairs, next) = order.next(cursor);
            // As a resumed run asks: with nothing cached.
            let again = super::PairOrder::new(&set, order.options).expect("an order");
            assert_eq!(again.next(cursor), (pairs.clone(), next));
            walked.push(pairs.len());
            cursor = next;
        }
        assert_eq!(walked, [3, 4, 3, 4, 3, 4]);
        assert_eq!(
            cursor,
            Cursor {
                epoch: 3,
                step_in_epoch: 0
            }
        );
    }

    #[test]
    fn pairs_without_anything_wrong_are_counted() {
        let one = set(&[("q", "d"), ("p", "d")]);
        let nothing = order(&one, 2, 0);
        assert!(!nothing.can_learn());
        assert!(!order(&one, 2, 3).can_learn());
        let mut two = seven();
        two.push(String::new(), "h", "h", &["a".to_owned()])
            .expect("a pair");
        let two = order(&two, 7, 0);
        assert!(two.can_learn());
        assert_eq!(two.n_alone_without_negatives(), 7);
        let total: usize = (0..40).map(|epoch| two.steps_in_epoch(epoch)).sum();
        assert_eq!(two.steps_in_epochs(40.0), total as u64);
        assert!((41..80).contains(&total), "by chance: {total}");
    }
}
