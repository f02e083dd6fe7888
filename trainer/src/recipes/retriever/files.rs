//! Keeps a retriever in a checkpoint's directory, and exports it for sentence-transformers.
//!
//! `retriever.safetensors` has the parameters under their names in `BertModel`, so that any program
//! reads them; moments and counters lie beside it.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use tooltune_checkpoints::sentence_transformers::save_sentence_transformer;
use tooltune_checkpoints::weights::{HostTensor, Weights, write_tensors};
use tooltune_checkpoints::{CheckpointError, atomic};
use tooltune_kernels::cpu::pool;
use tooltune_rows::regular_file;

use super::run::{RetrieverRun, RetrieverState};
use crate::budgets::RUN_FILE_BYTES;
use crate::config::Config;
use crate::encoder::{EncoderFiles, MiniLmEncoder};
use crate::error::Error;
use crate::models::minilm::ParameterLayout;

/// The parameters in a checkpoint.
pub const PARAMETERS_FILE: &str = "retriever.safetensors";
const OPTIMIZER_FILE: &str = "retriever_optimizer.safetensors";
const STATE_FILE: &str = "retriever_state.json";

const MOMENTS: [&str; 2] = ["first_moment", "second_moment"];
/// Low-rank factors, where they are what learns.
const FACTORS: &str = "lora_factors";

/// Writes parameters, moments and counters into the directory of a checkpoint.
///
/// # Errors
///
/// A parameter that is not finite, or a file that cannot be written.
pub fn write(run: &RetrieverRun<'_>, dir: &Path) -> Result<(), CheckpointError> {
    // Copies on their way to the disk take the place of the activations that the pool keeps for
    // the next step; both together would be the peak of the run.
    pool::release();
    let effective = run.layout().to_tensors(&run.effective());
    write_tensors(&dir.join(PARAMETERS_FILE), &effective)?;
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
    atomic::write_file(&path, &counters)
}

/// Puts what a checkpoint holds of a retriever in the place of `run`'s.
///
/// # Errors
///
/// A file that is missing or damaged, or another encoder's.
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

/// The retriever of a checkpoint as it was trained; `None` if the checkpoint holds none.
///
/// # Errors
///
/// A file that is missing or damaged, or another encoder's.
pub fn encoder(
    config: &Config,
    checkpoint: &Path,
    device: &Device,
) -> Result<Option<MiniLmEncoder>, Error> {
    let path = checkpoint.join(PARAMETERS_FILE);
    let Some(retriever) = config.retriever.as_ref().filter(|_| path.exists()) else {
        return Ok(None);
    };
    let files = EncoderFiles::of_retriever(retriever)?;
    Ok(Some(files.encoder(&files.parameters(&path, device)?)))
}

/// Writes the retriever of `checkpoint` as the directory `output` of sentence-transformers.
///
/// # Errors
///
/// A checkpoint without a retriever or damaged, a retriever that has learned nothing, `output` that
/// exists, or a disk that is full.
pub fn export(
    config: &Config,
    checkpoint: &Path,
    output: &Path,
    device: &Device,
) -> Result<(), Error> {
    let path = checkpoint.join(PARAMETERS_FILE);
    let Some(retriever) = config.retriever.as_ref().filter(|_| path.exists()) else {
        return Err(Error::Usage(format!(
            "{} holds no retriever: the run has trained none; set retriever.train, or export the \
             adapter with --to peft",
            checkpoint.display()
        )));
    };
    let files = EncoderFiles::of_retriever(retriever)?;
    let layout = ParameterLayout::new(&files.config);
    let flat = files.parameters(&path, device)?;
    let untrained = files.parameters(&files.dir, device)?;
    if flat
        .to_data()
        .iter::<f32>()
        .eq(untrained.to_data().iter::<f32>())
    {
        return Err(Error::Usage(format!(
            "{}: every number of the retriever is that of {}, so it has learned nothing: it is the \
             beginning of the run, and no later checkpoint was better; export another one, as with \
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
