//! Attention on a GPU: assigns a tile of a document to each cube, and launches the kernels.
//!
//! Document borders are host integers. The host lists the tiles, each within one document, and the
//! kernels read that list. Tiles that no query attends to are left out. A list is uploaded once per
//! micro-batch: all layers share its `Documents`, which cache it.

mod backward;
mod blocks;
mod cores;
mod cores_backward;
mod cores_forward;
mod decode;
mod forward;
#[cfg(feature = "cuda-source")]
mod sources;
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
pub(super) use decode::append_prompts;
#[cfg(feature = "cuda-source")]
pub(crate) use sources::sources;
use tiles::{ForwardInputsLaunch, GradientInputsLaunch, HeadParamsLaunch, SQUARE, Tiles};

/// The kernels that a device uses for a dtype and head size.
#[derive(Debug, Clone, Copy)]
enum KernelKind {
    /// Tensor cores, in the dtype of the inputs: bf16.
    Cores(CoreTiles),
    /// f32 arithmetic, with this many elements per vector.
    Plain(Tiles, usize),
}

impl KernelKind {
    /// Tensor cores if they support the inputs, otherwise the largest tiles that fit.
    fn choose(qkv: &CubeTensor, c: usize, causality: Causality) -> Self {
        let causal = causality == Causality::Causal;
        let limit = qkv.client.properties().hardware.max_shared_memory_size;
        let are_cores = has_cores_for(&qkv.client, element(qkv));
        if qkv.dtype == DType::BF16
            && are_cores
            && c.is_multiple_of(32)
            && let Some(tiles) = CoreTiles::largest_within(limit, c, causal)
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
            .expect("the device's shared memory holds four tiles of 16 rows of a head");
        Self::Plain(tiles, vector)
    }

    /// Rows per tile.
    fn rows(&self) -> usize {
        match self {
            Self::Cores(_) => cores::ROWS,
            Self::Plain(tiles, _) => tiles.rows,
        }
    }
}

impl CoreTiles {
    /// The largest tiles, forward and backward, that fit in this many bytes of shared memory: 227
    /// KiB on an H100, 163 on an A100, 99 on workstation GPUs.
    fn largest_within(limit: usize, columns: usize, causal: bool) -> Option<Self> {
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

/// Cube count for a list of tiles (four values each) and `heads` heads.
fn grid(blocks: &CubeTensor, heads: usize) -> CubeCount {
    CubeCount::Static((blocks.meta.num_elements() / 4) as u32, heads as u32, 1)
}

/// Attention of `h` query heads within documents.
///
/// `qkv`, `[n, h + 2 g, c]`, f32 or bf16, has the query heads of a token, then its key heads, then
/// its value heads. Padding rows of the results are zero.
///
/// # Panics
///
/// If four tiles of 16 rows of a head exceed the device's shared memory: above a head size of 600
/// on an A100.
fn attention(
    qkv: CubeTensor,
    queries: Queries,
    documents: Documents,
    causality: Causality,
) -> Attention<CubeBackend> {
    let (qkv, [n, heads, c]) = contiguous(qkv);
    let h = queries.heads;
    #[cfg(feature = "cuda")]
    if let Some([out, log_sums]) = cudnn_attention(&qkv, queries, &documents, causality).forward() {
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
        "our kernels have no sliding window: cuDNN or the reference computes it"
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
    let kind = KernelKind::choose(qkv, c, causality);
    let blocks = attention
        .documents
        .blocks(qkv, kind.rows(), causality, Side::Queries);
    let count = grid(&blocks, h);
    let [qkv_argument, blocks] = [argument(qkv), argument(&blocks)];
    let [out, log_sums] = [argument(out), argument(log_sums)];
    let params = HeadParamsLaunch::new(h as u32, g as u32, queries.scale(c) as f32);
    let element = element(qkv);
    match kind {
        KernelKind::Cores(tiles) => cores_forward::attend_on_cores::launch(
            &qkv.client,
            count,
            CubeDim::new_1d(cores::UNITS),
            cores::VECTOR,
            ForwardInputsLaunch::new(qkv_argument, blocks, params),
            out,
            log_sums,
            tiles,
            element,
        ),
        KernelKind::Plain(tiles, vector) => forward::attend::launch(
            &qkv.client,
            count,
            CubeDim::new_1d(SQUARE),
            vector,
            ForwardInputsLaunch::new(qkv_argument, blocks, params),
            out,
            log_sums,
            tiles,
            element,
        ),
    }
    attention
}

#[cfg(feature = "cuda")]
fn cudnn_attention<'a>(
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
/// `d_out` is the gradient of `out`, with its shape and dtype. Padding rows are zero.
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
        cudnn_attention(&qkv, queries, &documents, causality).backward([&out, &log_sums, &d_out])
    {
        return d_qkv;
    }
    let d_qkv = output(&qkv, [n, heads, c], qkv.dtype);
    if n * h * c == 0 {
        return d_qkv;
    }
    let kind = KernelKind::choose(&qkv, c, causality);
    let dots = dot_rows(&out, &d_out, [n * h, c]);
    let sides = [Side::Queries, Side::Keys]
        .map(|side| (side, documents.blocks(&qkv, kind.rows(), causality, side)));
    let gradient = Gradient {
        inputs: [qkv, d_out, log_sums, dots],
        d_qkv,
        h,
        g: (heads - h) / 2,
        scale: queries.scale(c) as f32,
    };
    for (side, blocks) in &sides {
        gradient.launch(kind, *side, blocks);
    }
    gradient.d_qkv
}

/// Dot products of the `rows` rows of `a` and `b`, which have `c` elements, f32.
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

/// Inputs of both kernels of the backward pass.
#[derive(Debug)]
struct Gradient {
    /// `qkv`, the gradient of the result, and two values per row and head: the log-sum-exp, and the
    /// dot product of result and gradient.
    inputs: [CubeTensor; 4],
    d_qkv: CubeTensor,
    h: usize,
    g: usize,
    scale: f32,
}

impl Gradient {
    /// Writes the gradients of the rows of `side`: one cube per tile of `blocks` and head of that
    /// side.
    fn launch(&self, kind: KernelKind, side: Side, blocks: &CubeTensor) {
        let cube_heads = match side {
            Side::Queries => self.h,
            Side::Keys => self.g,
        };
        let (client, element) = (&self.d_qkv.client, element(&self.d_qkv));
        let [qkv, d_out, log_sums, dots] = self.inputs.each_ref().map(argument);
        let (d_qkv, count) = (argument(&self.d_qkv), grid(blocks, cube_heads));
        let blocks = argument(blocks);
        let params = HeadParamsLaunch::new(self.h as u32, self.g as u32, self.scale);
        // The four kernels have the same arguments.
        macro_rules! launch {
            ($kernel:path, $units:expr, $vector:expr, $tiles:expr) => {
                $kernel(
                    client,
                    count,
                    CubeDim::new_1d($units),
                    $vector,
                    GradientInputsLaunch::new(qkv, d_out, log_sums, dots, blocks, params),
                    d_qkv,
                    $tiles,
                    element,
                )
            };
        }
        match (kind, side) {
            (KernelKind::Cores(tiles), Side::Queries) => launch!(
                cores_backward::query_gradients_on_cores::launch,
                cores::UNITS,
                cores::VECTOR,
                tiles
            ),
            (KernelKind::Cores(tiles), Side::Keys) => launch!(
                cores_backward::key_gradients_on_cores::launch,
                cores::UNITS,
                cores::VECTOR,
                tiles
            ),
            (KernelKind::Plain(tiles, vector), Side::Queries) => {
                launch!(backward::query_gradients::launch, SQUARE, vector, tiles)
            }
            (KernelKind::Plain(tiles, vector), Side::Keys) => {
                launch!(backward::key_gradients::launch, SQUARE, vector, tiles)
            }
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
