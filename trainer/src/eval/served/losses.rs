//! Divides the loss of held-out examples: each process computes forward passes, the longest first.

use std::collections::{BTreeSet, VecDeque};

use tooltune_ranks::Ranks;
use tooltune_rows::text::TokenizedExample;

use super::messages::{Reply, Request, ServedExample, ServedPass, losses_of_bits};
use super::{from_bytes, to_bytes, unreadable, wait_for_work};
use crate::error::Error;
use crate::eval::generate::{GenerationProgress, Work};
use crate::eval::loss::{ExampleLoss, pass_losses};
use crate::models::Decoder;

/// Passes that another process has at a time: one to compute, and one so that it need not wait.
const PASSES_AHEAD: usize = 2;

/// Losses that are divided among processes.
pub(super) struct LossDivision<'d> {
    ranks: &'d mut Ranks,
    passes: &'d [&'d [TokenizedExample]],
    watch: &'d mut dyn FnMut(GenerationProgress) -> bool,
    /// Passes that no process has yet, the longest first.
    waiting: VecDeque<usize>,
    /// The unfinished passes of each other process, by its rank minus 1.
    outstanding: Vec<BTreeSet<usize>>,
    results: Vec<Option<Vec<ExampleLoss>>>,
    n_done: usize,
    n_examples: usize,
    is_stopped: bool,
}

impl<'d> LossDivision<'d> {
    pub(super) fn new(
        ranks: &'d mut Ranks,
        passes: &'d [&'d [TokenizedExample]],
        watch: &'d mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Self {
        let n_tokens = |i: &usize| -> usize {
            let examples = passes[*i].iter();
            examples.map(|example| example.input_ids.len()).sum()
        };
        let mut waiting: Vec<usize> = (0..passes.len()).collect();
        waiting.sort_by_key(|i| (std::cmp::Reverse(n_tokens(i)), *i));
        Self {
            outstanding: vec![BTreeSet::new(); ranks.world_size() - 1],
            ranks,
            passes,
            watch,
            waiting: waiting.into(),
            results: vec![None; passes.len()],
            n_done: 0,
            n_examples: passes.iter().map(|pass| pass.len()).sum(),
            is_stopped: false,
        }
    }

    /// Computes until all passes have results; `false` if the work was stopped.
    pub(super) fn run(&mut self, decoder: &Decoder) -> Result<bool, Error> {
        for _ in 0..PASSES_AHEAD {
            for rank in 1..self.ranks.world_size() {
                self.send_pass(rank)?;
            }
        }
        loop {
            let is_any = self.collect()?;
            match self.waiting.pop_front() {
                Some(number) if !self.is_stopped => {
                    let losses = pass_losses(decoder, self.passes[number])?;
                    self.record(number, losses);
                }
                _ if self.n_done == self.n_examples => return Ok(true),
                _ if !is_any => wait_for_work(decoder)?,
                _ => {}
            }
            let progress = GenerationProgress {
                work: Work::MeasuringLoss,
                n_done: self.n_done,
                n_total: self.n_examples,
                n_tokens: 0,
                waiting: None,
            };
            if self.is_stopped || !(self.watch)(progress) {
                return Ok(false);
            }
        }
    }

    /// The losses of all examples, in order; `None` if one is missing.
    pub(super) fn into_results(self) -> Option<Vec<ExampleLoss>> {
        let passes: Option<Vec<Vec<ExampleLoss>>> = self.results.into_iter().collect();
        passes.map(|passes| passes.concat())
    }

    fn send_pass(&mut self, rank: usize) -> Result<(), Error> {
        let Some(number) = self.waiting.pop_front() else {
            return Ok(());
        };
        let examples = self.passes[number].iter().map(ServedExample::from);
        let pass = ServedPass {
            number,
            examples: examples.collect(),
        };
        let request = Request::Losses { passes: vec![pass] };
        self.ranks.send_to(rank, &to_bytes(&request))?;
        self.outstanding[rank - 1].insert(number);
        Ok(())
    }

    /// Takes the results that have arrived, and sends a further pass for each. Returns whether
    /// there were any.
    fn collect(&mut self) -> Result<bool, Error> {
        let mut is_any = false;
        while let Some((rank, bytes)) = self.ranks.try_receive_any()? {
            is_any = true;
            match from_bytes::<Reply>(&bytes)? {
                Reply::Losses { number, bits } => {
                    let is_expected = self.outstanding[rank - 1].remove(&number)
                        && self.passes[number].len() == bits.len();
                    if !is_expected {
                        return Err(unreadable());
                    }
                    self.record(number, losses_of_bits(&bits));
                    if !self.is_stopped {
                        self.send_pass(rank)?;
                    }
                }
                Reply::Interrupted => self.is_stopped = true,
                Reply::Completed { .. } | Reply::Cancelled => return Err(unreadable()),
            }
        }
        Ok(is_any)
    }

    fn record(&mut self, number: usize, losses: Vec<ExampleLoss>) {
        self.n_done += losses.len();
        self.results[number] = Some(losses);
    }
}
