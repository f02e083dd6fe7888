//! CUDA sources of the kernels, for the dtypes and sizes that training launches.

use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

use super::expand::Product;
use super::tiles::{KernelSizes, Part, PartLaunch, UNITS, VECTOR};
use super::{expand, gradients, shrink};
use crate::cube::source::Sources;

const NARROW: ElemType = ElemType::Float(FloatKind::BF16);
const WIDE: ElemType = ElemType::Float(FloatKind::F32);

/// Ranks 16 to 64, three adapters with dropout and two without; and for few rows.
pub(crate) fn sources(sources: &mut Sources) {
    let forms = [
        ("dropout", [3, 1], 0b111, [64, 256, 128]),
        ("wide dropout", [3, 4], 0b111, [64, 64, 64]),
        ("wide plain", [2, 4], 0, [64, 128, 128]),
        ("plain", [2, 1], 0, [64, 256, 128]),
        ("few rows", [2, 1], 0b11, [16, 512, 128]),
        ("wide, few rows", [3, 4], 0b111, [16, 128, 64]),
    ];
    for (name, adapters, masks, tiles) in forms {
        let sizes = KernelSizes::new(adapters, masks, tiles);
        shrink_sources(sources, name, sizes);
        expand_sources(sources, name, sizes);
        gradient_sources(sources, name, sizes);
    }
}

fn dim() -> CubeDim {
    CubeDim::new_1d(UNITS as u32)
}

/// Placeholder adapters; their values are not used.
fn all(sizes: KernelSizes) -> SequenceArg<Part> {
    let part = |_| PartLaunch::new(1, 1, 1, 1, 1, 1, 1, 1.0);
    (0..sizes.parts).map(part).collect()
}

fn shrink_sources(sources: &mut Sources, name: &str, sizes: KernelSizes) {
    let [x, factors, none, lows] = [0; 4].map(|_| sources.buffer());
    let (device, target, count) = sources.device();
    let kernel = shrink::lora_a_forward::create_dummy_kernel(
        device,
        target,
        count,
        dim(),
        VECTOR,
        x,
        factors,
        none,
        lows,
        all(sizes),
        1,
        1,
        sizes,
        NARROW,
    );
    sources.add(name, dim(), kernel);
    for dy_type in [NARROW, WIDE] {
        let piece = 16 / dy_type.size();
        let [dy, factors, copy, d_lows] = [0; 4].map(|_| sources.buffer());
        let (device, target, count) = sources.device();
        let kernel = shrink::lora_b_backward::create_dummy_kernel(
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
            all(sizes),
            1,
            1,
            sizes,
            VECTOR / piece,
            dy_type,
            NARROW,
        );
        sources.add(name, dim(), kernel);
    }
}

fn expand_sources(sources: &mut Sources, name: &str, sizes: KernelSizes) {
    for (product, element) in [(Product::Outputs, NARROW), (Product::OutputsAdded, WIDE)] {
        let piece = 16 / element.size();
        let [lows, factors, residual, y] = [0; 4].map(|_| sources.buffer());
        let (device, target, count) = sources.device();
        let kernel = expand::lora_b_forward::create_dummy_kernel(
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
            all(sizes),
            1,
            1,
            sizes,
            0x02_01_00,
            product,
            VECTOR / piece,
            NARROW,
            element,
        );
        sources.add(name, dim(), kernel);
    }
    let [lows, factors, y] = [0; 3].map(|_| sources.buffer());
    let (device, target, count) = sources.device();
    let kernel = expand::lora_a_backward::create_dummy_kernel(
        device,
        target,
        count,
        dim(),
        VECTOR,
        4,
        lows,
        factors,
        y,
        all(sizes),
        1,
        1,
        sizes,
        0x02_01_00,
        NARROW,
    );
    sources.add(name, dim(), kernel);
}

fn gradient_sources(sources: &mut Sources, name: &str, sizes: KernelSizes) {
    let [x, d_lows, dy, lows, gradients] = [0; 5].map(|_| sources.buffer());
    let (device, target, count) = sources.device();
    let kernel = gradients::lora_factor_gradients::create_dummy_kernel(
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
        all(sizes),
        all(sizes),
        1,
        1,
        1,
        1,
        sizes,
        NARROW,
    );
    sources.add(name, dim(), kernel);
}
