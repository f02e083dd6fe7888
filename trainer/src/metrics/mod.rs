//! Shows what a run measures: on the terminal and in TensorBoard.
//!
//! A view is handed records and may lose them, but never ends the run: the files that must not be
//! lost, `metrics.jsonl` and `timing.jsonl`, are written by the recipe itself.

mod tensorboard;
mod terminal;

use std::path::PathBuf;

pub use tensorboard::{RunHeader, TensorBoardSink};
pub use terminal::{Evaluated, TerminalSink};

/// A view of a run.
pub trait MetricSink: std::fmt::Debug {
    /// Takes one record; what cannot be shown is dropped.
    fn record(&mut self, record: &Record);
}

/// Something measured.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A run that resumes where an earlier process left it.
    Resumed(ResumeRecord),
    /// Optimizer steps since the record before.
    Step(StepRecord),
    /// Optimizer steps of a retriever since the record before.
    Retriever(RetrieverRecord),
    /// An evaluation.
    Eval(EvalRecord),
}

/// How far a run is, between two records.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Moved {
    /// Optimizer steps since the start of the run, with the part of the present one.
    pub step: f64,
    /// Mean loss of the last step.
    pub loss: Option<f64>,
    /// Seconds since this process began to train.
    pub elapsed_secs: f64,
    /// Seconds until the last step, once there is an estimate.
    pub remaining_secs: Option<f64>,
}

/// Where a run resumes.
#[derive(Debug, Clone, PartialEq)]
pub struct ResumeRecord {
    /// The checkpoint that it was read from.
    pub checkpoint: PathBuf,
    /// Optimizer steps since the start of the run.
    pub step: u64,
    /// Whether nothing is left to do.
    pub is_over: bool,
}

/// The state of a retriever's training.
#[derive(Debug, Clone, PartialEq)]
pub struct RetrieverRecord {
    /// Optimizer steps of the run.
    pub step: u64,
    /// Optimizer steps of the retriever; the same where it is all that is trained.
    pub retriever_step: u64,
    /// Mean loss since the record before, in nats per pair.
    pub loss: f64,
    /// Global gradient norm of the last step before clipping.
    pub grad_norm: f64,
    /// Learning rate of the last step.
    pub learning_rate: f64,
    /// Pairs a second since the record before, the retriever's time alone.
    pub pairs_per_sec: f64,
    /// What the clock says, where the retriever is all that is trained.
    pub timing: Option<Timing>,
}

/// The state of training after an optimizer step.
///
/// A loss or norm that is not finite is left out of TensorBoard, where it could not be seen.
#[derive(Debug, Clone, PartialEq)]
pub struct StepRecord {
    /// Optimizer steps since the start of the run.
    pub step: u64,
    /// Passes over the rows since the start of the run, with the fraction.
    pub epoch: f64,
    /// Weighted mean loss of the step, in nats per learned token.
    pub loss: f64,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// Learning rate of the step.
    pub learning_rate: f64,
    /// Tokens seen since the start of the run, padding not counted.
    pub tokens: u64,
    /// Tokens among them that were learned.
    pub trained_tokens: u64,
    /// What the clock says.
    pub timing: Timing,
}

/// What differs between two runs of the same config.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Timing {
    /// Seconds since this process began to train.
    pub elapsed_secs: f64,
    /// Tokens a second since the record before.
    pub tokens_per_sec: f64,
    /// Learned tokens a second since the record before.
    pub trained_tokens_per_sec: f64,
    /// Most memory that the process has held, in bytes, where the system tells.
    pub peak_rss_bytes: Option<u64>,
    /// Seconds until the last step, once there is an estimate.
    pub remaining_secs: Option<f64>,
}

/// The result of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalRecord {
    /// Optimizer steps since the start of the run; 0 before the first.
    pub step: u64,
    /// Passes over the rows since the start of the run.
    pub epoch: f64,
    /// Values by name, such as `loss` or `slot.mean`, in the order they are shown in.
    pub metrics: Vec<(String, f64)>,
    /// Seconds that the evaluation took.
    pub elapsed_secs: f64,
}
