//! Spans of operations, from which a profile is made.
//!
//! A span is a [`tracing`] span of the target [`TARGET`]; there is none unless somebody profiles. A GPU
//! does what it is given some time later: while it is profiled each operation waits for it, so that its
//! time is its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use burn::tensor::Device;
use tracing::Span;
use tracing::span::EnteredSpan;

use crate::route::is_cpu;

/// The target of the spans of operations.
pub const TARGET: &str = "tooltune::operation";

static IS_ON: AtomicBool = AtomicBool::new(false);
static DEVICE: Mutex<Option<Device>> = Mutex::new(None);

/// Spans from here on, of operations on `device`.
pub fn begin(device: &Device) {
    let waits_for = (!is_cpu(device)).then(|| device.clone());
    *DEVICE.lock().unwrap_or_else(PoisonError::into_inner) = waits_for;
    IS_ON.store(true, Ordering::Relaxed);
}

/// No spans any more.
pub fn end() {
    IS_ON.store(false, Ordering::Relaxed);
}

/// Whether somebody profiles.
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// An operation that is under way until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Operation(Option<EnteredSpan>);

impl Operation {
    /// `span` says what it is, where somebody profiles.
    pub fn new(span: impl FnOnce() -> Span) -> Self {
        Self(is_on().then(|| span().entered()))
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.0.is_some() {
            let device = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
            // What failed on the device is an error of whoever reads the result.
            let _ = device.as_ref().map(Device::sync);
        }
    }
}

/// Names an operation that lasts to the end of the block. A format after the name says what it works on,
/// such as its sizes.
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
