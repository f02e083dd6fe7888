//! LoRA products of a stack on tensor cores, with one launch for all of its adapters. Dropout masks
//! are computed where they are used, and no intermediate is stored only to be read again.
//!
//! These kernels are limited by memory, not by the tensor cores: the adapters' input is read once
//! for all adapters, and its masked version is never stored. Sums are f32, in a fixed order.

mod expand;
mod gradients;
mod shrink;
#[cfg(feature = "cuda-source")]
mod sources;
mod stack;
mod tiles;

use burn::backend::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::adapter::{AdapterPlan, PartLayout};
use super::backend::Spec;
use super::composed::cast;
use super::cuda::{parts, scale};
use crate::cube::launch::{argument, contiguous, element, has_cores_for, output};
use crate::dropout::Dropout;
use expand::Product;
use shrink::Side;
#[cfg(feature = "cuda-source")]
pub(crate) use sources::sources;
pub(super) use stack::{forward, input_backward};
use tiles::{FRAGMENT, KernelSizes, PartLaunch, UNITS, VECTOR};

/// Maximum low-rank columns for which a warp has accumulators; each adapter is padded to fragments.
const MOST_LOWS: usize = 192;

/// Maximum layers per stack: one byte each encodes the position of its low-rank values.
const MOST_MAPS: usize = 8;

/// Register budget per unit (of at most 255) for sums and prefetched inputs.
const MOST_REGISTERS: usize = 150;

/// Minimum rows for these kernels: with fewer, as in decoding, iterating over the columns is not
/// worthwhile.
const FEWEST_ROWS: usize = 128;

/// Rows from which large tiles are used: with 64-row cubes they occupy each multiprocessor of a
/// large GPU about half of the time.
const MANY_ROWS: usize = 4096;

/// The adapters of a stack, if these kernels support them.
#[derive(Debug, Clone)]
pub(super) struct LowRank {
    parts: Vec<(PartLayout, Option<Dropout>)>,
    inputs: usize,
    outputs: Vec<usize>,
    sizes: KernelSizes,
}

impl LowRank {
    /// The adapters of a stack with input `x`, or with low-rank values `x`. `None` if the device,
    /// dtype or sizes are not supported; separate products then compute the same result.
    pub(super) fn new(x: &CubeTensor, plan: &AdapterPlan, spec: &Spec) -> Option<Self> {
        let layout = &plan.layout;
        let drops = |dropout: Option<Dropout>| dropout.filter(|d| d.threshold > 0);
        let parts: Vec<_> = parts(plan, spec)
            .map(|(part, dropout)| (*part, drops(dropout)))
            .collect();
        let outputs = spec.out_features.to_vec();
        let ranks = || parts.iter().map(|(part, _)| part.rank);
        let extents = outputs.iter().copied().chain(ranks());
        let fits_vectors = extents
            .chain([layout.in_features])
            .all(|size| size % VECTOR == 0);
        let [n, _] = dims(x);
        let is_served = n >= FEWEST_ROWS
            && outputs.len() <= MOST_MAPS
            && fits_vectors
            && x.dtype.size() == 2
            && has_cores_for(&x.client, element(x));
        if !is_served {
            return None;
        }
        let fragments = ranks().max()?.div_ceil(FRAGMENT);
        if parts.len() * fragments * FRAGMENT > MOST_LOWS {
            return None;
        }
        let masks = parts.iter().enumerate();
        let masks = masks
            .map(|(i, (_, dropout))| u32::from(dropout.is_some()) << i)
            .sum();
        let most = x.client.properties().hardware.max_shared_memory_size;
        let sizes = select_sizes([parts.len(), fragments], masks, n, most)?;
        Some(Self {
            parts,
            inputs: layout.in_features,
            outputs,
            sizes,
        })
    }

    /// Whether these low-rank values have the padded layout of [`LowRank::lora_a_forward`].
    pub(super) fn has_padded_ranks(&self, lows: &CubeTensor) -> bool {
        dims(lows)[1] == self.sizes.low_vectors() * VECTOR
    }

    /// `scale * drop(x) Aᵀ` of all adapters, `[n, ranks]`, from `x`, `[n, in]`.
    pub(super) fn lora_a_forward(&self, x: &CubeTensor, factors: &CubeTensor) -> CubeTensor {
        let [n, width] = dims(x);
        let lows = output(x, [n, self.sizes.low_vectors() * VECTOR], x.dtype);
        shrink::lora_a_forward::launch(
            &x.client,
            CubeCount::Static(n.div_ceil(self.sizes.rows) as u32, 1, 1),
            CubeDim::new_1d(UNITS as u32),
            VECTOR,
            argument(x),
            argument(factors),
            argument(&lows),
            argument(&lows),
            self.a_parts(),
            n as u32,
            (width / VECTOR) as u32,
            self.sizes,
            element(x),
        );
        lows
    }

    /// From the gradient of the outputs, `[n, Σ out]`, in f32 or the factors' dtype: the gradient
    /// of the low-rank values, and the gradient of the outputs in the factors' dtype.
    pub(super) fn lora_b_backward(&self, dy: CubeTensor, factors: &CubeTensor) -> [CubeTensor; 2] {
        let dtype = factors.dtype;
        let adapted: usize = self.parts.iter().map(|(part, _)| part.out_features).sum();
        // Columns without an adapter are not read here.
        let is_all = adapted == self.outputs.iter().sum::<usize>();
        let dy = match is_all && dy.dtype == DType::F32 {
            true => dy,
            false => cast::<CubeBackend>(dy, dtype),
        };
        let (dy, [n, width]) = contiguous(dy);
        let d_lows = output(&dy, [n, self.sizes.low_vectors() * VECTOR], dtype);
        let narrow = match dy.dtype == dtype {
            true => dy.clone(),
            false => output(&dy, [n, width], dtype),
        };
        let piece = 16 / dy.dtype.size();
        shrink::lora_b_backward::launch(
            &dy.client,
            CubeCount::Static(
                n.div_ceil(self.sizes.rows) as u32,
                self.parts.len() as u32,
                1,
            ),
            CubeDim::new_1d(UNITS as u32),
            piece,
            VECTOR,
            argument(&dy),
            argument(factors),
            argument(&narrow),
            argument(&d_lows),
            self.b_parts(),
            n as u32,
            (width / VECTOR) as u32,
            self.sizes,
            VECTOR / piece,
            element(&dy),
            element(factors),
        );
        [d_lows, narrow]
    }

    /// The adapters' contribution to the outputs, `[n, Σ out]`, with zeros for layers without an
    /// adapter. With `residual`, f32, it is added.
    pub(super) fn lora_b_forward(
        &self,
        lows: &CubeTensor,
        factors: &CubeTensor,
        residual: Option<&CubeTensor>,
    ) -> CubeTensor {
        let total = self.outputs.iter().sum();
        let mut first = 0;
        let layers = self.outputs.iter().enumerate().map(|(layer, &width)| {
            let lane = self.parts.iter().position(|(part, _)| part.layer == layer);
            first += width;
            let part = lane.map(|lane| &self.parts[lane].0);
            (
                lane.unwrap_or(0),
                self.part(
                    first - width..first,
                    part.map_or(0, |part| part.b(self.inputs).start),
                    part.map_or(0, |part| part.rank),
                    None,
                    1.0,
                ),
            )
        });
        let (places, layers): (Vec<_>, Vec<_>) = layers.unzip();
        let layers: SequenceArg<_> = layers.into_iter().collect();
        let (y_dtype, product) = match residual {
            Some(_) => (DType::F32, Product::OutputsAdded),
            None => (lows.dtype, Product::Outputs),
        };
        let [n, _] = dims(lows);
        let y = output(lows, [n, total], y_dtype);
        let widest = self.outputs.iter().copied().max().unwrap_or(0);
        let piece = 16 / y_dtype.size();
        expand::lora_b_forward::launch(
            &y.client,
            expand_cubes(n, widest, self.outputs.len()),
            CubeDim::new_1d(UNITS as u32),
            VECTOR,
            piece,
            4,
            argument(lows),
            argument(factors),
            // Without a residual this argument is not read.
            argument(residual.unwrap_or(&y)),
            argument(&y),
            layers,
            n as u32,
            (total / VECTOR) as u32,
            self.sizes,
            pack_bytes(places),
            product,
            VECTOR / piece,
            element(lows),
            element(&y),
        );
        y
    }

    /// The adapters' contribution to the gradient of the input, `[n, in]`.
    pub(super) fn lora_a_backward(&self, d_lows: &CubeTensor, factors: &CubeTensor) -> CubeTensor {
        let [n, _] = dims(d_lows);
        let dx = output(d_lows, [n, self.inputs], d_lows.dtype);
        expand::lora_a_backward::launch(
            &dx.client,
            expand_cubes(n, self.inputs, 1),
            CubeDim::new_1d(UNITS as u32),
            VECTOR,
            4,
            argument(d_lows),
            argument(factors),
            argument(&dx),
            self.a_parts(),
            n as u32,
            (self.inputs / VECTOR) as u32,
            self.sizes,
            pack_bytes((0..self.parts.len()).collect()),
            element(d_lows),
        );
        dx
    }

    /// Writes the gradients of all factors to a flat f32 buffer, in the order of the layout.
    pub(super) fn write_factor_gradients(
        &self,
        [x, d_lows]: [&CubeTensor; 2],
        [dy, lows]: [&CubeTensor; 2],
        gradients: &CubeTensor,
    ) {
        let cubes = |width: usize| width.div_ceil(gradients::COLUMNS) as u32;
        let input_cubes = cubes(self.inputs);
        let output_cubes: u32 = self
            .parts
            .iter()
            .map(|(part, _)| cubes(part.out_features))
            .sum();
        gradients::lora_factor_gradients::launch(
            &x.client,
            CubeCount::Static(input_cubes + output_cubes, 1, 1),
            CubeDim::new_1d(UNITS as u32),
            VECTOR,
            argument(x),
            argument(d_lows),
            argument(dy),
            argument(lows),
            argument(gradients),
            self.a_parts(),
            self.b_parts(),
            dims(x)[0] as u32,
            (dims(x)[1] / VECTOR) as u32,
            (dims(dy)[1] / VECTOR) as u32,
            input_cubes,
            self.sizes,
            element(x),
        );
    }

    /// The adapters with the locations of the input and of A.
    fn a_parts(&self) -> SequenceArg<tiles::Part> {
        let part = |&(part, dropout): &(PartLayout, Option<Dropout>)| {
            self.part(
                0..self.inputs,
                part.a(self.inputs).start,
                part.rank,
                dropout,
                scale(&part, dropout),
            )
        };
        self.parts.iter().map(part).collect()
    }

    /// The adapters with the locations of their outputs and of B.
    fn b_parts(&self) -> SequenceArg<tiles::Part> {
        let part = |&(part, dropout): &(PartLayout, Option<Dropout>)| {
            let columns = part.first_output..part.first_output + part.out_features;
            self.part(
                columns,
                part.b(self.inputs).start,
                part.rank,
                None,
                scale(&part, dropout),
            )
        };
        self.parts.iter().map(part).collect()
    }

    fn part(
        &self,
        columns: std::ops::Range<usize>,
        factor: usize,
        rank: usize,
        dropout: Option<Dropout>,
        scale: f32,
    ) -> PartLaunch {
        let state = dropout.map_or(0, |dropout| dropout.state);
        let vectors = |elements: usize| (elements / VECTOR) as u32;
        PartLaunch::new(
            vectors(columns.start),
            vectors(columns.len()),
            vectors(factor),
            vectors(rank),
            state as u32,
            (state >> 32) as u32,
            dropout.map_or(0, |dropout| u32::from(dropout.threshold)),
            scale,
        )
    }
}

/// Cube count for `n` rows and the columns of some layers.
fn expand_cubes(n: usize, columns: usize, layers: usize) -> CubeCount {
    let cubes = [n.div_ceil(expand::ROWS), columns.div_ceil(expand::COLUMNS)];
    CubeCount::Static(cubes[0] as u32, cubes[1] as u32, layers as u32)
}

/// Packs one byte per value, the first in the lowest byte.
fn pack_bytes(places: Vec<usize>) -> u64 {
    let places = places.into_iter().rev();
    places.fold(0, |bytes, place| bytes << 8 | place as u64)
}

/// The variant for adapters (their number, and fragments per adapter) and rows, on a device with
/// this much shared memory: the largest tiles that fit in memory and registers.
fn select_sizes(
    adapters: [usize; 2],
    masks: u32,
    rows: usize,
    shared: usize,
) -> Option<KernelSizes> {
    // With few rows, small row tiles give each multiprocessor a cube; they have more columns
    // instead.
    let tiles = match rows < MANY_ROWS {
        true => [[16, 512, 128], [16, 256, 128], [16, 128, 64]],
        false => [[64, 256, 128], [64, 128, 128], [64, 64, 64]],
    };
    let candidates = tiles.map(|tiles| KernelSizes::new(adapters, masks, tiles));
    let fits = |sizes: &KernelSizes| shared_bytes(*sizes) <= shared;
    let is_lean = |sizes: &KernelSizes| registers(*sizes) <= MOST_REGISTERS;
    let lean = candidates
        .into_iter()
        .find(|sizes| fits(sizes) && is_lean(sizes));
    lean.or_else(|| candidates.into_iter().rfind(fits))
}

/// Maximum registers per unit of any of the kernels, without addresses and counters.
fn registers(sizes: KernelSizes) -> usize {
    let values = [Side::Inputs, Side::Outputs].map(|side| shrink::registers(sizes, side));
    let all = values.into_iter();
    all.fold(gradients::registers(sizes), usize::max)
}

/// Maximum shared memory per cube of any of the kernels.
fn shared_bytes(sizes: KernelSizes) -> usize {
    let values = [Side::Inputs, Side::Outputs].map(|side| shrink::shared_bytes(sizes, side));
    let shares =
        [Product::Inputs, Product::Outputs].map(|product| expand::shared_bytes(sizes, product));
    let all = values.into_iter().chain(shares);
    all.fold(gradients::shared_bytes(sizes), usize::max)
}

fn dims(x: &CubeTensor) -> [usize; 2] {
    let shape = x.meta.shape();
    [shape[0], shape[1]]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shared memory per block on an H100, an A100 and an RTX 4090.
    const SHARED: [usize; 3] = [232_448, 166_912, 101_376];

    #[test]
    fn tiles_are_the_largest_that_fit_shared_memory_and_registers() {
        let tiles = |parts, fragments, masks, rows| {
            SHARED.map(|shared| {
                let sizes = select_sizes([parts, fragments], masks, rows, shared).unwrap();
                (sizes.rows, sizes.columns)
            })
        };
        // Rank 16: queries, keys and values, with and without dropout, and one adapter.
        assert_eq!(tiles(3, 1, 0b111, 8192), [(64, 256), (64, 256), (64, 128)]);
        assert_eq!(tiles(3, 1, 0, 8192), [(64, 256); 3]);
        assert_eq!(tiles(1, 1, 0b1, 600), [(16, 512); 3]);
        // At rank 64 the sums need more registers.
        assert_eq!(tiles(3, 4, 0b111, 8192), [(64, 64); 3]);
        assert_eq!(tiles(2, 4, 0, 8192), [(64, 128); 3]);
        assert_eq!(tiles(3, 4, 0, 600), [(16, 128); 3]);
        // Sums that exceed the register budget with any tile size.
        assert_eq!(tiles(2, 8, 0, 8192), [(64, 64); 3]);
    }
}
