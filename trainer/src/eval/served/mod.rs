//! Divides the completions and losses of an evaluation among the processes of a run.
//!
//! Suites, judges and files remain with the first process. The others receive prompts as token IDs
//! and return tokens, or receive held-out examples and return losses. A result does not depend on
//! the prompts or examples next to it, so the results equal those with one process.

mod completions;
mod follower;
mod losses;
mod messages;

use std::cell::RefCell;
use std::time::Duration;

use tooltune_ranks::Ranks;
use tooltune_rows::text::TokenizedExample;

use self::completions::CompletionDivision;
use self::losses::LossDivision;
use self::messages::{Reply, Request};
use super::generate::{Generation, GenerationOptions, GenerationProgress, Jobs, Observer};
use super::held::{FallbackGrammar, Rewritten};
use super::loss::ExampleLoss;
use crate::error::Error;
use crate::models::Decoder;

pub use self::follower::serve;
pub(crate) use self::messages::{from_bytes, to_bytes, unreadable};

/// Pause between two looks for results, if this process has nothing to compute.
const POLL: Duration = Duration::from_millis(2);

/// Processes that evaluate together with this one.
pub trait OtherProcesses: std::fmt::Debug {
    /// Completes each prompt, here and in the other processes. Returns `None` if `observer` or a
    /// signal stopped the work.
    ///
    /// # Errors
    ///
    /// As [`complete`](super::generate::complete), or a process was lost.
    fn complete(
        &self,
        decoder: &Decoder,
        jobs: &ServedJobs<'_>,
        options: &GenerationOptions,
        observer: &mut dyn Observer,
    ) -> Result<Option<Vec<Generation>>, Error>;

    /// Computes the losses of the examples of each forward pass, here and in the other processes.
    /// `decoder` has combined adapters. Returns `None` if `watch` or a signal stopped the work.
    ///
    /// # Errors
    ///
    /// As [`losses`](super::loss::losses), or a process was lost.
    fn losses(
        &self,
        decoder: &Decoder,
        passes: &[&[TokenizedExample]],
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<Vec<ExampleLoss>>, Error>;
}

/// The other processes of a run.
#[derive(Debug)]
pub struct Served<'a>(RefCell<&'a mut Ranks>);

/// Prompts with everything that their completions depend on.
#[derive(Debug)]
pub struct ServedJobs<'a> {
    /// The prompts.
    pub jobs: Jobs<'a>,
    /// The grammar of each prompt, and the attempt.
    pub grammars: &'a [Option<(&'a FallbackGrammar, Option<Rewritten>)>],
}

impl<'a> Served<'a> {
    /// The other processes, which must be in [`serve`] until [`Served::end`].
    pub fn new(ranks: &'a mut Ranks) -> Self {
        Self(RefCell::new(ranks))
    }

    /// Ends [`serve`] in all other processes.
    ///
    /// # Errors
    ///
    /// A process was lost.
    pub fn end(self) -> Result<(), Error> {
        let ranks = self.0.into_inner();
        for rank in 1..ranks.world_size() {
            ranks.send_to(rank, &to_bytes(&Request::Done))?;
        }
        Ok(())
    }
}

impl OtherProcesses for Served<'_> {
    fn complete(
        &self,
        decoder: &Decoder,
        jobs: &ServedJobs<'_>,
        options: &GenerationOptions,
        observer: &mut dyn Observer,
    ) -> Result<Option<Vec<Generation>>, Error> {
        if options.max_new_tokens == 0 {
            return super::generate::complete(decoder, jobs.jobs, options, observer);
        }
        let mut ranks = self.0.borrow_mut();
        begin_votes(decoder, &mut ranks)?;
        let mut division = CompletionDivision::new(&mut ranks, jobs, options, observer);
        let completed = division.run(decoder);
        let results = division.into_results();
        if !matches!(completed, Ok(true)) {
            cancel(decoder, &mut ranks)?;
        }
        end_votes(decoder, &mut ranks)?;
        Ok(completed?.then_some(results).flatten())
    }

    fn losses(
        &self,
        decoder: &Decoder,
        passes: &[&[TokenizedExample]],
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<Vec<ExampleLoss>>, Error> {
        let mut ranks = self.0.borrow_mut();
        begin_votes(decoder, &mut ranks)?;
        let mut division = LossDivision::new(&mut ranks, passes, watch);
        let computed = division.run(decoder);
        let results = division.into_results();
        if !matches!(computed, Ok(true)) {
            cancel(decoder, &mut ranks)?;
        }
        end_votes(decoder, &mut ranks)?;
        Ok(computed?.then_some(results).flatten())
    }
}

/// Stops the other processes, and waits until they have.
fn cancel(decoder: &Decoder, ranks: &mut Ranks) -> Result<(), Error> {
    send_to_all(ranks, &Request::Cancel)?;
    let mut n_left = ranks.world_size() - 1;
    while n_left > 0 {
        // Results that were on the way come first.
        match ranks.try_receive_any()? {
            Some((_, bytes)) => {
                n_left -= usize::from(from_bytes::<Reply>(&bytes)? == Reply::Cancelled);
            }
            None => wait_for_work(decoder)?,
        }
    }
    Ok(())
}

fn send_to_all(ranks: &mut Ranks, request: &Request) -> Result<(), Error> {
    for rank in 1..ranks.world_size() {
        ranks.send_to(rank, &to_bytes(request))?;
    }
    Ok(())
}

/// Makes all ranks vote before each pass, if the GPUs of a node divide the weights.
fn begin_votes(decoder: &Decoder, ranks: &mut Ranks) -> Result<(), Error> {
    let Some(node) = &decoder.node else {
        return Ok(());
    };
    send_to_all(ranks, &Request::BeginVotes)?;
    node.begin_votes();
    Ok(())
}

/// Ends what [`begin_votes`] began. Until the next passes, no rank waits on its GPU for this one.
fn end_votes(decoder: &Decoder, ranks: &mut Ranks) -> Result<(), Error> {
    let Some(node) = &decoder.node else {
        return Ok(());
    };
    send_to_all(ranks, &Request::EndVotes)?;
    Ok(node.end_votes()?)
}

/// Waits briefly for work. If the GPUs of a node divide the weights, gathers along with the other
/// ranks in the meantime.
fn wait_for_work(decoder: &Decoder) -> Result<(), Error> {
    let others_compute = match &decoder.node {
        Some(node) => node.wait_turn()?,
        None => false,
    };
    if !others_compute {
        std::thread::sleep(POLL);
    }
    Ok(())
}
