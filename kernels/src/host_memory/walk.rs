//! Decides which block is copied to which of two slots, and when.
//!
//! Even blocks have the first slot, odd blocks the second one, so neighbours never share a slot.

use std::collections::HashMap;

/// Number of slots.
pub(crate) const SLOTS: usize = 2;

/// The slot of a block.
pub(crate) fn slot_of(block: usize) -> usize {
    block % SLOTS
}

/// The copies that the next block to use needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Visit {
    /// Whether the block itself must be copied now.
    pub(super) copies_block: bool,
    /// The block to copy while this one is in use.
    pub(super) ahead: Option<usize>,
}

/// The order in which blocks are used.
///
/// After a block, the one that followed it last time is expected next. The first time, that is the
/// next block in the direction of the walk, or the previous one after the last block. A wrong guess
/// costs time only.
#[derive(Debug)]
pub(super) struct Walk {
    n_blocks: usize,
    /// The block in use, and the one before it.
    current: Option<usize>,
    previous: Option<usize>,
    /// The block in each slot.
    held: [Option<usize>; SLOTS],
    /// What followed each pair of successive blocks.
    followers: HashMap<(Option<usize>, usize), usize>,
}

impl Walk {
    pub(super) fn new(n_blocks: usize) -> Self {
        Self {
            n_blocks,
            current: None,
            previous: None,
            held: [None; SLOTS],
            followers: HashMap::new(),
        }
    }

    /// Moves to `block`; `None` if it is already in use.
    pub(super) fn visit(&mut self, block: usize) -> Option<Visit> {
        if self.current == Some(block) {
            return None;
        }
        if let Some(current) = self.current {
            self.followers.insert((self.previous, current), block);
        }
        self.previous = self.current.replace(block);
        let copies_block = self.held[slot_of(block)].replace(block) != Some(block);
        let next = self.next(block);
        let ahead = next.filter(|&next| {
            slot_of(next) != slot_of(block) && self.held[slot_of(next)] != Some(next)
        });
        if let Some(ahead) = ahead {
            self.held[slot_of(ahead)] = Some(ahead);
        }
        Some(Visit {
            copies_block,
            ahead,
        })
    }

    /// The block that is expected after `block`.
    fn next(&self, block: usize) -> Option<usize> {
        if let Some(&known) = self.followers.get(&(self.previous, block)) {
            return Some(known);
        }
        let goes_down = self.previous.is_some_and(|previous| previous > block);
        match goes_down || block + 1 >= self.n_blocks {
            true => block.checked_sub(1),
            false => Some(block + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies of a walk over `blocks`: those that a block waits for, and those made ahead.
    fn copies(walk: &mut Walk, blocks: impl Iterator<Item = usize>) -> (Vec<usize>, Vec<usize>) {
        let (mut now, mut ahead) = (Vec::new(), Vec::new());
        for block in blocks {
            // The four stacks of a block are one visit.
            let visit = walk.visit(block);
            assert_eq!(walk.visit(block), None);
            if let Some(visit) = visit {
                now.extend(visit.copies_block.then_some(block));
                ahead.extend(visit.ahead);
            }
        }
        (now, ahead)
    }

    #[test]
    fn only_the_first_block_of_a_training_step_is_waited_for() {
        for n in [2, 5, 8] {
            let mut walk = Walk::new(n);
            let (now, ahead) = copies(&mut walk, (0..n).chain((0..n).rev()));
            assert_eq!(now, [0]);
            // The turn at the last block finds both slots filled.
            let expected: Vec<usize> = (1..n).chain((0..n - 2).rev()).collect();
            assert_eq!(ahead, expected);
            // The next step begins with the blocks that the last one ended with.
            let (now, ahead) = copies(&mut walk, (0..n).chain((0..n).rev()));
            assert!(now.is_empty(), "{now:?}");
            assert_eq!(ahead.len(), 2 * (n - 2));
        }
    }

    #[test]
    fn a_pass_that_ends_early_or_repeats_is_learned() {
        // Adapters from block 3 on, of 6 blocks.
        let mut walk = Walk::new(6);
        let step = || (0..6).chain((3..6).rev());
        copies(&mut walk, step());
        // Block 2 was expected after block 3.
        let (now, _) = copies(&mut walk, step());
        assert_eq!(now, [0, 1]);
        let (now, ahead) = copies(&mut walk, step());
        // Block 0 has another slot than block 3, and is copied while block 3 is in use.
        assert!(now.is_empty(), "{now:?}");
        assert_eq!(ahead, [1, 2, 3, 4, 5, 3, 0]);
        // Tokens one after the other: block 0 follows the last block.
        let mut walk = Walk::new(6);
        for _ in 0..2 {
            copies(&mut walk, 0..6);
        }
        let (now, ahead) = copies(&mut walk, 0..6);
        assert!(now.is_empty(), "{now:?}");
        assert_eq!(ahead, [1, 2, 3, 4, 5, 0]);
    }

    #[test]
    fn the_slot_in_use_is_never_overwritten() {
        let mut walk = Walk::new(7);
        let mut state = 1_u32;
        for _ in 0..1000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let block = (state >> 16) as usize % 7;
            if let Some(visit) = walk.visit(block) {
                let ahead = visit.ahead.map(slot_of);
                assert_ne!(ahead, Some(slot_of(block)));
            }
            assert_eq!(walk.held[slot_of(block)], Some(block));
        }
    }
}
