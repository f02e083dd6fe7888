//! A config to what a run reads and learns from, checked before any weight is read.

use std::rc::Rc;

use burn::tensor::Device;
use serde::Serialize;
use tooltune_data::batches::StepOrder;
use tooltune_data::flat::FlattenReport;
use tooltune_data::text::{PrepareReport, Row, TokenizedExample, all_rows, prepare};

use super::retriever::RetrieverPreparation;
use super::rows::with_rows;
use super::settings;
use crate::base_model::BaseModel;
use crate::config::{Config, Flatten, RunLength};
use crate::error::Error;
use crate::eval::in_loop::check_rows;
use crate::eval::open_suites::OpenSuites;
use crate::lora::LoraSpec;

/// Everything that a run needs before its first step, checked.
#[derive(Debug)]
pub struct Preparation {
    /// The base model without its weights.
    pub base: BaseModel,
    /// Examples to learn from.
    pub examples: Vec<TokenizedExample>,
    /// What became of the training rows.
    pub report: PrepareReport,
    /// What became of the schemas of the rows, where the config flattens them.
    pub flattened: Option<Flattened>,
    /// Rows to evaluate on, at most `eval.max_samples`.
    pub eval_rows: Vec<Row>,
    /// Adapter settings.
    pub lora: LoraSpec,
    /// Which examples make a step.
    pub order: StepOrder,
    /// Optimizer steps of the whole run.
    pub total_steps: u64,
    /// What a retriever beside the model learns from, if one is trained.
    pub retriever: Option<RetrieverPreparation>,
    /// What evaluations read and reach beside the rows.
    pub suites: Rc<OpenSuites>,
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
    let lora = settings::lora(&config.lora);
    lora.slots(&base.config)?;
    let suites = Rc::new(OpenSuites::open(config)?);
    let options = settings::prepare_options(config, &base.stop_ids);
    let mut flattened = Flattened::default();
    let files = (config.data.train.as_slice(), device);
    let prepared = with_rows(config, files, &mut flattened.train, |rows| {
        Ok(prepare(rows, &base.template, &base.tokenizer, &options)?)
    })?;
    check_context(&prepared.examples, base.config.max_position_embeddings)?;
    let eval_rows = eval_rows(config, device, &mut flattened.eval)?;
    check_rows(config, &eval_rows)?;
    let lengths: Vec<usize> = prepared
        .examples
        .iter()
        .map(|e| e.input_ids.len())
        .collect();
    let ids = |idx: usize| prepared.examples[idx].id.clone();
    let order = StepOrder::new(&lengths, settings::order_options(config))
        .map_err(|error| error.with_ids(ids))?;
    let total_steps = total_steps(config.train.length, &order);
    let retriever = match (&config.retriever, config.retriever_training()) {
        (Some(retriever), Some(training)) => {
            let tables = (retriever, training);
            Some(RetrieverPreparation::new(
                config,
                tables,
                Some(total_steps),
            )?)
        }
        _ => None,
    };
    Ok(Preparation {
        base,
        examples: prepared.examples,
        report: prepared.report,
        flattened: (config.data.flatten.which != Flatten::None).then_some(flattened),
        eval_rows,
        lora,
        order,
        total_steps,
        retriever,
        suites,
    })
}

/// Refuses rows that reach beyond the positions that the model knows: what it learned there would be
/// noise, and generation stops before.
fn check_context(examples: &[TokenizedExample], context: usize) -> Result<(), Error> {
    let longest = examples.iter().max_by_key(|row| row.input_ids.len());
    match longest.filter(|row| row.input_ids.len() > context) {
        None => Ok(()),
        Some(row) => Err(Error::Usage(format!(
            "{}: the row has {} tokens, more than the {context} positions of the model \
             (max_position_embeddings); set data.max_length to {context} or less, and data.on_overflow \
             to what is to become of longer rows",
            row.id,
            row.input_ids.len()
        ))),
    }
}

/// The first `eval.max_samples` rows of the evaluation files; `flattened` says what became of their
/// schemas, where the config flattens them.
///
/// # Errors
///
/// A file that cannot be read, or rows; the error tells of all of them.
pub fn eval_rows(
    config: &Config,
    device: &Device,
    flattened: &mut FlattenReport,
) -> Result<Vec<Row>, Error> {
    let limit = config.eval.max_samples.unwrap_or(usize::MAX);
    let files = (config.data.eval.as_slice(), device);
    with_rows(config, files, flattened, |rows| {
        Ok(all_rows(rows.take(limit))?)
    })
}

fn total_steps(length: RunLength, order: &StepOrder) -> u64 {
    match length {
        RunLength::Steps(steps) => steps,
        RunLength::Epochs(epochs) => order.steps_in_epochs(epochs),
    }
}
