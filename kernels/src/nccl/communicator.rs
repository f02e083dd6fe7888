//! The connection between the GPUs of all processes.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, DType, Dispatch, backend_extension};
use burn::tensor::{Device, Tensor};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::server::ServerError;
use cubecl_server::driver::DriverError;
use cudarc::driver::result::{ctx, device, primary_ctx};
use cudarc::driver::sys::{CUdeviceptr, CUstream};

use super::NcclError;
use super::library::{Comm, Element, Functions, RawId, SUM, Status, functions};
use crate::cube::launch::{contiguous, output};
use crate::gradient_sum::GradientSum;
use crate::on_stream::{is_cuda, on_device_thread, on_stream};
use crate::route;

/// Values that are read at a time when a sum is checked.
const CHECKED: usize = 1 << 22;

/// Names a communicator. One process creates it and gives it to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

impl UniqueId {
    /// A new name. The calling process listens for the others until they have joined.
    ///
    /// # Errors
    ///
    /// NCCL is missing, or has no network interface.
    pub fn new() -> Result<Self, NcclError> {
        let functions = functions()?;
        let mut id = RawId([0; 128]);
        // SAFETY: the function writes 128 bytes to `id`, which outlives the call.
        let status = unsafe { (functions.get_unique_id)(&mut id) };
        functions.check("ncclGetUniqueId", status)?;
        Ok(Self(id.0.map(|byte| byte as u8)))
    }
}

/// One process's part of a group whose GPUs NCCL connects.
///
/// All processes must make the same calls in the same order. A call waits for the others on the
/// GPU; if one of them has ended, it waits forever. The connection lasts until [`close`](Self::close)
/// or the end of the process.
#[derive(Debug, Clone)]
pub struct Communicator(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    comm: OpenComm,
    device: Device,
    rank: usize,
    world_size: usize,
    /// Collectives that were requested, and those that NCCL accepted.
    n_requested: AtomicU64,
    n_queued: AtomicU64,
    /// The first failure.
    failure: Mutex<Option<NcclError>>,
}

/// NCCL's handle.
#[derive(Debug, Clone, Copy)]
struct OpenComm(Comm);

// SAFETY: NCCL's handle can be used by any thread; only the device's thread calls NCCL with it.
unsafe impl Send for OpenComm {}
// SAFETY: as above.
unsafe impl Sync for OpenComm {}

impl Communicator {
    /// Joins the group `id` of `world_size` processes as number `rank`, with the GPU of `device`.
    /// Waits until all of them have joined.
    ///
    /// # Errors
    ///
    /// NCCL is missing, `device` is not a CUDA device, or the processes cannot connect: for example
    /// because two of them have the same GPU.
    pub fn new(
        device: &Device,
        id: &UniqueId,
        rank: usize,
        world_size: usize,
    ) -> Result<Self, NcclError> {
        let client = client_of(device)?;
        let functions = functions()?;
        let index = c_int::from(client.service_id().device.index_id);
        let id = RawId(id.0.map(|byte| byte as _));
        let (rank_number, n_ranks) = (rank as c_int, world_size as c_int);
        let comm = on_device_thread(&client, move || {
            make_current(index)?;
            let mut comm: Comm = std::ptr::null_mut();
            // SAFETY: the function writes one handle to `comm`, which outlives the call.
            let status = unsafe { (functions.comm_init_rank)(&mut comm, n_ranks, id, rank_number) };
            functions.check("ncclCommInitRank", status)?;
            Ok(OpenComm(comm))
        })
        .unwrap_or(Err(NcclError::NotQueued {
            call: "ncclCommInitRank",
        }))?;
        Ok(Self(Arc::new(Shared {
            comm,
            device: device.clone(),
            rank,
            world_size,
            n_requested: AtomicU64::new(0),
            n_queued: AtomicU64::new(0),
            failure: Mutex::new(None),
        })))
    }

    /// Number of this process.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Number of processes.
    pub fn world_size(&self) -> usize {
        self.0.world_size
    }

    /// Adds a gradient of `n_values` values once and checks the sum. NCCL connects the GPUs in the
    /// first collective, which takes seconds.
    ///
    /// # Errors
    ///
    /// The collective fails, or the sum is wrong.
    pub fn warm_up(&self, n_values: usize) -> Result<(), NcclError> {
        if n_values == 0 {
            return Ok(());
        }
        // Whole numbers divided by a power of 2: the sum is exact.
        let part = |rank: usize| (rank + 1) as f32 / 256.0;
        let like = Tensor::<1>::full([n_values], part(self.rank()), &self.0.device);
        let mut sum = GradientSum::new(n_values, self.world_size()).for_ranks(self.world_size());
        sum.add(like.clone());
        let sum = sum.finish_on_gpus(&like, self)?;
        let expected = (0..self.world_size()).map(part).sum::<f32>();
        // In pieces, because a whole vector may need gigabytes.
        for start in (0..n_values).step_by(CHECKED) {
            let piece = sum.clone().narrow(0, start, CHECKED.min(n_values - start));
            let found = piece.into_data();
            if let Some(found) = found.iter::<f32>().find(|&x| x != expected) {
                return Err(NcclError::WrongSum { found, expected });
            }
        }
        Ok(())
    }

    /// Replaces three vectors by those of process 0. Each has the same length on all processes.
    ///
    /// # Shapes
    ///
    /// - `vectors`: each `[p]`, f32
    ///
    /// # Errors
    ///
    /// NCCL refuses the operation.
    pub fn broadcast(&self, vectors: [Tensor<1>; 3]) -> Result<[Tensor<1>; 3], NcclError> {
        if vectors[0].dims() == [0] {
            return Ok(vectors);
        }
        let [a, b, c] = vectors.map(Tensor::into_dispatch);
        let (a, b, c) = Dispatch::broadcast_three(a, b, c, self.clone());
        self.check("ncclBroadcast")?;
        Ok([a, b, c].map(Tensor::from_dispatch))
    }

    /// Leaves the group. All processes call it after their last collective, and wait for each other.
    ///
    /// # Errors
    ///
    /// NCCL reports an error.
    pub fn close(self) -> Result<(), NcclError> {
        let client = client_of(&self.0.device)?;
        let (functions, comm) = (functions()?, self.0.comm);
        let closed = on_device_thread(&client, move || {
            let comm = comm;
            // SAFETY: the handle is valid, and `self` was the last user of it in this process: the
            // clones in queued work ended before this task on the same thread.
            let status = unsafe { (functions.comm_destroy)(comm.0) };
            functions.check("ncclCommDestroy", status)
        });
        closed.unwrap_or(Ok(()))
    }

    /// Adds the vectors of all processes and leaves process `i` with piece `i` of the sum.
    ///
    /// - `all`: `[world_size * k]`
    /// - `own`: `[k]`, written
    ///
    /// The elements are interpreted as `element`, whatever the dtypes of the tensors are.
    pub(crate) fn reduce_scatter(&self, all: &CubeTensor, own: &CubeTensor, element: Element) {
        let count = self.piece_of(all, own, element);
        self.enqueue("ncclReduceScatter", [&[all], &[own]], move |call| {
            // SAFETY: the tensors are at these addresses, and their lengths were compared.
            unsafe {
                (call.functions.reduce_scatter)(
                    call.addresses[0] as _,
                    call.addresses[1] as _,
                    count,
                    element as c_int,
                    SUM,
                    call.comm,
                    call.stream,
                )
            }
        });
    }

    /// Joins the pieces of all processes in their order.
    ///
    /// - `own`: `[k]`
    /// - `all`: `[world_size * k]`, written
    pub(crate) fn all_gather(&self, own: &CubeTensor, all: &CubeTensor, element: Element) {
        let count = self.piece_of(all, own, element);
        self.enqueue("ncclAllGather", [&[own], &[all]], move |call| {
            // SAFETY: as in `reduce_scatter`.
            unsafe {
                (call.functions.all_gather)(
                    call.addresses[0] as _,
                    call.addresses[1] as _,
                    count,
                    element as c_int,
                    call.comm,
                    call.stream,
                )
            }
        });
    }

    /// Announces a call of [`Self::gather_bytes`] to [`Self::check`].
    pub(crate) fn announce(&self) {
        self.0.n_requested.fetch_add(1, Ordering::SeqCst);
    }

    /// Joins shares of `bytes` bytes, a multiple of 16, of all processes in their order. Call this on
    /// the device thread.
    ///
    /// # Errors
    ///
    /// NCCL refuses the operation.
    ///
    /// # Safety
    ///
    /// `own` has `bytes` bytes and `all` has `world_size` times as many, until the operation ends;
    /// the stream exists.
    pub(crate) unsafe fn gather_bytes(
        &self,
        stream: CUstream,
        (own, all): (CUdeviceptr, CUdeviceptr),
        bytes: usize,
    ) -> Result<(), ServerError> {
        let name = "ncclAllGather";
        let shared = &self.0;
        let called = functions().and_then(|functions| {
            let (element, comm) = (Element::I32, shared.comm.0);
            let count = bytes / element.bytes();
            // SAFETY: the caller ensures that the memory and the stream exist.
            let status = unsafe {
                let element = element as c_int;
                (functions.all_gather)(own as _, all as _, count, element, comm, stream)
            };
            functions.check(name, status)
        });
        shared.note(name, called)
    }

    /// The client of the GPU.
    pub(crate) fn client(&self) -> Result<Client, NcclError> {
        client_of(&self.0.device)
    }

    /// The GPU.
    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }

    /// Waits until NCCL has accepted all requested collectives, not for their results.
    ///
    /// # Errors
    ///
    /// One was refused.
    pub(crate) fn check(&self, call: &'static str) -> Result<(), NcclError> {
        let shared = &self.0;
        // The device's thread works in order.
        let reached = on_device_thread(&client_of(&shared.device)?, || ());
        let failure = shared
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = &*failure {
            return Err(failure.clone());
        }
        let n_requested = shared.n_requested.load(Ordering::SeqCst);
        match reached {
            Some(()) if shared.n_queued.load(Ordering::SeqCst) == n_requested => Ok(()),
            _ => Err(NcclError::NotQueued { call }),
        }
    }

    /// Elements of `own`, which is a piece of `all`.
    fn piece_of(&self, all: &CubeTensor, own: &CubeTensor, element: Element) -> usize {
        let [n_all, n_own] = [all, own].map(|x| x.meta.num_elements());
        assert_eq!(n_all, n_own * self.world_size(), "one piece per process");
        for x in [all, own] {
            assert_eq!(x.dtype.size(), element.bytes(), "elements of this size");
        }
        n_own
    }

    fn enqueue(
        &self,
        name: &'static str,
        [reads, writes]: [&[&CubeTensor]; 2],
        body: impl FnOnce(&Call<'_>) -> Status + Send + 'static,
    ) {
        struct Nccl;
        let shared = self.0.clone();
        shared.n_requested.fetch_add(1, Ordering::SeqCst);
        let client = writes[0].client.clone();
        let handles =
            |tensors: &[&CubeTensor]| tensors.iter().map(|x| x.handle.clone()).collect::<Vec<_>>();
        let buffers = [handles(reads), handles(writes), Vec::new()];
        on_stream::<Nccl>(&client, buffers, move |stream, addresses| {
            let called = functions().and_then(|functions| {
                let status = body(&Call {
                    functions,
                    comm: shared.comm.0,
                    stream,
                    addresses,
                });
                functions.check(name, status)
            });
            shared.note(name, called)
        });
    }
}

impl Shared {
    /// Counts a call that succeeded, and keeps the first error.
    fn note(&self, name: &'static str, called: Result<(), NcclError>) -> Result<(), ServerError> {
        called.map_err(|error| {
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            failure.get_or_insert(error);
            DriverError::new(name, 1)
        })?;
        self.n_queued.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// What a call of NCCL on the device's thread needs.
struct Call<'a> {
    functions: &'static Functions,
    comm: Comm,
    stream: CUstream,
    addresses: &'a [CUdeviceptr],
}

/// Operations between processes; not differentiable.
#[backend_extension(Cube)]
pub(crate) trait BroadcastOps: Backend {
    /// Same contract as [`Communicator::broadcast`].
    fn broadcast_three(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        communicator: Communicator,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

impl BroadcastOps for CubeBackend {
    fn broadcast_three(
        a: CubeTensor,
        b: CubeTensor,
        c: CubeTensor,
        communicator: Communicator,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let inputs = [a, b, c].map(|x| contiguous::<1>(x).0);
        let counts = inputs.each_ref().map(|x| x.meta.num_elements());
        let outputs = inputs.each_ref().map(|x| {
            assert_eq!(x.dtype, DType::F32, "vectors in f32");
            output(x, [x.meta.num_elements()], DType::F32)
        });
        let buffers = [inputs.each_ref(), outputs.each_ref()];
        let buffers: [&[&CubeTensor]; 2] = [&buffers[0], &buffers[1]];
        communicator.enqueue("ncclBroadcast", buffers, move |call| {
            let (from, to) = call.addresses.split_at(counts.len());
            // SAFETY: as in `Communicator::reduce_scatter`; every started group is ended.
            unsafe {
                let mut statuses = vec![(call.functions.group_start)()];
                for ((&from, &to), &count) in from.iter().zip(to).zip(&counts) {
                    let (from, to, root) = (from as _, to as _, 0);
                    let element = Element::F32 as c_int;
                    let (comm, stream) = (call.comm, call.stream);
                    let broadcast = call.functions.broadcast;
                    statuses.push(broadcast(from, to, count, element, root, comm, stream));
                }
                statuses.push((call.functions.group_end)());
                statuses
                    .into_iter()
                    .find(|&status| status != 0)
                    .unwrap_or(0)
            }
        });
        let [a, b, c] = outputs;
        (a, b, c)
    }
}

fn client_of(device: &Device) -> Result<Client, NcclError> {
    let client = route::client(device.as_dispatch()).filter(is_cuda);
    client.ok_or(NcclError::NotCuda)
}

/// Makes the primary context of a device, in which Burn works, the current one of this thread.
fn make_current(index: c_int) -> Result<(), NcclError> {
    let made = device::get(index).and_then(|handle| {
        // SAFETY: `handle` is a device that the driver just returned. The context is not released,
        // as the communicator uses it to the end of the process.
        unsafe { ctx::set_current(primary_ctx::retain(handle)?) }
    });
    made.map_err(|error| NcclError::Call {
        call: "cuCtxSetCurrent",
        problem: format!("{:?}", error.0),
    })
}
