//! Attention of new tokens to keys and values that are kept.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Device, Tensor, TensorData};

use super::{Queries, check_heads, reference};
use crate::HeldNumbers;
use crate::cpu::number::{Number, with_number};
use crate::cpu::pool::Buffer;
use crate::route::{is_cpu, is_served, is_served_by_cpu};

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
/// As [`attention`](super::attention), for the last token of each row.
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
    columns.held().check(b, capacity);
    if !has_cache_kernel(&qkv, queries, [keys, values]) {
        return reference::decode(qkv, queries, keys, values, columns);
    }
    attend_to_cache(qkv, queries, [keys, values], &columns.held(), false)
}

/// Columns of caches that fit `[b, heads, c]` of new tokens and `g` key/value heads.
fn check_caches(
    caller: &str,
    [b, heads, c]: [usize; 3],
    g: usize,
    [keys, values]: [&Tensor<4>; 2],
) -> usize {
    let capacity = keys.dims()[2];
    assert!(
        keys.dims() == [b, g, capacity, c] && values.dims() == keys.dims(),
        "{caller}: caches of {:?} and {:?} do not fit [{b}, {heads}, {c}]",
        keys.dims(),
        values.dims()
    );
    capacity
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
/// As [`attention`](super::attention), for the last token of each row.
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
        let capacity = check_caches("decode_step", [b, heads, c], g, [keys, values]);
        columns.check(b, capacity);
        cache.iter_mut().for_each(without_holes);
        let [keys, values] = &*cache;
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

/// Copies a cache whose rows have holes between them, as small ones may have on a GPU: its kernels know none.
fn without_holes(cache: &mut Tensor<4>) {
    #[cfg(all(feature = "cube", not(feature = "fusion")))]
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
    #[cfg(not(all(feature = "cube", not(feature = "fusion"))))]
    let _ = cache;
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
        let number = |column: usize| u32::try_from(column).expect("fewer columns than 2^32");
        let seen = std::iter::once(end).chain(starts.iter().copied());
        let places = (0..starts.len()).flat_map(|row| [row, end.saturating_sub(1)]);
        seen.chain(places).map(number).collect()
    }

    fn n_rows(&self) -> usize {
        (self.0.numbers().len() - 1) / 3
    }

    /// First column of each row.
    pub fn starts(&self) -> Vec<usize> {
        let starts = &self.0.numbers()[1..=self.n_rows()];
        starts.iter().map(|&start| start as usize).collect()
    }

    /// Column after the last, for all rows.
    pub fn end(&self) -> usize {
        self.0.numbers()[0] as usize
    }

    /// The end, then the starts, then row and column that the new token of each row goes to.
    #[cfg(all(feature = "cube", not(feature = "fusion")))]
    pub(crate) fn numbers(&self) -> &HeldNumbers {
        &self.0
    }

    fn check(&self, rows: usize, capacity: usize) {
        let end = self.end();
        assert!(
            self.n_rows() == rows
                && end <= capacity
                && self.starts().iter().all(|&start| start < end),
            "decode: each of {rows} rows needs a first column before {end} of {capacity}"
        );
    }
}

/// Where the tokens of prompts, which lie end to end, go in a cache: each prompt into a row of its own.
#[derive(Debug, Clone)]
pub struct PromptPlaces {
    borders: Vec<usize>,
    first_row: usize,
    end: usize,
    /// Row and column of each token.
    #[cfg(all(feature = "cube", not(feature = "fusion")))]
    numbers: HeldNumbers,
}

impl PromptPlaces {
    /// Prompt `i` is the tokens `borders[i]..borders[i + 1]`, and goes into row `first_row + i`, before
    /// column `end`.
    ///
    /// # Panics
    ///
    /// If borders fall, a prompt is longer than `end`, or a number is 2^32 or more.
    pub fn new(borders: &[usize], first_row: usize, end: usize) -> Self {
        let fits = borders
            .windows(2)
            .all(|border| border[0] <= border[1] && border[1] - border[0] <= end);
        assert!(fits, "prompts of {borders:?} end before column {end}");
        Self {
            borders: borders.to_vec(),
            first_row,
            end,
            #[cfg(all(feature = "cube", not(feature = "fusion")))]
            numbers: HeldNumbers::new(Self::numbers(borders, first_row, end)),
        }
    }

    #[cfg(all(feature = "cube", not(feature = "fusion")))]
    fn numbers(borders: &[usize], first_row: usize, end: usize) -> Vec<u32> {
        let number = |place: usize| u32::try_from(place).expect("fewer rows and columns than 2^32");
        let rows = (first_row..).zip(borders.windows(2));
        let places = rows.flat_map(|(row, border)| {
            let first = end - (border[1] - border[0]);
            (first..end).flat_map(move |column| [row, column])
        });
        places.map(number).collect()
    }
}

/// Puts the keys and values of prompts, the last `2 g` heads of `qkv`, into a cache.
///
/// A GPU writes them where the cache lies, whoever shares its memory.
///
/// # Shapes
///
/// - `qkv`: `[n, heads, c]`, f32 or bf16, of the tokens that `places` speaks of
/// - `cache`: keys and values, `[b, g, capacity, c]` each
///
/// # Panics
///
/// If the shapes do not fit each other.
pub fn append_prompts(qkv: &Tensor<3>, cache: &mut [Tensor<4>; 2], places: &PromptPlaces) {
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
        "append_prompts: [{n}, {heads}, {size}] in {n_rows} rows do not fit rows {}.. before column {} of \
         [{b}, {g}, {capacity}, {c}]",
        places.first_row,
        places.end
    );
    #[cfg(all(feature = "cube", not(feature = "fusion")))]
    if has_decode_kernels(qkv) && cache.iter().all(|cache| cache.dtype() == qkv.dtype()) {
        cache.iter_mut().for_each(without_holes);
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

/// What backends implement themselves of attention to a cache; nothing is differentiated.
#[backend_extension(Flex, Cube: cfg(all(feature = "cube", not(feature = "fusion"))))]
pub(super) trait DecodeOps: Backend {
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
pub(super) trait AppendOps: Backend {
    /// One token a row into a column of the cache.
    fn append_column(
        cache: FloatTensor<Self>,
        qkv: FloatTensor<Self>,
        first_head: usize,
        column: usize,
    ) -> FloatTensor<Self>;
}
