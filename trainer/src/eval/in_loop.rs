//! Evaluations during training.

use std::rc::Rc;

use burn::tensor::Device;
use tooltune_rows::text::{DataError, Prepared, Row, TokenizedExample, prepare};

use super::endings::Endings;
use super::generate::GenerationOptions;
use super::generator::{Generator, LocalGenerator};
use super::loss;
use super::served::OtherProcesses;
use super::suites::{EvalContext, Files, LoadedSuites, Metrics, Retriever, checkpoint_files};
use crate::base_model::BaseModel;
use crate::config::{Config, EvalConfig, EvalStrategy, MetricExpression, Suite};
use crate::encoder::MiniLmEncoder;
use crate::encoder::documents::load_untrained_retriever;
use crate::error::Error;
use crate::models::Decoder;
use crate::settings;
use tooltune_terminal::GenerationProgress;

/// The rows, options and suites for the evaluations of a run.
#[derive(Debug)]
pub struct Evaluator {
    /// Empty if the loss is not measured.
    examples: Vec<TokenizedExample>,
    options: GenerationOptions,
    /// Suites that score the rows of `data.eval`.
    row_suites: LoadedSuites,
    suites: Rc<LoadedSuites>,
    /// The retriever that ranks documents if the run does not train one.
    untrained: Option<MiniLmEncoder>,
}

/// Data that a run loaded for its evaluations.
#[derive(Debug, Clone, Copy)]
pub struct EvalInputs<'a> {
    /// Rows of `data.eval`.
    pub rows: &'a [Row],
    /// Rows whose loss is measured.
    pub held_out: Option<&'a Prepared>,
    /// Suites with their own files.
    pub suites: &'a Rc<LoadedSuites>,
    /// Stop tokens.
    pub stop_ids: &'a [u32],
}

/// The models that are evaluated.
#[derive(Debug, Clone, Copy)]
pub struct EvalTarget<'a> {
    /// The model with its adapter.
    pub decoder: &'a Decoder,
    /// The tokenizer and chat template.
    pub base: &'a BaseModel,
    /// The retriever trained in the same run.
    pub retriever: Option<&'a MiniLmEncoder>,
    /// The other processes of the run, if they compute a share of the evaluation.
    pub served: Option<&'a dyn OtherProcesses>,
}

/// Result of an evaluation.
#[derive(Debug)]
pub enum EvaluationOutcome {
    /// All suites completed.
    Done {
        /// Metrics by name.
        metrics: Metrics,
        /// Files for the checkpoint.
        files: Files,
    },
    /// A signal arrived.
    Interrupted,
}

impl Evaluator {
    /// Prepares the evaluations. Returns `None` if the config disables evaluation.
    ///
    /// # Errors
    ///
    /// An encoder cannot be loaded, or a row cannot be tokenized.
    pub fn new(
        config: &Config,
        inputs: EvalInputs<'_>,
        device: &Device,
    ) -> Result<Option<Self>, Error> {
        if config.eval.eval_strategy == EvalStrategy::No {
            return Ok(None);
        }
        let examples = inputs.held_out.map(|prepared| prepared.examples.clone());
        let untrained = ranks_untrained(config).then(|| load_untrained_retriever(config, device));
        Ok(Some(Self {
            examples: examples.unwrap_or_default(),
            options: GenerationOptions::from_config(config, inputs.stop_ids),
            row_suites: LoadedSuites::from_rows(config, device, inputs.rows)?,
            suites: Rc::clone(inputs.suites),
            untrained: untrained.transpose()?,
        }))
    }

    /// Runs every suite on the current weights.
    ///
    /// # Errors
    ///
    /// Errors of the suites.
    pub fn evaluate(
        &self,
        target: EvalTarget<'_>,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<EvaluationOutcome, Error> {
        let (mut metrics, mut files) = (Metrics::new(), Files::new());
        let endings = Endings::default();
        if !self.examples.is_empty() {
            match loss::mean_loss(target.decoder, &self.examples, target.served, watch)? {
                Some(loss) => metrics.insert("loss".to_string(), loss),
                None => return Ok(EvaluationOutcome::Interrupted),
            };
        }
        let generator = Generator::Local(LocalGenerator {
            decoder: target.decoder,
            base: target.base,
            options: &self.options,
            endings: &endings,
            served: target.served,
        });
        for suite in self.row_suites.iter().chain(self.suites.iter()) {
            let context = EvalContext {
                generator: Some(generator),
                retriever: self.retriever(target.retriever),
                journal: None,
                keep: &mut |_| Ok(()),
                watch: &mut *watch,
            };
            let Some(result) = suite.evaluate(context)? else {
                return Ok(EvaluationOutcome::Interrupted);
            };
            metrics.extend(result.metrics);
            files.extend(checkpoint_files(suite.suite(), result.files));
        }
        let suites = self.row_suites.iter().chain(self.suites.iter());
        let suites: Vec<Suite> = suites.map(|suite| suite.suite()).collect();
        for line in endings.lines(&EvalConfig::answer_limit_keys(&suites)) {
            tracing::warn!("{line}");
        }
        Ok(EvaluationOutcome::Done { metrics, files })
    }

    /// The trained retriever, or the untrained retriever of the config.
    fn retriever<'a>(&'a self, trained: Option<&'a MiniLmEncoder>) -> Option<Retriever<'a>> {
        let is_trained = trained.is_some();
        let encoder = trained.or(self.untrained.as_ref())?;
        Some(Retriever {
            encoder,
            is_trained,
        })
    }
}

/// Whether the evaluations require the loss on held-out rows. Other runs measure it only if
/// `data.eval` has suitable rows.
pub fn needs_loss(config: &Config) -> bool {
    config.eval.suites.is_empty() || selects_by_loss(config)
}

/// Whether evaluations rank documents with an untrained retriever.
pub fn ranks_untrained(config: &Config) -> bool {
    let mut suites = config.eval.suites.iter().copied();
    suites.any(|suite| suite.needs().retriever) && config.trained_retriever().is_none()
}

/// Checks that there are rows if the evaluations need them.
///
/// # Errors
///
/// There are no rows.
pub fn check_rows(config: &Config, rows: &[Row]) -> Result<(), Error> {
    let mut suites = config.eval.suites.iter();
    let reads_rows = needs_loss(config) || suites.any(|suite| suite.needs().rows.is_some());
    if config.eval.eval_strategy == EvalStrategy::No || !reads_rows || !rows.is_empty() {
        return Ok(());
    }
    Err(Error::Usage(
        "eval.eval_strategy is \"steps\", but data.eval has no rows; \
         name a file in data.eval or set eval.eval_strategy = \"no\""
            .to_string(),
    ))
}

fn selects_by_loss(config: &Config) -> bool {
    MetricExpression::parse(&config.eval.metric_for_best_model)
        .is_ok_and(|metric| metric.names().any(|name| name == "loss"))
}

/// Prepares the examples whose loss is measured. Returns `None` if there are no rows. If their loss
/// cannot be measured, logs a warning and returns `None`.
///
/// # Errors
///
/// A row cannot be tokenized and the run requires the loss.
pub fn held_out(
    config: &Config,
    base: &BaseModel,
    eval_rows: &[Row],
) -> Result<Option<Prepared>, Error> {
    let is_needed = needs_loss(config);
    if config.eval.eval_strategy == EvalStrategy::No || (eval_rows.is_empty() && !is_needed) {
        return Ok(None);
    }
    match prepared_rows(config, base, eval_rows) {
        Ok(prepared) => Ok(Some(prepared)),
        Err(error) if is_needed => Err(error.into()),
        Err(error) => {
            tracing::warn!("data.eval: cannot measure eval/loss: {error}");
            Ok(None)
        }
    }
}

/// Prepares rows as examples for the loss.
///
/// # Errors
///
/// A row cannot be tokenized, or all rows are dropped.
pub fn prepared_rows(
    config: &Config,
    base: &BaseModel,
    rows: &[Row],
) -> Result<Prepared, DataError> {
    let options = settings::prepare_options(config, &base.stop_ids);
    let rows = rows.iter().cloned().map(Ok);
    prepare(rows, &base.template, &base.tokenizer, &options)
}
