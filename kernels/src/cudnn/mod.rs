//! Attention by NVIDIA's cuDNN, queued on CubeCL's CUDA stream between its launches.
//!
//! On Hopper its kernels are several times as fast as ours from CubeCL. The library is loaded at
//! run time; a plan is built once per shape of a micro-batch and cached on disk. If the library is
//! missing, too old, disabled or has no engine, callers use our kernels. Our kernels are bitwise
//! reproducible, whereas cuDNN's backward pass adds query gradients in the order in which its
//! blocks finish, so the last bits differ from run to run.

mod descriptor;
mod graph;
mod prefetch;
mod sdpa;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::LazyLock;

use burn::backend::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::server::Handle;
use cubecl_server::driver::DriverError;
use cudarc::cudnn::sys::{cudnnCreate, cudnnGetVersion, cudnnHandle_t, cudnnSetStream};
use cudarc::driver::result::memset_d8_async;

use crate::attention::{Causality, Documents, Queries};
use crate::choice_cache::{self, Files};
use crate::cube::launch::output;
use crate::gpu::{self, Library, compute_capability};
use crate::on_stream::{Asked, is_cuda, on_stream};
use descriptor::{Refusal, check_status};
use graph::{Plan, PlanTarget};
pub use prefetch::{AttentionLayers, PlanPrefetch, n_attention_shapes};
use sdpa::{Band, PlanShape, uid};

/// Environment variable; `0` disables cuDNN, so that bitwise reproducible kernels compute
/// attention.
pub(crate) const SWITCH: &str = "TOOLTUNE_CUDNN";

/// Version 9.10 is the first whose engines accept minus infinity for masked scores and clear their
/// own sums.
const OLDEST: usize = 91_000;

/// The oldest version that computes attention, for messages.
pub const OLDEST_CUDNN: &str = "9.10";

/// Alignment of addresses within a buffer, in bytes.
const ALIGNMENT: usize = 256;

/// Maximum scratch memory of a backward pass, in bytes; above it our kernels, which need none, are
/// the better choice.
const MOST_SCRATCH: usize = 4 << 30;

/// Whether cuDNN attention is available for tensors of this client.
pub(crate) fn is_served(client: &Client) -> bool {
    is_cuda(client) && is_found()
}

fn is_found() -> bool {
    static IS_FOUND: LazyLock<bool> =
        LazyLock::new(|| Library::Cudnn.is_enabled(SWITCH) && is_cudnn_recent());
    *IS_FOUND
}

/// Whether cuDNN can be loaded and is not older than [`OLDEST_CUDNN`].
pub fn is_cudnn_recent() -> bool {
    // SAFETY: the library is loaded.
    Library::Cudnn.find().is_some() && unsafe { cudnnGetVersion() } >= OLDEST
}

/// Whether a device's engines support ragged tensors: those for Ampere, Ada and the small
/// Blackwells compute wrong results with them (cudnn-frontend 1.32 disables them there).
fn takes_ragged(index: i32) -> Option<bool> {
    let capability = compute_capability(index).ok()?;
    Some(matches!(capability, (9, 0) | (10, 0) | (10, 3)))
}

/// Index of a CUDA client's device.
fn index_of(client: &Client) -> i32 {
    client.service_id().device.index_id.into()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Pass {
    Forward,
    Backward,
}

/// Attention within documents for a contiguous bf16 tensor `qkv`, `[n, h + 2 g, c]`.
pub(crate) struct Attention<'a> {
    pub(crate) qkv: &'a CubeTensor,
    pub(crate) queries: Queries,
    pub(crate) documents: &'a Documents,
    pub(crate) causality: Causality,
}

/// A tensor's number in the graph, its buffer, and its offset in the buffer in bytes.
type Placed = (i64, usize, usize);

impl Attention<'_> {
    /// The result, `[n, h, c]`, bf16, and the log-sum-exp of the scores, `[n, h]`, f32. Returns
    /// `None` and does nothing if cuDNN cannot compute it.
    pub(crate) fn forward(&self) -> Option<[CubeTensor; 2]> {
        let plan_shape = self.plan_shape()?;
        let workspace = plan_shape.workspace(&self.qkv.client, Pass::Forward)?;
        let [n, h, c] = [self.documents.n_tokens(), plan_shape.heads, plan_shape.size];
        let out = output(self.qkv, [n, h, c], DType::BF16);
        let log_sums = output(self.qkv, [n, h], DType::F32);
        let numbers = self
            .documents
            .starts(self.qkv, plan_shape.documents, row_sizes(&plan_shape));
        let mut places = self.input_locations(&plan_shape);
        places.extend([(uid::OUT, 2, 0), (uid::LOG_SUMS, 3, 0)]);
        self.enqueue(Work {
            plan_shape,
            pass: Pass::Forward,
            reads: vec![self.qkv, &numbers],
            writes: vec![&out, &log_sums],
            places,
            scratch: [workspace, 0],
            cleared: (2, h * c),
        });
        Some([out, log_sums])
    }

    /// The gradient of `qkv`, with its shape, from the result, the log-sum-exp and the gradient of
    /// the result, all contiguous.
    pub(crate) fn backward(&self, [out, log_sums, d_out]: [&CubeTensor; 3]) -> Option<CubeTensor> {
        let plan_shape = self.plan_shape()?;
        let workspace = plan_shape.workspace(&self.qkv.client, Pass::Backward)?;
        let n = self.documents.n_tokens();
        let dims = [n, plan_shape.heads + 2 * plan_shape.groups, plan_shape.size];
        let d_qkv = output(self.qkv, dims, DType::BF16);
        let numbers = self
            .documents
            .starts(self.qkv, plan_shape.documents, row_sizes(&plan_shape));
        let mut places = self.input_locations(&plan_shape);
        places.extend([(uid::OUT, 2, 0), (uid::LOG_SUMS, 3, 0), (uid::D_OUT, 4, 0)]);
        let [_, keys, values] = qkv_offsets(&plan_shape);
        let gradients = [uid::D_QUERIES, uid::D_KEYS, uid::D_VALUES];
        places.extend(
            gradients
                .into_iter()
                .zip([0, keys, values])
                .map(|(uid, at)| (uid, 5, at)),
        );
        let mut own = 0;
        for (uid, bytes) in scratch(&plan_shape, n) {
            places.push((uid, 6, own));
            own += bytes;
        }
        let width = plan_shape.width();
        self.enqueue(Work {
            plan_shape,
            pass: Pass::Backward,
            reads: vec![self.qkv, &numbers, out, log_sums, d_out],
            writes: vec![&d_qkv],
            places,
            scratch: [workspace, own],
            cleared: (5, width),
        });
        Some(d_qkv)
    }

    /// The plan shape for this attention; `None` if cuDNN does not support it.
    fn plan_shape(&self) -> Option<PlanShape> {
        let [n, all, size] = *self.qkv.meta.shape().as_slice() else {
            return None;
        };
        if self.qkv.dtype != DType::BF16 {
            return None;
        }
        let arguments = (self.queries, self.documents, self.causality);
        PlanShape::for_attention(&self.qkv.client, [n, all, size], arguments)
    }

    /// Locations of the tensors that both passes read: buffer 0 is `qkv`, buffer 1 has the document
    /// lengths and starts.
    fn input_locations(&self, plan_shape: &PlanShape) -> Vec<Placed> {
        let [queries, keys, values] = qkv_offsets(plan_shape);
        let mut places = vec![
            (uid::QUERIES, 0, queries),
            (uid::KEYS, 0, keys),
            (uid::VALUES, 0, values),
        ];
        let sections = sections(plan_shape.documents).map(|first| first * size_of::<u32>());
        let [lengths, starts, out_starts, log_starts] = sections;
        places.extend(uid::LENGTHS.map(|uid| (uid, 1, lengths)));
        places.extend(uid::STARTS.map(|uid| (uid, 1, starts)));
        places.extend([
            (uid::OUT_STARTS, 1, out_starts),
            (uid::LOG_STARTS, 1, log_starts),
        ]);
        places
    }

    fn enqueue(&self, work: Work<'_>) {
        struct Cudnn;
        let Work {
            plan_shape,
            pass,
            reads,
            writes,
            places,
            scratch: [workspace, own],
            cleared: (cleared, row),
        } = work;
        let client = &self.qkv.client;
        let handles =
            |tensors: &[&CubeTensor]| tensors.iter().map(|x| x.handle.clone()).collect::<Vec<_>>();
        let n_tensors = reads.len() + writes.len();
        let aligned = own.next_multiple_of(ALIGNMENT);
        let mut scratch: Vec<Handle> = Vec::new();
        if aligned + workspace > 0 {
            scratch.push(client.empty(aligned + workspace));
        }
        // Padding rows are zero.
        let row = row * DType::BF16.size();
        let (end, n) = (self.documents.end(), self.documents.n_tokens());
        let buffers = [handles(&reads), handles(&writes), scratch];
        let index = index_of(client);
        on_stream::<Cudnn>(client, buffers, move |stream, addresses| {
            let failed = |call, code| DriverError::new(call, code);
            let scratch = addresses.get(n_tensors).copied().unwrap_or(0);
            let places: Vec<(i64, u64)> = places
                .iter()
                .map(|&(uid, buffer, at)| {
                    let base = addresses.get(buffer).copied().unwrap_or(scratch);
                    (uid, base + at as u64)
                })
                .collect();
            if end < n {
                let first = addresses[cleared] + (end * row) as u64;
                // SAFETY: the rows are within their buffer, which `on_stream` keeps alive.
                unsafe { memset_d8_async(first, 0, (n - end) * row, stream) }
                    .map_err(|error| failed("cuMemsetD8Async", error.0 as u32))?;
            }
            with_thread_state(index, |state| {
                let plan = state
                    .plans
                    .get(&(plan_shape.clone(), pass))
                    .expect("the plan was built");
                // SAFETY: the handle lives as long as the thread.
                check_status(unsafe { cudnnSetStream(state.handle, stream.cast()) })?;
                // SAFETY: the server resolved the addresses, and `on_stream` keeps their buffers
                // alive until the work is queued; sizes follow from the plan shape.
                unsafe { plan.enqueue(state.handle, &places, scratch + aligned as u64) }
            })
            .map_err(|refusal| failed("cudnnBackendExecute", refusal.status as u32).into())
        });
    }
}

/// Whether cuDNN computes attention and its gradient for a bf16 tensor `[n, h + 2 g, c]` of this
/// client.
pub(crate) fn supports(
    client: &Client,
    dims: [usize; 3],
    arguments: AttentionArguments<'_>,
) -> bool {
    let has_plan = |plan_shape: &PlanShape, pass| plan_shape.workspace(client, pass).is_some();
    PlanShape::for_attention(client, dims, arguments).is_some_and(|plan_shape| {
        [Pass::Forward, Pass::Backward]
            .iter()
            .all(|&pass| has_plan(&plan_shape, pass))
    })
}

/// Heads, documents and mask of an attention.
type AttentionArguments<'a> = (Queries, &'a Documents, Causality);

impl PlanShape {
    /// The plan shape for attention of a tensor with these dimensions; `None` if cuDNN does not
    /// support it.
    fn for_attention(
        client: &Client,
        [n, all, size]: [usize; 3],
        (queries, documents, causality): AttentionArguments<'_>,
    ) -> Option<Self> {
        if !is_served(client) {
            return None;
        }
        let heads = queries.heads;
        let groups = (all - heads) / 2;
        let lengths: Vec<usize> = documents.spans().map(|(_, length)| length).collect();
        let takes_ragged = takes_ragged(index_of(client))?;
        let scale = queries.scale(size) as f32;
        let dims = [n, heads, groups, size];
        Self::for_lengths(takes_ragged, dims, scale, &lengths, causality)
    }

    /// The plan shape for attention of `n` tokens in documents of these lengths, with these numbers
    /// of query and key/value heads and this head size.
    fn for_lengths(
        takes_ragged: bool,
        [n, heads, groups, size]: [usize; 4],
        scale: f32,
        lengths: &[usize],
        causality: Causality,
    ) -> Option<Self> {
        let longest = *lengths.iter().max()?;
        let all = heads + 2 * groups;
        // The engines read sixteen bytes at a time, and use 31-bit element indices.
        if size % 8 != 0 || n * all * size > i32::MAX as usize {
            return None;
        }
        // A plan is for a maximum number of documents and tokens. Rounding both to powers of two
        // keeps the number of plans small.
        let length = longest.next_power_of_two().max(64);
        let mut plan_shape = PlanShape {
            documents: lengths.len().next_power_of_two(),
            length,
            heads,
            groups,
            size,
            scale: scale.to_bits(),
            band: Band::new(causality, longest),
            ragged: false,
        };
        let ragged = PlanShape {
            ragged: true,
            ..plan_shape.clone()
        };
        if takes_ragged
            && size % 16 == 0
            && scratch_bytes(&ragged, n) < scratch_bytes(&plan_shape, n)
        {
            plan_shape = ragged;
        }
        (scratch_bytes(&plan_shape, n) <= MOST_SCRATCH).then_some(plan_shape)
    }

    /// Workspace bytes of a plan, which is built when its shape is first used; `None` if there is
    /// none.
    fn workspace(&self, client: &Client, pass: Pass) -> Option<usize> {
        static FOUND: Asked<(PlanShape, Pass), usize> = Asked::none();
        let (plan_shape, wanted, index) = (self.clone(), pass, index_of(client));
        // Once per shape: the result is cached.
        FOUND.get(client, (self.clone(), pass), move || {
            let plan = with_thread_state(index, |state| state.make(&plan_shape, wanted));
            if let Err(refusal) = &plan {
                tracing::warn!(
                    "cuDNN has no plan for attention with {} heads of size {} over documents of up to \
                     {} tokens ({refusal}); using a slower kernel",
                    plan_shape.heads,
                    plan_shape.size,
                    plan_shape.length
                );
            }
            plan.ok()
        })
    }
}

/// Shape of the attention that a plan is for, in bf16; needs no GPU.
#[derive(Debug, Clone, Copy)]
pub struct AttentionShape {
    /// Maximum number of documents.
    pub documents: usize,
    /// Maximum tokens per document.
    pub length: usize,
    /// Numbers of query heads and of key/value heads.
    pub heads: [usize; 2],
    /// Head size.
    pub size: usize,
    /// Attention mask within a document.
    pub causality: Causality,
    /// Whether scratch memory is packed, for documents of very different lengths.
    pub ragged: bool,
}

impl AttentionShape {
    fn plan_shape(&self) -> PlanShape {
        let [heads, groups] = self.heads;
        PlanShape {
            documents: self.documents,
            length: self.length,
            heads,
            groups,
            size: self.size,
            scale: (Queries::from(heads).scale(self.size) as f32).to_bits(),
            band: Band::new(self.causality, self.length),
            ragged: self.ragged,
        }
    }
}

/// Workspace bytes of cuDNN's attention plans, forward and backward, for a GPU that need not be
/// present. `properties` is cuDNN's JSON of the GPU's device properties; plans cached under `name`
/// are used.
///
/// # Errors
///
/// cuDNN's message, for a pass that no engine supports.
pub fn plan_workspaces(
    (name, properties): (&str, &str),
    shape: AttentionShape,
) -> Result<[Result<usize, String>; 2], String> {
    let message = |refusal: Refusal| refusal.to_string();
    let target = PlanTarget::from_properties(properties, cached_plans(name)).map_err(message)?;
    let plan_shape = shape.plan_shape();
    Ok([plan_shape.forward(&target), plan_shape.backward(&target)]
        .map(|plan| plan.map(|plan| plan.workspace).map_err(message)))
}

/// Work to be queued.
struct Work<'a> {
    plan_shape: PlanShape,
    pass: Pass,
    reads: Vec<&'a CubeTensor>,
    writes: Vec<&'a CubeTensor>,
    /// Buffers are numbered: reads, then writes, then scratch memory.
    places: Vec<Placed>,
    /// Bytes of the workspace and of the other scratch memory.
    scratch: [usize; 2],
    /// The buffer whose padding rows are cleared, and its elements per row.
    cleared: (usize, usize),
}

/// Byte offsets of queries, keys and values within `qkv`.
fn qkv_offsets(plan_shape: &PlanShape) -> [usize; 3] {
    let head = plan_shape.size * DType::BF16.size();
    [
        0,
        plan_shape.heads * head,
        (plan_shape.heads + plan_shape.groups) * head,
    ]
}

/// Elements per row of `qkv`, of the result and of the log-sum-exp.
fn row_sizes(plan_shape: &PlanShape) -> [usize; 3] {
    [
        plan_shape.width(),
        plan_shape.heads * plan_shape.size,
        plan_shape.heads,
    ]
}

/// Scratch tensors of a backward pass over `n` tokens, with their bytes.
fn scratch(plan_shape: &PlanShape, n: usize) -> Vec<(i64, usize)> {
    let rows = match plan_shape.ragged {
        true => n,
        false => plan_shape.documents * plan_shape.length,
    };
    let [f32_bytes, bf16_bytes] = [DType::F32, DType::BF16].map(|dtype| dtype.size());
    let sums = match plan_shape.ragged {
        true => plan_shape.width(),
        false => plan_shape.heads * plan_shape.size,
    };
    let mut all = vec![
        (uid::DOTS, rows * plan_shape.heads * f32_bytes),
        (uid::D_QUERY_SUMS, rows * sums * f32_bytes),
    ];
    if plan_shape.ragged && plan_shape.heads != plan_shape.groups {
        let each = rows * plan_shape.width() * (plan_shape.heads / plan_shape.groups) * bf16_bytes;
        all.extend([(uid::D_KEYS_EACH, each), (uid::D_VALUES_EACH, each)]);
    }
    for (_, bytes) in &mut all {
        *bytes = bytes.next_multiple_of(ALIGNMENT);
    }
    all
}

/// Scratch bytes of a backward pass. This includes the plan's own memory for the key gradients of
/// each query head, as far as it is known.
fn scratch_bytes(plan_shape: &PlanShape, n: usize) -> usize {
    let own: usize = scratch(plan_shape, n).iter().map(|(_, bytes)| bytes).sum();
    match plan_shape.ragged || plan_shape.heads == plan_shape.groups {
        true => own,
        false => {
            let each =
                plan_shape.documents * plan_shape.length * plan_shape.heads * plan_shape.size;
            own + 2 * each * DType::BF16.size()
        }
    }
}

/// Offsets of the lengths, the starts, the starts in the result and the starts in the log-sum-exp,
/// for this number of documents: multiples of sixteen bytes.
pub(crate) fn sections(documents: usize) -> [usize; 4] {
    let (lengths, starts) = (
        documents.next_multiple_of(4),
        (documents + 1).next_multiple_of(4),
    );
    [0, lengths, lengths + starts, lengths + 2 * starts]
}

/// Lengths and starts of `documents` documents (padded with empty ones), in the given units of
/// elements, at the offsets of [`sections`].
pub(crate) fn lengths_and_starts(
    lengths: &Documents,
    documents: usize,
    units: [usize; 3],
) -> Vec<u32> {
    let sections = sections(documents);
    let mut numbers = vec![0u32; sections[3] + (documents + 1).next_multiple_of(4)];
    let number = |n: usize| u32::try_from(n).expect("plan shapes have fewer than 2^31 elements");
    let spans: Vec<(usize, usize)> = lengths.spans().collect();
    let end = spans.last().map_or(0, |(start, length)| start + length);
    for i in 0..=documents {
        let (start, length) = spans.get(i).copied().unwrap_or((end, 0));
        if i < documents {
            numbers[i] = number(length);
        }
        for (section, unit) in sections[1..].iter().zip(units) {
            numbers[section + i] = number(start * unit);
        }
    }
    numbers
}

/// State of a device thread, for the life of the thread.
struct ThreadState {
    target: PlanTarget,
    handle: cudnnHandle_t,
    plans: HashMap<(PlanShape, Pass), Plan>,
}

thread_local! {
    static THREAD_STATE: RefCell<Option<ThreadState>> = const { RefCell::new(None) };
}

/// Runs `body` on the thread of the device with this index.
fn with_thread_state<T>(
    index: i32,
    body: impl FnOnce(&mut ThreadState) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    THREAD_STATE.with_borrow_mut(|state| {
        if state.is_none() {
            let mut handle = std::ptr::null_mut();
            // SAFETY: the library writes the handle to this pointer; the thread's context belongs
            // to the device.
            check_status(unsafe { cudnnCreate(&raw mut handle) })?;
            let plans = HashMap::new();
            let cached_plans = gpu::kind(index).ok().and_then(|kind| cached_plans(&kind));
            let target = PlanTarget::from_handle(handle, cached_plans);
            *state = Some(ThreadState {
                target,
                handle,
                plans,
            });
        }
        body(state.as_mut().expect("initialised above"))
    })
}

/// The plan cache for a GPU model.
fn cached_plans(kind: &str) -> Option<Files> {
    // SAFETY: the library is loaded.
    let version = unsafe { cudnnGetVersion() };
    choice_cache::folder("cudnn", version, kind).map(Files::new)
}

impl ThreadState {
    /// Builds a plan and returns its workspace bytes.
    fn make(&mut self, plan_shape: &PlanShape, pass: Pass) -> Result<usize, Refusal> {
        let plan = match pass {
            Pass::Forward => plan_shape.forward(&self.target),
            Pass::Backward => plan_shape.backward(&self.target),
        }?;
        let workspace = plan.workspace;
        self.plans.insert((plan_shape.clone(), pass), plan);
        Ok(workspace)
    }
}
