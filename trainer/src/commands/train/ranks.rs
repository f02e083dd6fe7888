//! Runs `train` in several processes: their meeting, what each of them prepares, and how they end.

use std::collections::BTreeMap;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use burn::tensor::Device;
use tooltune_checkpoints::weights::Weights;
use tooltune_disk::regular_file;
use tooltune_ranks::launcher::Variables;
use tooltune_ranks::local::STOPPED_STATUS;
use tooltune_ranks::{Identity, Launch, Node, Ranks, RequestedRanks, Role, Settings, local};
use tooltune_terminal as progress;

use super::super::say;
use crate::config::{self, Config, RanksConfig};
use crate::device;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::models::load::FrozenWeights;
use crate::out_of_memory::{RETRIEVER_SETTINGS, TRAINING_SETTINGS, catch_out_of_memory};
use crate::recipes::all_reduce;
use crate::recipes::data_plane::DataPlane;
use crate::recipes::follower::follow;
use crate::recipes::preparation::{Training, prepare_training};
use crate::recipes::ranks::{self, Working, divides_retriever};
use crate::recipes::retriever::{self, RetrieverPreparation};

/// Finds out what this process does, from the option `--ranks` and the launcher's variables.
///
/// # Errors
///
/// The variables are incomplete or contradict each other or the option.
pub(in super::super) fn role(requested: Option<RequestedRanks>) -> Result<Role, Error> {
    Ok(tooltune_ranks::role(
        &variables(),
        requested,
        n_gpus().max(1),
    )?)
}

fn variables() -> Variables {
    let variables = std::env::vars_os();
    let in_utf8 =
        variables.map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    in_utf8.flatten().collect()
}

/// Number of GPUs that this process can see.
fn n_gpus() -> usize {
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(list) => list.split(',').filter(|gpu| !gpu.trim().is_empty()).count(),
        Err(_) => std::fs::read_dir("/proc/driver/nvidia/gpus").map_or(0, Iterator::count),
    }
}

/// The threads of a rank by default: the cores of this host, divided by its ranks. `None` without
/// other ranks, or if `RAYON_NUM_THREADS` is set.
pub(in super::super) fn threads_of_rank(role: &Role) -> Option<usize> {
    let Role::Rank(launch) = role else {
        return None;
    };
    if std::env::var_os("RAYON_NUM_THREADS").is_some() {
        return None;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Some((cores / launch.local_world_size).max(1))
}

/// The GPU of a rank: the one with its local rank, or the only one that its launcher shows it.
pub(in super::super) fn device_of_rank(device: config::Device, launch: &Launch) -> config::Device {
    match device {
        config::Device::Cuda(0) if launch.local_world_size > 1 && n_gpus() != 1 => {
            config::Device::Cuda(launch.local_rank)
        }
        other => other,
    }
}

/// Starts the ranks of this host and waits for their end. The first one prints as `train` does; the
/// lines of the others begin with their rank.
///
/// # Errors
///
/// A rank cannot be started, or failed.
pub(in super::super) fn start(node: &Node) -> Result<(), Error> {
    let command = local::Command {
        program: std::env::current_exe().map_err(Error::io("/proc/self/exe".as_ref(), "read"))?,
        arguments: std::env::args_os().skip(1).collect(),
    };
    // The first signal goes to the ranks, which save; the second one ends this process at once, and
    // with it the ranks.
    let _interrupt = Interrupt::begin();
    let print = |rank: usize, line: &str| progress::print(&format!("rank {rank}: {line}"));
    let ended = local::start(node, &command, print)?;
    // What a rank exits with after a signal.
    let is_stopped = [STOPPED_STATUS, 130, 143].contains(&ended.status);
    match ended.failed {
        None => Ok(()),
        Some(_) if is_stopped => Err(Error::RanksStopped {
            exit_code: u8::try_from(ended.status).unwrap_or(1),
        }),
        Some(failed) => Err(Error::RankFailed {
            rank: failed.rank,
            how: failed.how,
            exit_code: u8::try_from(ended.status).unwrap_or(1),
        }),
    }
}

/// Seconds for the leader to save after another rank has failed.
const SAVE_SECONDS: u64 = 60;

/// Meets the other ranks of the run.
///
/// # Errors
///
/// - The config does not fit the number of ranks.
/// - A rank is missing, or has another program, config or the same GPU.
pub(super) fn meet(launch: &Launch, config: &Config) -> Result<Ranks, Error> {
    check_world_size(launch.world_size, config)?;
    connect(launch, config.device, Some(config), Settings::default())
}

/// Meets the other ranks, and chooses what adds their gradients. They must have the same program and
/// config, and different GPUs.
///
/// # Errors
///
/// A rank is missing, or has another program, config or the same GPU.
pub(in super::super) fn connect(
    launch: &Launch,
    device: config::Device,
    config: Option<&Config>,
    settings: Settings,
) -> Result<Ranks, Error> {
    let gpu = match device {
        config::Device::Cpu => None,
        config::Device::Cuda(index) => device::gpu_address(index).or_else(|| {
            let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
            let name = visible
                .split(',')
                .nth(index)
                .filter(|name| !name.is_empty());
            Some(name.map_or(index.to_string(), |name| name.trim().to_owned()))
        }),
    };
    let digest = config.map(|config| ("config".to_owned(), config.resume_digest()));
    let identity = Identity {
        version: version(),
        digests: digest.into_iter().collect(),
        unique: gpu.map(|gpu| ("GPU".to_owned(), gpu)).into_iter().collect(),
    };
    let RanksConfig {
        silence_seconds,
        step_seconds,
    } = config.map_or_else(RanksConfig::default, |config| config.ranks.clone());
    let mut settings = Settings {
        silence_seconds,
        step_seconds,
        ..settings
    };
    if launch.launcher.kills_other_ranks() {
        settings.linger_seconds = SAVE_SECONDS;
    }
    let directory = config.map(|config| config.train.output_dir.as_path());
    let mut ranks = Ranks::meet(launch, &identity, directory, &settings)?;
    if launch.world_size > 1 {
        let by = all_reduce::choose(launch, &mut ranks)?;
        // The ranks of GPUs print later whether NCCL adds.
        if launch.rank == 0 && device == config::Device::Cpu {
            let n_ranks = launch.world_size;
            say(&format!("{n_ranks} ranks; gradients are added by {by}"))?;
        }
    }
    Ok(ranks)
}

/// Checks that a run with this config has work for `world_size` ranks.
///
/// # Errors
///
/// A step has fewer micro-batches than ranks, or a retriever-only run does not divide its steps.
pub(in super::super) fn check_world_size(world_size: usize, config: &Config) -> Result<(), Error> {
    if config.model.is_none() {
        if divides_retriever(config) {
            return Ok(());
        }
        return Err(Error::Usage(format!(
            "{world_size} ranks, but retriever.mini_batch_size is not set, so that a step of the \
             retriever is a single mini-batch; set it so that a step has at least one mini-batch per \
             rank (a step has about two texts per pair), or run the command without --ranks and \
             without a launcher"
        )));
    }
    let n_parts = config.train.gradient_accumulation_steps;
    if world_size > n_parts {
        return Err(Error::Usage(format!(
            "{world_size} ranks, but a step has train.gradient_accumulation_steps = {n_parts} \
             micro-batches, which the ranks divide among themselves; use at most {n_parts} ranks, or \
             raise the setting (it counts the micro-batches of all ranks together)"
        )));
    }
    Ok(())
}

/// The version of the program, with a digest of its file.
fn version() -> String {
    let digest = std::env::current_exe()
        .and_then(std::fs::read)
        .map_or(0, |bytes| crc32c::crc32c(&bytes));
    format!("{} ({digest:08x})", env!("CARGO_PKG_VERSION"))
}

/// Sends the settings that the leader fixes at the start of a run.
pub(super) fn send_pinned(ranks: &mut Ranks, config: &Config) -> Result<(), Error> {
    let date = config.data.template_date.map(|date| date.to_string());
    ranks.broadcast(date.unwrap_or_default().into_bytes())?;
    Ok(())
}

/// Compares the inputs of all ranks.
///
/// # Errors
///
/// A rank has other examples or other weights.
pub(super) fn compare_inputs(ranks: &mut Ranks, training: &Training) -> Result<(), Error> {
    if ranks.world_size() == 1 {
        return Ok(());
    }
    let examples = training.examples.checksums()?.examples;
    let weights = sampled_checksum(training.base.files.weights.paths())?;
    agree(ranks, [("examples", examples), ("weights", weights)])
}

/// Compares the training data and the weights of the retriever of all ranks.
///
/// # Errors
///
/// A rank has other pairs or other weights.
pub(super) fn compare_pairs(
    ranks: &mut Ranks,
    preparation: &RetrieverPreparation,
) -> Result<(), Error> {
    if ranks.world_size() == 1 {
        return Ok(());
    }
    let weights = Weights::open(&preparation.files.dir)?;
    let weights = sampled_checksum(weights.paths())?;
    let pairs = preparation.checksum();
    agree(ranks, [("pairs", pairs), ("retriever weights", weights)])
}

/// Checks that all ranks have these digests.
fn agree(ranks: &mut Ranks, digests: [(&str, u32); 2]) -> Result<(), Error> {
    let digests = digests.map(|(name, digest)| (name.to_owned(), format!("{digest:08x}")));
    Ok(ranks.agree(&BTreeMap::from(digests))?)
}

/// Bytes of a sample, and of a read.
const SAMPLE_BYTES: u64 = 1 << 16;

/// Samples of a file; a file with fewer bytes is read completely.
const N_SAMPLES: u64 = 1 << 10;

/// Checksum of the sizes of files and of samples spread over them, 64 MiB of each at most: the
/// weights of two trained models differ everywhere.
fn sampled_checksum<'p>(paths: impl Iterator<Item = &'p Path>) -> Result<u32, Error> {
    let mut sum = 0;
    let mut buffer = vec![0; SAMPLE_BYTES as usize];
    for path in paths {
        let read = |error| Error::io(path, "read")(error);
        let mut file = regular_file::open(path).map_err(read)?;
        let size = file.metadata().map_err(read)?.len();
        sum = crc32c::crc32c_append(sum, &size.to_le_bytes());
        let last = size.saturating_sub(SAMPLE_BYTES);
        let n_samples = size.div_ceil(SAMPLE_BYTES).min(N_SAMPLES);
        for sample in 0..n_samples {
            let start = u128::from(last) * u128::from(sample) / u128::from(n_samples.max(2) - 1);
            let start = u64::try_from(start).unwrap_or(last);
            file.seek(SeekFrom::Start(start)).map_err(read)?;
            let n = usize::try_from(size - start).map_or(buffer.len(), |n| n.min(buffer.len()));
            file.read_exact(&mut buffer[..n]).map_err(read)?;
            sum = crc32c::crc32c_append(sum, &buffer[..n]);
        }
    }
    Ok(sum)
}

/// Runs this rank as a follower until the leader ends the run.
///
/// # Errors
///
/// The run ended early; the error has the leader's exit status.
pub(super) fn run_follower(mut config: Config, mut ranks: Ranks) -> Result<(), Error> {
    progress::hide_progress();
    let followed = (|| {
        let device = &device::open(config.device)?;
        let date = ranks.broadcast(Vec::new())?;
        let date = String::from_utf8(date).unwrap_or_default();
        config.data.template_date = date.parse().ok();
        match config.model {
            Some(_) => follow_training(&config, device, &mut ranks),
            None => follow_retriever(&config, device, &mut ranks),
        }
    })();
    match followed {
        Ok(0) => Ok(ranks.end()?),
        Ok(exit_code) => {
            // The leader has ended the run and waits for nothing.
            drop(ranks.end());
            Err(Error::LeaderStopped { exit_code })
        }
        Err(Error::Ranks(error)) => Err(Error::OtherRank(error)),
        Err(error) => {
            ranks.fail(&error.to_string(), error.status_for_other_ranks());
            Err(error)
        }
    }
}

fn follow_training(config: &Config, device: &Device, ranks: &mut Ranks) -> Result<u8, Error> {
    let working = Working::begin(ranks, "preparing rows");
    let training = prepare_training(config, device)?;
    let retriever = config
        .trained_retriever()
        .filter(|_| divides_retriever(config));
    let lm_steps = Some(training.total_steps);
    let pairs = retriever.map(|retriever| RetrieverPreparation::new(config, retriever, lm_steps));
    let pairs = pairs.transpose()?;
    drop(working);
    compare_inputs(ranks, &training)?;
    if let Some(pairs) = &pairs {
        compare_pairs(ranks, pairs)?;
    }
    let data_plane = DataPlane::open(ranks, device, config.device, training.base.frozen_weights)?;
    catch_out_of_memory(TRAINING_SETTINGS, || {
        let ranks = (&mut *ranks, data_plane);
        follow(config, &training, pairs.as_ref(), device, ranks)
    })
}

fn follow_retriever(config: &Config, device: &Device, ranks: &mut Ranks) -> Result<u8, Error> {
    let working = Working::begin(ranks, "preparing pairs");
    let preparation = retriever::prepare_run(config)?;
    drop(working);
    compare_pairs(ranks, &preparation)?;
    let data_plane = DataPlane::open(ranks, device, config.device, FrozenWeights::Resident)?;
    catch_out_of_memory(RETRIEVER_SETTINGS, || {
        let ranks = (&mut *ranks, data_plane);
        retriever::ranks::follow(config, &preparation, device, ranks)
    })
}

/// Ends the run on all ranks with the leader's result.
///
/// # Errors
///
/// The leader's error, or a follower that was lost at the end.
pub(super) fn end_run<T>(mut connected: Ranks, result: Result<T, Error>) -> Result<T, Error> {
    let exit_code = match &result {
        Ok(_) => 0,
        Err(error) if error.is_stop() => error.exit_code(),
        Err(error) => {
            connected.fail(&error.to_string(), error.status_for_other_ranks());
            return result;
        }
    };
    let ended = ranks::end(&mut connected, exit_code);
    let ended = ended.and_then(|()| Ok(connected.end()?));
    result.and_then(|value| ended.map(|()| value))
}
