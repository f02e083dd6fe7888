//! The low-rank products of a stack on tensor cores, one launch for all of its adapters: dropout is drawn
//! where it is used, and nothing is written that is only read again.
//!
//! They are bound by memory, not by the matrix units: what adapters read is read once, however many they
//! are, and what they have dropped is neither kept nor copied. Sums are f32, in a fixed order.

mod gradients;
mod shares;
mod stack;
#[cfg(feature = "cuda-source")]
mod texts;
mod tiles;
mod values;

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
use shares::Of;
pub(super) use stack::{forward, given_backward};
#[cfg(feature = "cuda-source")]
pub(crate) use texts::sources;
use tiles::{FRAGMENT, Form, PartLaunch, UNITS, VECTOR};
use values::Side;

/// Low-rank values that the sums of a warp have place for, each adapter's in fragments.
const MOST_LOWS: usize = 192;

/// Adapters of a stack: a byte each says where their low-rank values lie.
const MOST_MAPS: usize = 8;

/// Registers of a unit, of the 255 that it can have, for sums and what is read ahead.
const MOST_REGISTERS: usize = 150;

/// Rows from which on a cube walks over the columns for so many of them that it is worth it: a token of
/// each text of a batch is fewer.
const FEWEST_ROWS: usize = 128;

/// Rows of which each multiprocessor of a large GPU has 64 for half of its time.
const MANY_ROWS: usize = 4096;

/// The adapters of a stack, where these kernels compute them.
#[derive(Debug, Clone)]
pub(super) struct LowRank {
    parts: Vec<(PartLayout, Option<Dropout>)>,
    inputs: usize,
    outputs: Vec<usize>,
    form: Form,
}

impl LowRank {
    /// Of a stack that reads `x`, or made `x` of what it read; `None` where the device, the type or the sizes
    /// are not served, and products one by one compute the same.
    pub(super) fn of(x: &CubeTensor, plan: &AdapterPlan, spec: &Spec) -> Option<Self> {
        let layout = &plan.layout;
        let drops = |dropout: Option<Dropout>| dropout.filter(|d| d.threshold > 0);
        let parts: Vec<_> = parts(plan, spec)
            .map(|(part, dropout)| (*part, drops(dropout)))
            .collect();
        let outputs = spec.out_features.to_vec();
        let ranks = || parts.iter().map(|(part, _)| part.rank);
        let sizes = outputs.iter().copied().chain(ranks());
        let fits_vectors = sizes
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
        let form = chosen_form([parts.len(), fragments], masks, n, most)?;
        Some(Self {
            parts,
            inputs: layout.in_features,
            outputs,
            form,
        })
    }

    /// Whether these are the low-rank values of [`LowRank::lows`], in which ranks are filled up.
    pub(super) fn made(&self, lows: &CubeTensor) -> bool {
        dims(lows)[1] == self.form.low_vectors() * VECTOR
    }

    /// `[n, ranks]`, what adapters make of what they see of `x`, `[n, in]`, each times its scale.
    pub(super) fn lows(&self, x: &CubeTensor, factors: &CubeTensor) -> CubeTensor {
        let [n, width] = dims(x);
        let lows = output(x, [n, self.form.low_vectors() * VECTOR], x.dtype);
        values::input_lows::launch(
            &x.client,
            CubeCount::Static(n.div_ceil(self.form.rows) as u32, 1, 1),
            CubeDim::new_1d(UNITS as u32),
            VECTOR,
            argument(x),
            argument(factors),
            argument(&lows),
            argument(&lows),
            self.of_inputs(),
            n as u32,
            (width / VECTOR) as u32,
            self.form,
            element(x),
        );
        lows
    }

    /// The same of the gradient of the outputs, `[n, Σ out]`, of f32 or of the type of products, which the
    /// factors have: the gradient of what adapters see, before A; and that of the outputs, in the latter type.
    pub(super) fn d_lows(&self, dy: CubeTensor, factors: &CubeTensor) -> [CubeTensor; 2] {
        let dtype = factors.dtype;
        let adapted: usize = self.parts.iter().map(|(part, _)| part.out_features).sum();
        // Columns without an adapter are read by nobody here.
        let is_all = adapted == self.outputs.iter().sum::<usize>();
        let dy = match is_all && dy.dtype == DType::F32 {
            true => dy,
            false => cast::<CubeBackend>(dy, dtype),
        };
        let (dy, [n, width]) = contiguous(dy);
        let d_lows = output(&dy, [n, self.form.low_vectors() * VECTOR], dtype);
        let narrow = match dy.dtype == dtype {
            true => dy.clone(),
            false => output(&dy, [n, width], dtype),
        };
        let piece = 16 / dy.dtype.size();
        values::output_lows::launch(
            &dy.client,
            CubeCount::Static(
                n.div_ceil(self.form.rows) as u32,
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
            self.of_outputs(),
            n as u32,
            (width / VECTOR) as u32,
            self.form,
            VECTOR / piece,
            element(&dy),
            element(factors),
        );
        [d_lows, narrow]
    }

    /// What adapters add to the outputs, `[n, Σ out]`: zeros where there is none; with `residual`, f32,
    /// the sum of both.
    pub(super) fn outputs(
        &self,
        lows: &CubeTensor,
        factors: &CubeTensor,
        residual: Option<&CubeTensor>,
    ) -> CubeTensor {
        let total = self.outputs.iter().sum();
        let mut first = 0;
        let maps = self.outputs.iter().enumerate().map(|(map, &width)| {
            let lane = self.parts.iter().position(|(part, _)| part.map == map);
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
        let (places, maps): (Vec<_>, Vec<_>) = maps.unzip();
        let maps: SequenceArg<_> = maps.into_iter().collect();
        let (y_dtype, of) = match residual {
            Some(_) => (DType::F32, Of::OutputsAdded),
            None => (lows.dtype, Of::Outputs),
        };
        let [n, _] = dims(lows);
        let y = output(lows, [n, total], y_dtype);
        let widest = self.outputs.iter().copied().max().unwrap_or(0);
        let piece = 16 / y_dtype.size();
        shares::output_shares::launch(
            &y.client,
            share_cubes(n, widest, self.outputs.len()),
            CubeDim::new_1d(UNITS as u32),
            VECTOR,
            piece,
            4,
            argument(lows),
            argument(factors),
            // Where nothing is added nothing is read.
            argument(residual.unwrap_or(&y)),
            argument(&y),
            maps,
            n as u32,
            (total / VECTOR) as u32,
            self.form,
            in_bytes(places),
            of,
            VECTOR / piece,
            element(lows),
            element(&y),
        );
        y
    }

    /// What adapters add to the gradient of what is read, `[n, in]`.
    pub(super) fn inputs(&self, d_lows: &CubeTensor, factors: &CubeTensor) -> CubeTensor {
        let [n, _] = dims(d_lows);
        let dx = output(d_lows, [n, self.inputs], d_lows.dtype);
        shares::input_shares::launch(
            &dx.client,
            share_cubes(n, self.inputs, 1),
            CubeDim::new_1d(UNITS as u32),
            VECTOR,
            4,
            argument(d_lows),
            argument(factors),
            argument(&dx),
            self.of_inputs(),
            n as u32,
            (self.inputs / VECTOR) as u32,
            self.form,
            in_bytes((0..self.parts.len()).collect()),
            element(d_lows),
        );
        dx
    }

    /// Writes the gradients of all factors, flat and f32, in the order of the layout.
    pub(super) fn write_gradients(
        &self,
        [x, d_lows]: [&CubeTensor; 2],
        [dy, lows]: [&CubeTensor; 2],
        gradients: &CubeTensor,
    ) {
        let cubes = |width: usize| width.div_ceil(gradients::COLUMNS) as u32;
        let of_inputs = cubes(self.inputs);
        let of_outputs: u32 = self
            .parts
            .iter()
            .map(|(part, _)| cubes(part.out_features))
            .sum();
        gradients::factor_gradients::launch(
            &x.client,
            CubeCount::Static(of_inputs + of_outputs, 1, 1),
            CubeDim::new_1d(UNITS as u32),
            VECTOR,
            argument(x),
            argument(d_lows),
            argument(dy),
            argument(lows),
            argument(gradients),
            self.of_inputs(),
            self.of_outputs(),
            dims(x)[0] as u32,
            (dims(x)[1] / VECTOR) as u32,
            (dims(dy)[1] / VECTOR) as u32,
            of_inputs,
            self.form,
            element(x),
        );
    }

    /// The adapters as they read the input, with A.
    fn of_inputs(&self) -> SequenceArg<tiles::Part> {
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

    /// The adapters as they read the gradient of the outputs, with B.
    fn of_outputs(&self) -> SequenceArg<tiles::Part> {
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

/// Cubes of so many rows, of the columns of so many maps.
fn share_cubes(n: usize, columns: usize, maps: usize) -> CubeCount {
    let cubes = [n.div_ceil(shares::ROWS), columns.div_ceil(shares::COLUMNS)];
    CubeCount::Static(cubes[0] as u32, cubes[1] as u32, maps as u32)
}

/// A byte each, the first one lowest.
fn in_bytes(places: Vec<usize>) -> u64 {
    let places = places.into_iter().rev();
    places.fold(0, |bytes, place| bytes << 8 | place as u64)
}

/// The form for adapters (how many, and the fragments of each) and rows, on a device with so much shared memory:
/// with the largest tiles that it has memory and registers for.
fn chosen_form(adapters: [usize; 2], masks: u32, rows: usize, shared: usize) -> Option<Form> {
    // With few rows each multiprocessor has a cube of some of them only where cubes are small; those see more
    // columns at once.
    let tiles = match rows < MANY_ROWS {
        true => [[16, 512, 128], [16, 256, 128], [16, 128, 64]],
        false => [[64, 256, 128], [64, 128, 128], [64, 64, 64]],
    };
    let forms = tiles.map(|tiles| Form::new(adapters, masks, tiles));
    let fits = |form: &Form| shared_bytes(*form) <= shared;
    let is_lean = |form: &Form| registers(*form) <= MOST_REGISTERS;
    let lean = forms.into_iter().find(|form| fits(form) && is_lean(form));
    lean.or_else(|| forms.into_iter().rfind(fits))
}

/// The most that a unit of one of the kernels holds in registers, but for addresses and counters.
fn registers(form: Form) -> usize {
    let values = [Side::Inputs, Side::Outputs].map(|side| values::registers(form, side));
    let all = values.into_iter();
    all.fold(gradients::registers(form), usize::max)
}

/// The most that one of the kernels takes of shared memory.
fn shared_bytes(form: Form) -> usize {
    let values = [Side::Inputs, Side::Outputs].map(|side| values::shared_bytes(form, side));
    let shares = [Of::Inputs, Of::Outputs].map(|of| shares::shared_bytes(form, of));
    let all = values.into_iter().chain(shares);
    all.fold(gradients::shared_bytes(form), usize::max)
}

fn dims(x: &CubeTensor) -> [usize; 2] {
    let shape = x.meta.shape();
    [shape[0], shape[1]]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shared memory of a block on an H100, an A100 and an RTX 4090.
    const SHARED: [usize; 3] = [232_448, 166_912, 101_376];

    #[test]
    fn tiles_are_as_large_as_shared_memory_and_registers_allow() {
        let tiles = |parts, fragments, masks, rows| {
            SHARED.map(|shared| {
                let form = chosen_form([parts, fragments], masks, rows, shared).unwrap();
                (form.rows, form.columns)
            })
        };
        // Rank 16: queries, keys and values, with and without dropout, and one adapter.
        assert_eq!(tiles(3, 1, 0b111, 8192), [(64, 256), (64, 256), (64, 128)]);
        assert_eq!(tiles(3, 1, 0, 8192), [(64, 256); 3]);
        assert_eq!(tiles(1, 1, 0b1, 600), [(16, 512); 3]);
        // Rank 64 takes registers for its sums.
        assert_eq!(tiles(3, 4, 0b111, 8192), [(64, 64); 3]);
        assert_eq!(tiles(2, 4, 0, 8192), [(64, 128); 3]);
        assert_eq!(tiles(3, 4, 0, 600), [(16, 128); 3]);
        // Sums that take more whatever the tiles are.
        assert_eq!(tiles(2, 8, 0, 8192), [(64, 64); 3]);
    }
}
