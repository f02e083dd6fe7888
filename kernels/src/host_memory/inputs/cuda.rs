//! The copies of block inputs of a CUDA GPU.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::DType;
use burn::tensor::Tensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl_common::device::ServiceId;

use super::{BlockInputs, Entry};
use crate::cube::launch::{contiguous, output};
use crate::host_memory::HostMemoryError;
use crate::host_memory::pinned::{Engine, Pinned, finish, with_engine};
use crate::host_memory::walk::slot_of;
use crate::on_stream::{is_cuda, on_stream};

/// The copy stream of a device and pinned memory that no pass uses. They are kept for the life of
/// the process, because every step needs the same memory.
#[derive(Debug)]
struct Reserve {
    service: ServiceId,
    engine: Arc<Mutex<Option<Engine>>>,
    free: Vec<Pinned>,
}

static RESERVES: Mutex<Vec<Reserve>> = Mutex::new(Vec::new());

/// Calls `use_reserve` with the reserve of a device.
fn with_reserve<R>(service: ServiceId, use_reserve: impl FnOnce(&mut Reserve) -> R) -> R {
    let mut reserves = RESERVES.lock().unwrap_or_else(PoisonError::into_inner);
    let known = reserves.iter().position(|known| known.service == service);
    let index = known.unwrap_or_else(|| {
        reserves.push(Reserve {
            service,
            engine: Arc::default(),
            free: Vec::new(),
        });
        reserves.len() - 1
    });
    use_reserve(&mut reserves[index])
}

/// An input in host memory, and its shape.
#[derive(Debug)]
pub(super) struct HostInput(Pinned, [usize; 2]);

/// Copies that may not have ended.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// The input that was pushed last, on its way to the host.
    leaving: Option<CubeTensor>,
    /// The last entry's tensor, on its way back.
    ahead: Option<CubeTensor>,
}

impl BlockInputs {
    /// Adds an input on a CUDA GPU; returns any other.
    ///
    /// # Errors
    ///
    /// There is not enough host memory.
    pub(super) fn push_to_host(
        &mut self,
        x: Tensor<2>,
    ) -> Result<Option<Tensor<2>>, HostMemoryError> {
        let on_cuda = x.clone().try_into_primitive::<CubeBackend>().ok();
        let on_cuda = on_cuda.filter(|tensor| is_cuda(&tensor.client));
        let Some(tensor) = on_cuda else {
            return Ok(Some(x));
        };
        drop(x);
        let (tensor, shape) = contiguous(tensor);
        let slot = slot_of(self.entries.len());
        let bytes = tensor.meta.num_elements() * tensor.dtype.size();
        let (memory, engine) = reserved(&tensor, bytes)?;
        let region = memory.region().shortened(bytes);
        struct Leaves;
        let other_slot = slot_of(self.entries.len() + 1);
        let previous = self.copies.leaving.replace(tensor.clone());
        let has_previous = previous.is_some();
        // The device thread runs behind this one. It must hold the previous input until it has
        // queued the wait, or an earlier allocation would reuse its memory.
        let mut reads = vec![tensor.handle.clone()];
        reads.extend(previous.map(|previous| previous.handle));
        let buffers = [reads, Vec::new(), Vec::new()];
        on_stream::<Leaves>(&tensor.client, buffers, move |compute, addresses| {
            with_engine(&engine, |engine| {
                // The memory of the previous input is reused only by work after its copy.
                if has_previous {
                    engine.wait_until_full(compute, other_slot)?;
                }
                engine.wait_until_free(compute)?;
                engine.copy_back(addresses[0], region)?;
                engine.record_full(slot)
            })
        });
        self.entries.push(Entry::Host(HostInput(memory, shape)));
        Ok(None)
    }

    /// The tensor of an input that was just removed.
    pub(super) fn pop_from_host(&mut self, input: HostInput) -> Tensor<2> {
        let HostInput(memory, shape) = input;
        let tensor = self
            .copies
            .leaving
            .take()
            .or_else(|| self.copies.ahead.take());
        let tensor = tensor.expect("every input but the last one is copied back ahead");
        debug_assert_eq!(tensor.meta.num_elements(), shape[0] * shape[1]);
        self.wait_for(&tensor);
        let service = tensor.client.service_id();
        with_reserve(service, |reserve| reserve.free.push(memory));
        self.copy_ahead(&tensor);
        Tensor::from_primitive::<CubeBackend>(tensor)
    }

    /// Makes later work wait for the copy of the entry that was just removed, to or from the host.
    fn wait_for(&self, tensor: &CubeTensor) {
        struct Arrives;
        let slot = slot_of(self.entries.len());
        let engine = with_reserve(tensor.client.service_id(), |reserve| reserve.engine.clone());
        let buffers = [vec![tensor.handle.clone()], Vec::new(), Vec::new()];
        on_stream::<Arrives>(&tensor.client, buffers, move |compute, _| {
            with_engine(&engine, |engine| engine.wait_until_full(compute, slot))
        });
    }

    /// Begins to copy the last entry to the device of `like`.
    fn copy_ahead(&mut self, like: &CubeTensor) {
        struct Ahead;
        let Some(Entry::Host(HostInput(memory, shape))) = self.entries.last() else {
            return;
        };
        let slot = slot_of(self.entries.len() - 1);
        let tensor = output(like, *shape, DType::F32);
        let bytes = tensor.meta.num_elements() * tensor.dtype.size();
        let region = memory.region().shortened(bytes);
        let engine = with_reserve(like.client.service_id(), |reserve| reserve.engine.clone());
        let buffers = [Vec::new(), vec![tensor.handle.clone()], Vec::new()];
        on_stream::<Ahead>(&like.client, buffers, move |compute, addresses| {
            with_engine(&engine, |engine| {
                engine.wait_until_free(compute)?;
                engine.copy(region, addresses[0])?;
                engine.record_full(slot)
            })
        });
        self.copies.ahead = Some(tensor);
    }
}

/// Pinned memory of at least this size, and the copy stream.
fn reserved(
    like: &CubeTensor,
    bytes: usize,
) -> Result<(Pinned, Arc<Mutex<Option<Engine>>>), HostMemoryError> {
    with_reserve(like.client.service_id(), |reserve| {
        let fits = |memory: &Pinned| memory.len() >= bytes;
        let memory = match reserve.free.iter().position(fits) {
            Some(index) => reserve.free.swap_remove(index),
            None => {
                // Replaces memory of a smaller micro-batch, if there is any.
                drop(reserve.free.pop());
                Pinned::new(&like.client, bytes)?
            }
        };
        Ok((memory, reserve.engine.clone()))
    })
}

impl Drop for BlockInputs {
    /// After a pass that was stopped, the GPU's memory must not be reused before its copies end.
    fn drop(&mut self) {
        let last = self.copies.leaving.take().or(self.copies.ahead.take());
        if let Some(last) = last {
            let service = last.client.service_id();
            let memory = self.entries.drain(..).filter_map(|entry| match entry {
                Entry::Host(HostInput(memory, _)) => Some(memory),
                Entry::Device(_) => None,
            });
            let engine = with_reserve(service, |reserve| {
                reserve.free.extend(memory);
                reserve.engine.clone()
            });
            finish(service, engine, vec![last.handle]);
        }
    }
}
