//! The evaluation that a run makes of itself: suites over a fixed set of rows.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use burn::tensor::Device;
use tooltune_rows::text::{Prepared, Row, TokenizedExample, prepare};
use tooltune_suites::slot::SentenceEncoder;

use super::agents::AgentLoops;
use super::endings::Endings;
use super::flat_forms::FlatForms;
use super::generate::{GenerationOptions, GenerationProgress};
use super::generator::{Generator, LocalGenerator};
use super::open_suites::LoadedSuites;
use super::slot::Constraints;
use super::{loss, slot};
use crate::base_model::BaseModel;
use crate::config::{Config, EvalStrategy, MetricExpression, Suite};
use crate::encoder::MiniLmEncoder;
use crate::encoder::documents::{no_retriever, untrained};
use crate::error::Error;
use crate::models::Decoder;
use crate::recipes::preparation::Preparation;
use crate::settings;

/// Rows, options and encoder of a run's evaluations.
pub struct Evaluator {
    rows: Vec<Row>,
    /// Their flat forms, where the suite slot is asked for.
    forms: FlatForms,
    /// EvalTarget where the loss is asked for.
    examples: Vec<TokenizedExample>,
    options: GenerationOptions,
    /// Whether answers keep to the rows' schemas, and the compiled ones.
    constrained: bool,
    constraints: OnceCell<Constraints>,
    /// EvalTarget where a suite compares texts.
    encoder: Option<Box<dyn SentenceEncoder>>,
    suites: Rc<LoadedSuites>,
    /// Ranks documents where the run trains no retriever.
    untrained: Option<MiniLmEncoder>,
    /// Those of the suites of agents with it.
    untrained_loops: Vec<AgentLoops>,
}

impl std::fmt::Debug for Evaluator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Evaluator({} rows)", self.rows.len())
    }
}

/// What is evaluated, as it stands.
#[derive(Debug, Clone, Copy)]
pub struct EvalTarget<'a> {
    /// The model with its adapter.
    pub decoder: &'a Decoder,
    /// Its tokenizer and template.
    pub base: &'a BaseModel,
    /// A retriever that is trained beside it.
    pub retriever: Option<&'a MiniLmEncoder>,
}

/// What came of an evaluation.
#[derive(Debug)]
pub enum EvaluationOutcome {
    /// All suites are done.
    Done {
        /// Metrics by name.
        metrics: BTreeMap<String, f64>,
        /// Files for the checkpoint.
        files: BTreeMap<String, Vec<u8>>,
    },
    /// A signal came.
    Interrupted,
}

impl Evaluator {
    /// `None` where the config asks for no evaluation.
    ///
    /// # Errors
    ///
    /// An encoder that cannot be loaded, or a row that cannot be tokenized.
    pub fn new(
        config: &Config,
        preparation: &Preparation,
        device: &Device,
    ) -> Result<Option<Self>, Error> {
        if config.eval.eval_strategy == EvalStrategy::No {
            return Ok(None);
        }
        let asks = |suite: Suite| config.eval.suites.contains(&suite);
        let examples = preparation.held_out.as_ref();
        let examples = examples.map_or_else(Vec::new, |prepared| prepared.examples.clone());
        let encoder = match asks(Suite::Slot) {
            true => Some(encoder(config, device)?),
            false => None,
        };
        let forms = match asks(Suite::Slot) {
            true => FlatForms::of(&preparation.eval_rows, &config.data)?,
            false => FlatForms::default(),
        };
        let suites = Rc::clone(&preparation.suites);
        let untrained = match ranks_untrained(config) {
            true => Some(untrained(config, device)?),
            false => None,
        };
        let untrained_loops = match &untrained {
            Some(encoder) => suites
                .agents
                .iter()
                .map(|suite| suite.loops(encoder))
                .collect(),
            None => Ok(Vec::new()),
        }?;
        Ok(Some(Self {
            rows: preparation.eval_rows.clone(),
            forms,
            examples,
            constrained: config.eval.constrained,
            constraints: OnceCell::new(),
            options: GenerationOptions::of(config, &preparation.base.stop_ids),
            encoder,
            suites,
            untrained,
            untrained_loops,
        }))
    }

    /// Runs every suite over the model as it stands.
    ///
    /// # Errors
    ///
    /// As the suites.
    pub fn evaluate(
        &self,
        present: EvalTarget<'_>,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<EvaluationOutcome, Error> {
        let EvalTarget {
            decoder,
            base,
            retriever,
        } = present;
        let mut metrics = BTreeMap::new();
        let mut files = BTreeMap::new();
        let endings = Endings::default();
        let generator = Generator::Local(LocalGenerator {
            decoder,
            base,
            options: &self.options,
            endings: &endings,
        });
        if !self.examples.is_empty() {
            let n_total = self.examples.len();
            let mut watch_loss = |n_done| {
                watch(GenerationProgress {
                    n_done,
                    n_total,
                    n_tokens: 0,
                    waiting: None,
                })
            };
            match loss::mean_loss(decoder, &self.examples, &mut watch_loss)? {
                Some(loss) => metrics.insert("loss".to_string(), loss),
                None => return Ok(EvaluationOutcome::Interrupted),
            };
        }
        if let Some(encoder) = &self.encoder {
            let evaluation = slot::evaluate(
                &generator,
                (&self.rows, &self.forms, self.constraints(&generator)?),
                self.options.max_new_tokens,
                None,
                encoder.as_ref(),
                watch,
            )?;
            let Some(evaluation) = evaluation else {
                return Ok(EvaluationOutcome::Interrupted);
            };
            metrics.extend(evaluation.metrics());
            files.extend(named("slot", evaluation.files()?));
        }
        for (i, suite) in self.suites.agents.iter().enumerate() {
            let trained = retriever.map(|encoder| suite.loops(encoder)).transpose()?;
            let loops = trained.as_ref().or(self.untrained_loops.get(i));
            let loops = loops.ok_or_else(no_retriever)?;
            let Some(scores) = suite.evaluate(generator, loops, watch)? else {
                return Ok(EvaluationOutcome::Interrupted);
            };
            files.extend(named(suite.name(), scores.files()?));
            metrics.extend(scores.metrics);
        }
        if let Some(suite) = &self.suites.retrieval {
            let encoder = retriever.or(self.untrained.as_ref());
            let evaluation = suite.evaluate(encoder.ok_or_else(no_retriever)?)?;
            metrics.extend(evaluation.metrics());
            files.extend(named("retrieval", evaluation.files()?));
        }
        if let Some(suite) = &self.suites.nestful {
            let Some(evaluation) = suite.evaluate(&generator, None, watch)? else {
                return Ok(EvaluationOutcome::Interrupted);
            };
            metrics.extend(evaluation.metrics());
            files.extend(named("nestful", evaluation.files));
        }
        if let Some(suite) = &self.suites.toolqa {
            let Some(evaluation) = suite.evaluate(&generator, watch)? else {
                return Ok(EvaluationOutcome::Interrupted);
            };
            metrics.extend(evaluation.metrics());
            files.extend(named("toolqa", evaluation.files));
        }
        for line in endings.lines() {
            tracing::warn!("{line}");
        }
        Ok(EvaluationOutcome::Done { metrics, files })
    }
}

impl Evaluator {
    /// What answers keep to, compiled at the first evaluation.
    fn constraints(&self, generator: &Generator<'_>) -> Result<&Constraints, Error> {
        if let Some(constraints) = self.constraints.get() {
            return Ok(constraints);
        }
        let constraints = match self.constrained {
            true => Constraints::compile((&self.rows, &self.forms), generator)?,
            false => Constraints::default(),
        };
        constraints.warn(self.rows.len());
        Ok(self.constraints.get_or_init(|| constraints))
    }
}

/// The files of a suite by their names in a checkpoint.
pub fn named(
    suite: &'static str,
    files: BTreeMap<String, Vec<u8>>,
) -> impl Iterator<Item = (String, Vec<u8>)> {
    let named = move |(name, bytes)| (format!("eval.{suite}.{name}"), bytes);
    files.into_iter().map(named)
}

/// Whether the evaluations of a run measure the loss of held-out rows.
pub fn needs_loss(config: &Config) -> bool {
    config.eval.suites.is_empty() || selects_by_loss(config)
}

/// Whether its evaluations rank documents with the retriever as it came.
pub fn ranks_untrained(config: &Config) -> bool {
    let mut suites = config.eval.suites.iter().copied();
    suites.any(|suite| suite.needs().retriever) && config.trained_retriever().is_none()
}

/// Checks that evaluations which read rows have some.
///
/// # Errors
///
/// They have none.
pub fn check_rows(config: &Config, rows: &[Row]) -> Result<(), Error> {
    let asks = |suite: Suite| config.eval.suites.contains(&suite);
    let reads_rows = needs_loss(config) || asks(Suite::Slot) || asks(Suite::Goat);
    if config.eval.eval_strategy == EvalStrategy::No || !reads_rows || !rows.is_empty() {
        return Ok(());
    }
    Err(Error::Usage(
        "eval.eval_strategy is \"steps\" and data.eval has no rows; \
         name a file in data.eval or set eval.eval_strategy = \"no\""
            .to_string(),
    ))
}

fn selects_by_loss(config: &Config) -> bool {
    MetricExpression::parse(&config.eval.metric_for_best_model)
        .is_ok_and(|metric| metric.names().any(|name| name == "loss"))
}

/// The encoder that the config names.
///
/// # Errors
///
/// The config names none, or it cannot be loaded.
pub fn encoder(config: &Config, device: &Device) -> Result<Box<dyn SentenceEncoder>, Error> {
    let dir = config.eval.encoder.as_ref().ok_or_else(|| {
        Error::Usage(
            "eval.encoder is not set: content similarity needs an encoder; set it to an \
             all-MiniLM-L6-v2 folder (scripts/fetch-models brings one)"
                .to_string(),
        )
    })?;
    Ok(Box::new(MiniLmEncoder::open(dir, device)?))
}

/// The examples whose loss the evaluations of a run measure, and what became of the other rows;
/// `None` where they measure none.
///
/// # Errors
///
/// A row that cannot be tokenized.
pub fn held_out(
    config: &Config,
    base: &BaseModel,
    eval_rows: &[Row],
) -> Result<Option<Prepared>, Error> {
    if config.eval.eval_strategy == EvalStrategy::No || !needs_loss(config) {
        return Ok(None);
    }
    let options = settings::prepare_options(config, &base.stop_ids);
    let rows = eval_rows.iter().cloned().map(Ok);
    let prepared = prepare(rows, &base.template, &base.tokenizer, &options)?;
    Ok(Some(prepared))
}
