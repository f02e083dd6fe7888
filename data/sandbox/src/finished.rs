//! The result of a run.

use std::time::Duration;

/// How a run ended.
#[derive(Debug)]
pub(super) enum Ended {
    Exited(i32),
    Signalled(i32),
    WallTime,
    CpuTime,
    OutputTooLarge,
}

/// A finished run, after cleanup.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) ended: Ended,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    /// If the result was longer than the limit, this has one byte more than the limit.
    pub(super) result: Vec<u8>,
    pub(super) wall: Duration,
    pub(super) cpu_secs: f64,
}
