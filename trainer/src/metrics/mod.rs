//! The sinks that display the metrics of a run: the terminal and TensorBoard.
//!
//! A sink may drop records, but never ends the run. `metrics.jsonl` and `timing.jsonl`, which must
//! be complete, are written by the recipe itself.

#[cfg(test)]
mod shared_writer;
mod tensorboard;
mod terminal;

use std::path::PathBuf;

use serde::Serialize;

pub use tensorboard::{RunHeader, TensorBoardSink};
pub use terminal::{Evaluated, TerminalSink};

/// A sink for a run's metrics.
pub trait MetricSink: std::fmt::Debug {
    /// Displays one record, or drops it if that fails.
    fn record(&mut self, record: &Record);
}

/// A metrics event.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A run resumes after an earlier process.
    Resumed(ResumeRecord),
    /// Optimizer steps since the previous record.
    Step(StepRecord),
    /// Optimizer steps of a retriever since the previous record.
    Retriever(RetrieverRecord),
    /// An evaluation.
    Eval(EvalRecord),
}

/// The progress of a run between two records.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ProgressUpdate {
    /// Optimizer steps since the start of the run, including the finished fraction of the current
    /// one.
    pub step: f64,
    /// Mean loss of the last step.
    pub loss: Option<f64>,
    /// Seconds since the start of training in this process.
    pub elapsed_secs: f64,
    /// Estimated seconds until the last step, if available.
    pub remaining_secs: Option<f64>,
}

/// The start of a resumed run.
#[derive(Debug, Clone, PartialEq)]
pub struct ResumeRecord {
    /// The checkpoint that was loaded.
    pub checkpoint: PathBuf,
    /// Optimizer steps since the start of the run.
    pub step: u64,
    /// Whether all steps are done.
    pub is_over: bool,
}

/// Metrics of a retriever's training.
#[derive(Debug, Clone, PartialEq)]
pub struct RetrieverRecord {
    /// Optimizer steps of the run.
    pub step: u64,
    /// Optimizer steps of the retriever, equal to `step` if only the retriever is trained.
    pub retriever_step: u64,
    /// Mean loss since the previous record, in nats per pair.
    pub loss: f64,
    /// Global gradient norm of the last step before clipping.
    pub grad_norm: f64,
    /// Learning rate of the last step.
    pub learning_rate: f64,
    /// Pairs per second of retriever time since the previous record.
    pub pairs_per_sec: f64,
    /// Timing, if only the retriever is trained.
    pub timing: Option<Timing>,
}

/// Metrics of an optimizer step: a line of `metrics.jsonl`.
///
/// TensorBoard cannot plot a loss or norm that is not finite, so it is omitted there.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StepMetrics {
    /// Optimizer steps since the start of the run.
    pub step: u64,
    /// Passes over the rows since the start of the run; can be fractional.
    pub epoch: f64,
    /// Mean loss over the supervised tokens since the previous record, in nats; NaN if every step
    /// was skipped, which is null in JSON.
    pub loss: f64,
    /// Global gradient norm of the step before clipping.
    pub grad_norm: f64,
    /// Learning rate of the step.
    pub learning_rate: f64,
    /// Tokens since the start of the run, without padding.
    pub tokens: u64,
    /// Supervised tokens since the start of the run.
    pub trained_tokens: u64,
}

/// Metrics and timing of an optimizer step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepRecord {
    /// Metrics of the step.
    pub metrics: StepMetrics,
    /// Timing of the step.
    pub timing: Timing,
}

/// Values that differ between two runs of the same config.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Timing {
    /// Seconds since the start of training in this process.
    pub elapsed_secs: f64,
    /// Tokens per second since the previous record.
    pub tokens_per_sec: f64,
    /// Supervised tokens per second since the previous record.
    pub trained_tokens_per_sec: f64,
    /// Peak memory of the process in bytes, if the system reports it.
    pub peak_rss_bytes: Option<u64>,
    /// Estimated seconds until the last step, if available.
    pub remaining_secs: Option<f64>,
}

/// The result of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalRecord {
    /// Optimizer steps since the start of the run; 0 before the first step.
    pub step: u64,
    /// Passes over the rows since the start of the run.
    pub epoch: f64,
    /// Values by name, such as `loss` or `slot.mean`, in display order.
    pub metrics: Vec<(String, f64)>,
    /// Seconds that the evaluation took.
    pub elapsed_secs: f64,
}
