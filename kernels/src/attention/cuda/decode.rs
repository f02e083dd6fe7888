//! Attention to a cache on a GPU: a cube has a run of columns of one key/value head of a row, for all
//! query heads that share it; what the runs give is joined afterwards (Dao et al. 2023, "Flash-Decoding
//! for long-context inference").

use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::forward::LOWEST;
use crate::HeldNumbers;
use crate::attention::{DecodeOps, HeldColumns, Queries};
use crate::cube::launch::{UNITS, argument, contiguous, element, output, units, vector_size};
use crate::cube::reduce::{cube_max, group_sum};

/// Columns of a run: one a unit.
const RUN: usize = UNITS as usize;

/// Numbers that a run leaves of each query head beside its sum of values: the largest score, and the
/// sum of exponentials.
const LEFT: usize = 2;

/// Sizes that the kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Query heads of a key/value head.
    pub(super) group: usize,
    /// Vectors of a head.
    pub(super) columns: usize,
}

impl Form {
    /// Vectors that the sums of a run's values have.
    fn items(&self) -> usize {
        self.group * self.columns
    }

    /// Parts of a run that units sum up side by side.
    fn slices(&self) -> usize {
        (RUN / self.items()).max(1)
    }
}

#[cube(launch, create_dummy_kernel)]
pub(super) fn attend_to_run<T: Float, N: Size>(
    qkv: &[Vector<T, N>],
    keys: &[Vector<T, N>],
    values: &[Vector<T, N>],
    // The column behind the last one, and the first one of each row.
    seen: &[u32],
    // Sums of values, `[rows, h, runs, c]`, and what else is left of each.
    sums: &mut [Vector<f32, N>],
    left: &mut [f32],
    // Heads of `qkv`, and key/value heads.
    heads: u32,
    g: u32,
    capacity: u32,
    scale: f32,
    #[comptime] form: Form,
    #[define(T)] _dtype: ElemType,
) {
    let group = comptime!(form.group);
    let columns = comptime!(form.columns);
    let items = comptime!(form.items());
    let slices = comptime!(form.slices());
    let unit = UNIT_POS as usize;
    let run = CUBE_POS_X as usize;
    let kv = CUBE_POS_Y as usize;
    let row = CUBE_POS_Z as usize;
    let runs = CUBE_COUNT_X as usize;
    let g = g as usize;
    let end = seen[0] as usize;
    let start = seen[1 + row] as usize;
    let first = run * RUN;
    let cache = (row * g + kv) * capacity as usize;

    let mut queries = Shared::<[Vector<f32, N>]>::new_slice(items);
    let factor = Vector::<f32, N>::new(scale);
    let mut i = unit;
    while i < items {
        let at = (row * heads as usize + kv * group) * columns + i;
        queries[i] = Vector::<f32, N>::cast_from(qkv[at]) * factor;
        i += RUN;
    }
    sync_cube();

    // Each unit's column.
    let column = first + unit;
    let is_seen = column >= start && column < end;
    let mut products = Array::<Vector<f32, N>>::new(group);
    #[unroll]
    for i in 0..group {
        products[i] = Vector::<f32, N>::new(0.0);
    }
    if is_seen {
        for v in 0..columns {
            let key = Vector::<f32, N>::cast_from(keys[(cache + column) * columns + v]);
            #[unroll]
            for i in 0..group {
                products[i] += key * queries[comptime!(i * form.columns) + v];
            }
        }
    }
    let mut scratch = Shared::<[f32]>::new_slice(RUN);
    let mut weights = Shared::<[f32]>::new_slice(comptime!(form.group * RUN));
    #[unroll]
    for i in 0..group {
        let mut score = f32::new(LOWEST);
        if is_seen {
            score = products[i].vector_sum();
        }
        let largest = cube_max(&mut scratch, score, UNITS);
        let mut weight = 0.0f32;
        if is_seen {
            weight = (score - largest).exp();
        }
        let total = group_sum(&mut scratch, weight, UNITS);
        weights[comptime!(i * RUN) + unit] = weight;
        if unit == 0 {
            let head = row * g * group + kv * group + i;
            let at = (head * runs + run) * LEFT;
            left[at] = largest;
            left[at + 1] = total;
        }
    }
    sync_cube();

    // Columns of the run that are seen.
    let low = max(start, first) - first;
    let high = min(end, first + RUN) - min(first, min(end, first + RUN));
    let mut partial =
        Shared::<[Vector<f32, N>]>::new_slice(comptime!(form.items() * form.slices()));
    let mut place = unit;
    while place < comptime!(form.items() * form.slices()) {
        let item = place % items;
        let head = item / columns;
        let v = item % columns;
        let mut sum = Vector::<f32, N>::new(0.0);
        let mut at = low + place / items;
        while at < high {
            let weight = Vector::<f32, N>::new(weights[head * RUN + at]);
            sum += weight * Vector::<f32, N>::cast_from(values[(cache + first + at) * columns + v]);
            at += slices;
        }
        partial[place] = sum;
        place += RUN;
    }
    sync_cube();
    let mut item = unit;
    while item < items {
        let mut sum = partial[item];
        #[unroll]
        for slice in 1..slices {
            sum += partial[item + comptime!(slice * form.items())];
        }
        let head = row * g * group + kv * group + item / columns;
        sums[(head * runs + run) * columns + item % columns] = sum;
        item += RUN;
    }
}

/// Joins the runs of each query head that hold a column, a unit for each vector of the result.
#[cube(launch, create_dummy_kernel)]
pub(super) fn join_runs<T: Float, N: Size>(
    sums: &[Vector<f32, N>],
    left: &[f32],
    out: &mut [Vector<T, N>],
    // As those of `attend_to_run`.
    seen: &[u32],
    // Query heads of all rows, vectors of a head, and runs that there is room for.
    heads: u32,
    columns: u32,
    runs: u32,
    #[define(T)] _dtype: ElemType,
) {
    let columns = columns as usize;
    let runs = runs as usize;
    let position = ABSOLUTE_POS;
    if position < heads as usize * columns {
        let head = position / columns;
        let v = position % columns;
        let used = (seen[0] as usize).div_ceil(RUN);
        let mut largest = f32::new(LOWEST);
        for run in 0..used {
            largest = max(largest, left[(head * runs + run) * LEFT]);
        }
        let mut sum = Vector::<f32, N>::new(0.0);
        let mut total = 0.0f32;
        for run in 0..used {
            let at = head * runs + run;
            let weight = (left[at * LEFT] - largest).exp();
            total += weight * left[at * LEFT + 1];
            sum += Vector::<f32, N>::new(weight) * sums[at * columns + v];
        }
        out[position] = Vector::<T, N>::cast_from(sum / Vector::<f32, N>::new(total));
    }
}

/// Keys and values of tokens to their places in a cache, a unit for each vector.
///
/// Both are only written, which is why this is no part of [`attend_to_run`]: work that was to write them
/// and did not leaves them to be written, and refuses whoever reads them first.
#[cube(launch, create_dummy_kernel)]
pub(super) fn append_tokens<T: Float, N: Size>(
    qkv: &[Vector<T, N>],
    keys: &mut [Vector<T, N>],
    values: &mut [Vector<T, N>],
    // Row and column of each token, from the number `first` on.
    places: &[u32],
    first: u32,
    tokens: u32,
    // Vectors of a head; heads of `qkv`, of which the last are values and those before them keys.
    columns: u32,
    heads: u32,
    g: u32,
    capacity: u32,
    #[define(T)] _dtype: ElemType,
) {
    let columns = columns as usize;
    let g = g as usize;
    let heads = heads as usize;
    let position = ABSOLUTE_POS;
    if position < tokens as usize * g * columns {
        let v = position % columns;
        let head = position / columns % g;
        let token = position / columns / g;
        let key = (token * heads + heads - 2 * g + head) * columns + v;
        let place = first as usize + 2 * token;
        let row = places[place] as usize;
        let column = places[place + 1] as usize;
        let to = ((row * g + head) * capacity as usize + column) * columns + v;
        keys[to] = qkv[key];
        values[to] = qkv[key + g * columns];
    }
}

/// Keys and values of `[n, heads, c]` to `[b, g, capacity, c]`; the places stand in `places` from the
/// number `first` on.
fn append(qkv: &CubeTensor, cache: [&CubeTensor; 2], places: &CubeTensor, first: usize) {
    assert!(
        cache.iter().all(|cache| cache.is_contiguous()),
        "a cache that is written lies without holes"
    );
    let [n, heads, c] = dims(qkv);
    let [_, g, capacity, _] = dims(cache[0]);
    let vector = vector_size(4, &[c]);
    let columns = c / vector;
    if n * g * c == 0 {
        return;
    }
    let (count, dim) = units(&qkv.client, n * g * columns);
    append_tokens::launch(
        &qkv.client,
        count,
        dim,
        vector,
        argument(qkv),
        argument(cache[0]),
        argument(cache[1]),
        argument(places),
        first as u32,
        n as u32,
        columns as u32,
        heads as u32,
        g as u32,
        capacity as u32,
        element(qkv),
    );
}

fn dims<const D: usize>(x: &CubeTensor) -> [usize; D] {
    let dims = x.meta.shape().iter().copied().collect::<Vec<_>>();
    dims.try_into().expect("the rank is part of the contract")
}

/// The contract is [`crate::attention::append_prompts`]'s, with row and column of each token.
pub(in crate::attention) fn append_prompts(
    qkv: CubeTensor,
    [keys, values]: [CubeTensor; 2],
    places: &HeldNumbers,
) {
    let (qkv, [_, _, _]) = contiguous(qkv);
    let places = places.on_device(&qkv);
    append(&qkv, [&keys, &values], &places, 0);
}

/// Sizes and memory of one token a row and the cache that it looks at.
struct Step {
    qkv: CubeTensor,
    keys: CubeTensor,
    values: CubeTensor,
    seen: CubeTensor,
    b: usize,
    heads: usize,
    g: usize,
    c: usize,
    capacity: usize,
    /// Numbers that a unit moves at once.
    vector: usize,
}

impl Step {
    /// Runs are those that the cache has room for, not those in use, so that a launch is the same for
    /// each token.
    fn attend(&self, queries: Queries, out: &CubeTensor) {
        let (b, g, h, c) = (self.b, self.g, queries.heads, self.c);
        let runs = self.capacity.div_ceil(RUN);
        let form = Form {
            group: h / g,
            columns: c / self.vector,
        };
        let sums = output(&self.qkv, [b, h, runs, c], DType::F32);
        let left = output(&self.qkv, [b, h, runs, LEFT], DType::F32);
        attend_to_run::launch(
            &self.qkv.client,
            CubeCount::new_3d(runs as u32, g as u32, b as u32),
            CubeDim::new_1d(UNITS),
            self.vector,
            argument(&self.qkv),
            argument(&self.keys),
            argument(&self.values),
            argument(&self.seen),
            argument(&sums),
            argument(&left),
            self.heads as u32,
            g as u32,
            self.capacity as u32,
            queries.scale(c) as f32,
            form,
            element(&self.qkv),
        );
        let (count, dim) = units(&self.qkv.client, b * h * form.columns);
        join_runs::launch(
            &self.qkv.client,
            count,
            dim,
            self.vector,
            argument(&sums),
            argument(&left),
            argument(out),
            argument(&self.seen),
            (b * h) as u32,
            form.columns as u32,
            runs as u32,
            element(&self.qkv),
        );
    }
}

impl DecodeOps for CubeBackend {
    fn attend_to_cache(
        qkv: CubeTensor,
        keys: CubeTensor,
        values: CubeTensor,
        queries: Queries,
        columns: HeldColumns,
        appends: bool,
    ) -> CubeTensor {
        assert!(
            !appends || (keys.is_contiguous() && values.is_contiguous()),
            "a cache that is written lies without holes"
        );
        let (qkv, [b, heads, c]) = contiguous(qkv);
        let (keys, [_, g, capacity, _]) = contiguous(keys);
        let (values, [_, _, _, _]) = contiguous(values);
        let out = output(&qkv, [b, queries.heads, c], qkv.dtype);
        if b * queries.heads * c == 0 {
            return out;
        }
        let step = Step {
            seen: columns.numbers().on_device(&qkv),
            vector: vector_size(4, &[c]),
            qkv,
            keys,
            values,
            b,
            heads,
            g,
            c,
            capacity,
        };
        if appends {
            let places = 1 + step.b;
            append(&step.qkv, [&step.keys, &step.values], &step.seen, places);
        }
        step.attend(queries, &out);
        out
    }
}

#[cfg(feature = "cuda-source")]
pub(super) fn sources(texts: &mut crate::cube::source::Texts) {
    let dim = CubeDim::new_1d(UNITS);
    for element in crate::cube::source::ELEMENTS {
        for (group, c) in [(3, 64), (4, 128)] {
            let form = Form {
                group,
                columns: c / 4,
            };
            let [qkv, keys, values, seen, sums, left] = [0; 6].map(|_| texts.buffer());
            let (device, target, count) = texts.device();
            let kernel = attend_to_run::create_dummy_kernel(
                device, target, count, dim, 4, qkv, keys, values, seen, sums, left, 1, 1, 1, 1.0,
                form, element,
            );
            texts.add(&format!("{group} heads of {c}"), dim, kernel);
        }
        let [sums, left, out, seen] = [0; 4].map(|_| texts.buffer());
        let (device, target, count) = texts.device();
        let kernel = join_runs::create_dummy_kernel(
            device, target, count, dim, 4, sums, left, out, seen, 1, 1, 1, element,
        );
        texts.add("", dim, kernel);
        let [qkv, keys, values, seen] = [0; 4].map(|_| texts.buffer());
        let (device, target, count) = texts.device();
        let kernel = append_tokens::create_dummy_kernel(
            device, target, count, dim, 4, qkv, keys, values, seen, 1, 1, 1, 1, 1, 1, element,
        );
        texts.add("", dim, kernel);
    }
}
