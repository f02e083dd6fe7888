//! The CUDA texts of the attention kernels, for the head sizes of the models that are trained.

use cubecl::ir::ElemType;
use cubecl::prelude::CubeDim;

use super::cores::{self, CoreTiles, VECTOR};
use super::tiles::{SQUARE, Tiles};
use super::{backward, cores_backward, cores_forward, forward};
use crate::cube::launch::UNITS;
use crate::cube::source::{ELEMENTS, Texts};

pub(crate) fn sources(texts: &mut Texts) {
    #[cfg(not(feature = "fusion"))]
    super::decode::sources(texts);
    let dim = CubeDim::new_1d(SQUARE);
    for element in ELEMENTS {
        for (c, causal) in [(64, true), (128, true), (64, false)] {
            let tiles = Tiles {
                rows: 64,
                columns: c / 4,
                causal,
            };
            let form = format!("heads of {c}{}", if causal { ", causal" } else { "" });
            let [qkv, blocks, out, log_sums] = [0; 4].map(|_| texts.buffer());
            let (device, target, count) = texts.device();
            let kernel = forward::attend::create_dummy_kernel(
                device, target, count, dim, 4, qkv, blocks, out, log_sums, 1, 1, 1.0, tiles,
                element,
            );
            texts.add(&form, dim, kernel);
            gradient_sources(texts, tiles, &form, element);
            let columns = c;
            for moving in [64, 32] {
                let tiles = CoreTiles {
                    columns,
                    moving,
                    causal,
                };
                if element.size() == 2 {
                    core_sources(texts, tiles, &format!("{form}, {moving} rows"), element);
                }
            }
        }
        let [out, d_out, dots] = [0; 3].map(|_| texts.buffer());
        let (device, target, count) = texts.device();
        let dim = CubeDim::new_1d(UNITS);
        let kernel = backward::dot_rows::create_dummy_kernel(
            device, target, count, dim, 4, out, d_out, dots, 1, 1, element,
        );
        texts.add("", dim, kernel);
    }
}

fn gradient_sources(texts: &mut Texts, tiles: Tiles, form: &str, element: ElemType) {
    let dim = CubeDim::new_1d(SQUARE);
    let [qkv, d_out, log_sums, dots, blocks, d_qkv] = [0; 6].map(|_| texts.buffer());
    let (device, target, count) = texts.device();
    let kernel = backward::query_gradients::create_dummy_kernel(
        device, target, count, dim, 4, qkv, d_out, log_sums, dots, blocks, d_qkv, 1, 1, 1.0, tiles,
        element,
    );
    texts.add(form, dim, kernel);
    let [qkv, d_out, log_sums, dots, blocks, d_qkv] = [0; 6].map(|_| texts.buffer());
    let (device, target, count) = texts.device();
    let kernel = backward::key_gradients::create_dummy_kernel(
        device, target, count, dim, 4, qkv, d_out, log_sums, dots, blocks, d_qkv, 1, 1, 1.0, tiles,
        element,
    );
    texts.add(form, dim, kernel);
}

fn core_sources(texts: &mut Texts, tiles: CoreTiles, form: &str, element: ElemType) {
    let dim = CubeDim::new_1d(cores::UNITS);
    let [qkv, blocks, out, log_sums] = [0; 4].map(|_| texts.buffer());
    let (device, target, count) = texts.device();
    let kernel = cores_forward::attend_on_cores::create_dummy_kernel(
        device, target, count, dim, VECTOR, qkv, blocks, out, log_sums, 1, 1, 1.0, tiles, element,
    );
    texts.add(form, dim, kernel);
    let [qkv, d_out, log_sums, dots, blocks, d_qkv] = [0; 6].map(|_| texts.buffer());
    let (device, target, count) = texts.device();
    let kernel = cores_backward::query_gradients_on_cores::create_dummy_kernel(
        device, target, count, dim, VECTOR, qkv, d_out, log_sums, dots, blocks, d_qkv, 1, 1, 1.0,
        tiles, element,
    );
    texts.add(form, dim, kernel);
    let [qkv, d_out, log_sums, dots, blocks, d_qkv] = [0; 6].map(|_| texts.buffer());
    let (device, target, count) = texts.device();
    let kernel = cores_backward::key_gradients_on_cores::create_dummy_kernel(
        device, target, count, dim, VECTOR, qkv, d_out, log_sums, dots, blocks, d_qkv, 1, 1, 1.0,
        tiles, element,
    );
    texts.add(form, dim, kernel);
}
