//! Passes through blocks whose weights the GPUs of a node divide.
//!
//! All ranks of a node gather the same blocks in the same order. In training, the micro-batches of a
//! step fix this order. In an evaluation, ranks compute different numbers of tokens: before each pass
//! they vote, and a rank without work gathers along with the others until none of them has work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tooltune_kernels::node_memory::{Gathers, NodeError, Pass};

use super::Decoder;

/// The next action of a rank in an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Vote {
    /// It waits for work.
    Idle = 0,
    /// It computes a pass.
    Compute = 1,
    /// It has left the evaluation.
    Leave = 2,
}

/// The gathers of a decoder. Clones share them.
#[derive(Debug, Clone)]
pub struct NodeBlocks {
    gathers: Gathers,
    /// Whether the ranks vote before each pass.
    votes: Arc<AtomicBool>,
    /// The first error of a vote.
    failure: Arc<Mutex<Option<NodeError>>>,
}

impl NodeBlocks {
    /// Gathers by `gathers`.
    pub(crate) fn new(gathers: Gathers) -> Self {
        Self {
            gathers,
            votes: Arc::default(),
            failure: Arc::default(),
        }
    }

    /// Gathers each block once, so that the first step need not connect the GPUs.
    ///
    /// # Errors
    ///
    /// NCCL refuses an operation.
    pub(crate) fn warm_up(&self) -> Result<(), NodeError> {
        self.gathers.begin(Pass::Forward);
        self.gathers.finish();
        self.gathers.group().exchange(0).map(drop)
    }

    /// Begins a pass of a training step.
    pub(crate) fn begin(&self, pass: Pass) {
        self.gathers.begin(pass);
    }

    /// Gathers the blocks of a pass for the other ranks; this one does not compute it.
    pub(crate) fn skip(&self, pass: Pass) {
        self.gathers.begin(pass);
        self.gathers.finish();
    }

    /// Ends a pass, even if this rank did not compute all of it, and returns whether all ranks of the
    /// node continue. All of them call this after each micro-batch.
    ///
    /// # Errors
    ///
    /// A gather was refused.
    pub(crate) fn all_continue(&self, continues: bool) -> Result<bool, NodeError> {
        self.gathers.finish();
        let stops = self.gathers.group().exchange(u32::from(!continues))?;
        Ok(stops.iter().all(|&stops| stops == 0))
    }

    /// Begins a pass from the first block to the last one.
    pub(super) fn begin_forward(&self) {
        if self.votes.load(Ordering::Relaxed)
            && let Err(error) = self.vote(Vote::Compute)
        {
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            failure.get_or_insert(error);
        }
        self.gathers.begin(Pass::Forward);
    }

    /// Returns the error of an earlier pass, whose results are wrong.
    ///
    /// # Errors
    ///
    /// A gather was refused.
    pub(crate) fn check(&self) -> Result<(), NodeError> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.clone().map_or(Ok(()), Err)
    }

    /// From now on, the ranks vote before each pass.
    pub(crate) fn begin_votes(&self) {
        self.votes.store(true, Ordering::Relaxed);
    }

    /// Gathers along with the other ranks for one pass, if they compute one. Returns whether they do.
    ///
    /// # Errors
    ///
    /// A gather was refused.
    pub(crate) fn wait_turn(&self) -> Result<bool, NodeError> {
        let votes = self.vote(Vote::Idle)?;
        let any_computes = votes.contains(&(Vote::Compute as u32));
        if any_computes {
            self.skip(Pass::Forward);
        }
        Ok(any_computes)
    }

    /// Gathers along with the other ranks until all of them have called this.
    ///
    /// # Errors
    ///
    /// A gather was refused.
    pub(crate) fn end_votes(&self) -> Result<(), NodeError> {
        loop {
            let votes = self.vote(Vote::Leave)?;
            if votes.contains(&(Vote::Compute as u32)) {
                self.skip(Pass::Forward);
            } else if votes.iter().all(|&vote| vote == Vote::Leave as u32) {
                self.votes.store(false, Ordering::Relaxed);
                return Ok(());
            }
        }
    }

    fn vote(&self, own: Vote) -> Result<Vec<u32>, NodeError> {
        self.gathers.finish();
        self.gathers.group().exchange(own as u32)
    }
}

impl Decoder {
    /// Whether the weights of the blocks are copied or gathered for each use.
    pub fn streams_weights(&self) -> bool {
        let mut stacks = self.blocks.iter().flat_map(|block| &block.stacks);
        stacks.any(|stack| stack.weight.is_streamed())
    }

    /// Returns the error of an earlier pass, whose results are wrong: the GPUs of the node could not
    /// gather the weights.
    ///
    /// # Errors
    ///
    /// A gather was refused.
    pub fn check_gathers(&self) -> Result<(), NodeError> {
        self.node.as_ref().map_or(Ok(()), NodeBlocks::check)
    }

    /// Call this before a pass from the first block to the last one.
    pub(super) fn begin_forward(&self) {
        if let Some(node) = &self.node {
            node.begin_forward();
        }
    }
}
