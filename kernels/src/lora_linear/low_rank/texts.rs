//! The kernels' CUDA texts, of the type and the sizes that training launches.

use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

use super::shares::Of;
use super::tiles::{Form, Part, PartLaunch, UNITS, VECTOR};
use super::{gradients, shares, values};
use crate::cube::source::Texts;

const NARROW: ElemType = ElemType::Float(FloatKind::BF16);
const WIDE: ElemType = ElemType::Float(FloatKind::F32);

/// Of ranks 16 to 64, of three adapters that drop and of two that do not; and for few rows.
pub(crate) fn sources(texts: &mut Texts) {
    let forms = [
        ("dropout", [3, 1], 0b111, [64, 256, 128]),
        ("wide dropout", [3, 4], 0b111, [64, 64, 64]),
        ("wide plain", [2, 4], 0, [64, 128, 128]),
        ("plain", [2, 1], 0, [64, 256, 128]),
        ("few rows", [2, 1], 0b11, [16, 512, 128]),
        ("wide, few rows", [3, 4], 0b111, [16, 128, 64]),
    ];
    for (name, adapters, masks, tiles) in forms {
        let form = Form::new(adapters, masks, tiles);
        lows(texts, name, form);
        shares_of(texts, name, form);
        factor_gradients(texts, name, form);
    }
}

fn dim() -> CubeDim {
    CubeDim::new_1d(UNITS as u32)
}

/// The adapters; nothing reads what they say.
fn all(form: Form) -> SequenceArg<Part> {
    let part = |_| PartLaunch::new(1, 1, 1, 1, 1, 1, 1, 1.0);
    (0..form.parts).map(part).collect()
}

fn lows(texts: &mut Texts, name: &str, form: Form) {
    let [x, factors, none, lows] = [0; 4].map(|_| texts.buffer());
    let (device, target, count) = texts.device();
    let kernel = values::input_lows::create_dummy_kernel(
        device,
        target,
        count,
        dim(),
        VECTOR,
        x,
        factors,
        none,
        lows,
        all(form),
        1,
        1,
        form,
        NARROW,
    );
    texts.add(name, dim(), kernel);
    for given in [NARROW, WIDE] {
        let piece = 16 / given.size();
        let [dy, factors, copy, d_lows] = [0; 4].map(|_| texts.buffer());
        let (device, target, count) = texts.device();
        let kernel = values::output_lows::create_dummy_kernel(
            device,
            target,
            count,
            dim(),
            piece,
            VECTOR,
            dy,
            factors,
            copy,
            d_lows,
            all(form),
            1,
            1,
            form,
            VECTOR / piece,
            given,
            NARROW,
        );
        texts.add(name, dim(), kernel);
    }
}

fn shares_of(texts: &mut Texts, name: &str, form: Form) {
    for (of, element) in [(Of::Outputs, NARROW), (Of::OutputsAdded, WIDE)] {
        let piece = 16 / element.size();
        let [lows, factors, residual, y] = [0; 4].map(|_| texts.buffer());
        let (device, target, count) = texts.device();
        let kernel = shares::output_shares::create_dummy_kernel(
            device,
            target,
            count,
            dim(),
            VECTOR,
            piece,
            4,
            lows,
            factors,
            residual,
            y,
            all(form),
            1,
            1,
            form,
            0x02_01_00,
            of,
            VECTOR / piece,
            NARROW,
            element,
        );
        texts.add(name, dim(), kernel);
    }
    let [lows, factors, y] = [0; 3].map(|_| texts.buffer());
    let (device, target, count) = texts.device();
    let kernel = shares::input_shares::create_dummy_kernel(
        device,
        target,
        count,
        dim(),
        VECTOR,
        4,
        lows,
        factors,
        y,
        all(form),
        1,
        1,
        form,
        0x02_01_00,
        NARROW,
    );
    texts.add(name, dim(), kernel);
}

fn factor_gradients(texts: &mut Texts, name: &str, form: Form) {
    let [x, d_lows, dy, lows, gradients] = [0; 5].map(|_| texts.buffer());
    let (device, target, count) = texts.device();
    let kernel = gradients::factor_gradients::create_dummy_kernel(
        device,
        target,
        count,
        dim(),
        VECTOR,
        x,
        d_lows,
        dy,
        lows,
        gradients,
        all(form),
        all(form),
        1,
        1,
        1,
        1,
        form,
        NARROW,
    );
    texts.add(name, dim(), kernel);
}
