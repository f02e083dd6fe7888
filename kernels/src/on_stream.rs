//! Queues library work on CubeCL's stream, ordered like CubeCL's own launches.

use std::any::TypeId;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{LazyLock, Mutex, PoisonError};

use burn::backend::StreamId;
use cubecl::client::Client;
use cubecl::cuda::CudaRuntime;
use cubecl::device_handle::DeviceHandle;
use cubecl::server::{Handle, ServerError};
use cubecl_common::device::ServiceId;
use cubecl_server::id::KernelId;
use cubecl_server::runtime::Runtime;
use cubecl_server::stream::{ExecuteScope, WriteScoped};
use cudarc::driver::sys::{CUdeviceptr, CUstream};

/// CubeCL's server of a CUDA device, which runs on its own thread.
type Server = <CudaRuntime as Runtime>::Server;

/// Whether a client belongs to a CUDA device.
pub(crate) fn is_cuda(client: &Client) -> bool {
    client.service_id().service == TypeId::of::<Server>()
}

/// Cache of a library's answers per device and key. Each query runs once, on the device thread,
/// before anything depends on its result.
pub(crate) struct Asked<K, V>(LazyLock<Mutex<HashMap<(ServiceId, K), Option<V>>>>);

impl<K: Eq + Hash, V: Copy + Send + 'static> Asked<K, V> {
    /// An empty cache.
    pub(crate) const fn none() -> Self {
        Self(LazyLock::new(Mutex::default))
    }

    /// The answer for `key` on the device of a CUDA client; `None` if the library has none.
    pub(crate) fn get(
        &self,
        client: &Client,
        key: K,
        ask: impl FnOnce() -> Option<V> + Send + 'static,
    ) -> Option<V> {
        let service = client.service_id();
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = answers.entry((service, key));
        *entry.or_insert_with(|| on_device_thread(client, ask).flatten())
    }
}

/// Runs `work` on the server's thread, after all work that this thread has submitted, and waits for
/// its result; `None` if the server's thread has ended.
pub(crate) fn on_device_thread<R: Send + 'static>(
    client: &Client,
    work: impl FnOnce() -> R + Send + 'static,
) -> Option<R> {
    assert!(is_cuda(client), "the client must belong to a CUDA device");
    let device = DeviceHandle::<Server>::new(client.service_id().device);
    device.submit_blocking(move |_| work()).ok()
}

/// Runs `body` on the server's thread, after all work that this thread has submitted, with the
/// stream and the addresses of `reads`, then `writes`, then `scratch`.
///
/// Work that `body` enqueues on the stream is ordered like a launch. If `body` fails, or one of
/// `reads` was never written, reading `writes` returns that error.
///
/// # Panics
///
/// If the client belongs to another runtime, or a written buffer to another stream: a bug of the
/// caller.
pub(crate) fn on_stream<K: 'static>(
    client: &Client,
    [reads, writes, scratch]: [Vec<Handle>; 3],
    body: impl FnOnce(CUstream, &[CUdeviceptr]) -> Result<(), ServerError> + Send + 'static,
) {
    // For a client of another runtime, `DeviceHandle::new` would start a CUDA server.
    assert!(is_cuda(client), "the client must belong to a CUDA device");
    let service = client.service_id();
    for handle in reads.iter().chain(&writes).chain(&scratch) {
        assert_eq!(handle.service, service, "buffers must be on this device");
    }
    // Readers wait for the stream that created a buffer, not for the one that last wrote it.
    let id = StreamId::current();
    let mut written = writes.iter().chain(&scratch);
    assert!(
        written.all(|handle| handle.stream == id),
        "written buffers must belong to this stream"
    );
    if cubecl::dry_run::dry_run() {
        return;
    }
    let bindings = |handles: Vec<Handle>| handles.into_iter().map(Handle::binding).collect();
    let [reads, writes, scratch]: [Vec<_>; 3] = [reads, writes, scratch].map(bindings);

    DeviceHandle::<Server>::new(service.device).submit(move |server| {
        let kernel = KernelId::new::<K>();
        let scope = ExecuteScope::launching(server, kernel, id, reads.iter(), writes.clone());
        // A failure is stored with the buffers that should have been written, and returned to their
        // readers.
        let _ = scope.execute(|server| {
            let all = || reads.iter().chain(&writes).chain(&scratch);
            // Dropped after the work is enqueued: buffers of other streams are kept alive until the
            // event that the drop records.
            let mut streams = server.write_streams().resolve(id, all())?;
            let mut addresses = Vec::new();
            for buffer in all() {
                // A graph that is being recorded must keep the pages that it uses.
                let location = buffer.memory.descriptor().location();
                streams.current().capturing.touch(buffer.stream, location);
                let memory = &mut streams.get(&buffer.stream).memory_management_gpu;
                let (start, end) = (buffer.offset_start, buffer.offset_end);
                addresses.push(memory.get_resource(buffer.memory.clone(), start, end)?.ptr);
            }
            body(streams.current().sys, &addresses)
        });
    });
}
