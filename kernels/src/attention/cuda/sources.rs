//! CUDA sources of the attention kernels, for the head sizes of supported models.

use cubecl::ir::ElemType;
use cubecl::prelude::CubeDim;

use super::cores::{self, CoreTiles, VECTOR};
use super::tiles::{ForwardInputsLaunch, GradientInputsLaunch, HeadParamsLaunch, SQUARE, Tiles};
use super::{backward, cores_backward, cores_forward, forward};
use crate::cube::launch::UNITS;
use crate::cube::source::{ELEMENTS, Sources};

/// Adds the sources of kernels of the backward pass; all four have the same arguments.
macro_rules! add_gradient_sources {
    (
        $sources:ident, $form:expr, [$($kernel:path),+],
        ($dim:expr, $vector:expr, $tiles:expr, $element:expr)
    ) => {$({
        let [qkv, d_out, log_sums, dots, blocks, d_qkv] = [0; 6].map(|_| $sources.buffer());
        let (device, target, count) = $sources.device();
        let inputs = GradientInputsLaunch::new(qkv, d_out, log_sums, dots, blocks, params());
        let kernel = $kernel(
            device, target, count, $dim, $vector, inputs, d_qkv, $tiles, $element,
        );
        $sources.add($form, $dim, kernel);
    })+};
}

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
            let inputs = ForwardInputsLaunch::new(qkv, blocks, params());
            let kernel = forward::attend::create_dummy_kernel(
                device, target, count, dim, 4, inputs, out, log_sums, tiles, element,
            );
            sources.add(&form, dim, kernel);
            add_gradient_sources!(
                sources,
                &form,
                [
                    backward::query_gradients::create_dummy_kernel,
                    backward::key_gradients::create_dummy_kernel
                ],
                (dim, 4, tiles, element)
            );
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

fn core_sources(sources: &mut Sources, tiles: CoreTiles, form: &str, element: ElemType) {
    let dim = CubeDim::new_1d(cores::UNITS);
    let [qkv, blocks, out, log_sums] = [0; 4].map(|_| sources.buffer());
    let (device, target, count) = sources.device();
    let inputs = ForwardInputsLaunch::new(qkv, blocks, params());
    let kernel = cores_forward::attend_on_cores::create_dummy_kernel(
        device, target, count, dim, VECTOR, inputs, out, log_sums, tiles, element,
    );
    sources.add(form, dim, kernel);
    add_gradient_sources!(
        sources,
        form,
        [
            cores_backward::query_gradients_on_cores::create_dummy_kernel,
            cores_backward::key_gradients_on_cores::create_dummy_kernel
        ],
        (dim, VECTOR, tiles, element)
    );
}

/// Placeholders for the numbers of heads and the scale.
fn params() -> HeadParamsLaunch {
    HeadParamsLaunch::new(1, 1, 1.0)
}
