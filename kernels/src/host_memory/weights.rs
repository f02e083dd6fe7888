//! Weights of decoder blocks in pinned host memory, copied to the GPU one block ahead of their use.
//!
//! The GPU has two slots of the size of the largest block. When a product needs a weight of another
//! block than the one in use, the compute stream waits for the copy of that block, and our own
//! stream starts to copy the block that is expected next to the other slot, once the compute stream
//! has finished the block in it. Both waits are events; the host never waits.
//!
//! Products read a slot like any other memory, so results have the same bits as with all weights on
//! the GPU.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use burn::backend::DType;
use burn::tensor::Shape;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::server::{Handle, ServerError};
use cudarc::driver::sys::{CUdeviceptr, CUstream};

use super::HostMemoryError;
use super::pinned::{self, Engine, Pinned, Region, with_engine};
use super::walk::{SLOTS, Visit, Walk, slot_of};
use crate::FrozenWeight;
use crate::cube::launch::contiguous;
use crate::frozen_weight::quantised::cuda::Nf4Layout;
use crate::frozen_weight::{Storage, Supply};
use crate::on_stream::{is_cuda, on_stream};

/// Stacks begin at multiples of this number of bytes in a slot.
pub(crate) const ALIGNMENT: usize = 512;

/// How a stack is read once its bytes are in GPU memory.
#[derive(Debug, Clone)]
pub(crate) enum StackLayout {
    /// A matrix `[out, in]` of this dtype.
    Dense([usize; 2], DType),
    /// NF4 codes.
    Nf4(Nf4Layout),
}

impl StackLayout {
    pub(crate) fn dtype(&self) -> DType {
        match self {
            Self::Dense(_, dtype) => *dtype,
            Self::Nf4(layout) => layout.dtype(),
        }
    }

    /// Whether the stack is stored in 4 bits.
    pub(crate) fn is_quantised(&self) -> bool {
        matches!(self, Self::Nf4(_))
    }

    /// The dense matrix of a stack whose bytes are in `memory`; a view of it if the stack is dense.
    pub(crate) fn dense(&self, memory: Handle, client: &Client, device: &CubeDevice) -> CubeTensor {
        let n_words = memory.size_in_used() as usize / size_of::<u32>();
        let tensor = |shape, dtype| {
            CubeTensor::new_contiguous(client.clone(), device.clone(), shape, memory, dtype)
        };
        match self {
            Self::Dense(shape, dtype) => tensor(Shape::new(*shape), *dtype),
            Self::Nf4(layout) => layout.dense(&tensor(Shape::new([n_words]), DType::U32)),
        }
    }
}

/// The part of `slot`, which has `slot_bytes` bytes, from `offset` on.
pub(crate) fn part_of_slot(
    slot: &Handle,
    slot_bytes: usize,
    (offset, bytes): (usize, usize),
) -> Handle {
    let n_after = slot_bytes - offset - bytes;
    let slot = slot.clone().offset_start(offset as u64);
    slot.offset_end(n_after as u64)
}

/// A stack in pinned host memory.
pub(crate) struct HostStack {
    memory: Arc<Pinned>,
    layout: StackLayout,
    client: Client,
    device: CubeDevice,
    /// Set once all blocks are loaded.
    place: OnceLock<Place>,
}

/// Where a stack is in the slots.
struct Place {
    slots: Arc<Slots>,
    block: usize,
    offset: usize,
}

impl fmt::Debug for HostStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} of {} bytes in host memory",
            self.layout,
            self.bytes()
        )
    }
}

impl HostStack {
    /// Copies a stack from the GPU, which frees its memory there.
    ///
    /// # Errors
    ///
    /// The device is not a CUDA device, or there is not enough host memory.
    pub(crate) fn new(stored: CubeTensor, layout: StackLayout) -> Result<Self, HostMemoryError> {
        if !is_cuda(&stored.client) {
            return Err(HostMemoryError::NotCuda);
        }
        let stored = match layout {
            StackLayout::Dense(..) => contiguous::<2>(stored).0,
            StackLayout::Nf4(_) => stored,
        };
        let bytes = stored.meta.num_elements() * stored.dtype.size();
        let memory = Arc::new(Pinned::new(&stored.client, bytes)?);
        memory.copy_from(&stored);
        Ok(Self {
            memory,
            layout,
            client: stored.client,
            device: stored.device,
            place: OnceLock::new(),
        })
    }

    pub(crate) fn dtype(&self) -> DType {
        self.layout.dtype()
    }

    /// Whether the stack is stored in 4 bits.
    pub(crate) fn is_quantised(&self) -> bool {
        self.layout.is_quantised()
    }

    /// Bytes in host memory.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// The dense matrix. It may be a view of a slot, which is valid until a weight of another block
    /// is requested; launches that are queued before that read the right values.
    pub(crate) fn dense(&self) -> CubeTensor {
        let bytes = match self.place.get() {
            Some(place) => {
                place.slots.visit(place.block);
                let slot = &place.slots.memory[slot_of(place.block)];
                part_of_slot(slot, place.slots.bytes, (place.offset, self.bytes()))
            }
            None => self.memory.copy_to_new(&self.client),
        };
        self.layout.dense(bytes, &self.client, &self.device)
    }
}

/// See [`super::stream_blocks`].
pub(super) fn stream_blocks<'a>(blocks: impl Iterator<Item = Vec<&'a FrozenWeight>>) {
    let stacks = |weights: Vec<&FrozenWeight>| {
        let stack = |weight: &FrozenWeight| match weight.storage() {
            Storage::Supplied(Supply::Host(stack)) => Some(stack.clone()),
            _ => None,
        };
        weights.into_iter().filter_map(stack).collect()
    };
    place(&blocks.map(stacks).collect::<Vec<_>>());
}

/// Gives the stacks of all blocks their places in two slots on the GPU.
///
/// # Panics
///
/// If a stack already has a place: a bug of the caller.
fn place(blocks: &[Vec<Arc<HostStack>>]) {
    let Some(first) = blocks.iter().flatten().next() else {
        return;
    };
    let aligned = |stack: &HostStack| stack.bytes().next_multiple_of(ALIGNMENT);
    let size = |stacks: &Vec<Arc<HostStack>>| stacks.iter().map(|stack| aligned(stack)).sum();
    let bytes: usize = blocks.iter().map(size).max().unwrap_or(0);
    let client = &first.client;
    // CubeCL relocates other memory, and cannot know of the copies on our stream.
    let memory =
        client.memory_persistent_allocation((), |()| std::array::from_fn(|_| client.empty(bytes)));
    let offsets = |stacks: &Vec<Arc<HostStack>>| {
        let mut end = 0;
        let copy = |stack: &Arc<HostStack>| {
            let offset = end;
            end += aligned(stack);
            (stack.memory.clone(), offset)
        };
        stacks.iter().map(copy).collect()
    };
    let copies: Vec<Vec<(Arc<Pinned>, usize)>> = blocks.iter().map(offsets).collect();
    let slots = Arc::new(Slots {
        client: client.clone(),
        memory,
        bytes,
        walk: Mutex::new(Walk::new(blocks.len())),
        engine: Arc::default(),
        copies: copies.clone(),
    });
    for (block, (stacks, copies)) in blocks.iter().zip(copies).enumerate() {
        for (stack, (_, offset)) in stacks.iter().zip(copies) {
            let slots = slots.clone();
            let place = Place {
                slots,
                block,
                offset,
            };
            let placed = stack.place.set(place);
            assert!(placed.is_ok(), "a stack is given one place");
        }
    }
}

/// Memory on the GPU for two blocks.
struct Slots {
    client: Client,
    memory: [Handle; SLOTS],
    /// Size of a slot.
    bytes: usize,
    walk: Mutex<Walk>,
    /// Created on the device thread before the first copy.
    engine: Arc<Mutex<Option<Engine>>>,
    /// The stacks of each block, with their offsets in the slot.
    copies: Vec<Vec<(Arc<Pinned>, usize)>>,
}

/// A copy of a block to a slot.
struct BlockCopy {
    slot: usize,
    /// The stacks, with their offsets in the slot.
    stacks: Vec<(Region, usize)>,
}

impl BlockCopy {
    /// Queues the copy, after all work that is queued on the compute stream.
    fn enqueue(
        &self,
        engine: &Engine,
        compute: CUstream,
        addresses: &[CUdeviceptr],
    ) -> Result<(), ServerError> {
        engine.wait_until_free(compute)?;
        for (memory, offset) in &self.stacks {
            engine.copy(*memory, addresses[self.slot] + *offset as CUdeviceptr)?;
        }
        engine.record_full(self.slot)
    }
}

impl Slots {
    /// Makes later work of this thread read `block` in its slot, and begins to copy the next block.
    fn visit(&self, block: usize) {
        struct Copies;
        let mut walk = self.walk.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Visit {
            copies_block,
            ahead,
        }) = walk.visit(block)
        else {
            return;
        };
        let copy = |block: usize| BlockCopy {
            slot: slot_of(block),
            stacks: self.copies[block]
                .iter()
                .map(|(memory, offset)| (memory.region(), *offset))
                .collect(),
        };
        let now = copies_block.then(|| copy(block));
        let (ahead, slot) = (ahead.map(copy), slot_of(block));
        let engine = self.engine.clone();
        let buffers = [Vec::new(), self.memory.to_vec(), Vec::new()];
        on_stream::<Copies>(&self.client, buffers, move |compute, addresses| {
            with_engine(&engine, |engine| {
                if let Some(now) = now {
                    now.enqueue(engine, compute, addresses)?;
                }
                engine.wait_until_full(compute, slot)?;
                match ahead {
                    Some(ahead) => ahead.enqueue(engine, compute, addresses),
                    None => Ok(()),
                }
            })
        });
    }
}

impl Drop for Slots {
    /// The memory of the slots must not be reused before the last copy ends.
    fn drop(&mut self) {
        pinned::end(&self.client, self.engine.clone(), self.memory.to_vec());
    }
}
