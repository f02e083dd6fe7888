//! Gathers the shares of all GPUs of a node, one block ahead of its use.
//!
//! The GPU has two slots of the size of the largest block. When a product needs a weight of the next
//! block, the compute stream waits for the gather of that block, and our own stream begins to gather
//! the block after it into the other slot, once the compute stream has finished the block in it.
//! Both waits are events; the host never waits.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use burn::backend::{DType, DispatchDevice};
use burn::tensor::bf16;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::server::{Handle, ServerError};
use cudarc::driver::sys::{CUdeviceptr, CUstream};

use super::order::{Order, Step};
use super::{NodeError, Pass};
use crate::FrozenWeight;
use crate::frozen_weight::quantised::cuda::Nf4Layout;
use crate::frozen_weight::source::{Elements, Fill};
use crate::frozen_weight::{Storage, Supply, WeightSource, pieces};
use crate::host_memory::pinned::{self, Engine, Pinned, with_engine};
use crate::host_memory::walk::{SLOTS, slot_of};
use crate::host_memory::{ALIGNMENT, StackLayout, part_of_slot};
use crate::nccl::{Communicator, NcclError};
use crate::on_stream::{on_device_thread, on_stream};

/// Bytes that a rank sends in an exchange of numbers: NCCL is fastest, and our checks are strictest,
/// with multiples of 16.
const NUMBER_BYTES: usize = 16;

const NOT_FINISHED: &str = "a divided weight is used after `ShareLoader::finish`";

/// The GPUs of a node.
///
/// All ranks of the node must make the same calls in the same order.
#[derive(Clone)]
pub struct NodeGroup(Arc<Group>);

struct Group {
    communicator: Communicator,
    client: Client,
    /// Created on the device thread before the first gather.
    engine: Arc<Mutex<Option<Engine>>>,
    numbers: Mutex<Numbers>,
}

/// Memory of an exchange of numbers: own and all on the GPU, and the same in host memory.
struct Numbers {
    on_gpu: [Handle; 2],
    on_host: [Pinned; 2],
}

impl fmt::Debug for NodeGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let communicator = &self.0.communicator;
        let (rank, n_ranks) = (communicator.rank(), communicator.world_size());
        write!(f, "rank {rank} of {n_ranks} of a node")
    }
}

impl NodeGroup {
    /// The group of a communicator, which is used for nothing else.
    ///
    /// # Errors
    ///
    /// The driver has no pinned memory, or NCCL fails.
    pub fn new(communicator: Communicator) -> Result<Self, NcclError> {
        let client = communicator.client()?;
        let bytes = [NUMBER_BYTES, NUMBER_BYTES * communicator.world_size()];
        let pinned = |bytes| {
            Pinned::new(&client, bytes).map_err(|error| NcclError::Call {
                call: "cuMemHostAlloc",
                problem: error.to_string(),
            })
        };
        let on_host = [pinned(bytes[0])?, pinned(bytes[1])?];
        let on_gpu =
            client.memory_persistent_allocation((), |()| bytes.map(|bytes| client.empty(bytes)));
        Ok(Self(Arc::new(Group {
            numbers: Mutex::new(Numbers { on_gpu, on_host }),
            communicator,
            client,
            engine: Arc::default(),
        })))
    }

    /// Number of ranks of the node.
    pub fn n_ranks(&self) -> usize {
        self.0.communicator.world_size()
    }

    /// The numbers of all ranks, in their order. Waits until all gathers have ended and all ranks
    /// have called this.
    ///
    /// # Errors
    ///
    /// A gather or this exchange was refused.
    pub fn exchange(&self, own: u32) -> Result<Vec<u32>, NodeError> {
        struct Exchange;
        let group = &self.0;
        let mut numbers = group.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let own = [own; NUMBER_BYTES / size_of::<u32>()].map(u32::to_le_bytes);
        numbers.on_host[0].write(own.as_flattened());
        let regions = numbers.on_host.each_ref().map(Pinned::region);
        let (engine, communicator) = (group.engine.clone(), group.communicator.clone());
        communicator.announce();
        let buffers = [Vec::new(), numbers.on_gpu.to_vec(), Vec::new()];
        on_stream::<Exchange>(&group.client, buffers, move |compute, addresses| {
            with_engine(&engine, |engine| {
                engine.wait_until_free(compute)?;
                engine.copy(regions[0], addresses[0])?;
                // SAFETY: the memory has these sizes and belongs to the group, which is dropped
                // after the work of its stream; the stream is the group's.
                unsafe {
                    let both = (addresses[0], addresses[1]);
                    communicator.gather_bytes(engine.stream(), both, NUMBER_BYTES)?;
                }
                engine.copy_back(addresses[1], regions[1])
            })
        });
        self.synchronize();
        group.communicator.check("ncclAllGather")?;
        let all = numbers.on_host[1].read();
        let first = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Ok(all.chunks(NUMBER_BYTES).map(first).collect())
    }

    /// Makes later work of this thread wait for all gathers, so that they do not run at the same
    /// time as other collectives.
    pub fn wait_for_gathers(&self) {
        struct Settled;
        let engine = self.0.engine.clone();
        let buffers = [Vec::new(), Vec::new(), Vec::new()];
        on_stream::<Settled>(&self.0.client, buffers, move |compute, _| {
            with_engine(&engine, |engine| {
                (0..SLOTS).try_for_each(|slot| engine.wait_until_full(compute, slot))
            })
        });
    }

    /// Leaves the group. All ranks call it after their last gather, and wait for each other.
    ///
    /// # Errors
    ///
    /// NCCL reports an error.
    pub fn close(self) -> Result<(), NcclError> {
        self.synchronize();
        self.0.communicator.clone().close()
    }

    /// Waits on the host until all gathers have ended.
    fn synchronize(&self) {
        let engine = self.0.engine.clone();
        // Errors of the stream are returned when the results are read.
        let _ = on_device_thread(&self.0.client, move || {
            let _ = with_engine(&engine, Engine::synchronize);
        });
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let numbers = self.numbers.get_mut();
        let numbers = numbers.unwrap_or_else(PoisonError::into_inner);
        pinned::end(&self.client, self.engine.clone(), numbers.on_gpu.to_vec());
    }
}

/// A stack that the GPUs of a node divide.
pub(crate) struct NodeStack {
    layout: StackLayout,
    /// Of the whole stack.
    bytes: usize,
    n_ranks: usize,
    block: usize,
    /// Offset in the slots.
    offset: usize,
    client: Client,
    device: CubeDevice,
    /// Set once all blocks are loaded.
    gathers: OnceLock<Arc<Slots>>,
}

impl fmt::Debug for NodeStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layout, bytes, n_ranks) = (&self.layout, self.bytes, self.n_ranks);
        write!(f, "{layout:?} of {bytes} bytes on {n_ranks} GPUs")
    }
}

impl NodeStack {
    pub(crate) fn dtype(&self) -> DType {
        self.layout.dtype()
    }

    /// Whether the stack is stored in 4 bits.
    pub(crate) fn is_quantised(&self) -> bool {
        self.layout.is_quantised()
    }

    /// Mean bytes on each GPU of the node.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.div_ceil(self.n_ranks)
    }

    /// The dense matrix. It may be a view of a slot, which is valid until a weight of another block
    /// is requested; launches that are queued before that read the right values.
    ///
    /// # Panics
    ///
    /// If the current pass does not use the block: a bug of the caller.
    pub(crate) fn dense(&self) -> CubeTensor {
        let slots = self.gathers.get().expect(NOT_FINISHED);
        slots.visit(self.block);
        let slot = &slots.memory[slot_of(self.block)];
        let memory = part_of_slot(slot, slots.bytes, (self.offset, self.bytes));
        self.layout.dense(memory, &self.client, &self.device)
    }
}

/// Loads this GPU's shares of all blocks.
pub struct ShareLoader {
    group: Arc<Group>,
    device: CubeDevice,
    shares: Vec<Share>,
    stacks: Vec<Arc<NodeStack>>,
}

/// This GPU's share of a block.
#[derive(Clone)]
struct Share {
    memory: Handle,
    bytes: usize,
}

impl fmt::Debug for ShareLoader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shares of {} blocks", self.shares.len())
    }
}

impl ShareLoader {
    /// Begins to load for the GPU of a group.
    pub fn new(group: &NodeGroup) -> Self {
        let group = group.0.clone();
        let DispatchDevice::Cube(device) = group.communicator.device().as_dispatch() else {
            panic!("NCCL connects CUDA devices only");
        };
        Self {
            device: device.clone(),
            group,
            shares: Vec::new(),
            stacks: Vec::new(),
        }
    }

    /// Loads this GPU's share of the next block, and returns its stacks. Reads only this share of
    /// elements that a function fills.
    ///
    /// # Errors
    ///
    /// The elements cannot be read.
    pub fn add_block<E: Send>(
        &mut self,
        sources: Vec<WeightSource<'_, E>>,
    ) -> Result<Vec<FrozenWeight>, E> {
        let communicator = &self.group.communicator;
        let (rank, n_ranks) = (communicator.rank(), communicator.world_size());
        let mut end = 0;
        let mut placed = Vec::with_capacity(sources.len());
        for source in sources {
            let shape = source.shape;
            let stack = StoredStack::new(source);
            let offset = end;
            end += stack.bytes.next_multiple_of(ALIGNMENT);
            placed.push((stack, shape, offset));
        }
        let client = self.group.client.clone();
        let bytes = end.div_ceil(n_ranks).max(1).next_multiple_of(ALIGNMENT);
        // CubeCL relocates other memory, and cannot know of the gathers on our stream.
        let memory = client.memory_persistent_allocation((), |()| client.empty(bytes));
        let own = rank * bytes..(rank + 1) * bytes;
        let mut weights = Vec::with_capacity(placed.len());
        for (stack, shape, offset) in placed {
            let first = own.start.max(offset);
            let last = own.end.min(offset + stack.bytes);
            if first < last {
                let element = |byte: usize| (byte - offset) / size_of::<bf16>();
                let range = element(first)..element(last);
                let to = (&memory, first - own.start);
                pieces::write_range(range, &client, to, stack.fill)?;
            }
            let stack = Arc::new(NodeStack {
                layout: stack.layout,
                bytes: stack.bytes,
                n_ranks,
                block: self.shares.len(),
                offset,
                client: client.clone(),
                device: self.device.clone(),
                gathers: OnceLock::new(),
            });
            self.stacks.push(stack.clone());
            let storage = Storage::Supplied(Supply::Node(stack));
            let device = self.group.communicator.device();
            weights.push(FrozenWeight::from_storage(storage, shape, device));
        }
        self.shares.push(Share { memory, bytes });
        Ok(weights)
    }

    /// Allocates the slots. The weights can be used from now on, by this thread only.
    pub fn finish(self) -> Gathers {
        let client = self.group.client.clone();
        let largest = self.shares.iter().map(|share| share.bytes).max();
        let bytes = largest.unwrap_or(ALIGNMENT) * self.group.communicator.world_size();
        let memory = client
            .memory_persistent_allocation((), |()| std::array::from_fn(|_| client.empty(bytes)));
        let slots = Arc::new(Slots {
            order: Mutex::new(Order::new(self.shares.len())),
            shares: self.shares,
            memory,
            bytes,
            group: self.group,
        });
        for stack in &self.stacks {
            let placed = stack.gathers.set(slots.clone());
            assert!(placed.is_ok(), "a stack is given one place");
        }
        Gathers(slots)
    }
}

/// The bytes of a stack as they are stored, in units of 16 bits.
struct StoredStack<'a, E> {
    layout: StackLayout,
    bytes: usize,
    fill: Fill<'a, E>,
}

impl<'a, E: Send + 'a> StoredStack<'a, E> {
    fn new(source: WeightSource<'a, E>) -> Self {
        let WeightSource { shape, elements } = source;
        match elements {
            Elements::Filled(fill) => Self {
                layout: StackLayout::Dense(shape, DType::BF16),
                bytes: shape[0] * shape[1] * size_of::<bf16>(),
                fill,
            },
            Elements::Values(values, dtype) => {
                let dtype = dtype.dtype();
                let bytes = values.len() * dtype.size();
                let layout = StackLayout::Dense(shape, dtype);
                let fill: Fill<'a, E> = match dtype {
                    DType::F32 => of_words(values.into_iter().map(f32::to_bits).collect()),
                    _ => Box::new(move |start, to| {
                        let values = values[start..].iter();
                        to.iter_mut()
                            .zip(values)
                            .for_each(|(to, x)| *to = bf16::from_f32(*x));
                        Ok(())
                    }),
                };
                Self {
                    layout,
                    bytes,
                    fill,
                }
            }
            Elements::Nf4(parts, dtype) => {
                let (words, layout) = Nf4Layout::pack(&parts, shape, dtype);
                Self {
                    layout: StackLayout::Nf4(layout),
                    bytes: words.len() * size_of::<u32>(),
                    fill: of_words(words),
                }
            }
        }
    }
}

/// Writes the halves of words, the low half first.
fn of_words<'a, E>(words: Vec<u32>) -> Fill<'a, E> {
    Box::new(move |start, to| {
        for (i, to) in to.iter_mut().enumerate() {
            let (word, half) = ((start + i) / 2, (start + i) % 2);
            *to = bf16::from_bits((words[word] >> (16 * half)) as u16);
        }
        Ok(())
    })
}

/// Gathers the blocks of a model, in the order of its passes.
///
/// All uses of the weights must be on one thread, within a pass.
#[derive(Clone)]
pub struct Gathers(Arc<Slots>);

/// The shares of all blocks, and memory for two whole blocks.
struct Slots {
    order: Mutex<Order>,
    shares: Vec<Share>,
    memory: [Handle; SLOTS],
    /// Size of a slot.
    bytes: usize,
    group: Arc<Group>,
}

impl fmt::Debug for Gathers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gathers of {} blocks", self.0.shares.len())
    }
}

impl Gathers {
    /// Begins a pass, after the rest of the previous one.
    pub fn begin(&self, pass: Pass) {
        let steps = self.0.with_order(|order| order.begin(pass));
        self.0.enqueue(steps);
    }

    /// Gathers the rest of the pass, whose blocks this rank does not use.
    pub fn finish(&self) {
        let steps = self.0.with_order(Order::finish);
        self.0.enqueue(steps);
    }

    /// The GPUs of the node.
    pub fn group(&self) -> NodeGroup {
        NodeGroup(self.0.group.clone())
    }
}

/// A gather of a block into a slot.
struct Gather {
    slot: usize,
    /// Position of the share among the addresses, and its size.
    share: usize,
    bytes: usize,
}

impl Gather {
    /// Queues the gather, after all work that is queued on the compute stream.
    fn enqueue(
        &self,
        (engine, communicator): (&Engine, &Communicator),
        compute: CUstream,
        addresses: &[CUdeviceptr],
    ) -> Result<(), ServerError> {
        engine.wait_until_free(compute)?;
        let slots = &addresses[addresses.len() - SLOTS..];
        let both = (addresses[self.share], slots[self.slot]);
        // SAFETY: a slot has room for the shares of all ranks, which have the same size. Both are
        // freed only after the work of the stream, which belongs to the group.
        unsafe { communicator.gather_bytes(engine.stream(), both, self.bytes)? };
        engine.record_full(self.slot)
    }
}

impl Slots {
    fn with_order<R>(&self, work: impl FnOnce(&mut Order) -> R) -> R {
        work(&mut self.order.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes later work of this thread read `block` in its slot, and begins to gather the next one.
    fn visit(&self, block: usize) {
        let steps = self.with_order(|order| order.advance_to(block));
        let steps = steps.unwrap_or_else(|| panic!("the pass does not use block {block} again"));
        self.enqueue(steps);
    }

    fn enqueue(&self, steps: Vec<Step>) {
        steps.into_iter().for_each(|step| self.enqueue_step(step));
    }

    fn enqueue_step(&self, step: Step) {
        struct GatherBlocks;
        let mut shares = Vec::new();
        let mut gather = |block: usize| {
            let share = &self.shares[block];
            shares.push(share.memory.clone());
            self.group.communicator.announce();
            Gather {
                slot: slot_of(block),
                share: shares.len() - 1,
                bytes: share.bytes,
            }
        };
        let now = step.gathers_block.then(|| gather(step.block));
        let ahead = step.ahead.map(&mut gather);
        let slot = slot_of(step.block);
        let (engine, communicator) = (self.group.engine.clone(), self.group.communicator.clone());
        let buffers = [shares, self.memory.to_vec(), Vec::new()];
        on_stream::<GatherBlocks>(&self.group.client, buffers, move |compute, addresses| {
            with_engine(&engine, |engine| {
                let both = (engine, &communicator);
                if let Some(now) = now {
                    now.enqueue(both, compute, addresses)?;
                }
                engine.wait_until_full(compute, slot)?;
                match ahead {
                    Some(ahead) => ahead.enqueue(both, compute, addresses),
                    None => Ok(()),
                }
            })
        });
    }
}

impl Drop for Slots {
    /// The memory must not be reused before the last gather ends.
    fn drop(&mut self) {
        let shares = self.shares.iter().map(|share| share.memory.clone());
        let memory = shares.chain(self.memory.clone()).collect();
        let group = &self.group;
        pinned::finish(group.client.service_id(), group.engine.clone(), memory);
    }
}
