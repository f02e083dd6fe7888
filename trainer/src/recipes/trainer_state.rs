//! The training state in a checkpoint, apart from the adapter.
//!
//! `trainer_state.json` contains the counters and the cursor, and `optimizer.safetensors` contains
//! the moments. Row order and dropout depend only on the seed and the counters, so no random
//! generator has a state to save.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::PromptFiles;
use tooltune_checkpoints::adapter::{Adapter, load_adapter, write_adapter_files};
use tooltune_checkpoints::weights::{FloatDtype, HostTensor, Weights, write_tensors};
use tooltune_disk::atomic;
use tooltune_disk::regular_file;
use tooltune_rows::batches::Cursor;

use crate::config::LoraConfig;
use crate::config::budgets::RUN_FILE_BYTES;
use crate::error::Error;
use crate::lora::{AdapterSlot, Adapters, WholeWeight};
use crate::optim::Optimizer;

const STATE_FILE: &str = "trainer_state.json";
const OPTIMIZER_FILE: &str = "optimizer.safetensors";

/// Counters of a run after `step` updates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    /// Optimizer steps taken, skipped ones included.
    pub step: u64,
    /// Position of the next step's examples.
    pub cursor: Cursor,
    /// Updates of the optimizer's moments: `step` minus the skipped steps.
    pub optimizer_step: u64,
    /// Consecutive skipped steps.
    pub nonfinite_in_a_row: usize,
    /// Total skipped steps.
    pub nonfinite_total: u64,
    /// Tokens read so far.
    pub tokens: u64,
    /// Supervised tokens so far.
    pub trained_tokens: u64,
    /// Sums since the last metrics line.
    pub window: Window,
    /// Whether the evaluation due at `step` is done.
    pub evaluated: bool,
}

/// Sums over the steps since the last metrics line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Weighted negative log-likelihood, in nats.
    pub loss_sum: f64,
    /// Sum of the token weights.
    pub loss_weights_sum: f64,
}

impl TrainerState {
    /// State before the first step.
    pub fn new() -> Self {
        Self {
            step: 0,
            cursor: Cursor {
                epoch: 0,
                step_in_epoch: 0,
            },
            optimizer_step: 0,
            nonfinite_in_a_row: 0,
            nonfinite_total: 0,
            tokens: 0,
            trained_tokens: 0,
            window: Window::default(),
            evaluated: false,
        }
    }
}

impl Default for TrainerState {
    fn default() -> Self {
        Self::new()
    }
}

/// The data that a checkpoint contains.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// Counters.
    pub state: &'a TrainerState,
    /// Trainable parameters.
    pub adapters: &'a Adapters,
    /// Optimizer with its moments.
    pub optimizer: &'a Optimizer,
    /// The adapter's settings.
    pub lora: &'a LoraConfig,
    /// Path or hub id of the base model.
    pub base_model: &'a str,
    /// Prompt files of the run.
    pub prompts: &'a PromptFiles,
    /// Additional files by name, such as evaluation results.
    pub extra: &'a BTreeMap<String, Vec<u8>>,
}

impl Snapshot<'_> {
    /// Writes the files into the empty folder `dir`.
    ///
    /// # Errors
    ///
    /// A parameter is not finite, or a file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), CheckpointError> {
        let adapter = Adapter {
            config: self.lora.to_saved_peft(self.base_model),
            tensors: self.adapters.to_saved_tensors(),
        };
        write_adapter_files(dir, &adapter, FloatDtype::F32, self.prompts)?;
        let moments = BTreeMap::from([
            (
                "first_moment".to_string(),
                host(&self.optimizer.state.first_moment),
            ),
            (
                "second_moment".to_string(),
                host(&self.optimizer.state.second_moment),
            ),
        ]);
        write_tensors(&dir.join(OPTIMIZER_FILE), &moments)?;
        let state_path = dir.join(STATE_FILE);
        let state =
            serde_json::to_vec_pretty(self.state).map_err(CheckpointError::json(&state_path))?;
        atomic::write_file(&state_path, &state)?;
        for (name, bytes) in self.extra {
            atomic::write_file(&dir.join(name), bytes)?;
        }
        Ok(())
    }
}

fn host(tensor: &Tensor<1>) -> HostTensor {
    HostTensor {
        shape: tensor.dims().to_vec(),
        values: tensor.to_data().iter::<f32>().collect(),
    }
}

/// Loads the adapter of a checkpoint into a run's slots. `lora` must contain the settings that the
/// adapter was saved with.
///
/// # Errors
///
/// A file is damaged, or the adapter's tensors do not match `slots`.
pub fn load_adapters(
    dir: &Path,
    lora: &LoraConfig,
    slots: Vec<AdapterSlot>,
    whole: Vec<WholeWeight>,
    device: &Device,
) -> Result<Adapters, Error> {
    let adapter = load_adapter(dir)?;
    let is_doubled = lora.principal_init().is_some();
    let saved = |slot: &AdapterSlot| match is_doubled {
        true => slot.with_doubled_rank().tensors(),
        false => slot.tensors(),
    };
    let expected: Vec<(String, Vec<usize>)> = slots
        .iter()
        .flat_map(saved)
        .chain(whole.iter().map(WholeWeight::tensor))
        .map(|(name, shape, _)| (name, shape))
        .collect();
    adapter.check(dir, &expected)?;
    let tensors = &adapter.tensors;
    let adapters = match is_doubled {
        true => Adapters::from_doubled(slots, tensors, device),
        false => Adapters::from_tensors(slots, tensors, device),
    };
    Ok(adapters.with_whole(whole, tensors))
}

/// Reads the counters of a checkpoint and restores its moments into `optimizer`.
///
/// # Errors
///
/// A file is damaged, or has moments for a different number of parameters.
pub fn load_state(
    dir: &Path,
    optimizer: &mut Optimizer,
    device: &Device,
) -> Result<TrainerState, Error> {
    let path = dir.join(STATE_FILE);
    let bytes = regular_file::read(&path, RUN_FILE_BYTES).map_err(Error::io(&path, "read"))?;
    let state: TrainerState =
        serde_json::from_slice(&bytes).map_err(CheckpointError::json(&path))?;
    let moments = Weights::open(&dir.join(OPTIMIZER_FILE))?;
    let shape = optimizer.state.first_moment.dims().to_vec();
    let names = ["first_moment", "second_moment"].map(str::to_string);
    moments.check(&names.clone().map(|name| (name, shape.clone())))?;
    let [first, second] = names.map(|name| moments.read_f32(&name));
    let tensor =
        |host: HostTensor| Tensor::from_data(TensorData::new(host.values, host.shape), device);
    optimizer.state.first_moment = tensor(first?);
    optimizer.state.second_moment = tensor(second?);
    optimizer.state.step = state.optimizer_step;
    Ok(state)
}
