//! Packs whole documents by best-fit decreasing length.
//!
//! The longest document goes first, into the fullest pack that still has room. Packing runs within
//! windows of the shuffled order; over the whole data set, the same documents would share a pack in
//! every epoch.

use std::collections::BTreeSet;

/// Documents packed together at a time. With a thousand, best-fit decreasing leaves little room
/// unused, and an example's neighbours still change between epochs.
pub(super) const WINDOW: usize = 1_000;

/// Whether short documents share one row of a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Packing {
    /// Each row is one document.
    #[default]
    None,
    /// Each row contains as many whole documents as fit; attention and positions remain per
    /// document.
    BlockDiagonal {
        /// Maximum tokens per row.
        max_length: usize,
    },
}

/// Distributes `window` (positions in `lengths`) over packs of at most `max_length` tokens.
///
/// Ties are broken by the order in `window`, so the result is deterministic. The caller must check
/// that every length is at most `max_length`.
pub(super) fn pack(window: &[u32], lengths: &[u32], max_length: usize) -> Vec<Vec<u32>> {
    let mut longest_first = window.to_vec();
    let n_tokens = |idx: u32| lengths[idx as usize] as usize;
    longest_first.sort_by_key(|&idx| std::cmp::Reverse(n_tokens(idx)));
    let mut packs: Vec<Vec<u32>> = Vec::new();
    // (room left, pack): the first entry at or above a length is the tightest fit.
    let mut room: BTreeSet<(usize, usize)> = BTreeSet::new();
    for idx in longest_first {
        let fit = room.range((n_tokens(idx), 0)..).next().copied();
        let (left, pack) = fit.unwrap_or((max_length, packs.len()));
        if !room.remove(&(left, pack)) {
            packs.push(Vec::new());
        }
        packs[pack].push(idx);
        room.insert((left - n_tokens(idx), pack));
    }
    packs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_pack_with_room_receives_a_document() {
        let lengths = [6, 5, 4, 3, 2];
        assert_eq!(
            pack(&[0, 1, 2, 3, 4], &lengths, 10),
            [vec![0, 2], vec![1, 3, 4]]
        );
    }

    #[test]
    fn equal_lengths_keep_the_order_of_the_window() {
        assert_eq!(pack(&[2, 0, 1], &[5, 5, 5], 10), [vec![2, 0], vec![1]]);
    }

    #[test]
    fn packing_leaves_little_padding_on_mixed_lengths() {
        let mut random = super::super::SeededRandom::new(1, 0);
        let lengths: Vec<u32> = (0..WINDOW).map(|_| 50 + random.below(450) as u32).collect();
        let window: Vec<u32> = (0..WINDOW as u32).collect();
        let packs = pack(&window, &lengths, 2_048);
        let used = f64::from(lengths.iter().sum::<u32>()) / (packs.len() * 2_048) as f64;
        assert!(used > 0.98, "{used}");
    }
}
