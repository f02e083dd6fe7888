//! The messages between the processes of a run.
//!
//! The first process, the leader, decides what comes next, writes the run directory and evaluates.
//! The others follow its orders. In a step, every process reports the losses of its micro-batches;
//! the leader adds them in the order of the micro-batches and decides whether the step counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};
use tooltune_ranks::{Ranks, RanksError};
use tooltune_rows::batches::Cursor;

use super::data_plane::DataPlane;
use super::deal::{cost, deal};
use super::learner::{Learner, StepInput};
use super::retriever::RetrieverRun;
use crate::config::Config;
use crate::error::Error;
use crate::eval::served::{from_bytes, to_bytes, unreadable};
use crate::optim::backward::Watch;

/// An order of the leader to the other processes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) enum Order {
    /// Compute the step number `step`, which begins at `cursor`.
    Step { step: u64, cursor: Cursor },
    /// Compute the next step of the retriever.
    RetrieverStep,
    /// Compare the weights of all processes.
    Compare,
    /// Compute a share of an evaluation.
    Serve,
    /// End the connections between GPUs, after the last step.
    Disconnect,
    /// End with this exit status.
    End { exit_code: u8 },
}

/// The result of one process in a step.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    /// Bits of the summed loss of each micro-batch, by its position in the step; `None` if a signal
    /// stopped the process. JSON has no value for a loss that is not finite.
    loss_bits: Option<BTreeMap<usize, u64>>,
}

/// The leader's decision about a step.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Verdict {
    /// Apply the gradient; the bits of the summed loss.
    Update { loss_bits: u64 },
    /// Discard the step.
    Abandon,
}

/// Sends an order to the other processes.
pub(super) fn order(ranks: &mut Ranks, order: &Order) -> Result<(), Error> {
    Ok(ranks.order(&to_bytes(order))?)
}

/// Orders the other processes to end with this exit status.
///
/// # Errors
///
/// A process was lost.
pub fn end(ranks: &mut Ranks, exit_code: u8) -> Result<(), Error> {
    if ranks.world_size() == 1 {
        return Ok(());
    }
    order(ranks, &Order::End { exit_code })
}

/// Waits for the next order.
pub(super) fn next_order(ranks: &mut Ranks) -> Result<Order, Error> {
    let bytes = ranks.obey()?;
    from_bytes(&bytes)
}

/// The result of a step of all processes.
#[derive(Debug)]
pub(super) struct ComputedStep {
    /// The summed loss.
    pub(super) loss_sum: f64,
    /// The gradient of the mean loss.
    pub(super) gradient: Tensor<1>,
    /// Seconds until all processes had computed their micro-batches and knew the decision.
    pub(super) door_seconds: f64,
    /// Seconds of adding the gradients of all processes.
    pub(super) sum_seconds: f64,
}

/// Computes a step together with the other processes. Returns `None` if a signal stopped a process,
/// which discards the step.
///
/// # Errors
///
/// A micro-batch cannot be computed, or a process ended early.
pub(super) fn compute_step(
    learner: &Learner<'_>,
    ranks: &mut Ranks,
    input: &StepInput,
    step: u64,
    watch: &mut Watch<'_>,
) -> Result<Option<ComputedStep>, Error> {
    let model = &learner.training.base.config;
    let documents = |i: usize| input.batch.micro_batches[i].document_lengths();
    let items = input.supervised();
    let items: Vec<(usize, u64)> = items.map(|i| (i, cost(documents(i), model))).collect();
    let shares = deal(&items, ranks.world_size());
    let own = &shares[ranks.rank()];
    let n_rounds = learner.data_plane.n_rounds(&shares, ranks.rank());
    let pulse = ranks.pulse();
    pulse.phase(&format!("step {step}"));
    let mut watch = |part| {
        pulse.progress();
        watch(part) && pulse.check().is_ok()
    };
    let contribution = learner.contribute(input, step, (own, n_rounds), &mut watch)?;
    if let Some(contribution) = &contribution {
        learner.data_plane.wait(&contribution.gradient);
    }
    ranks.check()?;
    let at_door = Instant::now();
    let report = Report {
        loss_bits: contribution.as_ref().map(|contribution| {
            let losses = contribution.losses.iter();
            losses.map(|(&i, loss)| (i, loss.to_bits())).collect()
        }),
    };
    let reports = ranks.gather(&to_bytes(&report))?;
    let verdict = match reports {
        Some(reports) => to_bytes(&verdict(&reports)?),
        None => Vec::new(),
    };
    let verdict: Verdict = from_bytes(&ranks.broadcast(verdict)?)?;
    let (Verdict::Update { loss_bits }, Some(contribution)) = (verdict, contribution) else {
        return Ok(None);
    };
    let door_seconds = at_door.elapsed().as_secs_f64();
    let flat = &learner.adapters.flat;
    let started = Instant::now();
    let gradient = learner.data_plane.add(contribution.gradient, flat, ranks)?;
    Ok(Some(ComputedStep {
        loss_sum: f64::from_bits(loss_bits),
        gradient,
        door_seconds,
        sum_seconds: started.elapsed().as_secs_f64(),
    }))
}

/// The leader's decision from the reports of all processes.
fn verdict(reports: &[Vec<u8>]) -> Result<Verdict, Error> {
    let mut losses = BTreeMap::new();
    for report in reports {
        let report: Report = from_bytes(report)?;
        match report.loss_bits {
            Some(bits) => losses.extend(bits),
            None => return Ok(Verdict::Abandon),
        }
    }
    // Add in the order of the micro-batches, so that the sum does not depend on the processes.
    let losses = losses.values().map(|&bits| f64::from_bits(bits));
    let loss = losses.reduce(|sum, loss| sum + loss).unwrap_or(0.0);
    Ok(Verdict::Update {
        loss_bits: loss.to_bits(),
    })
}

/// Sends the leader's parameters and moments to the other processes.
pub(super) fn hand_over(learner: &Learner<'_>, ranks: &mut Ranks) -> Result<(), Error> {
    if ranks.world_size() == 1 {
        return Ok(());
    }
    let shared = learner.data_plane.share(learner.vectors(), ranks)?;
    let step = learner.optimizer.state.step;
    ranks.broadcast(step.to_le_bytes().to_vec())?;
    if shared.is_none() {
        send_vectors(learner.vectors(), ranks)?;
    }
    Ok(())
}

/// Receives what [`hand_over`] sends.
pub(super) fn take_over(learner: &mut Learner<'_>, ranks: &mut Ranks) -> Result<(), Error> {
    let shared = learner.data_plane.share(learner.vectors(), ranks)?;
    let step = ranks.broadcast(Vec::new())?;
    let step = step.try_into().map_err(|_| unreadable())?;
    let vectors = match shared {
        Some(vectors) => vectors,
        None => receive_vectors("adapter", learner.vectors(), ranks)?,
    };
    learner.set_vectors(vectors, u64::from_le_bytes(step));
    Ok(())
}

/// Sends parameters and moments to the other processes.
pub(super) fn send_vectors(vectors: [&Tensor<1>; 3], ranks: &mut Ranks) -> Result<(), Error> {
    for vector in vectors {
        let data = vector.to_data();
        let bytes = data.iter::<f32>().flat_map(f32::to_le_bytes);
        ranks.broadcast(bytes.collect())?;
    }
    Ok(())
}

/// Receives what [`send_vectors`] sends, in place of this process's vectors `before`.
///
/// # Errors
///
/// A process was lost, or the leader's `name` has another number of parameters.
pub(super) fn receive_vectors(
    name: &str,
    before: [&Tensor<1>; 3],
    ranks: &mut Ranks,
) -> Result<[Tensor<1>; 3], Error> {
    let mut receive = |before: &Tensor<1>| {
        let bytes = ranks.broadcast(Vec::new())?;
        let (values, _) = bytes.as_chunks::<4>();
        let values: Vec<f32> = values.iter().map(|x| f32::from_le_bytes(*x)).collect();
        let ([n], n_of_leader) = (before.dims(), values.len());
        if n != n_of_leader {
            return Err(Error::Usage(format!(
                "rank 0 has {n_of_leader} {name} parameters, this rank has {n}; use the same model \
                 files on all machines"
            )));
        }
        let data = TensorData::new(values, [n]);
        Ok(Tensor::from_data(data, &before.device()))
    };
    let [parameters, first_moment, second_moment] = before;
    Ok([
        receive(parameters)?,
        receive(first_moment)?,
        receive(second_moment)?,
    ])
}

/// Ends the connections between the GPUs of all processes.
///
/// # Errors
///
/// A process was lost, or NCCL fails.
pub(super) fn disconnect(data_plane: &mut DataPlane, ranks: &mut Ranks) -> Result<(), Error> {
    if !data_plane.connects_gpus() {
        return Ok(());
    }
    if ranks.is_leader() {
        order(ranks, &Order::Disconnect)?;
    }
    data_plane.close()
}

/// The weights that all processes of a run compute. `retriever` is there if they divide its steps.
pub(super) fn weights<'w>(
    learner: &'w Learner<'_>,
    retriever: Option<&'w RetrieverRun<'_>>,
) -> Vec<(&'static str, &'w Tensor<1>)> {
    let mut weights = vec![("adapter", &learner.adapters.flat)];
    weights.extend(retriever.map(|run| ("retriever", &run.parameters)));
    weights
}

/// Compares named weights of all processes by checksums.
///
/// # Errors
///
/// A process has other weights than the leader; the error names them and the process.
pub(super) fn compare(weights: &[(&str, &Tensor<1>)], ranks: &mut Ranks) -> Result<(), Error> {
    let sums = weights.iter().map(|(name, weights)| {
        let sum = crc32c::crc32c(weights.to_data().as_bytes());
        ((*name).to_owned(), format!("{sum:08x}"))
    });
    Ok(ranks.agree(&sums.collect())?)
}

/// Compares the leader's weights with the weights of all processes before it saves. After the loss of
/// a process, the leader saves without a comparison.
///
/// # Errors
///
/// A process has other weights.
pub(super) fn compare_before_save(
    weights: &[(&str, &Tensor<1>)],
    ranks: &mut Ranks,
) -> Result<(), Error> {
    if ranks.world_size() == 1 {
        return Ok(());
    }
    match order(ranks, &Order::Compare).and_then(|()| compare(weights, ranks)) {
        Err(Error::Ranks(error)) if !matches!(error, RanksError::Differs { .. }) => Ok(()),
        compared => compared,
    }
}

/// Whether several processes divide the steps of the retriever that the config trains.
pub fn divides_retriever(config: &Config) -> bool {
    let retriever = config.trained_retriever();
    retriever.is_some_and(|retriever| retriever.mini_batch_size.is_some())
}

/// While this value lives, a thread reports progress, for work that only this rank does and that
/// may take hours: reading rows, evaluating.
#[derive(Debug)]
pub struct Working(Arc<AtomicBool>);

impl Working {
    /// Starts the phase `name`. A process that runs alone needs no thread.
    pub fn begin(ranks: &Ranks, name: &str) -> Self {
        let pulse = ranks.pulse();
        pulse.phase(name);
        let is_over = Arc::new(AtomicBool::new(false));
        if ranks.world_size() > 1 {
            let seen = is_over.clone();
            let report = move || {
                while !seen.load(Ordering::Relaxed) {
                    pulse.progress();
                    std::thread::sleep(Duration::from_secs(1));
                }
            };
            let name = "ranks-progress".to_owned();
            // Without the thread, only the limit of `ranks.step_seconds` is tighter.
            let _ = std::thread::Builder::new().name(name).spawn(report);
        }
        Self(is_over)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
