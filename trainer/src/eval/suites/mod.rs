//! The suites. Each is opened once, evaluated with any model, and can be scored again from its
//! files.
//!
//! A suite has an entry in `KINDS`. It has a file or folder here if it is more than a
//! [`RowSuite`](tooltune_suites::RowSuite). The registry of `tooltune_suites` describes it to other
//! crates.

mod agents;
mod calls;
pub mod code;
mod judge;
mod nestful;
mod prompt_suite;
mod retrieval;
mod row_suite;
mod slot;
mod toolqa;
pub mod verdicts;

pub use agents::{PlannedCall, PlannedCalls, RefusedApis, mcp_error, open_executor, planned_calls};
pub use calls::{WrittenCalls, written_calls};

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use tooltune_grammar::CallFormat;
use tooltune_rows::text::Row;
use tooltune_suites::operations::Outside;
use tooltune_suites::{Ceiling, Estimate, SuiteInfo};
use tooltune_template::ChatTemplate;

use super::by_file::{ByFile, SampleFiles};
use super::generator::{GenerationRequest, Generator};
use super::journal::Journal;
use super::report_files::{METRICS_FILE, json_value, with_fields};
use crate::config::{Config, EvalConfig, EvalStrategy, SandboxConfig, Suite};
use crate::encoder::MiniLmEncoder;
use crate::error::Error;
use tooltune_terminal as progress;
use tooltune_terminal::GenerationProgress;

/// Start of the line with the metrics in a [`SuiteResult::table`].
pub const THIS_RUN: &str = "| this run |";

/// Metrics by name, such as `slot.mean`.
pub type Metrics = BTreeMap<String, f64>;

/// Contents of files by name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// Result of a suite.
#[derive(Debug)]
pub struct SuiteResult {
    /// Means by name; undefined ones are left out.
    pub metrics: Metrics,
    /// `metrics.json`, `predictions.jsonl` with one line per sample, and further files of the
    /// suite.
    pub files: Files,
    /// The metrics for a terminal: lines, or a Markdown table with the line [`THIS_RUN`].
    pub table: String,
    /// Metrics of each file, if the samples are from several.
    pub by_file: Option<ByFile>,
    /// Notes that matter for reading the metrics.
    pub notes: Vec<String>,
    /// Warnings about possible problems with the scored data.
    pub warnings: Vec<String>,
}

/// Means by metric name, such as `goat.sa`; undefined ones are left out.
fn named_means(suite: Suite, names: &[&str], value: impl Fn(&str) -> Option<Estimate>) -> Metrics {
    let with_name = |name: &&str| Some((format!("{suite}.{name}"), value(name)?.value));
    names.iter().filter_map(with_name).collect()
}

/// The means with intervals, one per line. The metric that selects checkpoints by default is first.
fn metrics_table(
    suite: &SuiteInfo,
    metrics: &Metrics,
    estimate: impl Fn(&str) -> Option<Estimate>,
    n: usize,
) -> String {
    let is_chosen = |name: &String| name == suite.default_metric;
    let chosen = metrics.iter().filter(|(name, _)| is_chosen(name));
    let others = metrics.iter().filter(|(name, _)| !is_chosen(name));
    let line = |(name, value): (&String, &f64)| {
        let key = name.split_once('.').map_or(name.as_str(), |(_, key)| key);
        let interval = estimate(key).and_then(|estimate| estimate.interval());
        let interval =
            interval.map_or_else(String::new, |[low, high]| format!(" [{low:.4}, {high:.4}]"));
        format!("{name:<32} {value:.4}{interval}\n")
    };
    chosen.chain(others).map(line).collect::<String>() + &format!("{:<32} {n}", "n")
}

impl SuiteResult {
    /// Adds the metrics whose reference answers do not get the best score to `metrics.json` and to
    /// the notes.
    ///
    /// # Errors
    ///
    /// Never for reports of suites.
    fn with_ceilings(mut self, suite: &SuiteInfo, ceilings: &[Ceiling]) -> Result<Self, Error> {
        if ceilings.is_empty() {
            return Ok(self);
        }
        if let Some(metrics) = self.files.get_mut(METRICS_FILE) {
            let fields = [("ceilings".to_owned(), json_value(&ceilings)?)];
            *metrics = with_fields(metrics, fields.into_iter().collect())?;
        }
        self.table = with_gold_scores(&self.table, suite, ceilings);
        self.notes.extend(ceiling_notes(suite, ceilings));
        Ok(self)
    }
}

/// Appends the score of the references to the lines of a table, if it is not the best possible.
/// Markdown tables are left unchanged: they have no column for it.
fn with_gold_scores(table: &str, suite: &SuiteInfo, ceilings: &[Ceiling]) -> String {
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

/// One note per metric whose reference answers do not get the best score.
fn ceiling_notes(suite: &SuiteInfo, ceilings: &[Ceiling]) -> impl Iterator<Item = String> {
    ceilings.iter().map(|ceiling| {
        format!(
            "{}.{}: the reference answers themselves score {:.4} on these rows",
            suite.name, ceiling.metric, ceiling.value
        )
    })
}

/// The files of a suite under their names in a checkpoint.
pub fn checkpoint_files(suite: Suite, files: Files) -> impl Iterator<Item = (String, Vec<u8>)> {
    let with_prefix = move |(name, bytes)| (format!("eval.{suite}.{name}"), bytes);
    files.into_iter().map(with_prefix)
}

/// Resources for the evaluation of a suite.
#[expect(
    missing_debug_implementations,
    reason = "it contains callbacks, which have no Debug representation"
)]
pub struct EvalContext<'c> {
    /// Generates completions; `None` for suites without a language model and for saved predictions.
    pub generator: Option<Generator<'c>>,
    /// Ranks documents, for suites with a retriever.
    pub retriever: Option<Retriever<'c>>,
    /// Contains the completions of an interrupted evaluation, and saves new ones.
    pub journal: Option<&'c mut Journal>,
    /// Saves files that must survive the failure of a judge.
    pub keep: &'c mut dyn FnMut(&Files) -> Result<(), Error>,
    /// Receives the progress; `false` stops the work.
    pub watch: &'c mut dyn FnMut(GenerationProgress) -> bool,
}

/// A retriever that ranks documents.
#[derive(Debug, Clone, Copy)]
pub struct Retriever<'c> {
    /// The encoder.
    pub encoder: &'c MiniLmEncoder,
    /// Whether its weights change between evaluations, so that embeddings cannot be reused.
    pub is_trained: bool,
}

impl<'c> EvalContext<'c> {
    /// The generator of completions.
    ///
    /// # Errors
    ///
    /// There is no generator.
    pub fn generator(&self) -> Result<Generator<'c>, Error> {
        self.generator.ok_or_else(|| {
            Error::Usage("the suite needs a language model: add [model] to the config".to_owned())
        })
    }
}

/// A suite with its samples loaded and its services open.
pub trait LoadedSuite: Debug {
    /// The suite.
    fn suite(&self) -> Suite;

    /// Number of samples.
    fn n_samples(&self) -> usize;

    /// Remarks about the data, printed before anything is generated.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether the remarks are part of the result and are printed with it.
    fn remarks_are_results(&self) -> bool {
        false
    }

    /// The prompts known before generation, for the digest of the journal.
    ///
    /// # Errors
    ///
    /// A prompt cannot be built.
    fn prompts(&self) -> Result<Vec<GenerationRequest<'_>>, Error> {
        Ok(Vec::new())
    }

    /// Generates and scores; `None` if `context.watch` stopped the work.
    ///
    /// # Errors
    ///
    /// The template rejects a prompt, or a server, judge or sandbox fails.
    fn evaluate(&self, context: EvalContext<'_>) -> Result<Option<SuiteResult>, Error>;

    /// Scores the `predictions.jsonl` of an earlier evaluation; `None` if `context.watch` stopped
    /// the work.
    ///
    /// # Errors
    ///
    /// The file cannot be read or has predictions of other samples; otherwise as
    /// [`LoadedSuite::evaluate`].
    fn score_saved(
        &self,
        path: &Path,
        context: EvalContext<'_>,
    ) -> Result<Option<SuiteResult>, Error>;
}

/// Purpose of opening a suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Evaluations during a run; they use a judge only if its table sets `in_loop`.
    Run,
    /// A single evaluation.
    Evaluation,
    /// Saved predictions.
    SavedPredictions,
}

/// Arguments for opening a suite.
#[derive(Debug, Clone, Copy)]
pub struct SuiteContext<'o> {
    /// The settings.
    pub config: &'o Config,
    /// Device for encoders.
    pub device: &'o Device,
    /// Purpose of opening the suite.
    pub purpose: Purpose,
    /// Row files of the command line, which override the files of the settings.
    pub data: &'o [PathBuf],
    /// Rows of `data.eval`, if a run has already read them.
    pub rows: Option<&'o [Row]>,
    /// Verdicts of people in place of a judge.
    pub verdicts: Option<&'o Path>,
}

impl<'o> SuiteContext<'o> {
    /// The files of a suite with its own table: the files of the command line, otherwise the
    /// table's own files, otherwise `data.eval`.
    ///
    /// # Errors
    ///
    /// There are no files.
    fn files(&self, own: &'o [PathBuf]) -> Result<&'o [PathBuf], Error> {
        if self.data.is_empty() && !own.is_empty() {
            return Ok(own);
        }
        eval_files(self.config)
    }
}

/// Reads the samples of `files`, at most `eval.max_samples` of them.
///
/// # Errors
///
/// Errors of `read`, which reads one file.
fn read_samples<T>(
    files: &[PathBuf],
    eval: &EvalConfig,
    mut read: impl FnMut(&Path) -> Result<Vec<T>, Error>,
) -> Result<(Vec<T>, SampleFiles), Error> {
    let (mut samples, mut sample_files) = (Vec::new(), SampleFiles::default());
    for file in files {
        let file_samples = read(file)?;
        sample_files.add(file, file_samples.len());
        samples.extend(file_samples);
    }
    let limit = eval.max_samples.unwrap_or(usize::MAX);
    samples.truncate(limit);
    sample_files.truncate(limit);
    Ok((samples, sample_files))
}

/// The files of `data.eval`.
///
/// # Errors
///
/// There are no files.
fn eval_files(config: &Config) -> Result<&[PathBuf], Error> {
    match config.data.eval.as_slice() {
        [] => Err(Error::Usage(
            "no rows to evaluate: name a file with --data or in data.eval".to_string(),
        )),
        files => Ok(files),
    }
}

/// A suite of the registry and its implementation.
struct SuiteKind {
    /// Registry entry of the suite.
    info: &'static SuiteInfo,
    /// Loads its samples and opens its services.
    open: fn(SuiteContext<'_>) -> Result<Box<dyn LoadedSuite>, Error>,
    /// Compares two `metrics.json` of the suite in a table, if the suite supports this.
    change: Option<Change>,
}

/// Builds a table of the differences between two `metrics.json`.
pub type Change = fn(&SavedMetrics<'_>, &SavedMetrics<'_>) -> Result<String, Error>;

/// A `metrics.json` of an evaluation.
#[derive(Debug)]
pub struct SavedMetrics<'f> {
    /// Name for messages.
    pub name: String,
    /// The content of the file.
    pub text: &'f str,
}

/// The format in which a chat template writes calls.
///
/// # Errors
///
/// The reason why the calls cannot be enforced.
pub(super) fn call_format(template: &ChatTemplate) -> Result<CallFormat, String> {
    calls::call_format(template)
}

/// Every suite that can be evaluated.
static KINDS: &[&SuiteKind] = &[
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
    let mut kinds = KINDS.iter().copied();
    let kind = kinds.find(|kind| kind.info.name == suite.as_str());
    kind.ok_or_else(|| Error::Usage(format!("the suite {suite} cannot be evaluated")))
}

/// Loads the samples of a suite and opens its services.
///
/// # Errors
///
/// A file, executor, judge or sandbox is missing or invalid.
pub fn open(suite: Suite, suite_context: SuiteContext<'_>) -> Result<Box<dyn LoadedSuite>, Error> {
    (kind(suite)?.open)(suite_context)
}

/// The function that compares two evaluations of the suite.
///
/// # Errors
///
/// The suite does not support `--compare`.
pub fn change_of(suite: Suite) -> Result<Change, Error> {
    kind(suite)?.change.ok_or_else(|| {
        let kinds = KINDS.iter().filter(|kind| kind.change.is_some());
        let names: Vec<&str> = kinds.map(|kind| kind.info.name).collect();
        Error::Usage(format!(
            "--compare only applies to the suite {}; run each evaluation with --output, then \
             `tooltune compare BEFORE AFTER`, which compares evaluations of any suite",
            names.join(" or ")
        ))
    })
}

/// Adds the tool runner to the operations of suites. `exec_dir` is a folder of functions, which run
/// in `sandbox`.
///
/// # Errors
///
/// This machine cannot run the functions in isolation.
pub fn with_functions(
    outside: Outside,
    exec_dir: Option<&Path>,
    sandbox: &SandboxConfig,
) -> Result<Outside, Error> {
    Ok(outside.with(nestful::open_tools(exec_dir, sandbox)?))
}

/// The suites of a run's evaluations, opened before training data is read, so that an invalid file,
/// executor or judge is found before the first evaluation.
#[derive(Debug, Default)]
pub struct LoadedSuites(Vec<Box<dyn LoadedSuite>>);

impl LoadedSuites {
    /// Opens the suites of the run that read files of their own.
    ///
    /// # Errors
    ///
    /// Same as [`open`].
    pub fn open(config: &Config, device: &Device) -> Result<Self, Error> {
        if config.eval.eval_strategy == EvalStrategy::No {
            return Ok(Self::default());
        }
        let suite_context = SuiteContext {
            config,
            device,
            purpose: Purpose::Run,
            data: &[],
            rows: None,
            verdicts: None,
        };
        let suites = config.eval.suites.iter().copied();
        let suites = suites.filter(|suite| !suite.needs().rows_are_samples());
        let suites = suites.map(|suite| open(suite, suite_context));
        let suites = Self(suites.collect::<Result<_, _>>()?);
        for suite in &suites.0 {
            for remark in suite.remarks() {
                let name = format!("{}: ", suite.suite());
                // Some remarks already start with the name of their suite.
                let name = if remark.starts_with(&name) { "" } else { &name };
                progress::print(&format!("{name}{remark}"));
            }
        }
        Ok(suites)
    }

    /// Opens the suites that score the run's own rows.
    ///
    /// # Errors
    ///
    /// Same as [`open`].
    pub fn from_rows(config: &Config, device: &Device, rows: &[Row]) -> Result<Self, Error> {
        let suite_context = SuiteContext {
            config,
            device,
            purpose: Purpose::Run,
            data: &[],
            rows: Some(rows),
            verdicts: None,
        };
        let suites = config.eval.suites.iter().copied();
        let suites = suites.filter(|suite| suite.needs().rows_are_samples());
        let suites = suites.map(|suite| open(suite, suite_context));
        Ok(Self(suites.collect::<Result<_, _>>()?))
    }

    /// Evaluates the suites with `retriever`, without a language model. Returns metrics, and files
    /// for a checkpoint.
    ///
    /// # Errors
    ///
    /// Errors of the suites.
    pub fn evaluate_rankings(&self, retriever: &MiniLmEncoder) -> Result<(Metrics, Files), Error> {
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
                files.extend(checkpoint_files(suite.suite(), result.files));
            }
        }
        Ok((metrics, files))
    }

    /// The suites.
    pub fn iter(&self) -> impl Iterator<Item = &dyn LoadedSuite> {
        self.0.iter().map(|suite| &**suite)
    }

    /// The name of each suite, with its number of samples.
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
            assert!(
                kind(suite).is_ok(),
                "the suite {suite} is not in KINDS of trainer/src/eval/suites/mod.rs: see step 2 \
                 of \"Add a suite\" in CONTRIBUTING.md"
            );
        }
        assert_eq!(
            KINDS.len(),
            Suite::all().count(),
            "a suite of KINDS is not in SUITES of data/suites/src/lib.rs: see step 1 of \
             \"Add a suite\" in CONTRIBUTING.md"
        );
    }

    #[test]
    fn a_ceiling_is_printed_next_to_its_value() {
        let slot = SuiteInfo::from_name("slot").expect("a suite");
        let ceilings = [Ceiling {
            metric: "strict_keys_accuracy",
            value: 0.625,
        }];
        let table = "slot.mean  0.5000\nslot.strict_keys_accuracy  0.5000 [0.4, 0.6]\nn  8";
        assert_eq!(
            with_gold_scores(table, slot, &ceilings),
            "slot.mean  0.5000\nslot.strict_keys_accuracy  0.5000 [0.4, 0.6]  gold 0.6250\nn  8"
        );
    }
}
