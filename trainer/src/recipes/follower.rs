//! Computes a share of a run for the process that runs [`train`](super::sft::train).

use burn::tensor::Device;
use tooltune_ranks::Ranks;

use super::data_plane::DataPlane;
use super::learner::Learner;
use super::preparation::Training;
use super::ranks::{self, Order};
use super::retriever::RetrieverPreparation;
use super::retriever::ranks::take_over;
use crate::config::Config;
use crate::error::Error;
use crate::eval::generate::GenerationOptions;
use crate::eval::served::{serve, unreadable};
use crate::interrupt::Interrupt;
use crate::optim::LearningRateSchedule;

/// Computes a share of the steps and evaluations of the first process of `ranks`, until that process
/// ends the run. Returns its exit status. `pairs` has the training data of the retriever, if the
/// processes divide its steps. `data_plane` adds the gradients of all.
///
/// # Errors
///
/// A weight or an example cannot be read, or a process of the run ended early.
pub fn follow(
    config: &Config,
    training: &Training,
    pairs: Option<&RetrieverPreparation>,
    device: &Device,
    (ranks, data_plane): (&mut Ranks, DataPlane),
) -> Result<u8, Error> {
    let (mut learner, _) = Learner::open(config, training, None, device, data_plane)?;
    ranks::take_over(&mut learner, ranks)?;
    let retriever = pairs.map(|pairs| {
        let ranks = (&mut *ranks, &learner.data_plane);
        take_over(config, pairs, device, ranks)
    });
    let mut retriever = retriever.transpose()?;
    let schedule = LearningRateSchedule::for_training(&config.train, training.total_steps);
    let interrupt = Interrupt::begin();
    let options = GenerationOptions::from_config(config, &training.base.stop_ids);
    loop {
        match ranks::next_order(ranks)? {
            Order::Step { step, cursor } => {
                let (input, _) = learner.read_step(cursor);
                let input = input?;
                let mut watch = |_| !interrupt.is_set();
                let computed = ranks::compute_step(&learner, ranks, &input, step, &mut watch)?;
                if let Some(computed) = computed {
                    let loss = computed.loss_sum / input.batch.sum_loss_weights();
                    learner.update(computed.gradient, loss, schedule.at(step));
                }
            }
            Order::RetrieverStep => {
                let retriever = retriever.as_mut().ok_or_else(unreadable)?;
                let ranks = (&mut *ranks, &learner.data_plane);
                retriever.follow_step(ranks, interrupt.is_set())?;
            }
            Order::Compare => {
                ranks::compare(&ranks::weights(&learner, retriever.as_ref()), ranks)?;
            }
            Order::Serve => {
                let model = (&learner.decoder, &training.base);
                serve(model, &options, ranks, &|| interrupt.is_set())?;
            }
            Order::Disconnect => ranks::disconnect(&mut learner.data_plane, ranks)?,
            Order::End { exit_code } => return Ok(exit_code),
        }
    }
}
