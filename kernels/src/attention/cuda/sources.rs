//! CUDA sources of the attention kernels, for the head sizes of supported models.

use cubecl::ir::ElemType;
use cubecl::prelude::CubeDim;

use super::cores::{self, CoreTiles, VECTOR};
use super::tiles::{SQUARE, Tiles};
use super::{backward, cores_backward, cores_forward, forward};
use crate::cube::launch::UNITS;
use crate::cube::source::{ELEMENTS, Sources};

pub(crate) fn sources(sources: &mut Sources) {
    super::decode::sources(sources);
    let dim = CubeDim::new_1d(SQUARE);
    for element in ELEMENTS {
        for (c, causal) in [(64, true), (128, true), (64, false)] {
            let tiles = Tiles {
                rows: 64,
                columns: c / 4,
                causal,
            };
            let form = format!("heads of {c}{}", if causal { ", causal" } else { "" });
            let [qkv, blocks, out, log_sums] = [0; 4].map(|_| sources.buffer());
            let (device, target, count) = sources.device();
            let kernel = forward::attend::create_dummy_kernel(
                device, target, count, dim, 4, qkv, blocks, out, log_sums, 1, 1, 1.0, tiles,
                element,
            );
            sources.add(&form, dim, kernel);
            gradient_sources(sources, tiles, &form, element);
            let columns = c;
            for moving in [64, 32] {
                let tiles = CoreTiles {
                    columns,
                    moving,
                    causal,
                };
                if element.size() == 2 {
                    core_sources(sources, tiles, &format!("{form}, {moving} rows"), element);
                }
            }
        }
        let [out, d_out, dots] = [0; 3].map(|_| sources.buffer());
        let (device, target, count) = sources.device();
        let dim = CubeDim::new_1d(UNITS);
        let kernel = backward::dot_rows::create_dummy_kernel(
            device, target, count, dim, 4, out, d_out, dots, 1, 1, element,
        );
        sources.add("", dim, kernel);
    }
}

/// Adds the source of a kernel of the backward pass; all four have the same arguments.
macro_rules! add_gradient_source {
    (
        $module:ident::$kernel:ident, $sources:ident, $form:ident, $dim:ident, $vector:expr,
        $tiles:ident, $element:ident
    ) => {{
        let [qkv, d_out, log_sums, dots, blocks, d_qkv] = [0; 6].map(|_| $sources.buffer());
        let (device, target, count) = $sources.device();
        let kernel = $module::$kernel::create_dummy_kernel(
            device, target, count, $dim, $vector, qkv, d_out, log_sums, dots, blocks, d_qkv, 1, 1,
            1.0, $tiles, $element,
        );
        $sources.add($form, $dim, kernel);
    }};
}

fn gradient_sources(sources: &mut Sources, tiles: Tiles, form: &str, element: ElemType) {
    let dim = CubeDim::new_1d(SQUARE);
    add_gradient_source!(
        backward::query_gradients,
        sources,
        form,
        dim,
        4,
        tiles,
        element
    );
    add_gradient_source!(
        backward::key_gradients,
        sources,
        form,
        dim,
        4,
        tiles,
        element
    );
}

fn core_sources(sources: &mut Sources, tiles: CoreTiles, form: &str, element: ElemType) {
    let dim = CubeDim::new_1d(cores::UNITS);
    let [qkv, blocks, out, log_sums] = [0; 4].map(|_| sources.buffer());
    let (device, target, count) = sources.device();
    let kernel = cores_forward::attend_on_cores::create_dummy_kernel(
        device, target, count, dim, VECTOR, qkv, blocks, out, log_sums, 1, 1, 1.0, tiles, element,
    );
    sources.add(form, dim, kernel);
    add_gradient_source!(
        cores_backward::query_gradients_on_cores,
        sources,
        form,
        dim,
        VECTOR,
        tiles,
        element
    );
    add_gradient_source!(
        cores_backward::key_gradients_on_cores,
        sources,
        form,
        dim,
        VECTOR,
        tiles,
        element
    );
}
