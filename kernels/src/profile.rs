//! Tracing spans of operations, for profiling.
//!
//! Spans have the [`tracing`] target [`TARGET`] and exist only while profiling is on. A GPU runs
//! its work asynchronously: while profiling, each operation waits for the GPU, so that its time is
//! measured separately.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use burn::tensor::Device;
use tracing::Span;
use tracing::span::EnteredSpan;

use crate::route::is_cpu;

/// Target of the spans of operations.
pub const TARGET: &str = "tooltune::operation";

static IS_ON: AtomicBool = AtomicBool::new(false);
static DEVICE: Mutex<Option<Device>> = Mutex::new(None);

/// Turns profiling on, for operations on `device`.
pub fn begin(device: &Device) {
    let waits_for = (!is_cpu(device)).then(|| device.clone());
    *DEVICE.lock().unwrap_or_else(PoisonError::into_inner) = waits_for;
    IS_ON.store(true, Ordering::Relaxed);
}

/// Turns profiling off.
pub fn end() {
    IS_ON.store(false, Ordering::Relaxed);
}

/// Whether profiling is on.
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// A running operation, which ends when this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Operation(Option<EnteredSpan>);

impl Operation {
    /// Starts an operation; `span` creates its span if profiling is on.
    pub fn new(span: impl FnOnce() -> Span) -> Self {
        Self(is_on().then(|| span().entered()))
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.0.is_some() {
            let device = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
            // Errors on the device are returned when the result is read.
            let _ = device.as_ref().map(Device::sync);
        }
    }
}

/// Names an operation that lasts until the end of the block. A format string after the name
/// describes its operands, such as their sizes.
#[macro_export]
macro_rules! operation {
    ($name:literal $(, $($shape:tt)+)?) => {
        let _operation = $crate::profile::Operation::new(|| {
            tracing::trace_span!(
                target: $crate::profile::TARGET,
                $name
                $(, shape = format_args!($($shape)+))?
            )
        });
    };
}
