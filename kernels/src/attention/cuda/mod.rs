//! Attention on a GPU: which tile of which document each cube works on, and the launches.
//!
//! Borders of documents stay numbers of the host: it lists tiles, none across a border, and the
//! kernels read that list. Tiles that no query sees are neither listed nor visited.

mod backward;
mod cores;
mod cores_backward;
mod cores_forward;
mod forward;
mod tiles;

use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::{CubeCount, CubeDim};

use super::{Attention, AttentionGradients, AttentionOps, Causality, Documents};
use crate::cube::launch::{argument, contiguous, element, output, units, upload, vector_size};
use cores::{CoreTiles, VECTOR};
use tiles::{SQUARE, Tiles};

/// Attention of `h` query heads within documents.
///
/// `qkv`, `[n, h + 2 g, c]`, f32 or bf16, holds the query heads of a token, then its key heads,
/// then its value heads. Padding rows of the results are zero.
///
/// # Panics
///
/// If a head is so long that no tile of it fits the device's shared memory: above 500 elements
/// on an A100.
fn attention(
    qkv: CubeTensor,
    h: usize,
    documents: Documents,
    causality: Causality,
) -> Attention<CubeBackend> {
    let (qkv, [n, heads, c]) = contiguous(qkv);
    let attention = Attention {
        out: output(&qkv, [n, h, c], qkv.dtype),
        log_sums: output(&qkv, [n, h], DType::F32),
        qkv,
        documents,
        causality,
    };
    if n * h * c == 0 {
        return attention;
    }
    let Attention {
        qkv, out, log_sums, ..
    } = &attention;
    let vector = vector_size(4, &[c]);
    let tiles = fitting(qkv, c / vector, causality, |tiles| {
        forward::shared_bytes(tiles, vector)
    });
    let blocks = query_blocks(&attention.documents, tiles.rows, causality);
    forward::attend::launch(
        &qkv.client,
        CubeCount::Static((blocks.len() / 4) as u32, h as u32, 1),
        CubeDim::new_1d(SQUARE),
        vector,
        argument(qkv),
        argument(&upload(qkv, &blocks)),
        argument(out),
        argument(log_sums),
        h as u32,
        ((heads - h) / 2) as u32,
        scale(c),
        tiles,
        element(qkv),
    );
    attention
}

/// Gradient of `qkv`, `[n, h + 2 g, c]`, through [`attention`].
///
/// `d_out` is the gradient of `out`, of its shape and type. Padding rows are zero.
fn attention_gradient(saved: Attention<CubeBackend>, d_out: CubeTensor) -> CubeTensor {
    let Attention {
        documents,
        causality,
        ..
    } = saved;
    let (qkv, [n, heads, c]) = contiguous(saved.qkv);
    let (out, [_, h, _]) = contiguous(saved.out);
    let (log_sums, [_, _]) = contiguous(saved.log_sums);
    let (d_out, [_, _, _]) = contiguous(d_out);
    let d_qkv = output(&qkv, [n, heads, c], qkv.dtype);
    if n * h * c == 0 {
        return d_qkv;
    }
    let g = (heads - h) / 2;
    let vector = vector_size(4, &[c]);
    let tiles = fitting(&qkv, c / vector, causality, |tiles| {
        backward::shared_bytes(tiles, vector)
    });
    let dots = output(&qkv, [n, h], DType::F32);
    let (count, dim) = units(&qkv.client, n * h);
    backward::dot_rows::launch(
        &qkv.client,
        count,
        dim,
        vector,
        argument(&out),
        argument(&d_out),
        argument(&dots),
        (n * h) as u32,
        (c / vector) as u32,
        element(&qkv),
    );
    let blocks = query_blocks(&documents, tiles.rows, causality);
    backward::query_gradients::launch(
        &qkv.client,
        CubeCount::Static((blocks.len() / 4) as u32, h as u32, 1),
        CubeDim::new_1d(SQUARE),
        vector,
        argument(&qkv),
        argument(&d_out),
        argument(&log_sums),
        argument(&dots),
        argument(&upload(&qkv, &blocks)),
        argument(&d_qkv),
        h as u32,
        g as u32,
        scale(c),
        tiles,
        element(&qkv),
    );
    let blocks = key_blocks(&documents, tiles.rows, causality);
    backward::key_gradients::launch(
        &qkv.client,
        CubeCount::Static((blocks.len() / 4) as u32, g as u32, 1),
        CubeDim::new_1d(SQUARE),
        vector,
        argument(&qkv),
        argument(&d_out),
        argument(&log_sums),
        argument(&dots),
        argument(&upload(&qkv, &blocks)),
        argument(&d_qkv),
        h as u32,
        g as u32,
        scale(c),
        tiles,
        element(&qkv),
    );
    d_qkv
}

/// What scores are multiplied with.
fn scale(c: usize) -> f32 {
    (1.0 / (c as f64).sqrt()) as f32
}

/// The largest tiles whose `shared_bytes` the device has.
fn fitting(
    like: &CubeTensor,
    columns: usize,
    causality: Causality,
    shared_bytes: impl Fn(&Tiles) -> usize,
) -> Tiles {
    let limit = like.client.properties().hardware.max_shared_memory_size;
    [64, 32, 16]
        .map(|rows| Tiles {
            rows,
            columns,
            causal: causality == Causality::Causal,
        })
        .into_iter()
        .find(|tiles| shared_bytes(tiles) <= limit)
        .expect("a tile of 16 rows of a head fits the shared memory of the device")
}

/// Start and end of the document, first and last row, of each tile of `rows` queries.
///
/// Tiles with the most keys come first, so that none of them is left for the end. Padding is cut
/// into tiles of a document without tokens.
fn query_blocks(documents: &Documents, rows: usize, causality: Causality) -> Vec<u32> {
    let mut blocks: Vec<[usize; 4]> = blocks(documents, rows).collect();
    if causality == Causality::Causal {
        blocks.sort_by_key(|[start, _, first, _]| std::cmp::Reverse(first - start));
    }
    flat(blocks)
}

/// The same of each tile of `rows` keys; those that the most queries see come first.
fn key_blocks(documents: &Documents, rows: usize, causality: Causality) -> Vec<u32> {
    let mut blocks: Vec<[usize; 4]> = blocks(documents, rows).collect();
    if causality == Causality::Causal {
        blocks.sort_by_key(|[_, end, first, _]| std::cmp::Reverse(end - first.min(end)));
    }
    flat(blocks)
}

fn blocks(documents: &Documents, rows: usize) -> impl Iterator<Item = [usize; 4]> + '_ {
    let n = documents.n_tokens();
    let padding = documents
        .spans()
        .last()
        .map_or(0, |(start, length)| start + length);
    let spans = documents
        .spans()
        .map(|(start, length)| [start, start + length, start + length]);
    spans
        .chain([[padding, padding, n]])
        .flat_map(move |[start, end, last]| {
            (start..last)
                .step_by(rows)
                .map(move |first| [start, end, first, last.min(first + rows)])
        })
}

fn flat(blocks: Vec<[usize; 4]>) -> Vec<u32> {
    blocks
        .into_iter()
        .flatten()
        .map(|position| u32::try_from(position).expect("a micro-batch has fewer than 2^32 tokens"))
        .collect()
}

impl AttentionOps for CubeBackend {
    fn document_attention(
        qkv: CubeTensor,
        n_heads: usize,
        documents: Documents,
        causality: Causality,
    ) -> CubeTensor {
        attention(qkv, n_heads, documents, causality).out
    }
}

impl AttentionGradients for CubeBackend {
    fn attention_forward(
        qkv: CubeTensor,
        n_heads: usize,
        documents: Documents,
        causality: Causality,
    ) -> Attention<Self> {
        attention(qkv, n_heads, documents, causality)
    }

    fn attention_gradient(saved: Attention<Self>, dy: CubeTensor) -> CubeTensor {
        attention_gradient(saved, dy)
    }
}

#[cfg(feature = "cuda-source")]
pub(crate) fn sources(texts: &mut crate::cube::source::Texts) {
    let dim = CubeDim::new_1d(SQUARE);
    for element in crate::cube::source::ELEMENTS {
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
            if element.size() == 2 {
                core_sources(texts, CoreTiles { columns, causal }, &form, element);
            }
        }
        let [out, d_out, dots] = [0; 3].map(|_| texts.buffer());
        let (device, target, count) = texts.device();
        let dim = CubeDim::new_1d(crate::cube::launch::UNITS);
        let kernel = backward::dot_rows::create_dummy_kernel(
            device, target, count, dim, 4, out, d_out, dots, 1, 1, element,
        );
        texts.add("", dim, kernel);
    }
}

#[cfg(feature = "cuda-source")]
fn gradient_sources(
    texts: &mut crate::cube::source::Texts,
    tiles: Tiles,
    form: &str,
    element: cubecl::ir::ElemType,
) {
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

#[cfg(feature = "cuda-source")]
fn core_sources(
    texts: &mut crate::cube::source::Texts,
    tiles: CoreTiles,
    form: &str,
    element: cubecl::ir::ElemType,
) {
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
