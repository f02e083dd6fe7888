//! Records GPU launches once and replays them with a single call: CUDA graphs.
//!
//! A launch takes the host longer than a small kernel takes the GPU, and each generated token needs
//! the same hundreds of launches. If the GPU takes longer than the host, as with many rows of a
//! large model, there is no gain, and nothing is recorded. Values that change from token to token
//! are read from memory that is written between replays ([`crate::DeviceIntegers`],
//! [`crate::RopeTable::replace`]).

#[cfg(feature = "cuda")]
use std::time::Instant;

use burn::tensor::Device;
#[cfg(feature = "cuda")]
use cubecl::client::{Client, Graph};
use thiserror::Error;

/// Recorded work, bound to the memory that it was recorded with.
#[derive(Debug)]
pub struct Recording {
    #[cfg(feature = "cuda")]
    graph: Graph,
}

/// Reason why work was not recorded or replayed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RecordingError {
    /// The device or its driver reported an error.
    #[error("{0}")]
    Device(String),
    /// The results of the replay differ from the results of the recorded work.
    #[error("replaying the CUDA graph did not reproduce the recorded results")]
    ResultsDiffer,
}

/// Environment variable; `0` disables recording, `1` records even without a gain.
#[cfg(feature = "cuda")]
const SWITCH: &str = "TOOLTUNE_CUDA_GRAPHS";

/// Work is not recorded if the GPU takes longer than the host by this factor.
#[cfg(feature = "cuda")]
const GPU_BOUND_RATIO: f64 = 1.03;

/// Whether work on the device can be recorded. This is true on CUDA GPUs, unless
/// `TOOLTUNE_CUDA_GRAPHS` is `0` or profiling is on: profiling waits for each operation.
pub fn can_record(device: &Device) -> bool {
    #[cfg(feature = "cuda")]
    {
        let is_wanted = std::env::var(SWITCH).as_deref() != Ok("0");
        is_wanted && !crate::profile::is_on() && client(device).is_some()
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = device;
        false
    }
}

/// Whether `TOOLTUNE_CUDA_GRAPHS` is `1`, which forces recording.
#[cfg(feature = "cuda")]
fn is_forced() -> bool {
    std::env::var(SWITCH).as_deref() == Ok("1")
}

/// Work that can be recorded.
pub trait Recordable {
    /// Result of the work.
    type Output;

    /// Launches the work. It must launch the same kernels each time, read host inputs from memory
    /// that was written before, and give the same result even if the memory holds its own results.
    fn launch(&mut self) -> Self::Output;

    /// Writes the work's own inputs to the memory that it reads, or other inputs of the same sizes,
    /// whose results must not overwrite anything that is needed.
    fn place_inputs(&mut self, inputs: Inputs);

    /// The values that are compared to detect a wrong recording.
    fn numbers(output: &Self::Output) -> Vec<f32>;
}

/// Choice of inputs to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inputs {
    /// The original inputs.
    Own,
    /// Any other inputs.
    Different,
}

/// Runs `work` and records it; returns its result and the recording. There is no recording if the
/// GPU took much longer than the host, unless `TOOLTUNE_CUDA_GRAPHS` is `1`.
///
/// Recorded work runs twice: first normally, which compiles kernels and allocates memory, and then
/// as a recording, which must reproduce the results. The recording is made with other inputs, so
/// that a recording that contains input values instead of their addresses is detected.
///
/// # Errors
///
/// If the device does not support recording, the recording fails (for example because the second
/// run needed memory that the first one had not freed), or the replay gives other results. Memory
/// that `work` writes must then be written again before it is read.
#[cfg(feature = "cuda")]
pub fn record<W: Recordable>(
    device: &Device,
    work: &mut W,
) -> Result<(W::Output, Option<Recording>), RecordingError> {
    let error = |error: cubecl::server::ServerError| RecordingError::Device(error.to_string());
    let client =
        client(device).ok_or_else(|| RecordingError::Device("no CUDA device".to_owned()))?;
    client.graph_prepare().map_err(error)?;
    let started = Instant::now();
    let first = work.launch();
    // After the flush the host has launched all work; after the sync the GPU has finished it.
    let flushed = client.flush().map_err(error);
    let host_seconds = started.elapsed().as_secs_f64();
    let synced = device.sync();
    let total_seconds = started.elapsed().as_secs_f64();
    let synced = synced.map_err(|failed| RecordingError::Device(failed.to_string()));
    let is_gpu_bound = total_seconds > GPU_BOUND_RATIO * host_seconds && !is_forced();
    let ended = flushed.and(synced);
    if ended.is_err() || is_gpu_bound {
        // Ends the preparation; this is an error if nothing was recorded.
        let _ = client.stop_capture();
        return ended.map(|()| (first, None));
    }
    let expected = W::numbers(&first);
    drop(first);
    work.place_inputs(Inputs::Different);
    let recorded = client.start_capture().map_err(error).and_then(|()| {
        let outputs = work.launch();
        Ok((outputs, client.stop_capture().map_err(error)?))
    });
    work.place_inputs(Inputs::Own);
    let (outputs, graph) = recorded?;
    let recording = Recording { graph };
    recording.replay()?;
    match nearly_equal(&expected, &W::numbers(&outputs)) {
        true => Ok((outputs, Some(recording))),
        false => Err(RecordingError::ResultsDiffer),
    }
}

/// Replacement for builds without CUDA.
///
/// # Errors
///
/// This build can never record.
#[cfg(not(feature = "cuda"))]
pub fn record<W: Recordable>(
    _device: &Device,
    _work: &mut W,
) -> Result<(W::Output, Option<Recording>), RecordingError> {
    let reason = "this build cannot record GPU work; build it with the feature cuda";
    Err(RecordingError::Device(reason.to_owned()))
}

/// Whether two results are equal up to the summation order of bf16: an algorithm may depend on
/// addresses.
#[cfg(any(test, feature = "cuda"))]
fn nearly_equal(expected: &[f32], replayed: &[f32]) -> bool {
    let finite = expected.iter().filter(|x| x.is_finite());
    let largest = finite.fold(0.0f32, |most, x| most.max(x.abs()));
    let bound = largest / 64.0;
    let is_near = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a - b).abs() <= bound;
    expected.len() == replayed.len() && expected.iter().zip(replayed).all(is_near)
}

impl Recording {
    /// Replays the work with the current contents of its memory.
    ///
    /// The tensors that it was recorded with must still exist, and no other thread may use their
    /// memory until the work is done; otherwise their contents are undefined.
    ///
    /// # Errors
    ///
    /// If the device reports an error.
    pub fn replay(&self) -> Result<(), RecordingError> {
        #[cfg(feature = "cuda")]
        // SAFETY: the work only writes pages that the pool neither frees nor reassigns while the
        // graph exists, even if a tensor was dropped. It is launched on the stream that it was
        // recorded on, in order with all other work of this thread.
        unsafe { self.graph.replay() }
            .map_err(|error| RecordingError::Device(error.to_string()))?;
        Ok(())
    }
}

#[cfg(feature = "cuda")]
fn client(device: &Device) -> Option<Client> {
    crate::route::client(device.as_dispatch()).filter(crate::on_stream::is_cuda)
}

#[cfg(test)]
mod tests {
    use super::nearly_equal;

    #[test]
    fn comparison_tolerates_summation_order_only() {
        let (nan, infinite) = (f32::NAN, f32::INFINITY);
        let expected = [1.0, -64.0, infinite, nan];
        assert!(nearly_equal(&expected, &expected));
        assert!(nearly_equal(&expected, &[1.5, -63.5, infinite, nan]));
        for different in [
            &[3.0, -64.0, infinite, nan][..],
            &[nan, -64.0, infinite, nan],
            &[1.0, -64.0, 0.0, nan],
            &[1.0, -64.0, -infinite, nan],
            &[1.0, -64.0, infinite, 0.0],
            &[1.0, -64.0, infinite],
        ] {
            assert!(!nearly_equal(&expected, different), "{different:?}");
        }
    }
}
