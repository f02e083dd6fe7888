//! Where a run tells how it goes: its metric files, and the views of [`crate::metrics`].
//!
//! `metrics.jsonl` holds only what is a function of config and step, so that a resumed run's file
//! is the uninterrupted one's; what depends on the clock goes to `timing.jsonl`. Files that cannot
//! be written end the run; views that fail do not.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use serde_json::{Map, Value, json};
use tooltune_checkpoints::run_dir::{Checkpoint, MetricsFile, RunDir};

use super::history::History;
use super::loss_watch::LossWatch;
use super::selection::measured;
use crate::config::{Config, EvalStrategy, MetricExpression, ReportTo, flat};
use crate::error::Error;
use crate::eval::generate::GenerationProgress;
use crate::metrics::{
    EvalRecord, Evaluated, MetricSink, Moved, Record, ResumeRecord, RetrieverRecord, RunHeader,
    StepRecord, TensorBoardSink, TerminalSink, Timing,
};
use crate::process::peak_rss_bytes;
use crate::progress::Progress;

/// A line of `metrics.jsonl` about training.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct StepLine {
    /// Optimizer steps taken.
    pub step: u64,
    /// Passes over the examples, with a fraction.
    pub epoch: f64,
    /// Mean over the learned tokens since the last line, in nats; null if every step was skipped.
    pub loss: f64,
    /// Global norm before clipping, of this step.
    pub grad_norm: f64,
    /// Of this step.
    pub learning_rate: f64,
    /// Read since the run's beginning.
    pub tokens: u64,
    /// Learned since the run's beginning.
    pub trained_tokens: u64,
}

/// A line of `timing.jsonl`: what one step cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct StepTiming {
    /// Optimizer step.
    pub step: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Processor seconds of all threads.
    pub cpu_seconds: f64,
    /// Tokens of the step.
    pub tokens: usize,
    /// Of which learned.
    pub trained_tokens: usize,
    /// Of the retriever, where one is trained; its time is no part of `seconds`.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub retriever: Option<RetrieverTiming>,
}

/// A line of `metrics.jsonl` about a retriever.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct RetrieverLine {
    /// Optimizer steps of the run.
    pub step: u64,
    /// Optimizer steps of the retriever.
    #[serde(rename = "retriever/step")]
    pub retriever_step: u64,
    /// Passes over the pairs, with a fraction.
    #[serde(rename = "retriever/epoch")]
    pub epoch: f64,
    /// Mean over the steps since the last line, in nats per pair.
    #[serde(rename = "retriever/loss")]
    pub loss: f64,
    /// Global norm before clipping, of the last step.
    #[serde(rename = "retriever/grad_norm")]
    pub grad_norm: f64,
    /// Of the last step.
    #[serde(rename = "retriever/learning_rate")]
    pub learning_rate: f64,
    /// Pairs since the run's beginning.
    #[serde(rename = "retriever/pairs")]
    pub pairs: u64,
}

/// What the steps of a retriever cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct RetrieverTiming {
    /// Wall-clock seconds.
    pub retriever_seconds: f64,
    /// Pairs learned from.
    pub retriever_pairs: usize,
}

/// The metric files and views of a run.
#[derive(Debug)]
pub(crate) struct Reporter {
    metrics: MetricsFile,
    timing: MetricsFile,
    history: History,
    terminal: TerminalSink,
    views: Vec<Box<dyn MetricSink>>,
    pace: Pace,
    started: Instant,
    /// Sums since the last line.
    since: Window,
    /// The mean loss of the last step.
    last_loss: Option<f64>,
    loss_watch: LossWatch,
    /// The setting of the learning rate of that loss.
    rate_key: &'static str,
    evaluation: Option<(Instant, Progress)>,
    epoch: f64,
}

/// How fast a run is, and how much of it is left.
#[derive(Debug, Clone, Copy)]
struct Pace {
    total_steps: u64,
    /// Steps between two evaluations; nothing for a run that does not evaluate.
    eval_steps: Option<u64>,
    /// Of a step, the last ones weighing most; once this process has taken one.
    step_seconds: Option<f64>,
    /// Of the last evaluation of this process.
    eval_seconds: f64,
}

impl Pace {
    /// Weight of a new step, so that the last ten or so count.
    const NEW: f64 = 0.1;

    fn stepped(&mut self, seconds: f64) {
        let mean = self.step_seconds.unwrap_or(seconds);
        self.step_seconds = Some(mean + Self::NEW * (seconds - mean));
    }

    /// Seconds that are left at `step`, of which a part may be done, in `seconds` so far.
    fn remaining(&self, step: f64, seconds: f64) -> Option<f64> {
        let part = step.fract();
        let of_first = || (part > 0.0).then(|| seconds / part);
        let step_seconds = self.step_seconds.or_else(of_first)?;
        let total = self.total_steps as f64;
        let evaluations = self.eval_steps.map_or(0.0, |every| {
            let all = (total / every as f64).ceil();
            (all - (step / every as f64).floor()).max(0.0)
        });
        Some((total - step).max(0.0) * step_seconds + evaluations * self.eval_seconds)
    }
}

/// What the views' rates are computed from.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    seconds: f64,
    tokens: usize,
    trained_tokens: usize,
    retriever: RetrieverTiming,
}

impl Reporter {
    /// Opens the files of a run that starts over (`None`) or resumes from a checkpoint.
    ///
    /// # Errors
    ///
    /// A file that cannot be opened or shortened, or a checkpoint whose history cannot be read.
    pub(crate) fn open(
        config: &Config,
        run_dir: &RunDir,
        start: Option<&Checkpoint>,
        total_steps: u64,
    ) -> Result<Self, Error> {
        let history = start.map(History::of).transpose()?.flatten();
        let [metrics, timing] = ["metrics.jsonl", "timing.jsonl"].map(|name| {
            let path = run_dir.path().join(name);
            let Some(checkpoint) = start else {
                remove_if_present(&path)?;
                return Ok(MetricsFile::open(&path)?);
            };
            // What depends on the clock is not known beforehand.
            let known = history.as_ref().filter(|_| name == "metrics.jsonl");
            let mark = known.and_then(|history| history.metrics.as_ref());
            let keep = |line: &Value| known.is_none_or(|history| history.keeps(line));
            let (file, remark) = MetricsFile::resume(&path, checkpoint.step, mark, &keep)?;
            if let Some(remark) = remark {
                tracing::warn!(
                    "{}: {remark}; curves lack what is missing, and BEST and early stopping go by \
                     the evaluations that the checkpoints keep",
                    path.display()
                );
            }
            Ok::<_, Error>(file)
        });
        let mut views: Vec<Box<dyn MetricSink>> = Vec::new();
        if config.log.report_to.contains(&ReportTo::Tensorboard) {
            let header = RunHeader {
                config: config.to_toml().unwrap_or_default(),
                settings: flat(config),
                first_step: start.map_or(0, |checkpoint| checkpoint.step + 1),
                total_steps,
            };
            views.push(Box::new(TensorBoardSink::start(run_dir.path(), header)));
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
            views,
            pace: Pace {
                total_steps,
                eval_steps,
                step_seconds: None,
                eval_seconds: 0.0,
            },
            started: Instant::now(),
            since: Window::default(),
            last_loss: None,
            loss_watch: LossWatch::default(),
            rate_key: match config.model {
                Some(_) => "train.learning_rate",
                None => "retriever.learning_rate",
            },
            evaluation: None,
            epoch: 0.0,
        })
    }

    /// Shows where a run resumes, and whether anything is left to do.
    pub(crate) fn resumed(&mut self, checkpoint: &Checkpoint, is_over: bool) {
        self.show(&Record::Resumed(ResumeRecord {
            checkpoint: checkpoint.path.clone(),
            step: checkpoint.step,
            is_over,
        }));
    }

    /// Shows that a part of the present step is done, after `seconds`.
    pub(crate) fn within_step(&mut self, step: f64, seconds: f64) {
        self.moved(step, None, seconds);
    }

    fn moved(&mut self, step: f64, loss: Option<f64>, seconds: f64) {
        self.terminal.moved(&Moved {
            step,
            loss: loss.or(self.last_loss),
            elapsed_secs: self.started.elapsed().as_secs_f64(),
            remaining_secs: self.pace.remaining(step, seconds),
        });
    }

    /// Writes what a step cost, and shows it with its mean loss.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn timing(&mut self, timing: &StepTiming, loss: f64) -> Result<(), Error> {
        let of_retriever = timing
            .retriever
            .map_or(0.0, |spent| spent.retriever_seconds);
        self.pace.stepped(timing.seconds + of_retriever);
        self.last_loss = Some(loss);
        self.moved(timing.step as f64, self.last_loss, 0.0);
        if let Some(line) = self.loss_watch.take(timing.step, loss, self.rate_key) {
            tracing::warn!("{line}");
        }
        self.since.seconds += timing.seconds;
        self.since.tokens += timing.tokens;
        self.since.trained_tokens += timing.trained_tokens;
        if let Some(retriever) = &timing.retriever {
            self.since.retriever.retriever_seconds += retriever.retriever_seconds;
            self.since.retriever.retriever_pairs += retriever.retriever_pairs;
        }
        let mut line = json!(timing);
        line["peak_rss_bytes"] = json!(peak_rss_bytes());
        Ok(self.timing.append(&line)?)
    }

    /// Writes and shows the line of a training step.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn step(&mut self, line: &StepLine) -> Result<(), Error> {
        self.metrics.append(&json!(line))?;
        let timing = self.since_the_last_line(line.step);
        self.epoch = line.epoch;
        self.show(&Record::Step(StepRecord {
            step: line.step,
            epoch: line.epoch,
            loss: line.loss,
            grad_norm: line.grad_norm,
            learning_rate: line.learning_rate,
            tokens: line.tokens,
            trained_tokens: line.trained_tokens,
            timing,
        }));
        Ok(())
    }

    /// Writes and shows the line of a retriever; before that of the step, if there is one.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn retriever(&mut self, line: &RetrieverLine, is_alone: bool) -> Result<(), Error> {
        self.metrics.append(&json!(line))?;
        let spent = self.since.retriever;
        if is_alone {
            self.epoch = line.epoch;
        }
        let timing = is_alone.then(|| self.since_the_last_line(line.step));
        self.show(&Record::Retriever(RetrieverRecord {
            step: line.step,
            retriever_step: line.retriever_step,
            loss: line.loss,
            grad_norm: line.grad_norm,
            learning_rate: line.learning_rate,
            pairs_per_sec: spent.retriever_pairs as f64 / spent.retriever_seconds.max(1e-9),
            timing,
        }));
        Ok(())
    }

    /// Rates since the last line, which is this one from now on.
    fn since_the_last_line(&mut self, step: u64) -> Timing {
        let since = std::mem::take(&mut self.since);
        let secs = since.seconds.max(1e-9);
        Timing {
            elapsed_secs: self.started.elapsed().as_secs_f64(),
            tokens_per_sec: since.tokens as f64 / secs,
            trained_tokens_per_sec: since.trained_tokens as f64 / secs,
            peak_rss_bytes: peak_rss_bytes(),
            remaining_secs: self.pace.remaining(step as f64, 0.0),
        }
    }

    /// Shows how far an evaluation is.
    pub(crate) fn generation(&mut self, state: GenerationProgress) {
        let (_, progress) = self
            .evaluation
            .get_or_insert_with(|| (Instant::now(), Progress::begin()));
        progress.generated(state);
    }

    /// Writes and shows the line of an evaluation.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn evaluation(
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
        self.metrics.append(&line)?;
        self.history.evaluations.push(line);
        let elapsed_secs = self
            .evaluation
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

    /// Makes the files survive a power cut; due before a checkpoint is saved.
    ///
    /// # Errors
    ///
    /// The system cannot write them.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.metrics.sync()?;
        Ok(self.timing.sync()?)
    }

    /// What the run has evaluated so far.
    pub(crate) fn evaluations(&self) -> &[Value] {
        &self.history.evaluations
    }

    /// Whether the evaluation at `step` is done.
    pub(crate) fn has_evaluated(&self, step: u64) -> bool {
        self.history.evaluation(step).is_some()
    }

    /// What a checkpoint keeps of all this.
    pub(crate) fn history(&self) -> Vec<u8> {
        let history = History {
            metrics: Some(self.metrics.mark()),
            evaluations: self.history.evaluations.clone(),
        };
        history.bytes()
    }

    fn show(&mut self, record: &Record) {
        self.terminal.record(record);
        self.views.iter_mut().for_each(|view| view.record(record));
    }
}

/// The view on the terminal, which knows the last evaluation of earlier processes.
fn terminal(config: &Config, history: &History, total_steps: u64) -> TerminalSink {
    let mut terminal = TerminalSink::stderr(total_steps);
    if let Ok(metric) = MetricExpression::parse(&config.eval.metric_for_best_model) {
        terminal = terminal.with_chosen(metric.names());
    }
    if let Some(line) = history.evaluations.last() {
        terminal.remember(Evaluated {
            step: line["step"].as_u64().unwrap_or_default(),
            metrics: measured(line).into_iter().collect(),
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
