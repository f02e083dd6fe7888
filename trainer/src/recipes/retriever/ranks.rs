//! Starts the other ranks of a retriever's run with the state of the first one, and computes shares
//! of its steps.

use burn::tensor::{Device, Tensor};
use tooltune_ranks::Ranks;

use super::preparation::RetrieverPreparation;
use super::run::RetrieverRun;
use crate::config::Config;
use crate::error::Error;
use crate::eval::served::{from_bytes, to_bytes, unreadable};
use crate::interrupt::Interrupt;
use crate::recipes::ranks::{Order, compare, next_order, receive_vectors, send_vectors};

/// Sends counters, parameters and moments to the other ranks.
pub(in crate::recipes) fn hand_over(
    run: &RetrieverRun<'_>,
    ranks: &mut Ranks,
) -> Result<(), Error> {
    if ranks.world_size() == 1 || !run.is_divisible() {
        return Ok(());
    }
    ranks.broadcast(to_bytes(&run.state))?;
    send_vectors(vectors(run), ranks)
}

/// The run of a rank that computes shares: receives what [`hand_over`] sends.
///
/// # Errors
///
/// The encoder cannot be loaded, the first rank has another one, or a rank was lost.
pub(in crate::recipes) fn take_over<'a>(
    config: &Config,
    preparation: &'a RetrieverPreparation,
    device: &Device,
    ranks: &mut Ranks,
) -> Result<RetrieverRun<'a>, Error> {
    let training = config.trained_retriever().ok_or_else(super::no_training)?;
    let mut run = RetrieverRun::new(config, training, preparation, device)?;
    run.state = from_bytes(&ranks.broadcast(Vec::new())?)?;
    let received = receive_vectors("retriever", vectors(&run), ranks)?;
    let state = &mut run.optimizer.state;
    [run.parameters, state.first_moment, state.second_moment] = received;
    state.step = run.state.optimizer_step;
    Ok(run)
}

/// Parameters and moments, each `[p]`.
fn vectors<'r>(run: &'r RetrieverRun<'_>) -> [&'r Tensor<1>; 3] {
    let state = &run.optimizer.state;
    [&run.parameters, &state.first_moment, &state.second_moment]
}

/// Computes a share of the steps of [`train`](super::train) in the first rank, until that rank ends
/// the run. Returns its exit status.
///
/// # Errors
///
/// The encoder cannot be read, or a rank of the run ended early.
pub fn follow(
    config: &Config,
    preparation: &RetrieverPreparation,
    device: &Device,
    ranks: &mut Ranks,
) -> Result<u8, Error> {
    let mut run = take_over(config, preparation, device, ranks)?;
    let interrupt = Interrupt::begin();
    loop {
        match next_order(ranks)? {
            Order::RetrieverStep => {
                run.follow_step(ranks, interrupt.is_set())?;
            }
            Order::Compare => compare(&[("retriever", &run.parameters)], ranks)?,
            Order::End { exit_code } => return Ok(exit_code),
            Order::Step { .. } | Order::Serve | Order::Disconnect => return Err(unreadable()),
        }
    }
}
