//! Grouped-query attention over packed documents: no token sees another document.
//!
//! Documents lie end to end, without padding; their borders are host integers, so that neither
//! the mask nor the scores of a whole pack ever exist.

mod backend;
mod cpu;
mod cpu_backward;
mod cpu_decode;
#[cfg(target_arch = "x86_64")]
mod cpu_decode_avx2;
#[cfg(target_arch = "x86_64")]
mod cpu_decode_avx512;
mod cpu_forward;
mod cpu_operands;
#[cfg(target_arch = "x86_64")]
mod cpu_operands_avx512;
mod cpu_softmax;
#[cfg(target_arch = "x86_64")]
mod cpu_softmax_avx2;
#[cfg(target_arch = "x86_64")]
mod cpu_softmax_avx512;
mod cpu_tile;
#[cfg(target_arch = "x86_64")]
mod cpu_tile_avx512;
#[cfg(feature = "cube")]
pub(crate) mod cuda;
pub mod reference;

#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, backend_extension};
use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::HeldNumbers;
use crate::cpu::number::{Number, with_number};
use crate::cpu::pool::Buffer;
use crate::route::{has_window_kernel, is_cpu, is_served, is_served_by_cpu};

/// Borders of the documents of a micro-batch, shared by all layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Documents {
    cu_seqlens: Vec<usize>,
    n_tokens: usize,
    /// What the kernels of a GPU read of them, once it is there.
    #[cfg(feature = "cube")]
    lists: cuda::BlockLists,
}

impl Documents {
    /// `cu_seqlens` rises from 0; document `i` is `cu_seqlens[i]..cu_seqlens[i + 1]`. Tokens from
    /// its last entry up to `n_tokens` are padding: they belong to no document.
    ///
    /// # Panics
    ///
    /// If the borders fall or exceed `n_tokens`: a bug of the caller, no data can cause it.
    pub fn new(cu_seqlens: &[usize], n_tokens: usize) -> Self {
        assert!(
            cu_seqlens.first() == Some(&0),
            "document borders start at 0"
        );
        assert!(cu_seqlens.is_sorted(), "document borders rise");
        assert!(
            cu_seqlens.last() <= Some(&n_tokens),
            "document borders end within the tokens"
        );
        Self {
            cu_seqlens: cu_seqlens.to_vec(),
            n_tokens,
            #[cfg(feature = "cube")]
            lists: cuda::BlockLists::default(),
        }
    }

    /// One document of `n_tokens` tokens.
    pub fn single(n_tokens: usize) -> Self {
        Self::new(&[0, n_tokens], n_tokens)
    }

    /// Start and length of each document that has tokens.
    pub fn spans(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.cu_seqlens
            .windows(2)
            .map(|w| (w[0], w[1] - w[0]))
            .filter(|&(_, length)| length > 0)
    }

    /// Token after the last document.
    pub fn end(&self) -> usize {
        self.cu_seqlens.last().copied().unwrap_or(0)
    }

    /// Tokens of the micro-batch, padding included.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }
}

/// Which tokens of its own document a token attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Causality {
    /// Itself and earlier ones: decoders.
    Causal,
    /// Itself and the tokens before it, so many in all: decoders with a window.
    Sliding(usize),
    /// All: encoders.
    Bidirectional,
}

/// Query heads, and what their scores are multiplied with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Queries {
    /// Their number, `h`.
    pub heads: usize,
    /// The multiplier of scores; `None` is `1 / √c`.
    pub scale: Option<f64>,
}

impl From<usize> for Queries {
    fn from(heads: usize) -> Self {
        Self { heads, scale: None }
    }
}

impl Queries {
    /// The multiplier for heads of `c`.
    pub(crate) fn scale(self, c: usize) -> f64 {
        self.scale.unwrap_or_else(|| 1.0 / (c as f64).sqrt())
    }
}

/// `softmax(q kᵀ / √c) v` for each head within each document, or with another multiplier than
/// `1 / √c`; padding rows are zero.
///
/// Query head `i` reads key/value head `i / (h / g)`.
///
/// # Shapes
///
/// - `qkv`: `[n, h + 2 g, c]`, f32 or bf16: `h` query heads (`queries`), a multiple of `g`, then
///   `g` key heads, then `g` value heads
/// - returns: `[n, h, c]`, same dtype
///
/// A GPU has a kernel for windows where cuDNN has one, for bf16: else they go to the reference there.
///
/// # Panics
///
/// If the heads do not divide as stated, or `documents` speak of another number of tokens.
///
/// # Source
///
/// Vaswani et al. 2017, equation 1; grouped as in Ainslie et al. 2023; `eager_attention_forward`
/// of transformers 5.23.
pub fn attention(
    qkv: Tensor<3>,
    queries: impl Into<Queries>,
    documents: &Documents,
    causality: Causality,
) -> Tensor<3> {
    crate::operation!("attention");
    let queries = queries.into();
    check_heads(qkv.dims()[1], queries.heads);
    assert_eq!(
        qkv.dims()[0],
        documents.n_tokens(),
        "attention: the documents have other tokens than the tensor"
    );
    let has_kernel = match causality {
        Causality::Causal | Causality::Bidirectional => is_served(&qkv),
        Causality::Sliding(_) => {
            is_served_by_cpu(&qkv) || has_window_kernel(&qkv, (queries, documents, causality))
        }
    };
    if !has_kernel {
        return reference::attention(qkv, queries, documents, causality);
    }
    Tensor::from_dispatch(Dispatch::document_attention(
        qkv.into_dispatch(),
        queries,
        documents.clone(),
        causality,
    ))
}

/// Key/value heads of a tensor of `all` heads, `n_heads` of which are queries.
fn check_heads(all: usize, n_heads: usize) -> usize {
    let n_kv_heads = all.saturating_sub(n_heads) / 2;
    assert!(
        n_kv_heads > 0 && n_heads + 2 * n_kv_heads == all && n_heads.is_multiple_of(n_kv_heads),
        "attention: {all} heads are not {n_heads} query heads with key and value heads that \
         divide them"
    );
    n_kv_heads
}

/// Attention of one new token a row to the cached keys of its row.
///
/// The cache already holds the token's own key and value: the last of its columns. Row `i` sees
/// the columns from `starts[i]` up to `n_columns`, at least one. Nothing is differentiated.
///
/// # Shapes
///
/// - `qkv`: `[b, h + 2 g, c]`, f32 or bf16; only the first `h` (`queries`) heads are read
/// - `keys`, `values`: `[b, g, capacity, c]`, f32 or bf16, `h` a multiple of `g`
/// - returns: `[b, h, c]`, the dtype of `qkv`
///
/// # Panics
///
/// If the shapes do not fit each other or a row sees no column.
///
/// # Source
///
/// As [`attention`], for the last token of each row.
pub fn decode(
    qkv: Tensor<3>,
    queries: impl Into<Queries>,
    keys: &Tensor<4>,
    values: &Tensor<4>,
    columns: Columns<'_>,
) -> Tensor<3> {
    crate::operation!("attention decode");
    let queries = queries.into();
    let [b, heads, c] = qkv.dims();
    let n_kv_heads = check_heads(heads, queries.heads);
    let capacity = keys.dims()[2];
    assert!(
        keys.dims() == [b, n_kv_heads, capacity, c] && values.dims() == keys.dims(),
        "decode: caches of {:?} and {:?} do not fit [{b}, {heads}, {c}]",
        keys.dims(),
        values.dims()
    );
    columns.held().check(b, capacity);
    if !has_cache_kernel(&qkv, queries, [keys, values]) {
        return reference::decode(qkv, queries, keys, values, columns);
    }
    attend_to_cache(qkv, queries, [keys, values], &columns.held(), false)
}

fn attend_to_cache(
    qkv: Tensor<3>,
    queries: Queries,
    [keys, values]: [&Tensor<4>; 2],
    columns: &HeldColumns,
    appends: bool,
) -> Tensor<3> {
    Tensor::from_dispatch(Dispatch::attend_to_cache(
        qkv.into_dispatch(),
        keys.clone().into_dispatch(),
        values.clone().into_dispatch(),
        queries,
        columns.clone(),
        appends,
    ))
}

/// Attention of one new token a row to a cache, whose last column, `columns.end() - 1`, first takes the
/// token's own key and value. Nothing is differentiated.
///
/// A GPU writes them where the cache lies, whoever shares its memory, and makes the same launches with
/// the same arguments for each token: only the numbers in `columns` change.
///
/// # Shapes
///
/// - `qkv`: `[b, h + 2 g, c]`, f32 or bf16
/// - `cache`: keys and values, `[b, g, capacity, c]` each, f32 or bf16, `h` (`queries`) a multiple of `g`
/// - returns: `[b, h, c]`, the dtype of `qkv`
///
/// # Panics
///
/// If the shapes do not fit each other or a row sees no column.
///
/// # Source
///
/// As [`attention`], for the last token of each row.
pub fn decode_step(
    qkv: Tensor<3>,
    queries: impl Into<Queries>,
    cache: &mut [Tensor<4>; 2],
    columns: &HeldColumns,
) -> Tensor<3> {
    let queries = queries.into();
    let [b, heads, c] = qkv.dims();
    let g = check_heads(heads, queries.heads);
    let [keys, values] = &*cache;
    let is_gpu = has_decode_kernels(&qkv) && has_cache_kernel(&qkv, queries, [keys, values]);
    if is_gpu {
        crate::operation!("attention decode");
        let capacity = keys.dims()[2];
        assert!(
            keys.dims() == [b, g, capacity, c] && values.dims() == keys.dims(),
            "decode_step: caches of {:?} and {:?} do not fit [{b}, {heads}, {c}]",
            keys.dims(),
            values.dims()
        );
        columns.check(b, capacity);
        return attend_to_cache(qkv, queries, [keys, values], columns, true);
    }
    let column = columns.end() - 1;
    for (cache, first) in cache.iter_mut().zip([queries.heads, queries.heads + g]) {
        cache.inplace(|cache| append(cache, &qkv, first, column));
    }
    let starts = columns.starts();
    let seen = Columns {
        starts: &starts,
        end: columns.end(),
    };
    let [keys, values] = &*cache;
    decode(qkv, queries, keys, values, seen)
}

/// Whether the device has a kernel for attention of such queries to such a cache.
fn has_cache_kernel(qkv: &Tensor<3>, queries: Queries, [keys, values]: [&Tensor<4>; 2]) -> bool {
    let [_, n_kv_heads, _, c] = keys.dims();
    let plain = !(qkv.is_autodiff() || keys.is_autodiff() || values.is_autodiff());
    let alike = keys.dtype() == values.dtype();
    let has_kernel = match is_served_by_cpu(qkv) {
        true => is_served_by_cpu(keys) && is_served_by_cpu(values),
        // Kernels of a GPU read one type, and what they share of a key head fits any GPU's memory.
        false => {
            has_decode_kernels(qkv)
                && keys.dtype() == qkv.dtype()
                && queries.heads / n_kv_heads <= 16
                && c <= 256
        }
    };
    has_kernel && plain && alike
}

/// Whether the tensor's GPU has kernels for a cache.
fn has_decode_kernels<const D: usize>(x: &Tensor<D>) -> bool {
    cfg!(not(feature = "fusion")) && is_served(x) && !is_cpu(&x.device())
}

/// Zeros in which the keys or the values of a cache will lie.
///
/// On the CPU they lie in huge pages where the system has them: each token reads all of them.
///
/// # Shapes
///
/// - `shape`: `[b, g, capacity, c]`
/// - returns: as many zeros of `dtype`, f32 or bf16 where it is to be fast
pub fn empty_cache(shape: [usize; 4], dtype: DType, device: &Device) -> Tensor<4> {
    if !(is_cpu(device) && matches!(dtype, DType::F32 | DType::BF16)) {
        return Tensor::zeros(shape, (device, dtype));
    }
    let n = shape.iter().product();
    let zeros = with_number!(dtype, T => Buffer::repeated(T::narrow(0.0), n).into_bytes());
    let zeros = TensorData::from_bytes(zeros, shape, dtype);
    Tensor::from_data(zeros, (device, dtype))
}

/// The columns of a cache that its rows see.
#[derive(Debug, Clone, Copy)]
pub struct Columns<'a> {
    /// First column of each row.
    pub starts: &'a [usize],
    /// Column after the last, for all rows.
    pub end: usize,
}

impl Columns<'_> {
    fn held(&self) -> HeldColumns {
        HeldColumns::new(self.starts, self.end)
    }
}

/// The columns of a cache that its rows see, where a GPU's kernels find those of each token in the same
/// place.
#[derive(Debug, Clone)]
pub struct HeldColumns(HeldNumbers);

impl HeldColumns {
    /// As [`Columns`] have them.
    ///
    /// # Panics
    ///
    /// If a column is 2^32 or more.
    pub fn new(starts: &[usize], end: usize) -> Self {
        Self(HeldNumbers::new(Self::list(starts, end)))
    }

    /// Others of as many rows, in their place.
    ///
    /// # Panics
    ///
    /// If there are more or fewer rows, or a column is 2^32 or more.
    pub fn replace(&mut self, starts: &[usize], end: usize) {
        self.0.replace(Self::list(starts, end));
    }

    fn list(starts: &[usize], end: usize) -> Vec<u32> {
        let all = std::iter::once(&end).chain(starts);
        let number = |&column: &usize| u32::try_from(column).expect("fewer columns than 2^32");
        all.map(number).collect()
    }

    /// First column of each row.
    pub fn starts(&self) -> Vec<usize> {
        let starts = &self.0.numbers()[1..];
        starts.iter().map(|&start| start as usize).collect()
    }

    /// Column after the last, for all rows.
    pub fn end(&self) -> usize {
        self.0.numbers()[0] as usize
    }

    /// The end, then the starts.
    #[cfg(all(feature = "cube", not(feature = "fusion")))]
    pub(crate) fn numbers(&self) -> &HeldNumbers {
        &self.0
    }

    fn check(&self, rows: usize, capacity: usize) {
        let (end, starts) = (self.end(), &self.0.numbers()[1..]);
        assert!(
            starts.len() == rows
                && end <= capacity
                && starts.iter().all(|&start| (start as usize) < end),
            "decode: each of {rows} rows needs a first column before {end} of {capacity}"
        );
    }
}

/// Puts one token a row, `heads` of `qkv`, into column `column` of a cache, where it lies if no
/// other tensor shares its memory. A GPU has a kernel for it in [`decode_step`]: here it goes to the
/// reference.
///
/// # Shapes
///
/// - `cache`: `[b, g, capacity, c]`, f32 or bf16
/// - `qkv`: `[b, heads, c]`, f32 or bf16; `g` heads from `first_head` on are read
/// - returns: the cache
///
/// # Panics
///
/// If the shapes do not fit each other.
pub fn append(cache: Tensor<4>, qkv: &Tensor<3>, first_head: usize, column: usize) -> Tensor<4> {
    let ([b, g, capacity, c], [rows, heads, size]) = (cache.dims(), qkv.dims());
    assert!(
        [rows, size] == [b, c] && first_head + g <= heads && column < capacity,
        "append: heads {first_head}.. of [{rows}, {heads}, {size}] do not fit column {column} of \
         [{b}, {g}, {capacity}, {c}]"
    );
    let plain = !(cache.is_autodiff() || qkv.is_autodiff());
    if !(is_served_by_cpu(&cache) && is_served_by_cpu(qkv) && plain) {
        return reference::append(cache, qkv, first_head, column);
    }
    let qkv = qkv.clone().into_dispatch();
    Tensor::from_dispatch(Dispatch::append_column(
        cache.into_dispatch(),
        qkv,
        first_head,
        column,
    ))
}

/// What backends implement themselves of attention in training and prefill.
#[backend_extension(
    Autodiff,
    Flex,
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "fusion"),
)]
pub(crate) trait AttentionOps: Backend {
    /// Attention within documents.
    #[fusion(dtype = qkv, shape = burn::tensor::Shape::new([qkv[0], queries.heads, qkv[2]]))]
    fn document_attention(
        qkv: FloatTensor<Self>,
        queries: Queries,
        documents: Documents,
        causality: Causality,
    ) -> FloatTensor<Self>;
}

/// Pieces of the backward pass, on tensors without a graph.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Fusion: cfg(feature = "fusion"))]
pub(crate) trait AttentionGradients: AttentionOps {
    /// Attention, and what its backward pass needs of it.
    #[fusion(meta = described)]
    fn attention_forward(
        qkv: FloatTensor<Self>,
        queries: Queries,
        documents: Documents,
        causality: Causality,
    ) -> Attention<Self>;

    /// Gradient of queries, keys and values, `[n, h + 2 g, c]`.
    #[fusion(meta = |saved, _dy| saved.qkv.clone())]
    fn attention_gradient(
        #[extension_type] saved: Attention<Self>,
        dy: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

/// A forward pass of attention.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) struct Attention<B: Backend> {
    /// Queries, keys and values.
    pub(crate) qkv: FloatTensor<B>,
    pub(crate) queries: Queries,
    pub(crate) documents: Documents,
    pub(crate) causality: Causality,
    /// `[n, h, c]`.
    pub(crate) out: FloatTensor<B>,
    /// Logarithms of the sums of exponentials, `[n, h]`, f32.
    pub(crate) log_sums: FloatTensor<B>,
}

/// What [`AttentionGradients::attention_forward`] will give, before it is run.
#[cfg(feature = "fusion")]
fn described(
    qkv: &TensorSpec,
    queries: &Queries,
    documents: &Documents,
    causality: &Causality,
) -> AttentionMetadata {
    let [n, h, c] = [qkv.shape[0], queries.heads, qkv.shape[2]];
    AttentionMetadata {
        qkv: qkv.clone(),
        queries: *queries,
        documents: documents.clone(),
        causality: *causality,
        out: TensorSpec::new([n, h, c].into(), qkv.dtype),
        log_sums: TensorSpec::new([n, h].into(), DType::F32),
    }
}

/// What backends implement themselves of attention to a cache; nothing is differentiated.
#[backend_extension(Flex, Cube: cfg(all(feature = "cube", not(feature = "fusion"))))]
pub(crate) trait DecodeOps: Backend {
    /// Attention of one token a row to columns `starts[row]..end`. A GPU puts the token's own key and
    /// value into the last of them, where it `appends`.
    fn attend_to_cache(
        qkv: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        queries: Queries,
        columns: HeldColumns,
        appends: bool,
    ) -> FloatTensor<Self>;
}

/// What the CPU implements itself beside it.
#[backend_extension(Flex)]
pub(crate) trait AppendOps: Backend {
    /// One token a row into a column of the cache.
    fn append_column(
        cache: FloatTensor<Self>,
        qkv: FloatTensor<Self>,
        first_head: usize,
        column: usize,
    ) -> FloatTensor<Self>;
}
