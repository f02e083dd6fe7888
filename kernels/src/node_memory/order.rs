//! The order of the gathers: a function of the passes alone, and therefore equal on all ranks.

use super::Pass;
use crate::host_memory::walk::{SLOTS, slot_of};

/// A block that a pass uses next, and the gathers that begin with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) block: usize,
    /// Whether the block is not in its slot and is gathered now.
    pub(super) gathers_block: bool,
    /// The block that is gathered while this one is in use.
    pub(super) ahead: Option<usize>,
}

/// The position in a pass, and the blocks in the slots.
#[derive(Debug)]
pub(super) struct Order {
    n_blocks: usize,
    /// Blocks of the current pass, and how many of them have been used.
    blocks: Vec<usize>,
    n_used: usize,
    held: [Option<usize>; SLOTS],
}

impl Order {
    pub(super) fn new(n_blocks: usize) -> Self {
        Self {
            n_blocks,
            blocks: Vec::new(),
            n_used: 0,
            held: [None; SLOTS],
        }
    }

    /// Begins a pass. Returns the rest of the previous one.
    pub(super) fn begin(&mut self, pass: Pass) -> Vec<Step> {
        let rest = self.finish();
        let n = self.n_blocks;
        self.blocks = (0..n).collect();
        if let Pass::Training { first_trained } = pass {
            self.blocks.extend((first_trained..n.max(1) - 1).rev());
        }
        self.n_used = 0;
        rest
    }

    /// Goes to the next use of `block`. No step is needed if it is in use. Returns `None` if the
    /// pass does not use it any more.
    pub(super) fn advance_to(&mut self, block: usize) -> Option<Vec<Step>> {
        let is_in_use = self.n_used > 0 && self.blocks[self.n_used - 1] == block;
        if is_in_use {
            return Some(Vec::new());
        }
        let rest = &self.blocks[self.n_used..];
        let n_steps = rest.iter().position(|&next| next == block)? + 1;
        Some((0..n_steps).map(|_| self.step()).collect())
    }

    /// Goes to the end of the pass.
    pub(super) fn finish(&mut self) -> Vec<Step> {
        let n_steps = self.blocks.len() - self.n_used;
        (0..n_steps).map(|_| self.step()).collect()
    }

    /// Goes to the next block, of which there must be one.
    fn step(&mut self) -> Step {
        let block = self.blocks[self.n_used];
        self.n_used += 1;
        let gathers_block = self.held[slot_of(block)].replace(block) != Some(block);
        // The next pass begins with the first block, whichever it is.
        let next = self.blocks.get(self.n_used).copied().unwrap_or(0);
        let is_possible = slot_of(next) != slot_of(block);
        let ahead = is_possible && self.held[slot_of(next)] != Some(next);
        if ahead {
            self.held[slot_of(next)] = Some(next);
        }
        Step {
            block,
            gathers_block,
            ahead: ahead.then_some(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks in the order in which they are gathered, and those that wait for their gather.
    fn gathered(steps: &[Step]) -> (Vec<usize>, Vec<usize>) {
        let mut all = Vec::new();
        let mut waited = Vec::new();
        for step in steps {
            if step.gathers_block {
                all.push(step.block);
                waited.push(step.block);
            }
            all.extend(step.ahead);
        }
        (all, waited)
    }

    fn training(first_trained: usize) -> Pass {
        Pass::Training { first_trained }
    }

    #[test]
    fn a_training_pass_waits_only_for_its_first_block() {
        for n in [1, 2, 3, 8] {
            let mut order = Order::new(n);
            order.begin(training(0));
            let mut steps = Vec::new();
            for block in (0..n).chain((0..n).rev()) {
                // The stacks of a block are one visit.
                for _ in 0..4 {
                    steps.extend(order.advance_to(block).expect("a block of the pass"));
                }
            }
            let (all, waited) = gathered(&steps);
            assert_eq!(waited, [0], "{n} blocks");
            // Two blocks are in their slots when the direction changes.
            let expected: Vec<usize> = (0..n).chain((0..n.saturating_sub(2)).rev()).collect();
            assert_eq!(all, expected, "{n} blocks");
            assert!(order.finish().is_empty());
        }
    }

    #[test]
    fn passes_gather_the_same_blocks_whatever_a_rank_uses() {
        let passes = [
            training(3),
            Pass::Forward,
            Pass::Forward,
            training(0),
            training(6),
            Pass::Forward,
        ];
        let gathers = |uses: fn(usize, usize) -> bool| {
            let mut order = Order::new(7);
            let mut steps = Vec::new();
            for (number, pass) in passes.into_iter().enumerate() {
                steps.extend(order.begin(pass));
                let last = match pass {
                    Pass::Forward => 7,
                    Pass::Training { first_trained } => first_trained,
                };
                for block in (0..7).chain((last..7).rev()) {
                    if uses(number, block) {
                        steps.extend(order.advance_to(block).expect("a block of the pass"));
                    }
                }
            }
            steps.extend(order.finish());
            steps
        };
        let expected = gathers(|_, _| true);
        assert_eq!(gathers(|_, _| false), expected);
        assert_eq!(gathers(|pass, _| pass % 2 == 0), expected);
        assert_eq!(gathers(|pass, block| (pass + block) % 3 == 0), expected);
        // A block is in its slot when it is used, and the block in use is never overwritten.
        let mut slots = [None; SLOTS];
        for step in expected {
            if step.gathers_block {
                slots[slot_of(step.block)] = Some(step.block);
            }
            assert_eq!(slots[slot_of(step.block)], Some(step.block));
            if let Some(ahead) = step.ahead {
                assert_ne!(slot_of(ahead), slot_of(step.block));
                slots[slot_of(ahead)] = Some(ahead);
            }
        }
    }

    #[test]
    fn a_block_outside_the_pass_is_refused() {
        let mut order = Order::new(4);
        assert_eq!(order.advance_to(0), None);
        order.begin(training(2));
        assert!(order.advance_to(3).is_some());
        assert!(order.advance_to(2).is_some());
        assert_eq!(order.advance_to(1), None);
    }
}
