//! Launches that are recorded once and made again by one call: CUDA graphs.
//!
//! A launch costs the host more time than a small kernel takes a GPU, and each token of a text is
//! hundreds of them, the same ones every time. Where the GPU takes longer for them than the host, as with
//! many rows of a large model, nothing is gained, and nothing is recorded. What changes from token to token
//! is read from memory that is written in between ([`crate::HeldNumbers`], [`crate::RopeTable::replace`]).

#[cfg(all(feature = "cuda", not(feature = "fusion")))]
use std::time::Instant;

use burn::tensor::Device;
#[cfg(all(feature = "cuda", not(feature = "fusion")))]
use cubecl::client::{Client, Graph};
use thiserror::Error;

/// Recorded work, which is bound to the memory that it was recorded with.
#[derive(Debug)]
pub struct Recording {
    #[cfg(all(feature = "cuda", not(feature = "fusion")))]
    graph: Graph,
}

/// Why work was not recorded or not done again.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RecordingError {
    /// The device or its driver refused it.
    #[error("{0}")]
    Refused(String),
    /// The recording gave other results than the work.
    #[error("it gave other results when it did the work again")]
    OtherResults,
}

/// The environment variable that is `0` where nothing is to be recorded, and `1` where also that is from
/// which nothing is gained.
#[cfg(all(feature = "cuda", not(feature = "fusion")))]
const SWITCH: &str = "TOOLTUNE_CUDA_GRAPHS";

/// How much longer than the host a GPU takes for work that is not worth a recording.
#[cfg(all(feature = "cuda", not(feature = "fusion")))]
const OF_THE_GPU: f64 = 1.03;

/// Whether work on the device can be recorded: on CUDA's GPUs, unless `TOOLTUNE_CUDA_GRAPHS` is `0`, in
/// builds without Fusion, and while nobody profiles, who waits for each operation.
pub fn records(device: &Device) -> bool {
    #[cfg(all(feature = "cuda", not(feature = "fusion")))]
    {
        let is_wanted = std::env::var(SWITCH).as_deref() != Ok("0");
        is_wanted && !crate::profile::is_on() && client(device).is_some()
    }
    #[cfg(not(all(feature = "cuda", not(feature = "fusion"))))]
    {
        let _ = device;
        false
    }
}

/// Whether `TOOLTUNE_CUDA_GRAPHS` is `1`: somebody wants recordings wherever there can be some.
#[cfg(all(feature = "cuda", not(feature = "fusion")))]
fn is_forced() -> bool {
    std::env::var(SWITCH).as_deref() == Ok("1")
}

/// Work that can be recorded.
pub trait Recordable {
    /// What it gives.
    type Given;

    /// Launches the work. It must launch the same each time, read what the host gives it from memory that
    /// was written before, and give the same where it finds its own results.
    fn launch(&mut self) -> Self::Given;

    /// Writes its own inputs where the work reads them, or others of the same sizes, whose results overwrite
    /// nothing that is wanted.
    fn place_inputs(&mut self, inputs: Inputs);

    /// The numbers that are compared to detect a wrong recording.
    fn numbers(given: &Self::Given) -> Vec<f32>;
}

/// Which inputs are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inputs {
    /// The inputs that were there.
    Own,
    /// Any others.
    Other,
}

/// Does `work` and records it, with what it has given; without a recording where the GPU took a good deal
/// longer than the host, unless `TOOLTUNE_CUDA_GRAPHS` is `1`.
///
/// Work that is recorded is done twice: once as always, so that kernels are compiled and memory is there,
/// and once as a recording, whose results must be the same. It is recorded with other inputs: a recording that
/// holds values of inputs instead of their addresses then gives something else.
///
/// # Errors
///
/// A device that records nothing, a recording that it refused, as where the second run needed memory that
/// the first one had not left, or one that gives something else. Memory that `work` writes then has to be
/// written again before it is read.
#[cfg(all(feature = "cuda", not(feature = "fusion")))]
pub fn record<W: Recordable>(
    device: &Device,
    work: &mut W,
) -> Result<(W::Given, Option<Recording>), RecordingError> {
    let error = |error: cubecl::server::ServerError| RecordingError::Refused(error.to_string());
    let client =
        client(device).ok_or_else(|| RecordingError::Refused("no CUDA device".to_owned()))?;
    client.graph_prepare().map_err(error)?;
    let started = Instant::now();
    let first = work.launch();
    // The host has launched all of it, and then the GPU has done it.
    let flushed = client.flush().map_err(error);
    let of_host = started.elapsed().as_secs_f64();
    let synced = device.sync();
    let of_both = started.elapsed().as_secs_f64();
    let synced = synced.map_err(|failed| RecordingError::Refused(failed.to_string()));
    let is_of_gpu = of_both > OF_THE_GPU * of_host && !is_forced();
    let ended = flushed.and(synced);
    if ended.is_err() || is_of_gpu {
        // Ends the preparation, which is an error where nothing was recorded.
        let _ = client.stop_capture();
        return ended.map(|()| (first, None));
    }
    let expected = W::numbers(&first);
    drop(first);
    work.place_inputs(Inputs::Other);
    let recorded = client.start_capture().map_err(error).and_then(|()| {
        let given = work.launch();
        Ok((given, client.stop_capture().map_err(error)?))
    });
    work.place_inputs(Inputs::Own);
    let (given, graph) = recorded?;
    let recording = Recording { graph };
    recording.replay()?;
    match agree(&expected, &W::numbers(&given)) {
        true => Ok((given, Some(recording))),
        false => Err(RecordingError::OtherResults),
    }
}

/// As with CUDA, where there is none.
///
/// # Errors
///
/// Always.
#[cfg(not(all(feature = "cuda", not(feature = "fusion"))))]
pub fn record<W: Recordable>(
    _device: &Device,
    _work: &mut W,
) -> Result<(W::Given, Option<Recording>), RecordingError> {
    let reason = "this build records no work; build it with the feature cuda, without fusion";
    Err(RecordingError::Refused(reason.to_owned()))
}

/// Whether two runs gave the same, but for the order of sums of bf16: an algorithm may depend on where memory
/// lies.
#[cfg(any(test, all(feature = "cuda", not(feature = "fusion"))))]
fn agree(expected: &[f32], found: &[f32]) -> bool {
    let finite = expected.iter().filter(|x| x.is_finite());
    let largest = finite.fold(0.0f32, |most, x| most.max(x.abs()));
    let bound = largest / 64.0;
    let is_near = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a - b).abs() <= bound;
    expected.len() == found.len() && expected.iter().zip(found).all(is_near)
}

impl Recording {
    /// Does the work again, with what its memory holds now.
    ///
    /// Memory that it reads or writes must still be that of the tensors it was recorded with, and no other
    /// thread may use these until the work is done: else what they hold is anything.
    ///
    /// # Errors
    ///
    /// A device that refuses it.
    pub fn replay(&self) -> Result<(), RecordingError> {
        #[cfg(all(feature = "cuda", not(feature = "fusion")))]
        // SAFETY: the work writes on pages that the pool neither gives back nor gives to others while the
        // graph lives, so that it touches nobody else's memory, also where a tensor was dropped. It is
        // launched on the stream that it was recorded on, in order with all that this thread does there.
        unsafe { self.graph.replay() }
            .map_err(|error| RecordingError::Refused(error.to_string()))?;
        Ok(())
    }
}

#[cfg(all(feature = "cuda", not(feature = "fusion")))]
fn client(device: &Device) -> Option<Client> {
    crate::route::client(device.as_dispatch()).filter(crate::on_stream::is_cuda)
}

#[cfg(test)]
mod tests {
    use super::agree;

    #[test]
    fn results_agree_up_to_the_order_of_sums() {
        let (nan, infinite) = (f32::NAN, f32::INFINITY);
        let expected = [1.0, -64.0, infinite, nan];
        assert!(agree(&expected, &expected));
        assert!(agree(&expected, &[1.5, -63.5, infinite, nan]));
        for other in [
            &[3.0, -64.0, infinite, nan][..],
            &[nan, -64.0, infinite, nan],
            &[1.0, -64.0, 0.0, nan],
            &[1.0, -64.0, -infinite, nan],
            &[1.0, -64.0, infinite, 0.0],
            &[1.0, -64.0, infinite],
        ] {
            assert!(!agree(&expected, other), "{other:?}");
        }
    }
}
