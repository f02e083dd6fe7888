//! Saves a retriever in a checkpoint, and exports it for sentence-transformers.
//!
//! `retriever.safetensors` has the parameters under their `BertModel` names, so other programs can
//! read it. Moments and counters are in separate files.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::sentence_transformers::save_sentence_transformer;
use tooltune_checkpoints::weights::{HostTensor, Weights, write_tensors};
use tooltune_disk::atomic;
use tooltune_disk::regular_file;
use tooltune_kernels::cpu::pool;

use super::run::{RetrieverRun, RetrieverState};
use crate::config::Config;
use crate::config::budgets::RUN_FILE_BYTES;
use crate::encoder::{EncoderFiles, MiniLmEncoder};
use crate::error::Error;
use crate::models::minilm::ParameterLayout;

/// File with the parameters in a checkpoint.
pub const PARAMETERS_FILE: &str = "retriever.safetensors";
const OPTIMIZER_FILE: &str = "retriever_optimizer.safetensors";
const STATE_FILE: &str = "retriever_state.json";

const MOMENTS: [&str; 2] = ["first_moment", "second_moment"];
/// Tensor name of the LoRA factors, if they are trained.
const FACTORS: &str = "lora_factors";

/// Writes parameters, moments and counters into a checkpoint directory.
///
/// # Errors
///
/// A parameter is not finite, or a file cannot be written.
pub fn write(run: &RetrieverRun<'_>, dir: &Path) -> Result<(), CheckpointError> {
    // Free the pool's memory for activations before copying the tensors; both together would be the
    // memory peak of the run.
    pool::release();
    let merged_parameters = run.layout().to_tensors(&run.merged_parameters());
    write_tensors(&dir.join(PARAMETERS_FILE), &merged_parameters)?;
    let state = &run.optimizer.state;
    let mut resumed = vec![
        (MOMENTS[0], &state.first_moment),
        (MOMENTS[1], &state.second_moment),
    ];
    if run.has_factors() {
        resumed.push((FACTORS, &run.parameters));
    }
    let resumed: BTreeMap<String, HostTensor> = resumed
        .into_iter()
        .map(|(name, tensor)| {
            let host = HostTensor {
                shape: tensor.dims().to_vec(),
                values: tensor.to_data().iter::<f32>().collect(),
            };
            (name.to_string(), host)
        })
        .collect();
    write_tensors(&dir.join(OPTIMIZER_FILE), &resumed)?;
    let path = dir.join(STATE_FILE);
    let counters = serde_json::to_vec(&run.state).map_err(CheckpointError::json(&path))?;
    Ok(atomic::write_file(&path, &counters)?)
}

/// Restores the retriever of a checkpoint into `run`.
///
/// # Errors
///
/// A file is missing or damaged, or belongs to a different encoder.
pub fn read(run: &mut RetrieverRun<'_>, dir: &Path, device: &Device) -> Result<(), Error> {
    let path = dir.join(STATE_FILE);
    let bytes = regular_file::read(&path, RUN_FILE_BYTES).map_err(Error::io(&path, "read"))?;
    let state: RetrieverState =
        serde_json::from_slice(&bytes).map_err(CheckpointError::json(&path))?;
    let moments = Weights::open(&dir.join(OPTIMIZER_FILE))?;
    let [n] = run.parameters.dims();
    let mut expected = MOMENTS.to_vec();
    if run.has_factors() {
        expected.push(FACTORS);
    }
    let expected = expected.into_iter().map(|name| (name.to_string(), vec![n]));
    moments.check(&expected.collect::<Vec<_>>())?;
    let tensor = |name: &str| -> Result<Tensor<1>, CheckpointError> {
        let values = moments.read_f32(name)?.values;
        Ok(Tensor::from_data(TensorData::new(values, [n]), device))
    };
    run.parameters = if run.has_factors() {
        tensor(FACTORS)?
    } else {
        let weights = Weights::open(&dir.join(PARAMETERS_FILE))?;
        run.layout().read(&weights, device)?
    };
    run.optimizer.state.first_moment = tensor(MOMENTS[0])?;
    run.optimizer.state.second_moment = tensor(MOMENTS[1])?;
    run.optimizer.state.step = state.optimizer_step;
    run.state = state;
    Ok(())
}

/// Loads the trained retriever of a checkpoint; `None` if the checkpoint has none.
///
/// # Errors
///
/// A file is missing or damaged, or belongs to a different encoder.
pub fn encoder(
    config: &Config,
    checkpoint: &Path,
    device: &Device,
) -> Result<Option<MiniLmEncoder>, Error> {
    let path = checkpoint.join(PARAMETERS_FILE);
    let Some(retriever) = config.retriever.as_ref().filter(|_| path.exists()) else {
        return Ok(None);
    };
    let files = EncoderFiles::for_retriever(retriever)?;
    Ok(Some(files.encoder(&files.parameters(&path, device)?)))
}

/// Exports the retriever of `checkpoint` to `output`, a sentence-transformers directory.
///
/// # Errors
///
/// The checkpoint is damaged or has no retriever, the retriever is still untrained, `output`
/// exists, or the disk is full.
pub fn export(
    config: &Config,
    checkpoint: &Path,
    output: &Path,
    device: &Device,
) -> Result<(), Error> {
    let path = checkpoint.join(PARAMETERS_FILE);
    let Some(retriever) = config.retriever.as_ref().filter(|_| path.exists()) else {
        return Err(Error::Usage(format!(
            "{} has no retriever: the run did not train one; set retriever.train, or export the \
             adapter with --to peft",
            checkpoint.display()
        )));
    };
    let files = EncoderFiles::for_retriever(retriever)?;
    let layout = ParameterLayout::new(&files.config);
    let flat = files.parameters(&path, device)?;
    let untrained = files.parameters(&files.dir, device)?;
    if flat
        .to_data()
        .iter::<f32>()
        .eq(untrained.to_data().iter::<f32>())
    {
        return Err(Error::Usage(format!(
            "{}: the retriever equals the untrained {} in every parameter: this checkpoint is from the \
             start of the run, and no later one was better; export another checkpoint, for example with \
             --checkpoint last",
            checkpoint.display(),
            files.dir.display()
        )));
    }
    let tensors = layout.to_tensors(&flat);
    Ok(save_sentence_transformer(
        output,
        &files.rules,
        tensors,
        files.max_seq_length,
    )?)
}
