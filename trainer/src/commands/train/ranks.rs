//! Runs `train` in several processes: their meeting, what each of them prepares, and how they end.

use std::collections::BTreeMap;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use tooltune_disk::regular_file;
use tooltune_ranks::launcher::Variables;
use tooltune_ranks::local::STOPPED_STATUS;
use tooltune_ranks::{Identity, Launch, Node, Ranks, RequestedRanks, Role, Settings, local};
use tooltune_terminal as progress;

use crate::config::{self, Config, RanksConfig};
use crate::device;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::out_of_memory::{TRAINING_SETTINGS, catch_out_of_memory};
use crate::recipes::data_plane::DataPlane;
use crate::recipes::preparation::{Training, prepare_training};
use crate::recipes::ranks::{self, Working};
use crate::recipes::sft::follow;

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

/// Makes this rank end together with the process that started it.
///
/// # Errors
///
/// That process has ended already.
pub(super) fn watch_parent() -> Result<(), Error> {
    Ok(local::watch_parent(&variables())?)
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
pub(in super::super) fn threads_of_rank(requested: Option<RequestedRanks>) -> Option<usize> {
    let Ok(Role::Rank(launch)) = role(requested) else {
        return None;
    };
    if std::env::var_os("RAYON_NUM_THREADS").is_some() {
        return None;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Some((cores / launch.local_world_size).max(1))
}

/// The GPU of a rank: the one with its local rank, or the only one that its launcher shows it.
pub(super) fn device_of_rank(device: config::Device, launch: &Launch) -> config::Device {
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
pub(super) fn start(node: &Node) -> Result<(), Error> {
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

/// Meets the other ranks of the run.
///
/// # Errors
///
/// A rank is missing, or has another program, config or the same GPU.
pub(super) fn meet(launch: &Launch, config: &Config) -> Result<Ranks, Error> {
    if config.model.is_none() {
        return Err(Error::Usage(
            "a retriever without a language model is trained by one process; run the command \
             without --ranks and without a launcher"
                .to_owned(),
        ));
    }
    let n_parts = config.train.gradient_accumulation_steps;
    if launch.world_size > n_parts {
        return Err(Error::Usage(format!(
            "{} ranks, but a step has train.gradient_accumulation_steps = {n_parts} micro-batches, \
             which the ranks divide among themselves; use at most {n_parts} ranks, or raise the \
             setting (it counts the micro-batches of all ranks together)",
            launch.world_size
        )));
    }
    let gpu = match config.device {
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
    let identity = Identity {
        version: version(),
        digests: BTreeMap::from([("config".to_owned(), config.resume_digest())]),
        unique: gpu.map(|gpu| ("GPU".to_owned(), gpu)).into_iter().collect(),
    };
    let RanksConfig {
        silence_seconds,
        step_seconds,
    } = config.ranks;
    let settings = Settings {
        silence_seconds,
        step_seconds,
        ..Settings::default()
    };
    let directory = Some(config.train.output_dir.as_path());
    Ok(Ranks::meet(launch, &identity, directory, &settings)?)
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
    let digests = [("examples", examples), ("weights", weights)];
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
        let working = Working::begin(&ranks, "preparing rows");
        let training = prepare_training(&config, device)?;
        drop(working);
        compare_inputs(&mut ranks, &training)?;
        let data_plane = DataPlane::open(&mut ranks, (device, config.device))?;
        catch_out_of_memory(TRAINING_SETTINGS, || {
            follow(&config, &training, device, (&mut ranks, data_plane))
        })
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
            ranks.fail(&error.to_string());
            Err(error)
        }
    }
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
            connected.fail(&error.to_string());
            return result;
        }
    };
    let ended = ranks::end(&mut connected, exit_code);
    let ended = ended.and_then(|()| Ok(connected.end()?));
    result.and_then(|value| ended.map(|()| value))
}
