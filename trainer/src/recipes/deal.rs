//! Distributes the micro-batches of a step over the processes of a run.

use std::collections::BTreeMap;

use crate::models::DecoderConfig;

/// Estimated work of a micro-batch with documents of these lengths, in multiply-adds of a forward
/// pass: the linear layers for each token, and attention for each pair of tokens of a document.
pub(crate) fn cost(documents: impl Iterator<Item = usize>, model: &DecoderConfig) -> u64 {
    let width = (model.num_attention_heads * model.head_dim) as u64;
    let key_values = (model.num_key_value_heads * model.head_dim) as u64;
    let hidden = model.hidden_size as u64;
    let feed_forward = 3 * hidden * model.intermediate_size as u64;
    let layers = model.num_hidden_layers as u64;
    let per_token = layers * (hidden * (2 * width + 2 * key_values) + feed_forward);
    let (tokens, pairs) = documents.fold((0, 0), |(tokens, pairs), length| {
        let length = length as u64;
        (tokens + length, pairs + length.pow(2) / 2)
    });
    per_token
        .saturating_mul(tokens)
        .saturating_add((2 * width * layers).saturating_mul(pairs))
}

/// Distributes `items` with their costs over `world_size` processes: the most expensive first, each
/// to the process with the least work so far. Returns the items of every process in ascending order.
///
/// The result depends on nothing else, so every process computes the same one.
///
/// # Source
///
/// Graham 1969, "Bounds on Multiprocessing Timing Anomalies" (longest processing time first).
pub(crate) fn deal(items: &[(usize, u64)], world_size: usize) -> Vec<Vec<usize>> {
    let mut sorted = items.to_vec();
    sorted.sort_by_key(|&(item, cost)| (std::cmp::Reverse(cost), item));
    let mut shares = vec![(0_u64, Vec::new()); world_size];
    for (item, cost) in sorted {
        let least = shares.iter_mut().min_by_key(|(work, _)| *work);
        let (work, share) = least.expect("a run has at least one process");
        *work = work.saturating_add(cost);
        share.push(item);
    }
    let shares = shares.into_iter().map(|(_, mut share)| {
        share.sort_unstable();
        share
    });
    shares.collect()
}

/// Busy time of the processes while the slowest one computes a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct BusyTime {
    /// Work of all processes.
    work: f64,
    /// Work that the processes would do if none of them waited for the slowest one.
    capacity: f64,
}

impl BusyTime {
    /// Adds a step whose micro-batches have these costs.
    pub(crate) fn add_step(&mut self, items: &[(usize, u64)], world_size: usize) {
        let costs: BTreeMap<usize, u64> = items.iter().copied().collect();
        let shares = deal(items, world_size);
        let works = shares.iter().map(|share| {
            let work = share.iter().map(|item| costs[item] as f64);
            work.sum::<f64>()
        });
        let works: Vec<f64> = works.collect();
        self.work += works.iter().sum::<f64>();
        self.capacity += works.iter().copied().fold(0.0, f64::max) * world_size as f64;
    }

    /// Share of the time that a process computes, from 0 to 1; 1 without any work.
    pub(crate) fn share(&self) -> f64 {
        match self.capacity > 0.0 {
            true => self.work / self.capacity,
            false => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_micro_batches_are_dealt_first() {
        let items = [(0, 7), (1, 3), (2, 5), (3, 4), (4, 9)];
        // The first gets 9 and 4; the second gets 7, 5 and 3.
        assert_eq!(deal(&items, 2), [vec![3, 4], vec![0, 1, 2]]);
        assert_eq!(deal(&items, 1), [vec![0, 1, 2, 3, 4]]);
        assert_eq!(deal(&[(2, 1)], 3), [vec![2], vec![], vec![]]);
    }

    #[test]
    fn processes_are_busy_while_the_slowest_one_computes() {
        let mut busy = BusyTime::default();
        assert_eq!(busy.share(), 1.0);
        // The processes get 7 + 3 and 5 + 4: the second one waits for 1 of 10.
        busy.add_step(&[(0, 7), (1, 3), (2, 5), (3, 4)], 2);
        assert_eq!(busy.share(), 19.0 / 20.0);
        // In this step the second process has nothing to do.
        busy.add_step(&[(5, 4)], 2);
        assert_eq!(busy.share(), 23.0 / 28.0);
        let mut alone = BusyTime::default();
        alone.add_step(&[(0, 7), (1, 3)], 1);
        assert_eq!(alone.share(), 1.0);
    }

    proptest! {
        #[test]
        fn every_item_is_dealt_once(costs in proptest::collection::vec(0_u64..1000, 0..40), world in 1_usize..9) {
            let items: Vec<(usize, u64)> = costs.iter().copied().enumerate().collect();
            let shares = deal(&items, world);
            prop_assert_eq!(shares.len(), world);
            let mut dealt: Vec<usize> = shares.concat();
            dealt.sort_unstable();
            prop_assert_eq!(dealt, (0..costs.len()).collect::<Vec<_>>());
            // Graham's bound against the mean and the largest item.
            let work = |share: &Vec<usize>| share.iter().map(|&i| costs[i]).sum::<u64>() as f64;
            let most = shares.iter().map(work).fold(0.0, f64::max);
            let mean = costs.iter().sum::<u64>() as f64 / world as f64;
            let largest = costs.iter().copied().max().unwrap_or(0) as f64;
            prop_assert!(most <= mean + largest);
        }
    }
}
