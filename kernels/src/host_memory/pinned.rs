//! Page-locked host memory, and the stream that copies from it.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::cuda::CudaRuntime;
use cubecl::device_handle::DeviceHandle;
use cubecl::server::{Handle, ServerError};
use cubecl_common::device::ServiceId;
use cubecl_server::driver::DriverError;
use cubecl_server::runtime::Runtime;
use cudarc::driver::sys::{
    CUdeviceptr, CUevent, CUevent_flags, CUresult, CUstream, CUstream_flags,
    cuCtxGetStreamPriorityRange, cuCtxSynchronize, cuEventCreate, cuEventDestroy_v2, cuEventRecord,
    cuMemFreeHost, cuMemHostAlloc, cuMemcpyDtoHAsync_v2, cuMemcpyHtoDAsync_v2,
    cuStreamCreateWithPriority, cuStreamDestroy_v2, cuStreamSynchronize, cuStreamWaitEvent,
};

use super::HostMemoryError;
use super::walk::SLOTS;
use crate::on_stream::on_stream;

type Server = <CudaRuntime as Runtime>::Server;

/// Smallest allocation; the driver refuses 0 bytes.
const MIN_BYTES: usize = 256;

fn check(call: &'static str, result: CUresult) -> Result<(), ServerError> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        error => Err(DriverError::new(call, error as u32).into()),
    }
}

/// Page-locked host memory, which a GPU copies from and to while it computes.
#[derive(Debug)]
pub(crate) struct Pinned {
    region: Region,
    service: ServiceId,
}

/// Address and length of pinned memory, for work on the device thread. That thread must not own the
/// memory: freeing it waits for the thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Region {
    address: usize,
    len: usize,
}

impl Pinned {
    /// Allocates uninitialised memory for the device of a CUDA client.
    ///
    /// # Errors
    ///
    /// The driver refuses.
    pub(crate) fn new(client: &Client, len: usize) -> Result<Self, HostMemoryError> {
        let service = client.service_id();
        let no_memory = |reason: String| HostMemoryError::NoMemory { bytes: len, reason };
        let allocate = move |_: &mut Server| {
            let mut address: *mut c_void = std::ptr::null_mut();
            // SAFETY: the driver writes one pointer to `address`; the context of the device is
            // current on its thread.
            let result = unsafe { cuMemHostAlloc(&mut address, len.max(MIN_BYTES), 0) };
            match result {
                CUresult::CUDA_SUCCESS => Ok(address as usize),
                error => Err(format!("{error:?}")),
            }
        };
        let answer = DeviceHandle::<Server>::new(service.device).submit_blocking(allocate);
        let answer = answer.map_err(|error| no_memory(format!("{error:?}")))?;
        let address = answer.map_err(no_memory)?;
        Ok(Self {
            region: Region { address, len },
            service,
        })
    }

    /// Usable bytes.
    pub(super) fn len(&self) -> usize {
        self.region.len
    }

    /// The memory; valid for work that is submitted to the device thread before this is dropped.
    pub(crate) fn region(&self) -> Region {
        self.region
    }

    /// Replaces the contents.
    ///
    /// # Panics
    ///
    /// If there are not as many bytes: a bug of the caller.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.region.len, "as many bytes as the memory");
        // SAFETY: the memory has this length, and `self` is borrowed exclusively: callers queue no
        // copy that has not ended by then.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.region.address as *mut u8,
                bytes.len(),
            );
        }
    }

    /// The contents after a copy to this memory has ended. The memory must have been written.
    pub(crate) fn read(&mut self) -> Vec<u8> {
        // SAFETY: as for `write`; the caller has waited for the copy that wrote all bytes.
        unsafe { std::slice::from_raw_parts(self.region.address as *const u8, self.region.len) }
            .to_vec()
    }

    /// Queues a copy of a contiguous tensor of this size to this memory.
    pub(super) fn copy_from(&self, tensor: &CubeTensor) {
        struct ToHost;
        let memory = self.region;
        let buffers = [vec![tensor.handle.clone()], Vec::new(), Vec::new()];
        on_stream::<ToHost>(&tensor.client, buffers, move |stream, addresses| {
            let to = memory.address as *mut c_void;
            // SAFETY: the memory has the size of the tensor and is freed only after the device has
            // finished all work; nothing on the host reads it.
            let result = unsafe { cuMemcpyDtoHAsync_v2(to, addresses[0], memory.len, stream) };
            check("cuMemcpyDtoHAsync", result)
        });
    }

    /// Queues a copy to new GPU memory.
    pub(super) fn copy_to_new(&self, client: &Client) -> Handle {
        struct ToGpu;
        let memory = self.region;
        let copy = client.empty(memory.len.max(MIN_BYTES));
        let n_after = memory.len.max(MIN_BYTES) - memory.len;
        let buffers = [Vec::new(), vec![copy.clone()], Vec::new()];
        on_stream::<ToGpu>(client, buffers, move |stream, addresses| {
            // SAFETY: both have `len` bytes, and the memory is freed only after the device has
            // finished all work.
            let result = unsafe { memory.copy_to(addresses[0], stream) };
            check("cuMemcpyHtoDAsync", result)
        });
        copy.offset_end(n_after as u64)
    }
}

impl Region {
    /// The first `len` bytes.
    pub(super) fn shortened(self, len: usize) -> Self {
        assert!(len <= self.len, "a part of pinned memory must be within it");
        Self { len, ..self }
    }

    /// Queues a copy on `stream`.
    ///
    /// # Safety
    ///
    /// This memory must exist, and `to` must have its length, until the copy ends.
    unsafe fn copy_to(&self, to: CUdeviceptr, stream: CUstream) -> CUresult {
        // SAFETY: the caller keeps both memories until the copy ends.
        unsafe { cuMemcpyHtoDAsync_v2(to, self.address as *const c_void, self.len, stream) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let address = self.region.address;
        DeviceHandle::<Server>::new(self.service.device).submit(move |_| {
            // SAFETY: the address is of `cuMemHostAlloc` and is freed once, after all copies have
            // ended. If they cannot end, the process keeps the memory.
            unsafe {
                if cuCtxSynchronize() == CUresult::CUDA_SUCCESS {
                    cuMemFreeHost(address as *mut c_void);
                }
            }
        });
    }
}

/// Our copy stream, and the events that order it and the compute stream.
#[derive(Debug)]
pub(crate) struct Engine {
    stream: CUstream,
    /// Recorded on the compute stream when nothing queued later reads the old block of a slot.
    free: CUevent,
    /// Recorded on the copy stream after the copy of a block to a slot.
    full: [CUevent; SLOTS],
}

// SAFETY: a mutex guards the engine, and only the device thread uses it.
unsafe impl Send for Engine {}

impl Engine {
    /// Creates a stream with the highest priority. Call this on the device thread.
    ///
    /// # Errors
    ///
    /// The driver refuses.
    pub(crate) fn new() -> Result<Self, ServerError> {
        let event = || {
            let mut event = std::ptr::null_mut();
            let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
            // SAFETY: the driver writes one handle to `event`.
            check("cuEventCreate", unsafe { cuEventCreate(&mut event, flags) })?;
            Ok::<_, ServerError>(event)
        };
        let (mut least, mut greatest, mut stream) = (0, 0, std::ptr::null_mut());
        // SAFETY: the driver writes two integers and one handle to local variables.
        unsafe {
            let result = cuCtxGetStreamPriorityRange(&mut least, &mut greatest);
            check("cuCtxGetStreamPriorityRange", result)?;
            let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            let result = cuStreamCreateWithPriority(&mut stream, flags, greatest);
            check("cuStreamCreateWithPriority", result)?;
        }
        Ok(Self {
            stream,
            free: event()?,
            full: [event()?, event()?],
        })
    }

    /// Makes later copies wait for all work that is now queued on `compute`.
    pub(crate) fn wait_until_free(&self, compute: CUstream) -> Result<(), ServerError> {
        // SAFETY: both streams and the event exist; the wait refers to this record of the event.
        unsafe {
            check("cuEventRecord", cuEventRecord(self.free, compute))?;
            let result = cuStreamWaitEvent(self.stream, self.free, 0);
            check("cuStreamWaitEvent", result)
        }
    }

    /// Queues a copy of `memory` to `to`, which is in a slot.
    pub(crate) fn copy(&self, memory: Region, to: CUdeviceptr) -> Result<(), ServerError> {
        // SAFETY: a slot has room for all stacks of a block and is freed only after `end`; pinned
        // memory is freed only after the device has finished all work.
        let result = unsafe { memory.copy_to(to, self.stream) };
        check("cuMemcpyHtoDAsync", result)
    }

    /// The copy stream.
    pub(crate) fn stream(&self) -> CUstream {
        self.stream
    }

    /// Waits on the host for all queued work of the copy stream.
    pub(crate) fn synchronize(&self) -> Result<(), ServerError> {
        // SAFETY: the stream exists.
        check("cuStreamSynchronize", unsafe {
            cuStreamSynchronize(self.stream)
        })
    }

    /// Queues a copy of GPU memory to `memory`.
    pub(crate) fn copy_back(&self, from: CUdeviceptr, memory: Region) -> Result<(), ServerError> {
        let to = memory.address as *mut c_void;
        // SAFETY: the tensor has the size of the memory, and its memory is reused only by work that
        // waits for this copy; pinned memory is freed only after the device has finished all work.
        let result = unsafe { cuMemcpyDtoHAsync_v2(to, from, memory.len, self.stream) };
        check("cuMemcpyDtoHAsync", result)
    }

    /// Marks the end of a block's copy.
    pub(crate) fn record_full(&self, slot: usize) -> Result<(), ServerError> {
        // SAFETY: stream and event exist.
        let result = unsafe { cuEventRecord(self.full[slot], self.stream) };
        check("cuEventRecord", result)
    }

    /// Makes later work on `compute` wait for the last copy to a slot.
    pub(crate) fn wait_until_full(
        &self,
        compute: CUstream,
        slot: usize,
    ) -> Result<(), ServerError> {
        // SAFETY: stream and event exist.
        let result = unsafe { cuStreamWaitEvent(compute, self.full[slot], 0) };
        check("cuStreamWaitEvent", result)
    }
}

impl Drop for Engine {
    /// Waits for all copies. Must run on the device thread.
    fn drop(&mut self) {
        // SAFETY: stream and events exist and are destroyed once, after their last use.
        unsafe {
            cuStreamSynchronize(self.stream);
            cuStreamDestroy_v2(self.stream);
            for event in [self.free, self.full[0], self.full[1]] {
                cuEventDestroy_v2(event);
            }
        }
    }
}

/// Calls `work` with the engine, which is created by the first call. Call this on the device thread.
///
/// # Errors
///
/// The driver refuses to create the engine, or the error of `work`.
pub(crate) fn with_engine(
    engine: &Mutex<Option<Engine>>,
    work: impl FnOnce(&Engine) -> Result<(), ServerError>,
) -> Result<(), ServerError> {
    let mut engine = engine.lock().unwrap_or_else(PoisonError::into_inner);
    if engine.is_none() {
        *engine = Some(Engine::new()?);
    }
    match &*engine {
        Some(engine) => work(engine),
        None => Ok(()),
    }
}

/// Waits on the device thread until all copies of an engine have ended, and releases `memory` then.
pub(crate) fn finish(service: ServiceId, engine: Arc<Mutex<Option<Engine>>>, memory: Vec<Handle>) {
    let memory: Vec<_> = memory.into_iter().map(Handle::binding).collect();
    DeviceHandle::<Server>::new(service.device).submit(move |_| {
        let _memory = memory;
        let engine = engine.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = &*engine {
            // Errors of the stream are returned when the results are read.
            let _ = engine.synchronize();
        }
    });
}

/// Drops an engine on the device thread of `client`, after its last copy, and releases `memory`
/// then.
pub(crate) fn end(client: &Client, engine: Arc<Mutex<Option<Engine>>>, memory: Vec<Handle>) {
    let memory: Vec<_> = memory.into_iter().map(Handle::binding).collect();
    DeviceHandle::<Server>::new(client.service_id().device).submit(move |_| {
        let _memory = memory;
        drop(engine.lock().unwrap_or_else(PoisonError::into_inner).take());
    });
}
