//! Attention by NVIDIA's cuDNN, on CubeCL's own CUDA stream, between its own launches.
//!
//! Its kernels for Hopper are several times as fast as those that CubeCL makes of ours. The library is
//! opened at run time; a plan is asked for once for each form of a micro-batch, and kept on disk. Where the library is
//! missing, too old, switched off or has no engine, whoever asks computes with our kernels. Those give
//! the same bits every time; cuDNN's backward pass adds query gradients in the order in which its blocks
//! end, so that the last bits differ from run to run.

mod ahead;
mod descriptor;
mod graph;
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
use crate::cube::launch::output;
use crate::gpu::{self, Library, compute_capability};
use crate::kept::{self, Files};
use crate::on_stream::{Asked, is_cuda, on_stream};
pub use ahead::{AttentionLayers, PlansAhead, n_attention_forms};
use descriptor::{Refusal, checked};
use graph::{Place, Plan};
use sdpa::{Band, Form, uid};

/// Turns it off where it is `0`: attention is then computed by kernels that give the same bits every
/// time.
pub(crate) const SWITCH: &str = "TOOLTUNE_CUDNN";

/// 9.10: the first whose engines take minus infinity for what is masked, and clear their own sums.
const OLDEST: usize = 91_000;

/// What addresses within a buffer are multiples of, in bytes.
const ALIGNMENT: usize = 256;

/// What the scratch memory of a backward pass may take, in bytes; above it our kernels, which need
/// none, are the better choice.
const MOST_SCRATCH: usize = 4 << 30;

/// Whether attention of tensors of this client can be had.
pub(crate) fn is_served(client: &Client) -> bool {
    is_cuda(client) && is_found()
}

fn is_found() -> bool {
    static IS_FOUND: LazyLock<bool> = LazyLock::new(|| {
        // SAFETY: the library is open.
        Library::Cudnn.is_wanted(SWITCH) && unsafe { cudnnGetVersion() } >= OLDEST
    });
    *IS_FOUND
}

/// Whether engines of a device compute with ragged sums: those for Ampere, Ada and the small Blackwells
/// are wrong with them (cudnn-frontend 1.32 withholds them there).
fn takes_ragged(index: i32) -> Option<bool> {
    let capability = compute_capability(index).ok()?;
    Some(matches!(capability, (9, 0) | (10, 0) | (10, 3)))
}

/// Which device a CUDA client is of.
fn index_of(client: &Client) -> i32 {
    client.service_id().device.index_id.into()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Pass {
    Forward,
    Backward,
}

/// Attention within documents, of a tensor `qkv`, `[n, h + 2 g, c]`, bf16, without holes.
pub(crate) struct Attention<'a> {
    pub(crate) qkv: &'a CubeTensor,
    pub(crate) queries: Queries,
    pub(crate) documents: &'a Documents,
    pub(crate) causality: Causality,
}

/// What a graph says of a buffer, and the buffer with an offset in bytes.
type Placed = (i64, usize, usize);

impl Attention<'_> {
    /// The result, `[n, h, c]`, bf16, and the logarithms of the sums of exponentials, `[n, h]`, f32;
    /// `None`, and nothing is done, where cuDNN does not compute it.
    pub(crate) fn forward(&self) -> Option<[CubeTensor; 2]> {
        let form = self.form()?;
        let workspace = form.workspace(&self.qkv.client, Pass::Forward)?;
        let [n, h, c] = [self.documents.n_tokens(), form.heads, form.size];
        let out = output(self.qkv, [n, h, c], DType::BF16);
        let log_sums = output(self.qkv, [n, h], DType::F32);
        let numbers = self
            .documents
            .starts(self.qkv, form.documents, units(&form));
        let mut places = self.given(&form);
        places.extend([(uid::OUT, 2, 0), (uid::LOG_SUMS, 3, 0)]);
        self.enqueue(Work {
            form,
            pass: Pass::Forward,
            reads: vec![self.qkv, &numbers],
            writes: vec![&out, &log_sums],
            places,
            scratch: [workspace, 0],
            cleared: (2, h * c),
        });
        Some([out, log_sums])
    }

    /// The gradient of `qkv`, of its shape, from the result, the logarithms, and the gradient of the
    /// result; all without holes.
    pub(crate) fn backward(&self, [out, log_sums, d_out]: [&CubeTensor; 3]) -> Option<CubeTensor> {
        let form = self.form()?;
        let workspace = form.workspace(&self.qkv.client, Pass::Backward)?;
        let n = self.documents.n_tokens();
        let dims = [n, form.heads + 2 * form.groups, form.size];
        let d_qkv = output(self.qkv, dims, DType::BF16);
        let numbers = self
            .documents
            .starts(self.qkv, form.documents, units(&form));
        let mut places = self.given(&form);
        places.extend([(uid::OUT, 2, 0), (uid::LOG_SUMS, 3, 0), (uid::D_OUT, 4, 0)]);
        let [_, keys, values] = within(&form);
        let gradients = [uid::D_QUERIES, uid::D_KEYS, uid::D_VALUES];
        places.extend(
            gradients
                .into_iter()
                .zip([0, keys, values])
                .map(|(uid, at)| (uid, 5, at)),
        );
        let mut own = 0;
        for (uid, bytes) in scratch(&form, n) {
            places.push((uid, 6, own));
            own += bytes;
        }
        let width = form.width();
        self.enqueue(Work {
            form,
            pass: Pass::Backward,
            reads: vec![self.qkv, &numbers, out, log_sums, d_out],
            writes: vec![&d_qkv],
            places,
            scratch: [workspace, own],
            cleared: (5, width),
        });
        Some(d_qkv)
    }

    /// How cuDNN would see it; `None` where it cannot.
    fn form(&self) -> Option<Form> {
        let [n, all, size] = *self.qkv.meta.shape().as_slice() else {
            return None;
        };
        if self.qkv.dtype != DType::BF16 {
            return None;
        }
        let seen = (self.queries, self.documents, self.causality);
        Form::of(&self.qkv.client, [n, all, size], seen)
    }

    /// Where the tensors that both passes read lie: within buffer 0, `qkv`, and 1, the numbers.
    fn given(&self, form: &Form) -> Vec<Placed> {
        let [queries, keys, values] = within(form);
        let mut places = vec![
            (uid::QUERIES, 0, queries),
            (uid::KEYS, 0, keys),
            (uid::VALUES, 0, values),
        ];
        let sections = sections(form.documents).map(|first| first * size_of::<u32>());
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
            form,
            pass,
            reads,
            writes,
            places,
            scratch: [workspace, own],
            cleared: (cleared, row),
        } = work;
        let client = &self.qkv.client;
        let handles = |of: &[&CubeTensor]| of.iter().map(|x| x.handle.clone()).collect::<Vec<_>>();
        let n_tensors = reads.len() + writes.len();
        let aligned = own.next_multiple_of(ALIGNMENT);
        let mut scratch: Vec<Handle> = Vec::new();
        if aligned + workspace > 0 {
            scratch.push(client.empty(aligned + workspace));
        }
        // Rows that no document has are zeros.
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
                // SAFETY: the rows lie within their buffer, which `on_stream` holds.
                unsafe { memset_d8_async(first, 0, (n - end) * row, stream) }
                    .map_err(|error| failed("cuMemsetD8Async", error.0 as u32))?;
            }
            with_held(index, |held| {
                let plan = held
                    .plans
                    .get(&(form.clone(), pass))
                    .expect("the plan was made");
                // SAFETY: the handle lives as long as the thread.
                checked(unsafe { cudnnSetStream(held.handle, stream.cast()) })?;
                // SAFETY: the server has resolved the addresses, and `on_stream` holds their buffers
                // until the work is queued; sizes follow from the form.
                unsafe { plan.enqueue(held.handle, &places, scratch + aligned as u64) }
            })
            .map_err(|refusal| failed("cudnnBackendExecute", refusal.status as u32).into())
        });
    }
}

/// Whether cuDNN computes attention and its gradient, of a tensor `[n, h + 2 g, c]`, bf16, of this
/// client.
pub(crate) fn takes(client: &Client, dims: [usize; 3], seen: Seen<'_>) -> bool {
    let has_plan = |form: &Form, pass| form.workspace(client, pass).is_some();
    Form::of(client, dims, seen).is_some_and(|form| {
        [Pass::Forward, Pass::Backward]
            .iter()
            .all(|&pass| has_plan(&form, pass))
    })
}

/// What is seen of which tokens.
type Seen<'a> = (Queries, &'a Documents, Causality);

impl Form {
    /// How cuDNN would see attention of a tensor of these dimensions; `None` where it cannot.
    fn of(
        client: &Client,
        [n, all, size]: [usize; 3],
        (queries, documents, causality): Seen<'_>,
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
        Self::fitting(takes_ragged, dims, scale, &lengths, causality)
    }

    /// How cuDNN would see attention of `n` tokens in documents of these lengths, with so many query and
    /// key/value heads of a size.
    fn fitting(
        takes_ragged: bool,
        [n, heads, groups, size]: [usize; 4],
        scale: f32,
        lengths: &[usize],
        causality: Causality,
    ) -> Option<Self> {
        let longest = *lengths.iter().max()?;
        let all = heads + 2 * groups;
        // The engines read sixteen bytes at a time, and count elements in 31 bits.
        if size % 8 != 0 || n * all * size > i32::MAX as usize {
            return None;
        }
        // Plans are for so many documents of so many tokens at most: powers of two keep them few.
        let length = longest.next_power_of_two().max(64);
        let mut form = Form {
            documents: lengths.len().next_power_of_two(),
            length,
            heads,
            groups,
            size,
            scale: scale.to_bits(),
            band: Band::of(causality, longest),
            ragged: false,
        };
        let ragged = Form {
            ragged: true,
            ..form.clone()
        };
        if takes_ragged && size % 16 == 0 && total(&ragged, n) < total(&form, n) {
            form = ragged;
        }
        (total(&form, n) <= MOST_SCRATCH).then_some(form)
    }

    /// Bytes of the workspace of a plan, which is made when its form is first met; `None` where there
    /// is none.
    fn workspace(&self, client: &Client, pass: Pass) -> Option<usize> {
        static FOUND: Asked<(Form, Pass), usize> = Asked::none();
        let (form, wanted, index) = (self.clone(), pass, index_of(client));
        // Once for a form: an answer is kept.
        FOUND.get(client, (self.clone(), pass), move || {
            let made = with_held(index, |held| held.make(&form, wanted));
            if let Err(refusal) = &made {
                tracing::warn!(
                    "cuDNN has no plan for attention of {} heads of {} over documents of up to {} \
                     tokens ({refusal}); a slower kernel computes it",
                    form.heads,
                    form.size,
                    form.length
                );
            }
            made.ok()
        })
    }
}

/// What attention a plan is for: bf16, by itself without a GPU.
#[derive(Debug, Clone, Copy)]
pub struct AttentionShape {
    /// Documents at most.
    pub documents: usize,
    /// Tokens of a document at most.
    pub length: usize,
    /// Query heads, and key/value heads.
    pub heads: [usize; 2],
    /// Elements of a head.
    pub size: usize,
    /// Which tokens of its document a token sees.
    pub causality: Causality,
    /// Whether scratch memory lies end to end, as where documents differ much in length.
    pub ragged: bool,
}

impl AttentionShape {
    fn form(&self) -> Form {
        let [heads, groups] = self.heads;
        Form {
            documents: self.documents,
            length: self.length,
            heads,
            groups,
            size: self.size,
            scale: (Queries::from(heads).scale(self.size) as f32).to_bits(),
            band: Band::of(self.causality, self.length),
            ragged: self.ragged,
        }
    }
}

/// Bytes of the workspaces of cuDNN's plans for attention, forward and backward, on a GPU that is
/// described by cuDNN's JSON of device properties, under a name; none has to be there. The plans are
/// those that were kept for this name, if there are any.
///
/// # Errors
///
/// In cuDNN's words, for the pass that no engine takes.
pub fn plan_workspaces(
    (name, properties): (&str, &str),
    shape: AttentionShape,
) -> Result<[Result<usize, String>; 2], String> {
    let said = |refusal: Refusal| refusal.to_string();
    let on = Place::described(properties, kept_plans(name)).map_err(said)?;
    let form = shape.form();
    Ok([form.forward(&on), form.backward(&on)]
        .map(|plan| plan.map(|plan| plan.workspace).map_err(said)))
}

/// What is queued.
struct Work<'a> {
    form: Form,
    pass: Pass,
    reads: Vec<&'a CubeTensor>,
    writes: Vec<&'a CubeTensor>,
    /// Buffers are counted over reads, writes, then scratch memory.
    places: Vec<Placed>,
    /// Bytes of the workspace, and of other scratch memory.
    scratch: [usize; 2],
    /// The buffer whose rows beyond the documents are cleared, and elements of its rows.
    cleared: (usize, usize),
}

/// Bytes from where `qkv` begins to queries, keys and values.
fn within(form: &Form) -> [usize; 3] {
    let head = form.size * DType::BF16.size();
    [0, form.heads * head, (form.heads + form.groups) * head]
}

/// Elements of a row of `qkv`, of the result, and of the logarithms.
fn units(form: &Form) -> [usize; 3] {
    [form.width(), form.heads * form.size, form.heads]
}

/// Scratch tensors of a backward pass over `n` tokens, and their bytes.
fn scratch(form: &Form, n: usize) -> Vec<(i64, usize)> {
    let rows = match form.ragged {
        true => n,
        false => form.documents * form.length,
    };
    let [f32_bytes, bf16_bytes] = [DType::F32, DType::BF16].map(|dtype| dtype.size());
    let sums = match form.ragged {
        true => form.width(),
        false => form.heads * form.size,
    };
    let mut all = vec![
        (uid::DOTS, rows * form.heads * f32_bytes),
        (uid::D_QUERY_SUMS, rows * sums * f32_bytes),
    ];
    if form.ragged && form.heads != form.groups {
        let each = rows * form.width() * (form.heads / form.groups) * bf16_bytes;
        all.extend([(uid::D_KEYS_EACH, each), (uid::D_VALUES_EACH, each)]);
    }
    for (_, bytes) in &mut all {
        *bytes = bytes.next_multiple_of(ALIGNMENT);
    }
    all
}

/// Bytes of the scratch memory of a backward pass; that of the plan itself, where it sums the gradients
/// of the keys of each query head, as far as it is known.
fn total(form: &Form, n: usize) -> usize {
    let own: usize = scratch(form, n).iter().map(|(_, bytes)| bytes).sum();
    match form.ragged || form.heads == form.groups {
        true => own,
        false => {
            let each = form.documents * form.length * form.heads * form.size;
            own + 2 * each * DType::BF16.size()
        }
    }
}

/// Where lengths, starts, starts in the result, and in the logarithms begin among the numbers of so
/// many documents: at multiples of sixteen bytes.
pub(crate) fn sections(documents: usize) -> [usize; 4] {
    let (lengths, starts) = (
        documents.next_multiple_of(4),
        (documents + 1).next_multiple_of(4),
    );
    [0, lengths, lengths + starts, lengths + 2 * starts]
}

/// Lengths and starts of `documents` documents, of which the last may have no tokens, in units of so
/// many elements, as [`sections`] says.
pub(crate) fn numbers(of: &Documents, documents: usize, units: [usize; 3]) -> Vec<u32> {
    let sections = sections(documents);
    let mut numbers = vec![0u32; sections[3] + (documents + 1).next_multiple_of(4)];
    let number = |n: usize| u32::try_from(n).expect("a form has fewer than 2^31 elements");
    let spans: Vec<(usize, usize)> = of.spans().collect();
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

/// What the thread of a device holds for as long as it lives.
struct Held {
    on: Place,
    handle: cudnnHandle_t,
    plans: HashMap<(Form, Pass), Plan>,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// On the thread of the device with this index.
fn with_held<T>(
    index: i32,
    body: impl FnOnce(&mut Held) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    HELD.with_borrow_mut(|held| {
        if held.is_none() {
            let mut handle = std::ptr::null_mut();
            // SAFETY: the library writes the handle there; the thread's context is that of the device.
            checked(unsafe { cudnnCreate(&raw mut handle) })?;
            let plans = HashMap::new();
            let kept = gpu::kind(index).ok().and_then(|kind| kept_plans(&kind));
            let on = Place::of(handle, kept);
            *held = Some(Held { on, handle, plans });
        }
        body(held.as_mut().expect("made above"))
    })
}

/// What is kept of plans for a kind of GPU.
fn kept_plans(kind: &str) -> Option<Files> {
    // SAFETY: the library is open.
    let version = unsafe { cudnnGetVersion() };
    kept::folder("cudnn", version, kind).map(Files::of)
}

impl Held {
    /// Makes a plan and says the bytes of its workspace.
    fn make(&mut self, form: &Form, pass: Pass) -> Result<usize, Refusal> {
        let plan = match pass {
            Pass::Forward => form.forward(&self.on),
            Pass::Backward => form.backward(&self.on),
        }?;
        let workspace = plan.workspace;
        self.plans.insert((form.clone(), pass), plan);
        Ok(workspace)
    }
}
