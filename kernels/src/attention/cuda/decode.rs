//! Attention to a KV cache on a GPU. A cube processes a run of columns of one key/value head of a
//! row, for all query heads that share it; the results of the runs are combined afterwards (Dao et
//! al. 2023, "Flash-Decoding for long-context inference").

use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::forward::LOWEST;
use crate::DeviceIntegers;
use crate::attention::{DecodeOps, DeviceColumns, Queries};
use crate::cube::launch::{UNITS, argument, contiguous, element, output, units, vector_size};
use crate::cube::reduce::{cube_max, group_sum};

/// Columns per run: one per unit.
const RUN: usize = UNITS as usize;

/// Values per run and query head in addition to the sum of values: the largest score and the sum of
/// exponentials.
const RUN_VALUES: usize = 2;

/// Compile-time sizes of the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct KernelSizes {
    /// Query heads per key/value head.
    pub(super) group: usize,
    /// Vectors per head.
    pub(super) columns: usize,
}

impl KernelSizes {
    /// Vectors of a run's value sums.
    fn items(&self) -> usize {
        self.group * self.columns
    }

    /// Parts of a run that units sum in parallel.
    fn slices(&self) -> usize {
        (RUN / self.items()).max(1)
    }
}

#[cube(launch, create_dummy_kernel)]
pub(super) fn attend_to_run<T: Float, N: Size>(
    qkv: &[Vector<T, N>],
    keys: &[Vector<T, N>],
    values: &[Vector<T, N>],
    // End of the columns (exclusive), then the first column of each row.
    bounds: &[u32],
    // Sums of values, `[rows, h, runs, c]`, and the other values of each run.
    sums: &mut [Vector<f32, N>],
    run_values: &mut [f32],
    // Heads of `qkv`, and key/value heads.
    heads: u32,
    g: u32,
    capacity: u32,
    scale: f32,
    #[comptime] sizes: KernelSizes,
    #[define(T)] _dtype: ElemType,
) {
    let group = comptime!(sizes.group);
    let columns = comptime!(sizes.columns);
    let items = comptime!(sizes.items());
    let slices = comptime!(sizes.slices());
    let unit = UNIT_POS as usize;
    let run = CUBE_POS_X as usize;
    let kv = CUBE_POS_Y as usize;
    let row = CUBE_POS_Z as usize;
    let runs = CUBE_COUNT_X as usize;
    let g = g as usize;
    let end = bounds[0] as usize;
    let start = bounds[1 + row] as usize;
    let first = run * RUN;
    let cache = (row * g + kv) * capacity as usize;

    let mut queries = Shared::<[Vector<f32, N>]>::new_slice(items);
    let factor = Vector::<f32, N>::new(scale);
    let mut i = unit;
    while i < items {
        let source = (row * heads as usize + kv * group) * columns + i;
        queries[i] = Vector::<f32, N>::cast_from(qkv[source]) * factor;
        i += RUN;
    }
    sync_cube();

    // The unit's column.
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
                products[i] += key * queries[comptime!(i * sizes.columns) + v];
            }
        }
    }
    let mut scratch = Shared::<[f32]>::new_slice(RUN);
    let mut weights = Shared::<[f32]>::new_slice(comptime!(sizes.group * RUN));
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
            let start = (head * runs + run) * RUN_VALUES;
            run_values[start] = largest;
            run_values[start + 1] = total;
        }
    }
    sync_cube();

    // Columns of the run that are attended to.
    let low = max(start, first) - first;
    let high = min(end, first + RUN) - min(first, min(end, first + RUN));
    let mut partial =
        Shared::<[Vector<f32, N>]>::new_slice(comptime!(sizes.items() * sizes.slices()));
    let mut index = unit;
    while index < comptime!(sizes.items() * sizes.slices()) {
        let item = index % items;
        let head = item / columns;
        let v = item % columns;
        let mut sum = Vector::<f32, N>::new(0.0);
        let mut key = low + index / items;
        while key < high {
            let weight = Vector::<f32, N>::new(weights[head * RUN + key]);
            sum +=
                weight * Vector::<f32, N>::cast_from(values[(cache + first + key) * columns + v]);
            key += slices;
        }
        partial[index] = sum;
        index += RUN;
    }
    sync_cube();
    let mut item = unit;
    while item < items {
        let mut sum = partial[item];
        #[unroll]
        for slice in 1..slices {
            sum += partial[item + comptime!(slice * sizes.items())];
        }
        let head = row * g * group + kv * group + item / columns;
        sums[(head * runs + run) * columns + item % columns] = sum;
        item += RUN;
    }
}

/// Combines the non-empty runs of each query head, with one unit per vector of the result.
#[cube(launch, create_dummy_kernel)]
pub(super) fn join_runs<T: Float, N: Size>(
    sums: &[Vector<f32, N>],
    run_values: &[f32],
    out: &mut [Vector<T, N>],
    // As in `attend_to_run`.
    bounds: &[u32],
    // Query heads of all rows, vectors per head, and the maximum number of runs.
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
        let used = (bounds[0] as usize).div_ceil(RUN);
        let mut largest = f32::new(LOWEST);
        for run in 0..used {
            largest = max(largest, run_values[(head * runs + run) * RUN_VALUES]);
        }
        let mut sum = Vector::<f32, N>::new(0.0);
        let mut total = 0.0f32;
        for run in 0..used {
            let index = head * runs + run;
            let weight = (run_values[index * RUN_VALUES] - largest).exp();
            total += weight * run_values[index * RUN_VALUES + 1];
            sum += Vector::<f32, N>::new(weight) * sums[index * columns + v];
        }
        out[position] = Vector::<T, N>::cast_from(sum / Vector::<f32, N>::new(total));
    }
}

/// Writes the keys and values of tokens to their cache positions, with one unit per vector.
///
/// This is a separate kernel from [`attend_to_run`] because it only writes the cache. If this work
/// is skipped by an error, the cache stays marked as unwritten and readers fail.
#[cube(launch, create_dummy_kernel)]
pub(super) fn append_tokens<T: Float, N: Size>(
    qkv: &[Vector<T, N>],
    keys: &mut [Vector<T, N>],
    values: &mut [Vector<T, N>],
    // Row and column of each token, starting at index `first`.
    places: &[u32],
    first: u32,
    tokens: u32,
    // Vectors per head; heads of `qkv`: the last ones are values, those before them keys.
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
        let index = first as usize + 2 * token;
        let row = places[index] as usize;
        let column = places[index + 1] as usize;
        let to = ((row * g + head) * capacity as usize + column) * columns + v;
        keys[to] = qkv[key];
        values[to] = qkv[key + g * columns];
    }
}

/// Writes keys and values of `[n, heads, c]` to `[b, g, capacity, c]`; their positions are in
/// `places`, starting at index `first`.
fn append(qkv: &CubeTensor, cache: [&CubeTensor; 2], places: &CubeTensor, first: usize) {
    assert!(
        cache.iter().all(|cache| cache.is_contiguous()),
        "a cache must be contiguous to be written"
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
    dims.try_into()
        .expect("the caller passes a tensor of this rank")
}

/// Same contract as [`crate::attention::append_prompts`], with the row and column of each token.
pub(in crate::attention) fn append_prompts(
    qkv: CubeTensor,
    [keys, values]: [CubeTensor; 2],
    places: &DeviceIntegers,
) {
    let (qkv, [_, _, _]) = contiguous(qkv);
    let places = places.on_device(&qkv);
    append(&qkv, [&keys, &values], &places, 0);
}

/// Sizes and memory of one token per row and its cache.
struct Step {
    qkv: CubeTensor,
    keys: CubeTensor,
    values: CubeTensor,
    bounds: CubeTensor,
    b: usize,
    heads: usize,
    g: usize,
    c: usize,
    capacity: usize,
    /// Elements that a unit moves at once.
    vector: usize,
}

impl Step {
    /// The number of runs follows from the cache's capacity, not from its use, so each token needs
    /// the same launch.
    fn attend(&self, queries: Queries, out: &CubeTensor) {
        let (b, g, h, c) = (self.b, self.g, queries.heads, self.c);
        let runs = self.capacity.div_ceil(RUN);
        let sizes = KernelSizes {
            group: h / g,
            columns: c / self.vector,
        };
        let sums = output(&self.qkv, [b, h, runs, c], DType::F32);
        let run_values = output(&self.qkv, [b, h, runs, RUN_VALUES], DType::F32);
        attend_to_run::launch(
            &self.qkv.client,
            CubeCount::new_3d(runs as u32, g as u32, b as u32),
            CubeDim::new_1d(UNITS),
            self.vector,
            argument(&self.qkv),
            argument(&self.keys),
            argument(&self.values),
            argument(&self.bounds),
            argument(&sums),
            argument(&run_values),
            self.heads as u32,
            g as u32,
            self.capacity as u32,
            queries.scale(c) as f32,
            sizes,
            element(&self.qkv),
        );
        let (count, dim) = units(&self.qkv.client, b * h * sizes.columns);
        join_runs::launch(
            &self.qkv.client,
            count,
            dim,
            self.vector,
            argument(&sums),
            argument(&run_values),
            argument(out),
            argument(&self.bounds),
            (b * h) as u32,
            sizes.columns as u32,
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
        columns: DeviceColumns,
        appends: bool,
    ) -> CubeTensor {
        assert!(
            !appends || (keys.is_contiguous() && values.is_contiguous()),
            "a cache must be contiguous to be written"
        );
        let (qkv, [b, heads, c]) = contiguous(qkv);
        let (keys, [_, g, capacity, _]) = contiguous(keys);
        let (values, [_, _, _, _]) = contiguous(values);
        let out = output(&qkv, [b, queries.heads, c], qkv.dtype);
        if b * queries.heads * c == 0 {
            return out;
        }
        let step = Step {
            bounds: columns.numbers().on_device(&qkv),
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
            append(&step.qkv, [&step.keys, &step.values], &step.bounds, places);
        }
        step.attend(queries, &out);
        out
    }
}

#[cfg(feature = "cuda-source")]
pub(super) fn sources(sources: &mut crate::cube::source::Sources) {
    let dim = CubeDim::new_1d(UNITS);
    for element in crate::cube::source::ELEMENTS {
        for (group, c) in [(3, 64), (4, 128)] {
            let sizes = KernelSizes {
                group,
                columns: c / 4,
            };
            let [qkv, keys, values, bounds, sums, run_values] = [0; 6].map(|_| sources.buffer());
            let (device, target, count) = sources.device();
            let kernel = attend_to_run::create_dummy_kernel(
                device, target, count, dim, 4, qkv, keys, values, bounds, sums, run_values, 1, 1,
                1, 1.0, sizes, element,
            );
            sources.add(&format!("{group} heads of {c}"), dim, kernel);
        }
        let [sums, run_values, out, bounds] = [0; 4].map(|_| sources.buffer());
        let (device, target, count) = sources.device();
        let kernel = join_runs::create_dummy_kernel(
            device, target, count, dim, 4, sums, run_values, out, bounds, 1, 1, 1, element,
        );
        sources.add("", dim, kernel);
        let [qkv, keys, values, bounds] = [0; 4].map(|_| sources.buffer());
        let (device, target, count) = sources.device();
        let kernel = append_tokens::create_dummy_kernel(
            device, target, count, dim, 4, qkv, keys, values, bounds, 1, 1, 1, 1, 1, 1, element,
        );
        sources.add("", dim, kernel);
    }
}
