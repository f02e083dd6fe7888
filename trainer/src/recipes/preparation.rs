//! Prepares what a run reads and learns from, checked before any weight is read.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use burn::tensor::Device;
use serde::Serialize;
use tooltune_agents::flat::FlattenReport;
use tooltune_checkpoints::PromptFiles;
use tooltune_checkpoints::weights::HostTensor;
use tooltune_files::SplitRecord;
use tooltune_kernels::ComputeDtype;
use tooltune_rows::batches::{Part, StepOrder};
use tooltune_rows::examples::Examples;
use tooltune_rows::text::{PrepareReport, Prepared, Row, RowNotes};

use super::kept_blocks::{KeptBlocks, Magnitudes, RunShape};
use super::retriever::RetrieverPreparation;
use super::run_lock::{BASE_MODEL, RunLock, Used};
use super::starting::{starting_adapter, starting_folder};
use crate::base_model::BaseModel;
use crate::config::{Config, DataFormat, Flatten, LoraConfig, RunLength};
use crate::error::Error;
use crate::eval::in_loop::{EvalInputs, check_rows, held_out};
use crate::eval::suites::LoadedSuites;
use crate::examples::{Account, TrainingExamples, training_examples};
use crate::lora::{AdapterSlot, WholeWeight};
use crate::rows::{ReadingReport, eval_rows};
use crate::settings;

/// Everything that a run needs before its first step, checked.
#[derive(Debug)]
pub struct Preparation {
    /// The base model without its weights.
    pub base: BaseModel,
    /// Examples to learn from.
    pub examples: Examples,
    /// What became of the training rows.
    pub report: PrepareReport,
    /// What became of the schemas of the rows, where the config flattens them.
    pub flattened: Option<Flattened>,
    /// What to know of the training rows.
    pub notes: RowNotes,
    /// How the training rows were split, where some are kept back.
    pub split: Option<SplitRecord>,
    /// Rows to evaluate on, at most `eval.max_samples`.
    pub eval_rows: Vec<Row>,
    /// What to know of the rows to evaluate on.
    pub eval_notes: RowNotes,
    /// Whether there are rows beyond the first `eval.max_samples`.
    pub has_more_eval_rows: bool,
    /// The rows whose loss evaluations measure, and what became of them; none without that loss.
    pub held_out: Option<Prepared>,
    /// Adapter settings.
    pub lora: LoraConfig,
    /// The factors that the run begins with, where it continues from another adapter.
    pub starting_adapter: Option<BTreeMap<String, HostTensor>>,
    /// Which examples make a step.
    pub order: StepOrder,
    /// Optimizer steps of the whole run.
    pub total_steps: u64,
    /// What a retriever beside the model learns from, if one is trained.
    pub retriever: Option<RetrieverPreparation>,
    /// What the run asks with, for checkpoints and exports.
    pub prompts: PromptFiles,
    /// What evaluations read and reach beside the rows.
    pub suites: Rc<LoadedSuites>,
}

impl Preparation {
    /// What the evaluations of the run begin with.
    pub fn eval_inputs(&self) -> EvalInputs<'_> {
        EvalInputs {
            rows: &self.eval_rows,
            held_out: self.held_out.as_ref(),
            suites: &self.suites,
            stop_ids: &self.base.stop_ids,
        }
    }

    /// How many blocks keep their activations, by `train.gradient_checkpointing` and the memory that is
    /// free on the device before the weights are there.
    ///
    /// # Errors
    ///
    /// Adapters that match nothing.
    pub fn kept_blocks(
        &self,
        config: &Config,
        compute_dtype: ComputeDtype,
        device: &Device,
    ) -> Result<KeptBlocks, Error> {
        let model = &self.base.config;
        let shape = RunShape {
            setting: config.train.gradient_checkpointing,
            model,
            n_adapter: self.lora.n_parameters(model)?,
            compute_dtype,
            magnitudes: Magnitudes::of(&self.lora),
        };
        Ok(KeptBlocks::new(shape, device))
    }
}

/// What became of nested schemas.
#[derive(Debug, Default, Serialize)]
pub struct Flattened {
    /// Those of the training rows.
    pub train: FlattenReport,
    /// Those of the rows to evaluate on.
    pub eval: FlattenReport,
}

/// Reads and checks everything but the weights. `device` computes the retriever where it chooses
/// the documents of training prompts.
///
/// # Errors
///
/// A model file, a row, or a combination of settings that cannot be trained.
pub fn prepare_run(config: &Config, device: &Device) -> Result<Preparation, Error> {
    let base = BaseModel::of(config)?;
    for (field, dropout) in &base.config.dropouts {
        tracing::warn!(
            "{}: {field} = {dropout} of config.json is not applied; transformers would \
             drop that share in training",
            base.path.display()
        );
    }
    let is_slot = config.data.format == DataFormat::Slot;
    let slot_prompt = is_slot.then(|| settings::slot_prompt(&config.data));
    let slot_prompt = slot_prompt.transpose()?;
    let prompts = PromptFiles {
        chat_template: Some(base.template.served_source()),
        slot_prompt: slot_prompt.map(|prompt| prompt.source().to_owned()),
    };
    let lora = config.lora.clone();
    let slots = lora.slots(&base.config)?;
    let whole = lora.whole_weights(&base.config)?;
    lora.check_principal_ranks(&base.config)?;
    let starting_adapter = match &lora.init_from {
        Some(path) => Some(continued_from(config, path, &slots, &whole)?),
        None => None,
    };
    let suites = Rc::new(LoadedSuites::open(config, device)?);
    let TrainingExamples { examples, account } = training_examples(config, &base, device)?;
    let Account {
        n_of_file,
        report,
        notes,
        flattened: learned,
        split,
        ..
    } = account;
    check_split(config, split.as_ref())?;
    check_context(&examples, base.config.max_position_embeddings)?;
    let mut evaluated = ReadingReport::default();
    let eval_rows = eval_rows(config, device, &mut evaluated)?;
    check_rows(config, &eval_rows)?;
    let held_out = held_out(config, &base, &eval_rows)?;
    let flattened = Flattened {
        train: learned,
        eval: evaluated.flattened,
    };
    let lengths = examples.lengths().iter().map(|length| length.n_tokens);
    let files = config.data.train.iter().zip(&n_of_file);
    let parts: Vec<Part> = files
        .map(|(file, &n_examples)| Part {
            n_examples,
            weight: file.weight,
        })
        .collect();
    let order = StepOrder::new(lengths.collect(), settings::order_options(config))
        .map_err(|error| error.with_ids(|idx| examples.id(idx)))?
        .with_parts(&parts)?;
    let total_steps = total_steps(config.train.length(), &order);
    let retriever = match config.trained_retriever() {
        Some(retriever) => {
            let lm_steps = Some(total_steps);
            Some(RetrieverPreparation::new(config, retriever, lm_steps)?)
        }
        None => None,
    };
    Ok(Preparation {
        prompts,
        base,
        examples,
        report,
        flattened: (config.data.flatten != Flatten::None).then_some(flattened),
        notes,
        split,
        eval_rows,
        eval_notes: evaluated.notes,
        has_more_eval_rows: evaluated.has_more,
        held_out,
        lora,
        starting_adapter,
        order,
        total_steps,
        retriever,
        suites,
    })
}

/// The factors of the adapter that a run continues from, which belongs to the run's base model as far as
/// the adapter's own run tells.
fn continued_from(
    config: &Config,
    init_from: &Path,
    slots: &[AdapterSlot],
    whole: &[WholeWeight],
) -> Result<BTreeMap<String, HostTensor>, Error> {
    let folder = starting_folder(init_from)?;
    if let Some(lock) = RunLock::of_checkpoint(&folder)? {
        lock.check_used(config, Used::of(&[BASE_MODEL]), &folder)?;
    }
    starting_adapter(&folder, slots, whole)
}

/// Refuses a split that keeps nothing back.
fn check_split(config: &Config, split: Option<&SplitRecord>) -> Result<(), Error> {
    match split {
        Some(split) if split.n_validation == 0 => Err(Error::Usage(format!(
            "data.validation_split = {} keeps none of {} rows back; raise it, or name files in data.eval",
            config.data.validation_split.unwrap_or_default(),
            split.n_training
        ))),
        _ => Ok(()),
    }
}

/// Refuses rows that reach beyond the positions that the model knows: what it learned there would be
/// noise, and generation stops before.
fn check_context(examples: &Examples, context: usize) -> Result<(), Error> {
    let lengths = examples.lengths().iter().enumerate();
    let longest = lengths.max_by_key(|(_, length)| length.n_tokens);
    match longest.filter(|(_, length)| length.n_tokens as usize > context) {
        None => Ok(()),
        Some((idx, length)) => Err(Error::Usage(format!(
            "{}: the row has {} tokens, more than the {context} positions of the model \
             (max_position_embeddings); set data.max_length to {context} or less, and data.on_overflow \
             to what is to become of longer rows",
            examples.id(idx),
            length.n_tokens
        ))),
    }
}

fn total_steps(length: RunLength, order: &StepOrder) -> u64 {
    match length {
        RunLength::Steps(steps) => steps,
        RunLength::Epochs(epochs) => order.steps_in_epochs(epochs),
    }
}
