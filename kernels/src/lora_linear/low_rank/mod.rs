//! The low-rank products of a stack on tensor cores, one launch for all of its adapters: dropout is drawn
//! where it is used, and nothing is written that is only read again.
//!
//! They are bound by memory, not by the matrix units: what adapters read is read once, however many they
//! are, and what they have dropped is neither kept nor copied. Sums are f32, in a fixed order.

mod gradients;
mod shares;
mod stack;
mod tiles;
mod values;

use burn::backend::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::adapter::{AdapterPlan, PartLayout};
use super::backend::Spec;
use super::cuda::scale;
use crate::cube::launch::{argument, element, has_cores_for, output};
use crate::dropout::Dropout;
use shares::Of;
pub(super) use stack::{forward, given_backward};
use tiles::{FRAGMENT, Form, PartLaunch, UNITS, VECTOR};
use values::Side;

/// Low-rank values that the sums of a warp have place for, each adapter's in fragments.
const MOST_LOWS: usize = 192;

/// Adapters of a stack: a byte each says where their low-rank values lie.
const MOST_MAPS: usize = 8;

/// The adapters of a stack, where these kernels compute them.
#[derive(Debug, Clone)]
pub(super) struct LowRank {
    parts: Vec<(PartLayout, Option<Dropout>)>,
    inputs: usize,
    outputs: Vec<usize>,
    form: Form,
}

impl LowRank {
    /// Of a stack that reads `x`; `None` where the device, the type or the sizes are not served, and
    /// products one by one compute the same.
    pub(super) fn of(x: &CubeTensor, plan: &AdapterPlan, spec: &Spec) -> Option<Self> {
        let layout = &plan.layout;
        let dropout = spec.part_dropout();
        let dropout = |part: usize| dropout.get(part).copied().flatten();
        let parts: Vec<_> = (0..layout.parts.len())
            .map(|part| {
                (
                    layout.parts[part],
                    dropout(part).filter(|d| d.threshold > 0),
                )
            })
            .collect();
        let outputs = spec.out_features.to_vec();
        let ranks = || parts.iter().map(|(part, _)| part.rank);
        let sizes = outputs.iter().copied().chain(ranks());
        let fits_vectors = sizes
            .chain([layout.in_features])
            .all(|size| size % VECTOR == 0);
        let is_narrow = x.dtype.size() == 2 && x.dtype != DType::U16 && x.dtype != DType::I16;
        if parts.is_empty() || outputs.len() > MOST_MAPS || !fits_vectors || !is_narrow {
            return None;
        }
        if !has_cores_for(&x.client, element(x)) {
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
        let form = [128, 64].map(|columns| Form {
            parts: parts.len(),
            fragments,
            masks,
            columns,
        });
        let form = form.into_iter().find(|&form| shared_bytes(form) <= most)?;
        Some(Self {
            parts,
            inputs: layout.in_features,
            outputs,
            form,
        })
    }

    /// Whether these are the low-rank values of [`LowRank::lows`], in which ranks are filled up.
    pub(super) fn made(&self, lows: &CubeTensor) -> bool {
        let [n, width] = dims(lows);
        n > 0 && width == self.form.low_vectors() * VECTOR
    }

    /// `[n, ranks]`, what adapters make of what they see of `x`, `[n, in]`, each times its scale.
    pub(super) fn lows(&self, x: &CubeTensor, factors: &CubeTensor) -> CubeTensor {
        self.values(x, factors, Side::Inputs)
    }

    /// The same of the gradient of the outputs, `[n, Σ out]`: the gradient of what adapters see, before A.
    pub(super) fn d_lows(&self, dy: &CubeTensor, factors: &CubeTensor) -> CubeTensor {
        self.values(dy, factors, Side::Outputs)
    }

    fn values(&self, x: &CubeTensor, factors: &CubeTensor, side: Side) -> CubeTensor {
        let [n, width] = dims(x);
        let lows = output(x, [n, self.form.low_vectors() * VECTOR], x.dtype);
        let (parts, groups) = match side {
            Side::Inputs => (self.of_inputs(), 1),
            Side::Outputs => (self.of_outputs(), self.parts.len()),
        };
        values::low_values::launch(
            &x.client,
            CubeCount::Static(n.div_ceil(values::ROWS) as u32, groups as u32, 1),
            CubeDim::new_1d(UNITS as u32),
            VECTOR,
            argument(x),
            argument(factors),
            argument(&lows),
            parts,
            n as u32,
            (width / VECTOR) as u32,
            self.form,
            side,
            element(x),
        );
        lows
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
        let widest = self.outputs.iter().copied().max().unwrap_or(0);
        match residual {
            Some(residual) => {
                let y = output(lows, [dims(lows)[0], total], DType::F32);
                self.share(
                    lows,
                    factors,
                    residual,
                    &y,
                    (maps, &places, widest),
                    Of::OutputsAdded,
                );
                y
            }
            None => {
                let y = output(lows, [dims(lows)[0], total], lows.dtype);
                self.share(lows, factors, &y, &y, (maps, &places, widest), Of::Outputs);
                y
            }
        }
    }

    /// What adapters add to the gradient of what is read, `[n, in]`.
    pub(super) fn inputs(&self, d_lows: &CubeTensor, factors: &CubeTensor) -> CubeTensor {
        let dx = output(d_lows, [dims(d_lows)[0], self.inputs], d_lows.dtype);
        let places: Vec<_> = (0..self.parts.len()).collect();
        let parts = (self.of_inputs(), &places[..], self.inputs);
        self.share(d_lows, factors, &dx, &dx, parts, Of::Inputs);
        dx
    }

    fn share(
        &self,
        lows: &CubeTensor,
        factors: &CubeTensor,
        added: &CubeTensor,
        y: &CubeTensor,
        (parts, places, widest): (SequenceArg<tiles::Part>, &[usize], usize),
        of: Of,
    ) {
        let [n, total] = dims(y);
        let maps = match of {
            Of::Inputs => 1,
            Of::Outputs | Of::OutputsAdded => places.len(),
        };
        let bytes = places
            .iter()
            .rev()
            .fold(0, |bytes, &place| bytes << 8 | place as u64);
        let piece = 16 / y.dtype.size();
        shares::shares::launch(
            &y.client,
            CubeCount::Static(
                n.div_ceil(shares::ROWS) as u32,
                widest.div_ceil(shares::COLUMNS) as u32,
                maps as u32,
            ),
            CubeDim::new_1d(UNITS as u32),
            VECTOR,
            piece,
            4,
            argument(lows),
            argument(factors),
            argument(added),
            argument(y),
            parts,
            n as u32,
            (total / VECTOR) as u32,
            self.form,
            bytes,
            of,
            VECTOR / piece,
            element(lows),
            element(y),
        );
    }

    /// Gradients of all factors, flat and f32, in the order of the layout.
    pub(super) fn gradients(
        &self,
        [x, d_lows]: [&CubeTensor; 2],
        [dy, lows]: [&CubeTensor; 2],
        len: usize,
    ) -> CubeTensor {
        let gradients = output(x, [len], DType::F32);
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
            argument(&gradients),
            self.of_inputs(),
            self.of_outputs(),
            dims(x)[0] as u32,
            (dims(x)[1] / VECTOR) as u32,
            (dims(dy)[1] / VECTOR) as u32,
            of_inputs,
            self.form,
            element(x),
        );
        gradients
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

/// Kernels of rank 16 and 64, of three adapters that drop and of two that do not.
#[cfg(feature = "cuda-source")]
pub(crate) fn sources(texts: &mut crate::cube::source::Texts) {
    use cubecl::ir::{ElemType, FloatKind};

    let (narrow, wide) = (
        ElemType::Float(FloatKind::BF16),
        ElemType::Float(FloatKind::F32),
    );
    let dim = CubeDim::new_1d(UNITS as u32);
    let part = || PartLaunch::new(1, 1, 1, 1, 1, 1, 1, 1.0);
    let forms = [
        ("dropout", 3, 1, 0b111, 128),
        ("wide dropout", 3, 4, 0b111, 64),
        ("plain", 2, 1, 0, 128),
    ];
    for (name, parts, fragments, masks, columns) in forms {
        let form = Form {
            parts,
            fragments,
            masks,
            columns,
        };
        let all = || {
            (0..parts)
                .map(|_| part())
                .collect::<SequenceArg<tiles::Part>>()
        };
        for side in [Side::Inputs, Side::Outputs] {
            let [x, factors, lows] = [0; 3].map(|_| texts.buffer());
            let (device, target, count) = texts.device();
            let kernel = values::low_values::create_dummy_kernel(
                device,
                target,
                count,
                dim,
                VECTOR,
                x,
                factors,
                lows,
                all(),
                1,
                1,
                form,
                side,
                narrow,
            );
            texts.add(&format!("{name} {side:?}"), dim, kernel);
        }
        for of in [Of::Inputs, Of::Outputs, Of::OutputsAdded] {
            let (element, piece) = match of {
                Of::OutputsAdded => (wide, 4),
                Of::Inputs | Of::Outputs => (narrow, VECTOR),
            };
            let [lows, factors, added, y] = [0; 4].map(|_| texts.buffer());
            let (device, target, count) = texts.device();
            let kernel = shares::shares::create_dummy_kernel(
                device,
                target,
                count,
                dim,
                VECTOR,
                piece,
                4,
                lows,
                factors,
                added,
                y,
                all(),
                1,
                1,
                form,
                0x02_01_00,
                of,
                VECTOR / piece,
                narrow,
                element,
            );
            texts.add(&format!("{name} {of:?}"), dim, kernel);
        }
        let [x, d_lows, dy, lows, gradients] = [0; 5].map(|_| texts.buffer());
        let (device, target, count) = texts.device();
        let kernel = gradients::factor_gradients::create_dummy_kernel(
            device,
            target,
            count,
            dim,
            VECTOR,
            x,
            d_lows,
            dy,
            lows,
            gradients,
            all(),
            all(),
            1,
            1,
            1,
            1,
            form,
            narrow,
        );
        texts.add(name, dim, kernel);
    }
}
