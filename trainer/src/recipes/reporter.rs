//! Reports the progress of a run to its metric files and the sinks of [`crate::metrics`].
//!
//! `metrics.jsonl` contains only values determined by config and step, so a resumed run writes the
//! same file as an uninterrupted one. Timings are written to `timing.jsonl`. The run ends if a
//! metric file cannot be written; failing sinks do not end it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use serde_json::{Map, Value, json};
use tooltune_checkpoints::run_dir::{Checkpoint, MetricsFile, RunDir};

use super::history::History;
use super::loss_watch::LossWatch;
use super::selection::measurements;
use crate::config::{Config, EvalStrategy, MetricExpression, ReportTo, flat};
use crate::error::Error;
use crate::eval::generate::GenerationProgress;
use crate::metrics::{
    EvalRecord, Evaluated, MetricSink, ProgressUpdate, Record, ResumeRecord, RetrieverRecord,
    RunHeader, StepMetrics, StepRecord, TensorBoardSink, TerminalSink, Timing,
};
use crate::process::peak_rss_bytes;
use tooltune_terminal::Progress;

/// A line of `timing.jsonl`: one step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct StepTiming {
    /// Optimizer step.
    pub step: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// CPU seconds over all threads.
    pub cpu_seconds: f64,
    /// Tokens of the step.
    pub tokens: usize,
    /// Supervised tokens of the step.
    pub trained_tokens: usize,
    /// Communication with other ranks, if there are any; included in `seconds`.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<RanksTiming>,
    /// Cost of the retriever, if one is trained; not included in `seconds`.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub retriever: Option<RetrieverTiming>,
}

/// A line of `metrics.jsonl` about the retriever.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct RetrieverLine {
    /// Optimizer steps of the run.
    pub step: u64,
    /// Optimizer steps of the retriever.
    #[serde(rename = "retriever/step")]
    pub retriever_step: u64,
    /// Passes over the pairs so far; can be fractional.
    #[serde(rename = "retriever/epoch")]
    pub epoch: f64,
    /// Mean loss over the steps since the last line, in nats per pair.
    #[serde(rename = "retriever/loss")]
    pub loss: f64,
    /// Global gradient norm of the last step before clipping.
    #[serde(rename = "retriever/grad_norm")]
    pub grad_norm: f64,
    /// Learning rate of the last step.
    #[serde(rename = "retriever/learning_rate")]
    pub learning_rate: f64,
    /// Pairs since the start of the run.
    #[serde(rename = "retriever/pairs")]
    pub pairs: u64,
}

/// Communication of rank 0 with the other ranks in a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct RanksTiming {
    /// Seconds until all ranks had computed their micro-batches, after this one had.
    pub door_seconds: f64,
    /// Seconds of adding the gradients of all ranks.
    pub sum_seconds: f64,
}

/// Cost of a retriever's steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct RetrieverTiming {
    /// Wall-clock seconds.
    pub retriever_seconds: f64,
    /// Pairs trained on.
    pub retriever_pairs: usize,
}

/// Metric files and sinks of a run.
#[derive(Debug)]
pub(crate) struct Reporter {
    metrics: MetricsFile,
    timing: MetricsFile,
    history: History,
    terminal: TerminalSink,
    sinks: Vec<Box<dyn MetricSink>>,
    pace: Pace,
    started: Instant,
    /// Sums since the last line.
    window: Window,
    /// Mean loss of the last step.
    last_loss: Option<f64>,
    loss_watch: LossWatch,
    /// The learning-rate setting to name in the warning about a diverging loss.
    rate_key: &'static str,
    evaluation_progress: Option<(Instant, Progress)>,
    epoch: f64,
}

/// Speed of a run, to estimate the remaining time.
#[derive(Debug, Clone, Copy)]
struct Pace {
    total_steps: u64,
    /// Steps between two evaluations; `None` if the run does not evaluate.
    eval_steps: Option<u64>,
    /// Moving average of seconds per step; `None` before the first step of this process.
    step_seconds: Option<f64>,
    /// Seconds of the last evaluation in this process.
    eval_seconds: f64,
}

impl Pace {
    /// Weight of a new step in the moving average, which then covers about ten steps.
    const SMOOTHING: f64 = 0.1;

    fn record_step(&mut self, seconds: f64) {
        let mean = self.step_seconds.unwrap_or(seconds);
        self.step_seconds = Some(mean + Self::SMOOTHING * (seconds - mean));
    }

    /// Remaining seconds at `step`. If `step` is fractional, a step is in progress and has taken
    /// `seconds` so far.
    fn remaining(&self, step: f64, seconds: f64) -> Option<f64> {
        let part = step.fract();
        let first_step_seconds = || (part > 0.0).then(|| seconds / part);
        let step_seconds = self.step_seconds.or_else(first_step_seconds)?;
        let total = self.total_steps as f64;
        let evaluations = self.eval_steps.map_or(0.0, |every| {
            let all = (total / every as f64).ceil();
            (all - (step / every as f64).floor()).max(0.0)
        });
        Some((total - step).max(0.0) * step_seconds + evaluations * self.eval_seconds)
    }
}

/// Sums for the rates that the sinks display.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    seconds: f64,
    tokens: usize,
    trained_tokens: usize,
    retriever: RetrieverTiming,
}

impl Reporter {
    /// Opens the metric files of a run. The run resumes from the checkpoint `start`, or starts at
    /// step 0 if that is `None`.
    ///
    /// # Errors
    ///
    /// A file cannot be opened or truncated, or the checkpoint's history cannot be read.
    pub(crate) fn open(
        config: &Config,
        run_dir: &RunDir,
        start: Option<&Checkpoint>,
        total_steps: u64,
    ) -> Result<Self, Error> {
        let history = start.map(History::read).transpose()?.flatten();
        let [metrics, timing] = ["metrics.jsonl", "timing.jsonl"].map(|name| {
            let path = run_dir.path().join(name);
            let Some(checkpoint) = start else {
                remove_if_present(&path)?;
                return Ok(MetricsFile::open(&path)?);
            };
            // Only metrics.jsonl is checked against the history: timings differ from run to run.
            let known = history.as_ref().filter(|_| name == "metrics.jsonl");
            let mark = known.and_then(|history| history.metrics.as_ref());
            let keep = |line: &Value| known.is_none_or(|history| history.is_in_history(line));
            let (file, remark) = MetricsFile::resume(&path, checkpoint.step, mark, &keep)?;
            if let Some(remark) = remark {
                tracing::warn!(
                    "{}: {remark}; curves lack these lines, but BEST and early stopping use \
                     the evaluations in the checkpoints",
                    path.display()
                );
            }
            Ok::<_, Error>(file)
        });
        let mut sinks: Vec<Box<dyn MetricSink>> = Vec::new();
        if config.log.report_to.contains(&ReportTo::Tensorboard) {
            let header = RunHeader {
                config: config.to_toml().unwrap_or_default(),
                settings: flat(config),
                first_step: start.map_or(0, |checkpoint| checkpoint.step + 1),
                total_steps,
            };
            sinks.push(Box::new(TensorBoardSink::start(run_dir.path(), header)));
        }
        let eval_steps = match config.eval.eval_strategy {
            EvalStrategy::Steps => Some(config.eval.eval_steps),
            EvalStrategy::No => None,
        };
        let history = history.unwrap_or_default();
        Ok(Self {
            metrics: metrics?,
            timing: timing?,
            terminal: terminal(config, &history, total_steps),
            history,
            sinks,
            pace: Pace {
                total_steps,
                eval_steps,
                step_seconds: None,
                eval_seconds: 0.0,
            },
            started: Instant::now(),
            window: Window::default(),
            last_loss: None,
            loss_watch: LossWatch::default(),
            rate_key: match config.model {
                Some(_) => "train.learning_rate",
                None => "retriever.learning_rate",
            },
            evaluation_progress: None,
            epoch: 0.0,
        })
    }

    /// Displays the step at which the run resumes, and whether the run is already complete.
    pub(crate) fn show_resumed_step(&mut self, checkpoint: &Checkpoint, is_over: bool) {
        self.show(&Record::Resumed(ResumeRecord {
            checkpoint: checkpoint.path.clone(),
            step: checkpoint.step,
            is_over,
        }));
    }

    /// Displays the progress within the current step, which has taken `seconds` so far.
    pub(crate) fn show_step_progress(&mut self, step: f64, seconds: f64) {
        self.show_progress(step, None, seconds);
    }

    fn show_progress(&mut self, step: f64, loss: Option<f64>, seconds: f64) {
        self.terminal.update_progress(&ProgressUpdate {
            step,
            loss: loss.or(self.last_loss),
            elapsed_secs: self.started.elapsed().as_secs_f64(),
            remaining_secs: self.pace.remaining(step, seconds),
        });
    }

    /// Writes the timing of a step and displays it with its mean loss.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn record_timing(&mut self, timing: &StepTiming, loss: f64) -> Result<(), Error> {
        let retriever_seconds = timing
            .retriever
            .map_or(0.0, |retriever_time| retriever_time.retriever_seconds);
        self.pace.record_step(timing.seconds + retriever_seconds);
        self.last_loss = Some(loss);
        self.show_progress(timing.step as f64, self.last_loss, 0.0);
        if let Some(line) = self.loss_watch.take(timing.step, loss, self.rate_key) {
            tracing::warn!("{line}");
        }
        self.window.seconds += timing.seconds;
        self.window.tokens += timing.tokens;
        self.window.trained_tokens += timing.trained_tokens;
        if let Some(retriever) = &timing.retriever {
            self.window.retriever.retriever_seconds += retriever.retriever_seconds;
            self.window.retriever.retriever_pairs += retriever.retriever_pairs;
        }
        let mut line = json!(timing);
        line["peak_rss_bytes"] = json!(peak_rss_bytes());
        append(&mut self.timing, &line)
    }

    /// Writes and displays the line of a training step.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn record_training_step(&mut self, line: &StepMetrics) -> Result<(), Error> {
        append(&mut self.metrics, &json!(line))?;
        let timing = self.take_rates(line.step);
        self.epoch = line.epoch;
        self.show(&Record::Step(StepRecord {
            metrics: *line,
            timing,
        }));
        Ok(())
    }

    /// Writes and displays the line about the retriever. Call it before
    /// [`Self::record_training_step`].
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn record_retriever(
        &mut self,
        line: &RetrieverLine,
        is_alone: bool,
    ) -> Result<(), Error> {
        append(&mut self.metrics, &json!(line))?;
        let retriever_time = self.window.retriever;
        if is_alone {
            self.epoch = line.epoch;
        }
        let timing = is_alone.then(|| self.take_rates(line.step));
        self.show(&Record::Retriever(RetrieverRecord {
            step: line.step,
            retriever_step: line.retriever_step,
            loss: line.loss,
            grad_norm: line.grad_norm,
            learning_rate: line.learning_rate,
            pairs_per_sec: retriever_time.retriever_pairs as f64
                / retriever_time.retriever_seconds.max(1e-9),
            timing,
        }));
        Ok(())
    }

    /// Rates since the last line; starts a new window at `step`.
    fn take_rates(&mut self, step: u64) -> Timing {
        let window = std::mem::take(&mut self.window);
        let secs = window.seconds.max(1e-9);
        Timing {
            elapsed_secs: self.started.elapsed().as_secs_f64(),
            tokens_per_sec: window.tokens as f64 / secs,
            trained_tokens_per_sec: window.trained_tokens as f64 / secs,
            peak_rss_bytes: peak_rss_bytes(),
            remaining_secs: self.pace.remaining(step as f64, 0.0),
        }
    }

    /// Displays the progress of an evaluation.
    pub(crate) fn show_generation(&mut self, state: GenerationProgress) {
        let (_, progress) = self
            .evaluation_progress
            .get_or_insert_with(|| (Instant::now(), Progress::begin()));
        progress.show(state);
    }

    /// Writes and displays the line of an evaluation.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn record_evaluation(
        &mut self,
        step: u64,
        metrics: &BTreeMap<String, f64>,
    ) -> Result<(), Error> {
        let mut line = Map::from_iter([("step".to_string(), json!(step))]);
        line.extend(
            metrics
                .iter()
                .map(|(name, value)| (format!("eval/{name}"), json!(value))),
        );
        let line = Value::Object(line);
        append(&mut self.metrics, &line)?;
        self.history.evaluations.push(line);
        let elapsed_secs =
            self.evaluation_progress
                .take()
                .map_or(0.0, |(started, mut progress)| {
                    progress.finish();
                    started.elapsed().as_secs_f64()
                });
        self.pace.eval_seconds = elapsed_secs;
        self.show(&Record::Eval(EvalRecord {
            step,
            epoch: self.epoch,
            metrics: metrics
                .iter()
                .map(|(name, value)| (name.clone(), *value))
                .collect(),
            elapsed_secs,
        }));
        Ok(())
    }

    /// Syncs the files to disk before a checkpoint is saved, and writes a removed file again.
    ///
    /// # Errors
    ///
    /// The system cannot write them.
    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        for file in [&mut self.metrics, &mut self.timing] {
            file.sync()?;
            warn_of_changes(file);
        }
        Ok(())
    }

    /// All evaluations of the run so far.
    pub(crate) fn evaluations(&self) -> &[Value] {
        &self.history.evaluations
    }

    /// Whether the run was evaluated at `step`.
    pub(crate) fn has_evaluated(&self, step: u64) -> bool {
        self.history.evaluation(step).is_some()
    }

    /// Content of `history.json` for a checkpoint.
    pub(crate) fn history_json(&self) -> Vec<u8> {
        let history = History {
            metrics: Some(self.metrics.mark()),
            evaluations: self.history.evaluations.clone(),
        };
        history.bytes()
    }

    fn show(&mut self, record: &Record) {
        self.terminal.record(record);
        self.sinks.iter_mut().for_each(|sink| sink.record(record));
    }
}

fn append(file: &mut MetricsFile, line: &Value) -> Result<(), Error> {
    file.append(line)?;
    warn_of_changes(file);
    Ok(())
}

fn warn_of_changes(file: &mut MetricsFile) {
    for remark in file.take_remarks() {
        tracing::warn!("{remark}");
    }
}

/// The terminal sink, initialised with the last evaluation before the run was resumed.
fn terminal(config: &Config, history: &History, total_steps: u64) -> TerminalSink {
    let mut terminal = TerminalSink::stderr(total_steps);
    if let Ok(metric) = MetricExpression::parse(&config.eval.metric_for_best_model) {
        terminal = terminal.with_chosen(metric.names());
    }
    if let Some(line) = history.evaluations.last() {
        terminal.remember(Evaluated {
            step: line["step"].as_u64().unwrap_or_default(),
            metrics: measurements(line).into_iter().collect(),
        });
    }
    terminal
}

fn remove_if_present(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(path, "remove")(error))
        }
        _ => Ok(()),
    }
}
