//! Launches that are recorded once and made again by one call: CUDA graphs.
//!
//! A launch costs the host more time than a small kernel takes a GPU, and each token of a text is
//! hundreds of them, the same ones every time. Where the GPU takes longer for them than the host, as with
//! many rows of a large model, nothing is gained, and nothing is recorded. What changes from token to token
//! is read from memory that is written in between ([`crate::HeldNumbers`], [`crate::RopeTable::replace`]).

use std::fmt;
#[cfg(all(feature = "cuda", not(feature = "fusion")))]
use std::time::Instant;

use burn::tensor::Device;
#[cfg(all(feature = "cuda", not(feature = "fusion")))]
use {
    burn::backend::DispatchDevice,
    cubecl::client::{Client, Graph},
};

/// Recorded work, which is bound to the memory that it was recorded with.
#[derive(Debug)]
pub struct Recording {
    #[cfg(all(feature = "cuda", not(feature = "fusion")))]
    graph: Graph,
}

/// Why work was not recorded or not done again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordingError(String);

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RecordingError {}

/// The environment variable that is `0` where nothing is to be recorded, and `1` where also that is from
/// which nothing is gained.
#[cfg(all(feature = "cuda", not(feature = "fusion")))]
const SWITCH: &str = "TOOLTUNE_CUDA_GRAPHS";

/// How much longer than the host a GPU takes for work that is not worth a recording.
#[cfg(all(feature = "cuda", not(feature = "fusion")))]
const OF_THE_GPU: f64 = 1.1;

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
pub fn is_forced() -> bool {
    #[cfg(all(feature = "cuda", not(feature = "fusion")))]
    return std::env::var(SWITCH).as_deref() == Ok("1");
    #[cfg(not(all(feature = "cuda", not(feature = "fusion"))))]
    false
}

/// Does `work` and records it, with what it has given; without a recording where the GPU took a good deal
/// longer than the host, unless `TOOLTUNE_CUDA_GRAPHS` is `1`.
///
/// `work` that is recorded runs twice, and what it launches is done twice: once as always, so that kernels
/// are compiled and memory is there, and once as a recording. It must launch the same both times, read what
/// the host gives it from memory that was written before, and give the same where it finds its own results.
///
/// # Errors
///
/// A device that records nothing, or a recording that it refused, as where the second run needed memory
/// that the first one had not left. Memory that `work` writes then has to be written again before it is
/// read.
#[cfg(all(feature = "cuda", not(feature = "fusion")))]
pub fn record<T>(
    device: &Device,
    mut work: impl FnMut() -> T,
) -> Result<(T, Option<Recording>), RecordingError> {
    let error = |error: cubecl::server::ServerError| RecordingError(error.to_string());
    let client = client(device).ok_or_else(|| RecordingError("no CUDA device".to_owned()))?;
    client.graph_prepare().map_err(error)?;
    let started = Instant::now();
    let first = work();
    // The host has launched all of it, and then the GPU has done it.
    let flushed = client.flush().map_err(error);
    let of_host = started.elapsed().as_secs_f64();
    let synced = device.sync();
    let of_both = started.elapsed().as_secs_f64();
    let synced = synced.map_err(|failed| RecordingError(failed.to_string()));
    let is_of_gpu = of_both > OF_THE_GPU * of_host && !is_forced();
    let ended = flushed.and(synced);
    if ended.is_err() || is_of_gpu {
        // Ends the preparation, which is an error where nothing was recorded.
        let _ = client.stop_capture();
        return ended.map(|()| (first, None));
    }
    drop(first);
    client.start_capture().map_err(error)?;
    let made = work();
    let graph = client.stop_capture().map_err(error)?;
    let recording = Recording { graph };
    recording.replay()?;
    Ok((made, Some(recording)))
}

/// As with CUDA, where there is none.
///
/// # Errors
///
/// Always.
#[cfg(not(all(feature = "cuda", not(feature = "fusion"))))]
pub fn record<T>(
    _device: &Device,
    _work: impl FnMut() -> T,
) -> Result<(T, Option<Recording>), RecordingError> {
    let reason = "this build records no work; build it with the feature cuda, without fusion";
    Err(RecordingError(reason.to_owned()))
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
        unsafe { self.graph.replay() }.map_err(|error| RecordingError(error.to_string()))?;
        Ok(())
    }
}

#[cfg(all(feature = "cuda", not(feature = "fusion")))]
fn client(device: &Device) -> Option<Client> {
    fn of(device: &DispatchDevice) -> Option<Client> {
        match device {
            DispatchDevice::Cube(device) => Some(device.client()),
            DispatchDevice::Autodiff(device) => of(device),
            _ => None,
        }
    }
    of(device.as_dispatch()).filter(crate::on_stream::is_cuda)
}
