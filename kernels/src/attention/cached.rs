//! Attention of new tokens to cached keys and values.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Device, Tensor, TensorData};

use super::{Queries, check_heads, reference};
use crate::DeviceIntegers;
use crate::cpu::number::{Number, with_element_type};
use crate::cpu::pool::Buffer;
use crate::route::{is_cpu, is_served, is_served_by_cpu};

/// Attention of one new token per row to the cached keys of that row.
///
/// The last cache column already holds the token's own key and value. Row `i` attends to columns
/// `starts[i]..n_columns`, at least one. Not differentiable.
///
/// # Shapes
///
/// - `qkv`: `[b, h + 2 g, c]`, f32 or bf16; only the first `h` (`queries`) heads are read
/// - `keys`, `values`: `[b, g, capacity, c]`, f32 or bf16, `h` a multiple of `g`
/// - returns: `[b, h, c]`, the dtype of `qkv`
///
/// # Panics
///
/// If the shapes do not match or a row attends to no column.
///
/// # Source
///
/// See [`attention`](super::attention); this computes its result for the last token of each row.
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
    let capacity = check_caches("decode", [b, heads, c], n_kv_heads, [keys, values]);
    columns.to_device().check(b, capacity);
    if !has_cache_kernel(&qkv, queries, [keys, values]) {
        return reference::decode(qkv, queries, keys, values, columns);
    }
    attend_to_cache(qkv, queries, [keys, values], &columns.to_device(), false)
}

/// Checks that caches match `[b, heads, c]` of new tokens with `g` key/value heads; returns their
/// capacity.
fn check_caches(
    caller: &str,
    [b, heads, c]: [usize; 3],
    g: usize,
    [keys, values]: [&Tensor<4>; 2],
) -> usize {
    let capacity = keys.dims()[2];
    assert!(
        keys.dims() == [b, g, capacity, c] && values.dims() == keys.dims(),
        "{caller}: caches of shapes {:?} and {:?} do not match new tokens of shape [{b}, {heads}, {c}]",
        keys.dims(),
        values.dims()
    );
    capacity
}

fn attend_to_cache(
    qkv: Tensor<3>,
    queries: Queries,
    [keys, values]: [&Tensor<4>; 2],
    columns: &DeviceColumns,
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

/// Appends the key and value of one new token per row to the cache, in its last column
/// `columns.end() - 1`, then computes the attention of these tokens. Not differentiable.
///
/// A GPU writes to the cache in place, even if other tensors share its memory. It launches the same
/// kernels with the same arguments for each token: only the values in `columns` change.
///
/// # Shapes
///
/// - `qkv`: `[b, h + 2 g, c]`, f32 or bf16
/// - `cache`: keys and values, `[b, g, capacity, c]` each, f32 or bf16, `h` (`queries`) a multiple
///   of `g`
/// - returns: `[b, h, c]`, the dtype of `qkv`
///
/// # Panics
///
/// If the shapes do not match or a row attends to no column.
///
/// # Source
///
/// See [`attention`](super::attention); this computes its result for the last token of each row.
pub fn decode_step(
    qkv: Tensor<3>,
    queries: impl Into<Queries>,
    cache: &mut [Tensor<4>; 2],
    columns: &DeviceColumns,
) -> Tensor<3> {
    let queries = queries.into();
    let [b, heads, c] = qkv.dims();
    let g = check_heads(heads, queries.heads);
    let [keys, values] = &*cache;
    let is_gpu = has_decode_kernels(&qkv) && has_cache_kernel(&qkv, queries, [keys, values]);
    if is_gpu {
        crate::operation!("attention decode");
        let capacity = check_caches("decode_step", [b, heads, c], g, [keys, values]);
        columns.check(b, capacity);
        cache.iter_mut().for_each(make_contiguous);
        let [keys, values] = &*cache;
        return attend_to_cache(qkv, queries, [keys, values], columns, true);
    }
    let column = columns.end() - 1;
    for (cache, first) in cache.iter_mut().zip([queries.heads, queries.heads + g]) {
        cache.inplace(|cache| append(cache, &qkv, first, column));
    }
    let starts = columns.starts();
    let visible = Columns {
        starts: &starts,
        end: columns.end(),
    };
    let [keys, values] = &*cache;
    decode(qkv, queries, keys, values, visible)
}

/// Copies the cache if it is not contiguous, because GPU kernels require contiguous memory. On a
/// GPU, small caches may have gaps.
fn make_contiguous(cache: &mut Tensor<4>) {
    #[cfg(feature = "cube")]
    {
        let there = cache
            .clone()
            .try_into_primitive::<burn_cubecl::CubeBackend>();
        if there.is_ok_and(|there| !there.is_contiguous()) {
            let shape = cache.dims();
            let n: usize = shape.iter().product();
            cache.inplace(|cache| cache.reshape([n]).reshape(shape));
        }
    }
    #[cfg(not(feature = "cube"))]
    let _ = cache;
}

/// Whether the device has an attention kernel for these queries and this cache.
fn has_cache_kernel(qkv: &Tensor<3>, queries: Queries, [keys, values]: [&Tensor<4>; 2]) -> bool {
    let [_, n_kv_heads, _, c] = keys.dims();
    let plain = !(qkv.is_autodiff() || keys.is_autodiff() || values.is_autodiff());
    let alike = keys.dtype() == values.dtype();
    let has_kernel = match is_served_by_cpu(qkv) {
        true => is_served_by_cpu(keys) && is_served_by_cpu(values),
        // GPU kernels need equal dtypes. These limits keep the shared memory of a key head small
        // enough for every GPU.
        false => {
            has_decode_kernels(qkv)
                && keys.dtype() == qkv.dtype()
                && queries.heads / n_kv_heads <= 16
                && c <= 256
        }
    };
    has_kernel && plain && alike
}

/// Whether the tensor's GPU has KV-cache kernels.
fn has_decode_kernels<const D: usize>(x: &Tensor<D>) -> bool {
    is_served(x) && !is_cpu(&x.device())
}

/// A zeroed buffer for the keys or values of a cache.
///
/// On the CPU it uses huge pages if the system has them, because each token reads the whole cache.
///
/// # Shapes
///
/// - `shape`: `[b, g, capacity, c]`
/// - returns: zeros of `dtype`; f32 and bf16 are fast
pub fn empty_cache(shape: [usize; 4], dtype: DType, device: &Device) -> Tensor<4> {
    if !(is_cpu(device) && matches!(dtype, DType::F32 | DType::BF16)) {
        return Tensor::zeros(shape, (device, dtype));
    }
    let n = shape.iter().product();
    let zeros = with_element_type!(dtype, T => Buffer::repeated(T::narrow(0.0), n).into_bytes());
    let zeros = TensorData::from_bytes(zeros, shape, dtype);
    Tensor::from_data(zeros, (device, dtype))
}

/// The cache columns that the rows attend to.
#[derive(Debug, Clone, Copy)]
pub struct Columns<'a> {
    /// First column of each row.
    pub starts: &'a [usize],
    /// End of the columns (exclusive), the same for all rows.
    pub end: usize,
}

impl Columns<'_> {
    fn to_device(self) -> DeviceColumns {
        DeviceColumns::new(self.starts, self.end)
    }
}

/// Like [`Columns`], but at a fixed address in device memory, so that GPU kernels can be replayed
/// for each token.
#[derive(Debug, Clone)]
pub struct DeviceColumns(DeviceIntegers);

impl DeviceColumns {
    /// Copies [`Columns`] to the device.
    ///
    /// # Panics
    ///
    /// If a column is 2^32 or more.
    pub fn new(starts: &[usize], end: usize) -> Self {
        Self(DeviceIntegers::new(Self::list(starts, end)))
    }

    /// Overwrites the columns in place, for the same number of rows.
    ///
    /// # Panics
    ///
    /// If the number of rows differs, or a column is 2^32 or more.
    pub fn replace(&mut self, starts: &[usize], end: usize) {
        self.0.replace(Self::list(starts, end));
    }

    fn list(starts: &[usize], end: usize) -> Vec<u32> {
        let number = |column: usize| u32::try_from(column).expect("columns below 2^32");
        let bounds = std::iter::once(end).chain(starts.iter().copied());
        let places = (0..starts.len()).flat_map(|row| [row, end.saturating_sub(1)]);
        bounds.chain(places).map(number).collect()
    }

    fn n_rows(&self) -> usize {
        (self.0.numbers().len() - 1) / 3
    }

    /// First column of each row.
    pub fn starts(&self) -> Vec<usize> {
        let starts = &self.0.numbers()[1..=self.n_rows()];
        starts.iter().map(|&start| start as usize).collect()
    }

    /// End of the columns (exclusive), the same for all rows.
    pub fn end(&self) -> usize {
        self.0.numbers()[0] as usize
    }

    /// The end, then the starts, then the row and column of each row's new token.
    #[cfg(feature = "cube")]
    pub(crate) fn numbers(&self) -> &DeviceIntegers {
        &self.0
    }

    fn check(&self, rows: usize, capacity: usize) {
        let end = self.end();
        assert!(
            self.n_rows() == rows
                && end <= capacity
                && self.starts().iter().all(|&start| start < end),
            "decode: each of {rows} rows needs a first column before the end {end}, at most the capacity {capacity}"
        );
    }
}

/// Cache positions of the tokens of packed prompts; each prompt has its own row.
#[derive(Debug, Clone)]
pub struct PromptPositions {
    borders: Vec<usize>,
    first_row: usize,
    end: usize,
    /// Row and column of each token.
    #[cfg(feature = "cube")]
    numbers: DeviceIntegers,
}

impl PromptPositions {
    /// Prompt `i` has the tokens `borders[i]..borders[i + 1]`; it fills row `first_row + i` up to
    /// column `end` (exclusive).
    ///
    /// # Panics
    ///
    /// If the borders decrease, a prompt is longer than `end`, or an index is 2^32 or more.
    pub fn new(borders: &[usize], first_row: usize, end: usize) -> Self {
        let fits = borders
            .windows(2)
            .all(|border| border[0] <= border[1] && border[1] - border[0] <= end);
        assert!(
            fits,
            "prompts with borders {borders:?} do not fit before column {end}"
        );
        Self {
            borders: borders.to_vec(),
            first_row,
            end,
            #[cfg(feature = "cube")]
            numbers: DeviceIntegers::new(Self::numbers(borders, first_row, end)),
        }
    }

    #[cfg(feature = "cube")]
    fn numbers(borders: &[usize], first_row: usize, end: usize) -> Vec<u32> {
        let number = |index: usize| u32::try_from(index).expect("rows and columns below 2^32");
        let rows = (first_row..).zip(borders.windows(2));
        let places = rows.flat_map(|(row, border)| {
            let first = end - (border[1] - border[0]);
            (first..end).flat_map(move |column| [row, column])
        });
        places.map(number).collect()
    }
}

/// Writes the keys and values of prompts, the last `2 g` heads of `qkv`, to a cache.
///
/// A GPU writes to the cache in place, even if other tensors share its memory.
///
/// # Shapes
///
/// - `qkv`: `[n, heads, c]`, f32 or bf16, one row per token of `places`
/// - `cache`: keys and values, `[b, g, capacity, c]` each
///
/// # Panics
///
/// If the shapes do not match.
pub fn append_prompts(qkv: &Tensor<3>, cache: &mut [Tensor<4>; 2], places: &PromptPositions) {
    crate::operation!("attention append");
    let ([b, g, capacity, c], [n, heads, size]) = (cache[0].dims(), qkv.dims());
    let n_rows = places.borders.len().saturating_sub(1);
    assert!(
        cache[1].dims() == cache[0].dims()
            && size == c
            && 2 * g < heads
            && places.borders.last().is_none_or(|&last| last == n)
            && places.first_row + n_rows <= b
            && places.end <= capacity,
        "append_prompts: [{n}, {heads}, {size}] in {n_rows} rows does not fit into rows {}.. before column {} of a cache of shape \
         [{b}, {g}, {capacity}, {c}]",
        places.first_row,
        places.end
    );
    #[cfg(feature = "cube")]
    if has_decode_kernels(qkv) && cache.iter().all(|cache| cache.dtype() == qkv.dtype()) {
        cache.iter_mut().for_each(make_contiguous);
        let qkv = qkv.clone().try_into_primitive::<burn_cubecl::CubeBackend>();
        let there = cache.each_ref().map(|cache| {
            cache
                .clone()
                .try_into_primitive::<burn_cubecl::CubeBackend>()
        });
        if let (Ok(qkv), [Ok(keys), Ok(values)]) = (qkv, there) {
            super::cuda::append_prompts(qkv, [keys, values], &places.numbers);
            return;
        }
    }
    for (row, border) in (places.first_row..).zip(places.borders.windows(2)) {
        let length = border[1] - border[0];
        for (cache, first) in cache.iter_mut().zip([heads - 2 * g, heads - g]) {
            let part = qkv.clone().narrow(0, border[0], length).narrow(1, first, g);
            let part = part.swap_dims(0, 1).unsqueeze_dim(0);
            let ranges = [row..row + 1, 0..g, places.end - length..places.end, 0..c];
            cache.inplace(|cache| cache.slice_assign(ranges, part));
        }
    }
}

/// Writes one token per row, `heads` of `qkv`, to cache column `column`: in place, unless other
/// tensors share the cache's memory. On a GPU this uses the reference; [`decode_step`] has a kernel
/// that appends.
///
/// # Shapes
///
/// - `cache`: `[b, g, capacity, c]`, f32 or bf16
/// - `qkv`: `[b, heads, c]`, f32 or bf16; `g` heads starting at `first_head` are read
/// - returns: the cache
///
/// # Panics
///
/// If the shapes do not match.
pub fn append(cache: Tensor<4>, qkv: &Tensor<3>, first_head: usize, column: usize) -> Tensor<4> {
    let ([b, g, capacity, c], [rows, heads, size]) = (cache.dims(), qkv.dims());
    assert!(
        [rows, size] == [b, c] && first_head + g <= heads && column < capacity,
        "append: heads {first_head}.. of [{rows}, {heads}, {size}] do not fit into column {column} of a cache of shape \
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

/// Cache attention that a backend implements itself; not differentiable.
#[backend_extension(Flex, Cube: cfg(feature = "cube"))]
pub(super) trait DecodeOps: Backend {
    /// Attention of one token per row to columns `starts[row]..end`. If `appends`, a GPU first
    /// writes the token's own key and value to the last column.
    fn attend_to_cache(
        qkv: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        queries: Queries,
        columns: DeviceColumns,
        appends: bool,
    ) -> FloatTensor<Self>;
}

/// Cache operation that only the CPU implements.
#[backend_extension(Flex)]
pub(super) trait AppendOps: Backend {
    /// Writes one token per row to a cache column.
    fn append_column(
        cache: FloatTensor<Self>,
        qkv: FloatTensor<Self>,
        first_head: usize,
        column: usize,
    ) -> FloatTensor<Self>;
}
