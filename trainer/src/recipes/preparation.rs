//! Prepares and checks all inputs of a run before any weight is loaded.

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

use super::kept_blocks::{DoraActivations, KeptBlocks, RunShape};
use super::retriever::RetrieverPreparation;
use super::run_lock::{BASE_MODEL, RunLock, Used};
use super::starting::{starting_adapter, starting_folder};
use crate::base_model::BaseModel;
use crate::config::{Config, DataFormat, Flatten, LoraConfig, RunLength, TrainFile};
use crate::error::Error;
use crate::eval::in_loop::{EvalInputs, check_rows, held_out};
use crate::eval::suites::LoadedSuites;
use crate::examples::{Account, TrainingExamples, training_examples};
use crate::lora::LoraLayout as _;
use crate::lora::{AdapterSlot, WholeWeight};
use crate::rows::{ReadingReport, eval_rows};
use crate::settings;

/// The inputs of training steps. Every process of a run has them.
#[derive(Debug)]
pub struct Training {
    /// The base model without its weights.
    pub base: BaseModel,
    /// Training examples.
    pub examples: Examples,
    /// Adapter settings.
    pub lora: LoraConfig,
    /// Initial factors, if the run continues from another adapter.
    pub starting_adapter: Option<BTreeMap<String, HostTensor>>,
    /// The examples of each step.
    pub order: StepOrder,
    /// Number of optimizer steps of the run.
    pub total_steps: u64,
}

/// All checked inputs that a run needs before its first step.
#[derive(Debug)]
pub struct Preparation {
    /// The inputs of training steps.
    pub training: Training,
    /// Statistics on the training rows.
    pub report: PrepareReport,
    /// Statistics on flattened schemas, if the config flattens them.
    pub flattened: Option<Flattened>,
    /// Notes on the training rows.
    pub notes: RowNotes,
    /// How the training rows were split, if some are held out.
    pub split: Option<SplitRecord>,
    /// Evaluation rows, at most `eval.max_samples`.
    pub eval_rows: Vec<Row>,
    /// Notes on the evaluation rows.
    pub eval_notes: RowNotes,
    /// Whether there are more rows than `eval.max_samples`.
    pub has_more_eval_rows: bool,
    /// Examples for the held-out loss and their statistics; `None` if that loss is not measured.
    pub held_out: Option<Prepared>,
    /// How often the rows of each weighted file are used in the run.
    pub weighted: Vec<WeightedRows>,
    /// Training data of the retriever, if one is trained with the model.
    pub retriever: Option<RetrieverPreparation>,
    /// Prompt files of the run, for checkpoints and exports.
    pub prompts: PromptFiles,
    /// Inputs of the evaluation suites, apart from the rows.
    pub suites: Rc<LoadedSuites>,
}

/// A file whose rows are used more or less often than once per epoch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WeightedRows {
    /// Path of the file.
    pub file: String,
    /// The `weight` of the file.
    pub weight: f64,
    /// Number of its examples.
    pub n_examples: usize,
    /// Number of examples of the file used in the whole run, counting repetitions.
    pub n_seen: u64,
}

impl Preparation {
    /// Describes how often the rows of weighted files are used, as a suffix of a report line.
    pub fn weighted_suffix(&self) -> String {
        let words = self.weighted.iter().map(|rows| {
            let WeightedRows {
                file,
                weight,
                n_examples,
                n_seen,
            } = rows;
            format!(
                "; the {n_examples} examples of {file} (weight {weight}) are used {n_seen} times in total"
            )
        });
        words.collect()
    }

    /// Inputs of the run's evaluations.
    pub fn eval_inputs(&self) -> EvalInputs<'_> {
        EvalInputs {
            rows: &self.eval_rows,
            held_out: self.held_out.as_ref(),
            suites: &self.suites,
            stop_ids: &self.training.base.stop_ids,
        }
    }
}

impl Training {
    /// Decides how many blocks keep their activations, from `train.gradient_checkpointing` and the
    /// device memory that is free before the weights are loaded. `n_node_ranks` GPUs may divide the
    /// frozen weights.
    ///
    /// # Errors
    ///
    /// The adapter settings match no module.
    pub fn kept_blocks(
        &self,
        config: &Config,
        compute_dtype: ComputeDtype,
        device: &Device,
        n_node_ranks: usize,
    ) -> Result<KeptBlocks, Error> {
        let model = &self.base.config;
        let shape = RunShape {
            setting: config.train.gradient_checkpointing,
            model,
            n_adapter: self.lora.n_parameters(model)?,
            compute_dtype,
            quantization: self.base.quantization,
            frozen_weights: self.base.frozen_weights,
            n_node_ranks,
            dora_activations: DoraActivations::from_lora(&self.lora),
        };
        Ok(KeptBlocks::new(shape, device))
    }
}

/// Statistics on flattened schemas.
#[derive(Debug, Default, Serialize)]
pub struct Flattened {
    /// Schemas of the training rows.
    pub train: FlattenReport,
    /// Schemas of the evaluation rows.
    pub eval: FlattenReport,
}

/// The base model and the adapter settings of a run.
struct ModelInputs {
    base: BaseModel,
    lora: LoraConfig,
    starting_adapter: Option<BTreeMap<String, HostTensor>>,
}

impl ModelInputs {
    /// Reads the model's files, and the adapter that the run continues from.
    fn open(config: &Config) -> Result<Self, Error> {
        let base = BaseModel::from_config(config)?;
        for (field, dropout) in &base.config.dropouts {
            tracing::warn!(
                "{}: config.json sets {field} = {dropout}, which is not applied; transformers would \
                 apply this dropout in training",
                base.path.display()
            );
        }
        let lora = config.lora.clone();
        let slots = lora.slots(&base.config)?;
        let whole_weights = lora.whole_weights(&base.config)?;
        lora.check_principal_ranks(&base.config)?;
        let starting_adapter = match &lora.init_from {
            Some(path) => Some(load_starting_adapter(config, path, &slots, &whole_weights)?),
            None => None,
        };
        Ok(Self {
            base,
            lora,
            starting_adapter,
        })
    }

    /// Prepares the training examples and their order.
    fn with_examples(self, config: &Config, device: &Device) -> Result<(Training, Account), Error> {
        let TrainingExamples { examples, account } = training_examples(config, &self.base, device)?;
        check_split(config, account.split.as_ref())?;
        check_context(&examples, self.base.config.max_position_embeddings)?;
        let lengths = examples.lengths().iter().map(|length| length.n_tokens);
        let order = StepOrder::new(lengths.collect(), settings::order_options(config))
            .map_err(|error| error.with_ids(|idx| examples.id(idx)))?
            .with_parts(&parts(config, &account))?;
        let training = Training {
            base: self.base,
            lora: self.lora,
            starting_adapter: self.starting_adapter,
            examples,
            total_steps: total_steps(config.train.length(), &order),
            order,
        };
        Ok((training, account))
    }
}

/// The training files by number of examples and weight.
fn parts(config: &Config, account: &Account) -> Vec<Part> {
    let files = config.data.train.iter().zip(&account.n_of_file);
    let part = |(file, &n_examples): (&TrainFile, &usize)| Part {
        n_examples,
        weight: file.weight,
    };
    files.map(part).collect()
}

/// Reads and checks the inputs of training steps, and nothing else.
///
/// # Errors
///
/// As [`prepare_run`].
pub fn prepare_training(config: &Config, device: &Device) -> Result<Training, Error> {
    let (training, _) = ModelInputs::open(config)?.with_examples(config, device)?;
    Ok(training)
}

/// Reads and checks everything except the weights. `device` runs the retriever if it selects the
/// documents of training prompts.
///
/// # Errors
///
/// A model file or row is invalid, or the settings cannot be used together.
pub fn prepare_run(config: &Config, device: &Device) -> Result<Preparation, Error> {
    let model = ModelInputs::open(config)?;
    let is_slot = config.data.format == DataFormat::Slot;
    let slot_prompt = is_slot.then(|| settings::slot_prompt(&config.data));
    let slot_prompt = slot_prompt.transpose()?;
    let prompts = PromptFiles {
        chat_template: Some(model.base.template.served_source()),
        slot_prompt: slot_prompt.map(|prompt| prompt.source().to_owned()),
    };
    let suites = Rc::new(LoadedSuites::open(config, device)?);
    let (training, account) = model.with_examples(config, device)?;
    let mut evaluated = ReadingReport::default();
    let eval_rows = eval_rows(config, device, &mut evaluated)?;
    check_rows(config, &eval_rows)?;
    let held_out = held_out(config, &training.base, &eval_rows)?;
    let parts = parts(config, &account);
    let n_seen = training.order.n_seen_of_parts(training.total_steps);
    let weighted = weighted_rows(config, &parts, &n_seen)?;
    let retriever = match config.trained_retriever() {
        Some(retriever) => {
            let lm_steps = Some(training.total_steps);
            Some(RetrieverPreparation::new(config, retriever, lm_steps)?)
        }
        None => None,
    };
    let Account {
        report,
        notes,
        flattened: flattened_train,
        split,
        ..
    } = account;
    let flattened = Flattened {
        train: flattened_train,
        eval: evaluated.flattened,
    };
    Ok(Preparation {
        prompts,
        training,
        report,
        flattened: (config.data.flatten != Flatten::None).then_some(flattened),
        notes,
        split,
        eval_rows,
        eval_notes: evaluated.notes,
        has_more_eval_rows: evaluated.has_more,
        held_out,
        weighted,
        retriever,
        suites,
    })
}

/// Loads the adapter that a run continues from. If the adapter's own run recorded a base model, it
/// must equal the base model of this run.
fn load_starting_adapter(
    config: &Config,
    init_from: &Path,
    slots: &[AdapterSlot],
    whole_weights: &[WholeWeight],
) -> Result<BTreeMap<String, HostTensor>, Error> {
    let folder = starting_folder(init_from)?;
    if let Some(lock) = RunLock::read_for_checkpoint(&folder)? {
        lock.check_used(config, Used::settings(&[BASE_MODEL]), &folder)?;
    }
    starting_adapter(&folder, &config.lora, slots, whole_weights)
}

/// Lists the files whose rows are used more or less often than once per epoch, and refuses files
/// that contribute no row to the run.
fn weighted_rows(
    config: &Config,
    parts: &[Part],
    rows_seen: &[u64],
) -> Result<Vec<WeightedRows>, Error> {
    let files = config.data.train.iter().zip(parts).zip(rows_seen);
    let weighted = files.filter(|((file, part), _)| file.weight != 1.0 && part.n_examples > 0);
    weighted
        .map(|((file, part), &n_seen)| {
            let rows = WeightedRows {
                file: file.path.display().to_string(),
                weight: file.weight,
                n_examples: part.n_examples,
                n_seen,
            };
            if n_seen == 0 {
                return Err(Error::Usage(format!(
                    "data.train: {}: weight = {} uses none of the file's {} rows: {:.2} rows per epoch \
                     are carried over to the next epoch, and the run ends before they add up to a row; \
                     raise the weight, train for more epochs, or remove the file",
                    rows.file,
                    rows.weight,
                    rows.n_examples,
                    rows.weight * rows.n_examples as f64
                )));
            }
            Ok(rows)
        })
        .collect()
}

/// Refuses a split that holds out no rows.
fn check_split(config: &Config, split: Option<&SplitRecord>) -> Result<(), Error> {
    match split {
        Some(split) if split.n_validation == 0 => Err(Error::Usage(format!(
            "data.validation_split = {} holds out none of {} rows; raise it, or set data.eval",
            config.data.validation_split.unwrap_or_default(),
            split.n_training
        ))),
        _ => Ok(()),
    }
}

/// Refuses rows longer than the model's context. Training beyond the context would only add noise,
/// and generation never exceeds the context.
fn check_context(examples: &Examples, context: usize) -> Result<(), Error> {
    let lengths = examples.lengths().iter().enumerate();
    let longest = lengths.max_by_key(|(_, length)| length.n_tokens);
    match longest.filter(|(_, length)| length.n_tokens as usize > context) {
        None => Ok(()),
        Some((idx, length)) => Err(Error::Usage(format!(
            "{}: the row has {} tokens, more than the {context} positions of the model \
             (max_position_embeddings); set data.max_length to {context} or less, and choose with \
             data.on_overflow what happens to longer rows",
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
