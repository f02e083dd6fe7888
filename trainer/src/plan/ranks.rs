//! Predicts how several processes (ranks) share a run: how long they wait for each other, and how
//! long they exchange gradients.

use serde::Serialize;
use tooltune_rows::batches::Cursor;

use crate::config::{self, Config, Packing};
use crate::models::DecoderConfig;
use crate::recipes::deal::{BusyTime, cost};
use crate::recipes::preparation::Training;

/// Maximum number of steps whose micro-batches are distributed for the prediction, which takes
/// seconds.
const MAX_DEALT_STEPS: u64 = 10_000;

/// Busy share below which packing is recommended.
const LOW_SHARE: f64 = 0.9;

/// Bytes per trained value that a rank sends by NCCL: a reduce-scatter of 64-bit integers, and an
/// all-gather of f32 sums. A ring sends `(n - 1) / n` of each.
const NCCL_BYTES: f64 = 8.0 + 4.0;

/// Assumed number of GPUs in a node if there are more ranks.
const GPUS_PER_NODE: usize = 8;

/// Smallest share of a micro-batch's computation that is its forward pass: a third if all blocks are
/// recomputed, because frozen weights have no gradients.
const FORWARD_SHARE: f64 = 1.0 / 3.0;

/// Bytes per trained value between rank 0 and each other rank by TCP: integers in both directions.
const TCP_BYTES: f64 = 8.0 + 8.0;

/// Assumed GB/s that a rank sends by NCCL: NVLink within a host, and one 400 Gb/s card per GPU
/// between hosts.
const NCCL_GB_PER_SECOND: f64 = 350.0;

/// Assumed GB/s through rank 0 by TCP, both directions together: two ranks on one machine reached
/// 2.2 for 4.9 million values.
const TCP_GB_PER_SECOND: f64 = 2.0;

/// Assumed TFLOP/s of a GPU over a whole training step: what benchmarks/forecast.md forecasts for
/// Llama-3-8B on an H100. Larger models reach more, other GPUs less.
const GPU_TFLOPS: f64 = 440.0;

/// Predicted time of a step of the largest possible micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StepTime {
    /// Operations of all ranks, in 10^12.
    pub tflop: f64,
    /// Rate of a rank in 10^12 operations per second.
    pub tflops: f64,
    /// Whether the rate is an assumption and not set by the user.
    pub is_rate_assumed: bool,
    /// Seconds per step, including the communication of ranks.
    pub seconds: f64,
    /// Part of `seconds` in which ranks wait for weights of other GPUs.
    pub gather_seconds: f64,
}

impl StepTime {
    /// Predicts the time of a step with this number of operations. `None` on a CPU whose rate is not
    /// set, because CPUs differ too much.
    pub fn offline(
        config: &Config,
        operations: f64,
        tflops: Option<f64>,
        ranks: Option<&RanksPlan>,
    ) -> Option<Self> {
        let assumed = match config.device {
            config::Device::Cpu => None,
            config::Device::Cuda(_) => Some(GPU_TFLOPS),
        };
        let rate = tflops.or(assumed)?;
        let tflop = operations / 1e12;
        let alone = tflop / rate;
        let n_parts = config.train.gradient_accumulation_steps.max(1);
        let gather_seconds = ranks.map_or(0.0, |ranks| {
            let rounds = n_parts.div_ceil(ranks.world_size.max(1)) as f64;
            let gathers = ranks.gathers.as_ref();
            rounds
                * gathers.map_or(0.0, |gathers| {
                    gathers.exposed_seconds(alone / n_parts as f64)
                })
        });
        Some(Self {
            gather_seconds,
            tflop,
            tflops: rate,
            is_rate_assumed: tflops.is_none(),
            seconds: gather_seconds + ranks.map_or(alone, |ranks| ranks.training_seconds(alone, 1)),
        })
    }
}

/// Connection between ranks that adds their gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Connection {
    /// All other ranks send their sums to rank 0, which returns the total.
    Tcp,
    /// The GPUs exchange sums directly.
    Nccl,
}

/// Number of ranks of a planned run, and what is known about their connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RanksSetup {
    /// Number of ranks, at least 1.
    pub world_size: usize,
    /// GB/s between ranks; `None` assumes a value.
    pub gb_per_second: Option<f64>,
}

impl RanksSetup {
    /// Number of GPUs that may divide the frozen weights.
    pub fn n_node_ranks(self) -> usize {
        self.world_size.min(GPUS_PER_NODE)
    }
}

/// Predicted gathers of frozen weights that the GPUs of a node divide.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Gathers {
    /// Bytes that each GPU receives for a micro-batch.
    pub bytes_per_micro_batch: f64,
    /// Seconds that this takes.
    pub seconds_per_micro_batch: f64,
}

impl Gathers {
    /// Seconds of the gathers that a micro-batch of `seconds` seconds does not hide. Half of the
    /// gathers run during the forward pass.
    fn exposed_seconds(&self, seconds: f64) -> f64 {
        let half = self.seconds_per_micro_batch / 2.0;
        let exposed = |share: f64| (half - share * seconds).max(0.0);
        exposed(FORWARD_SHARE) + exposed(1.0 - FORWARD_SHARE)
    }
}

/// Predicted waiting and communication of ranks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RanksPlan {
    /// Number of ranks.
    pub world_size: usize,
    /// Mean share of a step's computation in which a rank computes, from 0 to 1. For the rest it
    /// waits for the slowest rank.
    pub busy_share: f64,
    /// Whether `busy_share` is only a maximum, because the lengths of the rows are unknown.
    pub is_upper_bound: bool,
    /// Whether packing rows would shorten the waiting noticeably.
    pub packing_helps: bool,
    /// How gradients are added.
    pub connection: Connection,
    /// Bytes per step: sent by each rank with NCCL, sent and received by rank 0 with TCP.
    pub bytes_per_step: f64,
    /// Rate of the communication.
    pub gb_per_second: f64,
    /// Whether the rate is an assumption and not set by the user.
    pub is_rate_assumed: bool,
    /// Seconds of communication per step.
    pub seconds_per_step: f64,
    /// Gathers of the frozen weights, if GPUs divide them.
    pub gathers: Option<Gathers>,
}

impl RanksPlan {
    /// Predicts the ranks of a prepared run, whose row lengths are known.
    pub fn prepared(
        config: &Config,
        training: &Training,
        n_trained: usize,
        setup: RanksSetup,
    ) -> Self {
        let busy_share = busy_share(training, setup.world_size);
        Self::new(config, n_trained, setup, busy_share, false)
    }

    /// Predicts the ranks of a run with unknown rows: at best, all micro-batches are equal.
    pub fn offline(config: &Config, n_trained: usize, setup: RanksSetup) -> Self {
        let n_parts = config.train.gradient_accumulation_steps.max(1);
        let rounds = n_parts.div_ceil(setup.world_size.max(1));
        let busy_share = n_parts as f64 / (rounds * setup.world_size.max(1)) as f64;
        Self::new(config, n_trained, setup, busy_share, true)
    }

    fn new(
        config: &Config,
        n_trained: usize,
        setup: RanksSetup,
        busy_share: f64,
        is_upper_bound: bool,
    ) -> Self {
        let others = setup.world_size.saturating_sub(1) as f64;
        let n_trained = n_trained as f64;
        let (connection, bytes_per_step, assumed) = match config.device {
            config::Device::Cpu => (
                Connection::Tcp,
                TCP_BYTES * n_trained * others,
                TCP_GB_PER_SECOND,
            ),
            config::Device::Cuda(_) => (
                Connection::Nccl,
                NCCL_BYTES * n_trained * others / setup.world_size.max(1) as f64,
                NCCL_GB_PER_SECOND,
            ),
        };
        let gb_per_second = setup.gb_per_second.unwrap_or(assumed);
        Self {
            world_size: setup.world_size,
            busy_share,
            is_upper_bound,
            packing_helps: config.data.packing == Packing::None
                && setup.world_size > 1
                && !is_upper_bound
                && busy_share < LOW_SHARE,
            connection,
            bytes_per_step,
            gb_per_second,
            is_rate_assumed: setup.gb_per_second.is_none(),
            seconds_per_step: bytes_per_step / (gb_per_second * 1e9),
            gathers: None,
        }
    }

    /// Adds the gathers of `bytes` bytes for each micro-batch; none if `bytes` is 0.
    #[must_use]
    pub fn with_gathers(self, bytes: f64, setup: RanksSetup) -> Self {
        let n = setup.n_node_ranks() as f64;
        let received = bytes * (n - 1.0) / n;
        let gathers = Gathers {
            bytes_per_micro_batch: received,
            seconds_per_micro_batch: received / (self.gb_per_second * 1e9),
        };
        Self {
            gathers: (bytes > 0.0).then_some(gathers),
            ..self
        }
    }

    /// Seconds of `steps` steps that one rank alone would compute in `seconds`.
    pub fn training_seconds(&self, seconds: f64, steps: u64) -> f64 {
        seconds / (self.world_size as f64 * self.busy_share) + steps as f64 * self.seconds_per_step
    }
}

/// Mean busy share of ranks in the first [`MAX_DEALT_STEPS`] steps, which distribute their
/// micro-batches as training does.
fn busy_share(training: &Training, world_size: usize) -> f64 {
    let lengths = training.examples.lengths();
    let model: &DecoderConfig = &training.base.config;
    let mut busy = BusyTime::default();
    let mut cursor = Cursor::default();
    for _ in 0..training.total_steps.min(MAX_DEALT_STEPS) {
        let (micro_batches, next) = training.order.next(cursor);
        cursor = next;
        let is_supervised =
            |batch: &[usize]| batch.iter().any(|&i| lengths[i].n_trained_tokens > 0);
        let micro_batches = micro_batches.iter().enumerate();
        let items = micro_batches.filter(|(_, batch)| is_supervised(batch));
        let items = items.map(|(i, batch)| {
            let documents = batch
                .iter()
                .map(|&example| lengths[example].n_tokens as usize);
            (i, cost(documents, model))
        });
        busy.add_step(&items.collect::<Vec<_>>(), world_size);
    }
    busy.share()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(device: &str, n_parts: usize) -> Config {
        let text = format!(
            "device = \"{device}\"\n[model]\nmodel_name_or_path = \"m\"\n[lora]\ntarget_modules = \
             \"all-linear\"\n[data]\ntrain = [\"rows.jsonl\"]\n[train]\noutput_dir = \"run\"\n\
             gradient_accumulation_steps = {n_parts}\n"
        );
        let source = config::Source {
            name: "my.toml".to_owned(),
            text,
        };
        config::LoadedConfig::parse(source, &[]).unwrap().config
    }

    fn offline(device: &str, n_parts: usize, setup: RanksSetup) -> RanksPlan {
        RanksPlan::offline(&config(device, n_parts), 42_000_000, setup)
    }

    #[test]
    fn gpus_exchange_12_bytes_per_trained_value() {
        let setup = RanksSetup {
            world_size: 8,
            gb_per_second: None,
        };
        let plan = offline("cuda", 8, setup);
        assert_eq!(plan.bytes_per_step, 12.0 * 42e6 * 7.0 / 8.0);
        assert!((plan.seconds_per_step - 441e6 / 350e9).abs() < 1e-12);
        assert!(plan.is_rate_assumed);
        assert_eq!(plan.busy_share, 1.0);
        let slower = RanksSetup {
            gb_per_second: Some(10.0),
            ..setup
        };
        let plan = offline("cuda", 8, slower);
        assert!((plan.seconds_per_step - 0.0441).abs() < 1e-12);
        assert!(!plan.is_rate_assumed);
        // 100 s of one rank on eight, and 100 sums.
        assert!((plan.training_seconds(100.0, 100) - (12.5 + 4.41)).abs() < 1e-9);
    }

    #[test]
    fn rank_0_exchanges_sums_with_every_other_rank_by_tcp() {
        let setup = RanksSetup {
            world_size: 4,
            gb_per_second: Some(1.0),
        };
        let plan = offline("cpu", 6, setup);
        assert_eq!(plan.connection, Connection::Tcp);
        assert_eq!(plan.bytes_per_step, 3.0 * 16.0 * 42e6);
        // Two ranks compute two micro-batches, and two only one.
        assert_eq!(plan.busy_share, 0.75);
        assert!(plan.is_upper_bound);
    }

    #[test]
    fn the_time_of_a_step_follows_from_its_operations() {
        let setup = RanksSetup {
            world_size: 8,
            gb_per_second: Some(0.441),
        };
        let config = config("cuda", 8);
        let ranks = RanksPlan::offline(&config, 42_000_000, setup);
        let time = |tflops, ranks| StepTime::offline(&config, 880e12, tflops, ranks).unwrap();
        assert_eq!(time(None, None).seconds, 880.0 / GPU_TFLOPS);
        assert_eq!(time(Some(110.0), None).seconds, 8.0);
        // An eighth of the computation, and one second for 441 MB.
        let with_ranks = time(Some(110.0), Some(&ranks)).seconds;
        assert!((with_ranks - 2.0).abs() < 1e-9, "{with_ranks}");
        let cpu = self::config("cpu", 8);
        assert_eq!(StepTime::offline(&cpu, 1e12, None, None), None);
    }

    #[test]
    fn gathers_take_time_only_if_the_computation_is_shorter() {
        let setup = RanksSetup {
            world_size: 8,
            gb_per_second: Some(350.0),
        };
        let config = config("cuda", 16);
        let time = |bytes: f64, tflops| {
            let ranks = RanksPlan::offline(&config, 0, setup).with_gathers(bytes, setup);
            let time = StepTime::offline(&config, 16e12, Some(tflops), Some(&ranks)).unwrap();
            (ranks.gathers, time)
        };
        assert_eq!(time(0.0, 1.0).0, None);
        // Each GPU receives seven eighths of 400 GB in a second, two times per step.
        let (gathers, hidden) = time(400e9, 0.5);
        assert_eq!(
            gathers.map(|gathers| gathers.bytes_per_micro_batch),
            Some(350e9)
        );
        // A forward pass of two thirds of a second is longer than half of the gathers.
        assert_eq!((hidden.gather_seconds, hidden.seconds), (0.0, 4.0));
        let (_, short) = time(400e9, 1.0);
        let expected = 2.0 * (0.5 - 1.0 / 3.0);
        assert!((short.gather_seconds - expected).abs() < 1e-9, "{short:?}");
        assert!((short.seconds - 2.0 - expected).abs() < 1e-9, "{short:?}");
        let more = RanksSetup {
            world_size: 64,
            ..setup
        };
        assert_eq!(more.n_node_ranks(), 8);
    }

    #[test]
    fn one_rank_neither_waits_nor_sends() {
        let setup = RanksSetup {
            world_size: 1,
            gb_per_second: None,
        };
        for device in ["cpu", "cuda"] {
            let plan = offline(device, 3, setup);
            assert_eq!((plan.busy_share, plan.bytes_per_step), (1.0, 0.0));
            assert_eq!(plan.training_seconds(7.0, 5), 7.0);
        }
    }
}
