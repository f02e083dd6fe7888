//! Distributes the micro-batches of a step over the processes of a run.

use tooltune_rows::batches::MicroBatch;

use crate::models::DecoderConfig;

/// Estimated work of a micro-batch, in multiply-adds of a forward pass: the linear layers for each
/// token, and attention for each pair of tokens of a document.
pub(super) fn cost(micro_batch: &MicroBatch, model: &DecoderConfig) -> u64 {
    let width = (model.num_attention_heads * model.head_dim) as u64;
    let key_values = (model.num_key_value_heads * model.head_dim) as u64;
    let hidden = model.hidden_size as u64;
    let feed_forward = 3 * hidden * model.intermediate_size as u64;
    let layers = model.num_hidden_layers as u64;
    let per_token = layers * (hidden * (2 * width + 2 * key_values) + feed_forward);
    let documents = micro_batch.cu_seqlens.windows(2);
    let pairs: u64 = documents
        .map(|ends| (ends[1].abs_diff(ends[0]) as u64).pow(2) / 2)
        .sum();
    let tokens = micro_batch.n_tokens() as u64;
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
pub(super) fn deal(items: &[(usize, u64)], world_size: usize) -> Vec<Vec<usize>> {
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
