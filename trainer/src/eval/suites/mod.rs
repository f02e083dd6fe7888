//! Holds the suites: each is opened once, evaluated with any model, and scored again from its files.
//!
//! A suite is a file or folder here and a line of `KINDS`; what others have to know of it stands
//! in the registry of `tooltune_suites`.

mod agents;
mod calls;
pub mod code;
mod judge;
mod nestful;
mod retrieval;
mod slot;
mod toolqa;

pub use agents::{mcp_error, open_executor};
pub use calls::{WrittenCalls, written_calls};

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde_json::Value;
use tooltune_rows::text::Row;
use tooltune_suites::operations::Outside;
use tooltune_suites::{Ceiling, Estimate, SuiteInfo};

use super::by_file::ByFile;
use super::generator::{GenerationRequest, Generator};
use super::journal::Journal;
use super::report_files::{METRICS_FILE, json_value, with_fields};
use crate::config::{Config, EvalStrategy, SandboxConfig, Suite};
use crate::encoder::MiniLmEncoder;
use crate::error::Error;
use crate::progress;
use crate::progress::GenerationProgress;

/// The line of a [`SuiteResult::table`] that holds the numbers.
pub const THIS_RUN: &str = "| this run |";

/// Metrics by name, such as `slot.mean`.
pub type Metrics = BTreeMap<String, f64>;

/// The contents of files by name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// What a suite found.
#[derive(Debug)]
pub struct SuiteResult {
    /// Means by name; those that no sample has are left out.
    pub metrics: Metrics,
    /// `metrics.json`, `predictions.jsonl` with a line for each sample, and what else a suite keeps.
    pub files: Files,
    /// The numbers for a terminal: lines, or a Markdown table with the line [`THIS_RUN`].
    pub table: String,
    /// The numbers of each file, where the samples come from several.
    pub by_file: Option<ByFile>,
    /// What a reader of the numbers has to know, in sentences.
    pub notes: Vec<String>,
    /// What may be wrong with what was scored, in sentences.
    pub warnings: Vec<String>,
}

/// Means by the names that metrics have, such as `goat.sa`; those that no sample has are left out.
fn named_means(suite: Suite, names: &[&str], value: impl Fn(&str) -> Option<Estimate>) -> Metrics {
    let named = |name: &&str| Some((format!("{suite}.{name}"), value(name)?.value));
    names.iter().filter_map(named).collect()
}

impl SuiteResult {
    /// The result with the metrics in which the gold of the same rows is not the best: in
    /// `metrics.json`, and as notes.
    ///
    /// # Errors
    ///
    /// Never for what suites make.
    fn with_ceilings(mut self, suite: &SuiteInfo, ceilings: &[Ceiling]) -> Result<Self, Error> {
        if ceilings.is_empty() {
            return Ok(self);
        }
        if let Some(metrics) = self.files.get_mut(METRICS_FILE) {
            let fields = [("ceilings".to_owned(), json_value(&ceilings)?)];
            *metrics = with_fields(metrics, fields.into_iter().collect())?;
        }
        self.table = beside_their_ceilings(&self.table, suite, ceilings);
        self.notes.extend(ceiling_notes(suite, ceilings));
        Ok(self)
    }
}

/// The lines of a table, each with what the gold scores where that is not the best. The columns of a
/// Markdown table have no room for it.
fn beside_their_ceilings(table: &str, suite: &SuiteInfo, ceilings: &[Ceiling]) -> String {
    let line = |line: &str| {
        let name = line.split(' ').next().unwrap_or_default();
        let metric = name
            .strip_prefix(suite.name)
            .and_then(|rest| rest.strip_prefix('.'));
        let ceiling = ceilings
            .iter()
            .find(|ceiling| Some(ceiling.metric) == metric);
        ceiling.map_or_else(
            || line.to_owned(),
            |ceiling| format!("{line}  gold {:.4}", ceiling.value),
        )
    };
    table.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// A sentence for each metric in which the gold is not the best.
fn ceiling_notes(suite: &SuiteInfo, ceilings: &[Ceiling]) -> impl Iterator<Item = String> {
    ceilings.iter().map(|ceiling| {
        format!(
            "{}.{}: the gold itself scores {:.4} on these rows",
            suite.name, ceiling.metric, ceiling.value
        )
    })
}

/// The files of a suite by their names in a checkpoint.
pub fn in_checkpoint(suite: Suite, files: Files) -> impl Iterator<Item = (String, Vec<u8>)> {
    let named = move |(name, bytes)| (format!("eval.{suite}.{name}"), bytes);
    files.into_iter().map(named)
}

/// What a suite generates, ranks and reports with.
#[expect(
    missing_debug_implementations,
    reason = "it holds whom it reports to, who is nobody's to read"
)]
pub struct EvalContext<'c> {
    /// Writes texts; suites that need no language model and saved predictions have none.
    pub generator: Option<Generator<'c>>,
    /// Ranks documents, for suites with a retriever.
    pub retriever: Option<Retriever<'c>>,
    /// Has the texts of an evaluation that was interrupted, and keeps those of this one.
    pub journal: Option<&'c mut Journal>,
    /// Takes files that must not be lost where a judge fails.
    pub keep: &'c mut dyn FnMut(&Files) -> Result<(), Error>,
    /// Is told of the progress; false ends the work.
    pub watch: &'c mut dyn FnMut(GenerationProgress) -> bool,
}

/// What ranks documents.
#[derive(Debug, Clone, Copy)]
pub struct Retriever<'c> {
    /// The encoder.
    pub encoder: &'c MiniLmEncoder,
    /// Whether it is another one at each evaluation, so that nothing of it can be kept.
    pub is_trained: bool,
}

impl<'c> EvalContext<'c> {
    /// What writes texts.
    ///
    /// # Errors
    ///
    /// There is nothing that does.
    pub fn generator(&self) -> Result<Generator<'c>, Error> {
        self.generator.ok_or_else(|| {
            Error::Usage("the suite needs a language model: add [model] to the config".to_owned())
        })
    }
}

/// A suite whose samples are read and whose services are open.
pub trait LoadedSuite: Debug {
    /// Which one it is.
    fn suite(&self) -> Suite;

    /// How many samples it has.
    fn n_samples(&self) -> usize;

    /// What a user has to know of the data before anything is generated, in sentences.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether the remarks belong to the numbers, and are shown beside them.
    fn remarks_are_results(&self) -> bool {
        false
    }

    /// The prompts that are known before anything is written, which its texts follow from.
    ///
    /// # Errors
    ///
    /// A prompt that cannot be made.
    fn prompts(&self) -> Result<Vec<GenerationRequest<'_>>, Error> {
        Ok(Vec::new())
    }

    /// Generates and scores; `None` if `context.watch` ended the work.
    ///
    /// # Errors
    ///
    /// A prompt that the template refuses, or a server, a judge or a sandbox that fails.
    fn evaluate(&self, context: EvalContext<'_>) -> Result<Option<SuiteResult>, Error>;

    /// Scores the `predictions.jsonl` of a former evaluation; `None` if `context.watch` ended the
    /// work.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, predictions of other samples, or as [`LoadedSuite::evaluate`].
    fn score_saved(
        &self,
        path: &Path,
        context: EvalContext<'_>,
    ) -> Result<Option<SuiteResult>, Error>;
}

/// What a suite is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The evaluations of a run, in which a judge takes part where its table says `in_loop`.
    Run,
    /// An evaluation of its own.
    Evaluation,
    /// Predictions that are there.
    SavedPredictions,
}

/// What a suite is opened with.
#[derive(Debug, Clone, Copy)]
pub struct Opening<'o> {
    /// The settings.
    pub config: &'o Config,
    /// What computes encoders.
    pub device: &'o Device,
    /// What it is opened for.
    pub purpose: Purpose,
    /// Files of the command line, which win over those of the settings.
    pub data: &'o [PathBuf],
    /// The rows of `data.eval`, where a run has read them.
    pub rows: Option<&'o [Row]>,
}

impl<'o> Opening<'o> {
    /// The files of a suite that has a table of its own: those of the command line, else the
    /// table's, else `data.eval`.
    ///
    /// # Errors
    ///
    /// There is none.
    fn files(&self, own: &'o [PathBuf]) -> Result<&'o [PathBuf], Error> {
        if self.data.is_empty() && !own.is_empty() {
            return Ok(own);
        }
        eval_files(self.config)
    }
}

/// The files of `data.eval`.
///
/// # Errors
///
/// There is none.
fn eval_files(config: &Config) -> Result<&[PathBuf], Error> {
    match config.data.eval.as_slice() {
        [] => Err(Error::Usage(
            "there is nothing to evaluate on: name a file with --data, or in data.eval".to_string(),
        )),
        files => Ok(files),
    }
}

/// A suite of the registry, and what is here of it.
struct SuiteKind {
    /// Its line in the registry.
    info: &'static SuiteInfo,
    /// Reads its samples and opens what it reaches outside.
    open: fn(Opening<'_>) -> Result<Box<dyn LoadedSuite>, Error>,
    /// The change of two of its `metrics.json`, as a table, if it has one.
    change: Option<Change>,
}

/// Two `metrics.json` to the table of their change.
pub type Change = fn(&SavedMetrics<'_>, &SavedMetrics<'_>) -> Result<String, Error>;

/// A `metrics.json` of an evaluation.
#[derive(Debug)]
pub struct SavedMetrics<'f> {
    /// Its name, for messages.
    pub name: String,
    /// Its text.
    pub text: &'f str,
}

/// As [`calls::dialect`] says.
pub(super) fn dialect(text: &str, tools: &[Value]) -> Option<&'static str> {
    calls::dialect(text, tools)
}

/// Every suite that can be evaluated.
static KINDS: [&SuiteKind; 8] = [
    &slot::KIND,
    &calls::KIND,
    &agents::GOAT_KIND,
    &retrieval::KIND,
    &nestful::KIND,
    &toolqa::KIND,
    &agents::RESTBENCH_KIND,
    &agents::APIBANK_KIND,
];

fn kind(suite: Suite) -> Result<&'static SuiteKind, Error> {
    let mut kinds = KINDS.into_iter();
    let kind = kinds.find(|kind| kind.info.name == suite.as_str());
    kind.ok_or_else(|| Error::Usage(format!("the suite {suite} cannot be evaluated")))
}

/// Reads the samples of a suite and opens what it reaches outside.
///
/// # Errors
///
/// A file, an executor, a judge or a sandbox that will not do.
pub fn open(suite: Suite, opening: Opening<'_>) -> Result<Box<dyn LoadedSuite>, Error> {
    (kind(suite)?.open)(opening)
}

/// What shows the change of two evaluations of the suite.
///
/// # Errors
///
/// The suite has no such table.
pub fn change_of(suite: Suite) -> Result<Change, Error> {
    kind(suite)?.change.ok_or_else(|| {
        let kinds = KINDS.into_iter().filter(|kind| kind.change.is_some());
        let names: Vec<&str> = kinds.map(|kind| kind.info.name).collect();
        Error::Usage(format!(
            "--compare is for the suite {}; evaluate each time with --output, and run `tooltune \
             compare BEFORE AFTER`, which compares two evaluations of any suite",
            names.join(" or ")
        ))
    })
}

/// Gives the operations of suites what they reach outside; `exec_dir` is a folder of functions, run
/// as `sandbox` says.
///
/// # Errors
///
/// A folder of functions that this machine cannot run in isolation.
pub fn with_functions(
    outside: Outside,
    exec_dir: Option<&Path>,
    sandbox: &SandboxConfig,
) -> Result<Outside, Error> {
    Ok(outside.with(nestful::open_tools(exec_dir, sandbox)?))
}

/// The suites of a run's evaluations, opened before anything is read for training: a file, an
/// executor or a judge that will not do is found then, and not at the first evaluation.
#[derive(Debug, Default)]
pub struct LoadedSuites(Vec<Box<dyn LoadedSuite>>);

impl LoadedSuites {
    /// Opens those that the run evaluates, but those of the rows that the run itself reads.
    ///
    /// # Errors
    ///
    /// As [`open`].
    pub fn open(config: &Config, device: &Device) -> Result<Self, Error> {
        if config.eval.eval_strategy == EvalStrategy::No {
            return Ok(Self::default());
        }
        let opening = Opening {
            config,
            device,
            purpose: Purpose::Run,
            data: &[],
            rows: None,
        };
        let suites = config.eval.suites.iter().copied();
        let suites = suites.filter(|suite| !suite.needs().rows_are_samples());
        let suites = suites.map(|suite| open(suite, opening));
        let suites = Self(suites.collect::<Result<_, _>>()?);
        for suite in &suites.0 {
            for remark in suite.remarks() {
                let name = format!("{}: ", suite.suite());
                // Some say it by themselves.
                let name = if remark.starts_with(&name) { "" } else { &name };
                progress::print(&format!("{name}{remark}"));
            }
        }
        Ok(suites)
    }

    /// Opens those of the rows that the run has read.
    ///
    /// # Errors
    ///
    /// As [`open`].
    pub fn of_rows(config: &Config, device: &Device, rows: &[Row]) -> Result<Self, Error> {
        let opening = Opening {
            config,
            device,
            purpose: Purpose::Run,
            data: &[],
            rows: Some(rows),
        };
        let suites = config.eval.suites.iter().copied();
        let suites = suites.filter(|suite| suite.needs().rows_are_samples());
        let suites = suites.map(|suite| open(suite, opening));
        Ok(Self(suites.collect::<Result<_, _>>()?))
    }

    /// What suites without a language model find with `retriever`: metrics, and files for a
    /// checkpoint.
    ///
    /// # Errors
    ///
    /// As the suites.
    pub fn ranked(&self, retriever: &MiniLmEncoder) -> Result<(Metrics, Files), Error> {
        let (mut metrics, mut files) = (Metrics::new(), Files::new());
        for suite in self.iter() {
            let context = EvalContext {
                generator: None,
                retriever: Some(Retriever {
                    encoder: retriever,
                    is_trained: true,
                }),
                journal: None,
                keep: &mut |_| Ok(()),
                watch: &mut |_| true,
            };
            if let Some(result) = suite.evaluate(context)? {
                metrics.extend(result.metrics);
                files.extend(in_checkpoint(suite.suite(), result.files));
            }
        }
        Ok((metrics, files))
    }

    /// The suites.
    pub fn iter(&self) -> impl Iterator<Item = &dyn LoadedSuite> {
        self.0.iter().map(|suite| &**suite)
    }

    /// The suites by their names, with how many samples each has.
    pub fn sizes(&self) -> Vec<(&'static str, usize)> {
        let sizes = self.iter();
        sizes
            .map(|suite| (suite.suite().as_str(), suite.n_samples()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_of_the_registry_can_be_opened() {
        for suite in Suite::all() {
            assert_eq!(kind(suite).expect("a kind").info.name, suite.as_str());
        }
        assert_eq!(KINDS.len(), Suite::all().count());
    }

    #[test]
    fn a_ceiling_stands_beside_its_value() {
        let slot = SuiteInfo::named("slot").expect("a suite");
        let ceilings = [Ceiling {
            metric: "strict_keys_accuracy",
            value: 0.625,
        }];
        let table = "slot.mean  0.5000\nslot.strict_keys_accuracy  0.5000 [0.4, 0.6]\nn  8";
        assert_eq!(
            beside_their_ceilings(table, slot, &ceilings),
            "slot.mean  0.5000\nslot.strict_keys_accuracy  0.5000 [0.4, 0.6]  gold 0.6250\nn  8"
        );
    }
}
