//! Attention on a GPU: which tile of which document each cube works on, and the launches.
//!
//! Borders of documents stay numbers of the host: it lists tiles, none across a border, and the
//! kernels read that list. Tiles that no query sees are neither listed nor visited. A list is uploaded
//! once for a micro-batch: all layers share its `Documents`, which keep it.

mod backward;
mod blocks;
mod cores;
mod cores_backward;
mod cores_forward;
#[cfg(not(feature = "fusion"))]
mod decode;
mod forward;
#[cfg(feature = "cuda-source")]
mod texts;
mod tiles;

use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::{CubeCount, CubeDim};

use super::{Attention, AttentionGradients, AttentionOps, Causality, Documents, Queries};
use crate::cube::launch::{
    argument, contiguous, element, has_cores_for, output, units, vector_size,
};
#[cfg(feature = "cuda")]
use crate::cudnn;
pub(super) use blocks::BlockLists;
use blocks::Side;
use cores::CoreTiles;
#[cfg(not(feature = "fusion"))]
pub(super) use decode::append_prompts;
#[cfg(feature = "cuda-source")]
pub(crate) use texts::sources;
use tiles::{SQUARE, Tiles};

/// The kernels that a device runs for a type and size of heads.
#[derive(Debug, Clone, Copy)]
enum Form {
    /// Tensor cores, in the type of the inputs: bf16.
    Cores(CoreTiles),
    /// Arithmetic in f32, so many elements at a time.
    Plain(Tiles, usize),
}

impl Form {
    /// Tensor cores where they take the inputs, else the largest tiles that fit.
    fn choose(qkv: &CubeTensor, c: usize, causality: Causality) -> Self {
        let causal = causality == Causality::Causal;
        let limit = qkv.client.properties().hardware.max_shared_memory_size;
        let are_cores = has_cores_for(&qkv.client, element(qkv));
        if qkv.dtype == DType::BF16
            && are_cores
            && c.is_multiple_of(32)
            && let Some(tiles) = CoreTiles::within(limit, c, causal)
        {
            return Self::Cores(tiles);
        }
        let vector = vector_size(4, &[c]);
        let tiles = [64, 32, 16]
            .map(|rows| Tiles {
                rows,
                columns: c / vector,
                causal,
            })
            .into_iter()
            .find(|tiles| {
                let bytes = forward::shared_bytes(tiles, vector);
                bytes.max(backward::shared_bytes(tiles, vector)) <= limit
            })
            .expect("16 rows of a head fit the shared memory of the device four times");
        Self::Plain(tiles, vector)
    }

    /// Rows of a tile.
    fn rows(&self) -> usize {
        match self {
            Self::Cores(_) => cores::ROWS,
            Self::Plain(tiles, _) => tiles.rows,
        }
    }
}

impl CoreTiles {
    /// The largest tiles that fit so many bytes of shared memory, forward and backward: 227 KiB on an
    /// H100, 163 on an A100, 99 on GPUs for workstations.
    fn within(limit: usize, columns: usize, causal: bool) -> Option<Self> {
        [64, 32].into_iter().find_map(|moving| {
            let tiles = Self {
                columns,
                moving,
                causal,
            };
            let bytes = cores_forward::shared_bytes(&tiles);
            (bytes.max(cores_backward::shared_bytes(&tiles)) <= limit).then_some(tiles)
        })
    }
}

/// Cubes for a list of tiles, four numbers each, of `heads` heads.
fn grid(blocks: &CubeTensor, heads: usize) -> CubeCount {
    CubeCount::Static((blocks.meta.num_elements() / 4) as u32, heads as u32, 1)
}

/// Attention of `h` query heads within documents.
///
/// `qkv`, `[n, h + 2 g, c]`, f32 or bf16, holds the query heads of a token, then its key heads,
/// then its value heads. Padding rows of the results are zero.
///
/// # Panics
///
/// If a head is so long that 16 rows of it do not fit the device's shared memory four times: above
/// 600 elements on an A100.
fn attention(
    qkv: CubeTensor,
    queries: Queries,
    documents: Documents,
    causality: Causality,
) -> Attention<CubeBackend> {
    let (qkv, [n, heads, c]) = contiguous(qkv);
    let h = queries.heads;
    #[cfg(feature = "cuda")]
    if let Some([out, log_sums]) = by_cudnn(&qkv, queries, &documents, causality).forward() {
        return Attention {
            qkv,
            queries,
            documents,
            causality,
            out,
            log_sums,
        };
    }
    assert!(
        !matches!(causality, Causality::Sliding(_)),
        "no kernel of ours has a window: what cuDNN does not take goes to the reference"
    );
    let attention = Attention {
        out: output(&qkv, [n, h, c], qkv.dtype),
        log_sums: output(&qkv, [n, h], DType::F32),
        qkv,
        queries,
        documents,
        causality,
    };
    if n * h * c == 0 {
        return attention;
    }
    let Attention {
        qkv, out, log_sums, ..
    } = &attention;
    let g = (heads - h) / 2;
    let form = Form::choose(qkv, c, causality);
    let blocks = attention
        .documents
        .blocks(qkv, form.rows(), causality, Side::Queries);
    let count = grid(&blocks, h);
    let [qkv_argument, blocks] = [argument(qkv), argument(&blocks)];
    let [out, log_sums] = [argument(out), argument(log_sums)];
    let scale = queries.scale(c) as f32;
    let (h, g, element) = (h as u32, g as u32, element(qkv));
    match form {
        Form::Cores(tiles) => cores_forward::attend_on_cores::launch(
            &qkv.client,
            count,
            CubeDim::new_1d(cores::UNITS),
            cores::VECTOR,
            qkv_argument,
            blocks,
            out,
            log_sums,
            h,
            g,
            scale,
            tiles,
            element,
        ),
        Form::Plain(tiles, vector) => forward::attend::launch(
            &qkv.client,
            count,
            CubeDim::new_1d(SQUARE),
            vector,
            qkv_argument,
            blocks,
            out,
            log_sums,
            h,
            g,
            scale,
            tiles,
            element,
        ),
    }
    attention
}

#[cfg(feature = "cuda")]
fn by_cudnn<'a>(
    qkv: &'a CubeTensor,
    queries: Queries,
    documents: &'a Documents,
    causality: Causality,
) -> cudnn::Attention<'a> {
    cudnn::Attention {
        qkv,
        queries,
        documents,
        causality,
    }
}

/// Gradient of `qkv`, `[n, h + 2 g, c]`, through [`attention`].
///
/// `d_out` is the gradient of `out`, of its shape and type. Padding rows are zero.
fn attention_gradient(saved: Attention<CubeBackend>, d_out: CubeTensor) -> CubeTensor {
    let Attention {
        queries,
        documents,
        causality,
        ..
    } = saved;
    let (qkv, [n, heads, c]) = contiguous(saved.qkv);
    let (out, [_, h, _]) = contiguous(saved.out);
    let (log_sums, [_, _]) = contiguous(saved.log_sums);
    let (d_out, [_, _, _]) = contiguous(d_out);
    #[cfg(feature = "cuda")]
    if let Some(d_qkv) =
        by_cudnn(&qkv, queries, &documents, causality).backward([&out, &log_sums, &d_out])
    {
        return d_qkv;
    }
    let d_qkv = output(&qkv, [n, heads, c], qkv.dtype);
    if n * h * c == 0 {
        return d_qkv;
    }
    let form = Form::choose(&qkv, c, causality);
    let dots = dot_rows(&out, &d_out, [n * h, c]);
    let [of_queries, of_keys] = [Side::Queries, Side::Keys]
        .map(|side| documents.blocks(&qkv, form.rows(), causality, side));
    let gradient = Gradient {
        inputs: [qkv, d_out, log_sums, dots],
        d_qkv,
        h,
        g: (heads - h) / 2,
        scale: queries.scale(c) as f32,
    };
    gradient.of_queries(form, &of_queries);
    gradient.of_keys(form, &of_keys);
    gradient.d_qkv
}

/// Products of `rows` rows of `a` and `b`, which have `c` elements, f32.
fn dot_rows(a: &CubeTensor, b: &CubeTensor, [rows, c]: [usize; 2]) -> CubeTensor {
    let dots = output(a, [rows], DType::F32);
    let vector = vector_size(4, &[c]);
    let (count, dim) = units(&a.client, rows);
    backward::dot_rows::launch(
        &a.client,
        count,
        dim,
        vector,
        argument(a),
        argument(b),
        argument(&dots),
        rows as u32,
        (c / vector) as u32,
        element(a),
    );
    dots
}

/// What both kernels of the backward pass take.
#[derive(Debug)]
struct Gradient {
    /// `qkv`, the gradient of the result, and a number a row and head each: logarithms of sums, and
    /// products of result and gradient.
    inputs: [CubeTensor; 4],
    d_qkv: CubeTensor,
    h: usize,
    g: usize,
    scale: f32,
}

impl Gradient {
    fn of_queries(&self, form: Form, blocks: &CubeTensor) {
        let (client, element) = (&self.d_qkv.client, element(&self.d_qkv));
        let [qkv, d_out, log_sums, dots] = self.inputs.each_ref().map(argument);
        let list = argument(blocks);
        let (d_qkv, count) = (argument(&self.d_qkv), grid(blocks, self.h));
        let (h, g, scale) = (self.h as u32, self.g as u32, self.scale);
        match form {
            Form::Cores(tiles) => cores_backward::query_gradients_on_cores::launch(
                client,
                count,
                CubeDim::new_1d(cores::UNITS),
                cores::VECTOR,
                qkv,
                d_out,
                log_sums,
                dots,
                list,
                d_qkv,
                h,
                g,
                scale,
                tiles,
                element,
            ),
            Form::Plain(tiles, vector) => backward::query_gradients::launch(
                client,
                count,
                CubeDim::new_1d(SQUARE),
                vector,
                qkv,
                d_out,
                log_sums,
                dots,
                list,
                d_qkv,
                h,
                g,
                scale,
                tiles,
                element,
            ),
        }
    }

    fn of_keys(&self, form: Form, blocks: &CubeTensor) {
        let (client, element) = (&self.d_qkv.client, element(&self.d_qkv));
        let [qkv, d_out, log_sums, dots] = self.inputs.each_ref().map(argument);
        let list = argument(blocks);
        let (d_qkv, count) = (argument(&self.d_qkv), grid(blocks, self.g));
        let (h, g, scale) = (self.h as u32, self.g as u32, self.scale);
        match form {
            Form::Cores(tiles) => cores_backward::key_gradients_on_cores::launch(
                client,
                count,
                CubeDim::new_1d(cores::UNITS),
                cores::VECTOR,
                qkv,
                d_out,
                log_sums,
                dots,
                list,
                d_qkv,
                h,
                g,
                scale,
                tiles,
                element,
            ),
            Form::Plain(tiles, vector) => backward::key_gradients::launch(
                client,
                count,
                CubeDim::new_1d(SQUARE),
                vector,
                qkv,
                d_out,
                log_sums,
                dots,
                list,
                d_qkv,
                h,
                g,
                scale,
                tiles,
                element,
            ),
        }
    }
}

impl AttentionOps for CubeBackend {
    fn document_attention(
        qkv: CubeTensor,
        queries: Queries,
        documents: Documents,
        causality: Causality,
    ) -> CubeTensor {
        attention(qkv, queries, documents, causality).out
    }
}

impl AttentionGradients for CubeBackend {
    fn attention_forward(
        qkv: CubeTensor,
        queries: Queries,
        documents: Documents,
        causality: Causality,
    ) -> Attention<Self> {
        attention(qkv, queries, documents, causality)
    }

    fn attention_gradient(saved: Attention<Self>, dy: CubeTensor) -> CubeTensor {
        attention_gradient(saved, dy)
    }
}
