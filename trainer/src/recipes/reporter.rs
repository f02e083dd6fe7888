//! Where a run tells how it goes: metric files and the terminal.
//!
//! `metrics.jsonl` holds only what is a function of config and step, so that a resumed run's file
//! is the uninterrupted one's; what depends on the clock goes to `timing.jsonl`. TensorBoard and
//! the progress view are sinks that may fail without ending the run.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value, json};
use tooltune_checkpoints::run_dir::{MetricsFile, RunDir};

use crate::config::Config;
use crate::error::Error;
use crate::eval::generate::GenerationProgress;
use crate::process::peak_rss_bytes;

/// A line of `metrics.jsonl` about training.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct StepLine {
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
pub(super) struct StepTiming {
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
    /// Largest resident set of the process so far, in bytes; null where the system does not tell.
    pub peak_rss_bytes: Option<u64>,
}

/// The metric files and views of a run.
#[derive(Debug)]
pub(super) struct Reporter {
    metrics: MetricsFile,
    timing: MetricsFile,
}

impl Reporter {
    /// Opens the files of a run that begins anew (`None`) or goes on after `step`.
    ///
    /// # Errors
    ///
    /// A file that cannot be opened or shortened.
    pub(super) fn open(
        _config: &Config,
        run_dir: &RunDir,
        step: Option<u64>,
        _total_steps: u64,
    ) -> Result<Self, Error> {
        let open = |name: &str| -> Result<MetricsFile, Error> {
            let path = run_dir.path().join(name);
            match step {
                Some(step) => {
                    let mut file = MetricsFile::open(&path)?;
                    file.truncate_after(step)?;
                    Ok(file)
                }
                None => {
                    remove_if_present(&path)?;
                    Ok(MetricsFile::open(&path)?)
                }
            }
        };
        Ok(Self { metrics: open("metrics.jsonl")?, timing: open("timing.jsonl")? })
    }

    /// Writes the line of a training step.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(super) fn step(&mut self, line: &StepLine) -> Result<(), Error> {
        Ok(self.metrics.append(&json!(line))?)
    }

    /// Writes what a step cost.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(super) fn timing(&mut self, timing: &StepTiming, _loss: f64) -> Result<(), Error> {
        let timing = StepTiming { peak_rss_bytes: peak_rss_bytes(), ..*timing };
        Ok(self.timing.append(&json!(timing))?)
    }

    /// Writes the line of an evaluation.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(super) fn evaluation(
        &mut self,
        step: u64,
        metrics: &BTreeMap<String, f64>,
    ) -> Result<(), Error> {
        let mut line = Map::from_iter([("step".to_string(), json!(step))]);
        line.extend(metrics.iter().map(|(name, value)| (format!("eval/{name}"), json!(value))));
        Ok(self.metrics.append(&Value::Object(line))?)
    }

    /// Shows how far an evaluation is.
    pub(super) fn generation(&mut self, _progress: GenerationProgress) {}

    /// Makes the files survive a power cut; due before a checkpoint is saved.
    ///
    /// # Errors
    ///
    /// The system cannot write them.
    pub(super) fn sync(&self) -> Result<(), Error> {
        self.metrics.sync()?;
        Ok(self.timing.sync()?)
    }

    /// Ends the views.
    pub(super) fn close(&mut self) {}
}

fn remove_if_present(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(path, "remove")(error))
        }
        _ => Ok(()),
    }
}
