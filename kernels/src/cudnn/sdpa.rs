//! Attention within documents as graphs that cuDNN's engines recognise: forward and backward.
//!
//! Engines are selected by the structure of the graph, so each operation is in the position where
//! NVIDIA's own front end puts it (cudnn-frontend 1.32, `scaled_dot_product_flash_attention.h`).
//! Intermediate tensors are never stored.

use cudarc::cudnn::sys::{
    cudnnDataType_t as Data, cudnnPointwiseMode_t as Mode, cudnnReduceTensorOp_t as Reduce,
};

use super::descriptor::Refusal;
use super::graph::{Four, Graph, Plan, PlanTarget, ProductLengths, Tensor, row_major};
use crate::attention::Causality;

const BF16: Data = Data::CUDNN_DATA_BFLOAT16;
const F32: Data = Data::CUDNN_DATA_FLOAT;
const I32: Data = Data::CUDNN_DATA_INT32;
const BOOL: Data = Data::CUDNN_DATA_BOOLEAN;

/// Numbers of the tensors that the caller provides.
pub(super) mod uid {
    pub(in super::super) const QUERIES: i64 = 1;
    pub(in super::super) const KEYS: i64 = 2;
    pub(in super::super) const VALUES: i64 = 3;
    pub(in super::super) const OUT: i64 = 4;
    pub(in super::super) const LOG_SUMS: i64 = 5;
    /// Tokens of each document, for queries and for keys.
    pub(in super::super) const LENGTHS: [i64; 2] = [6, 7];
    /// Start of each document in `qkv`, in elements: for queries, and for keys and values.
    pub(in super::super) const STARTS: [i64; 2] = [8, 9];
    /// Starts in the result, and in the log-sum-exp.
    pub(in super::super) const OUT_STARTS: i64 = 10;
    pub(in super::super) const LOG_STARTS: i64 = 11;
    pub(in super::super) const D_OUT: i64 = 12;
    pub(in super::super) const D_QUERIES: i64 = 13;
    pub(in super::super) const D_KEYS: i64 = 14;
    pub(in super::super) const D_VALUES: i64 = 15;
    /// Scratch of the backward pass: dot products of result and gradient, and sums of query
    /// gradients.
    pub(in super::super) const DOTS: i64 = 16;
    pub(in super::super) const D_QUERY_SUMS: i64 = 17;
    /// Key and value gradients of each query head.
    pub(in super::super) const D_KEYS_EACH: i64 = 18;
    pub(in super::super) const D_VALUES_EACH: i64 = 19;
}

/// The keys that a query attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Band {
    /// All keys of its document.
    All,
    /// Its own and earlier keys.
    Causal,
    /// A sliding window of this size, including its own key.
    Window(usize),
}

impl Band {
    /// The mask for documents of at most `longest` tokens.
    pub(super) fn new(causality: Causality, longest: usize) -> Self {
        match causality {
            Causality::Bidirectional => Self::All,
            Causality::Sliding(tokens) if tokens < longest => Self::Window(tokens),
            Causality::Causal | Causality::Sliding(_) => Self::Causal,
        }
    }
}

/// Shape and settings that determine a plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PlanShape {
    /// Maximum number of documents; unused ones are empty.
    pub(super) documents: usize,
    /// Maximum tokens per document.
    pub(super) length: usize,
    /// Numbers of query heads and key heads, and head size.
    pub(super) heads: usize,
    pub(super) groups: usize,
    pub(super) size: usize,
    /// Bit pattern of the score multiplier.
    pub(super) scale: u32,
    pub(super) band: Band,
    /// Whether the scratch memory of the backward pass is packed; otherwise each document has space
    /// for `length` tokens.
    pub(super) ragged: bool,
}

/// The tensors of both passes.
struct Inputs {
    graph: Graph,
    queries: Tensor,
    /// Transposed in the last two dimensions.
    keys: Tensor,
    values: Tensor,
    /// Written by the forward pass, read by the backward pass.
    out: Tensor,
    log_sums: Tensor,
    lengths: [Tensor; 2],
    starts: [Tensor; 2],
    out_starts: Tensor,
    log_starts: Tensor,
}

impl PlanShape {
    /// Elements per row of `qkv`.
    pub(super) fn width(&self) -> usize {
        (self.heads + 2 * self.groups) * self.size
    }

    fn sizes(&self) -> [i64; 5] {
        [
            self.documents,
            self.length,
            self.heads,
            self.groups,
            self.size,
        ]
        .map(|n| n as i64)
    }

    /// Strides of queries, keys and values (or their gradients) within `qkv`.
    fn qkv_strides(&self) -> Four {
        let [_, s, _, _, c] = self.sizes();
        let row = self.width() as i64;
        [s * row, c, row, 1]
    }

    fn out_strides(&self) -> Four {
        let [_, s, h, _, c] = self.sizes();
        [s * h * c, c, h * c, 1]
    }

    /// Dimensions and strides of one packed value per query and head.
    fn row_layout(&self) -> (Four, Four) {
        let [b, s, h, _, _] = self.sizes();
        ([b, h, s, 1], [s * h, 1, h, 1])
    }

    fn inputs(&self, forward: bool) -> Result<Inputs, Refusal> {
        let mut graph = Graph::default();
        let [b, s, h, g, c] = self.sizes();
        let mut numbers = |uid, n| graph.external_tensor(uid, I32, [n, 1, 1, 1], [1; 4], None);
        let [query_lengths, key_lengths] = uid::LENGTHS;
        let lengths = [numbers(query_lengths, b)?, numbers(key_lengths, b)?];
        let [query_starts, key_starts] = uid::STARTS;
        let starts = [numbers(query_starts, b + 1)?, numbers(key_starts, b + 1)?];
        let out_starts = numbers(uid::OUT_STARTS, b + 1)?;
        let log_starts = numbers(uid::LOG_STARTS, b + 1)?;
        let strides = self.qkv_strides();
        let swapped = |[a, b, c, d]: Four| [a, b, d, c];
        let (each, keys) = ([b, g, s, c], Some(starts[1]));
        let queries =
            graph.external_tensor(uid::QUERIES, BF16, [b, h, s, c], strides, Some(starts[0]))?;
        // The backward pass reads values in the layout of keys.
        let transposed = (swapped(each), swapped(strides));
        let values_layout = if forward { (each, strides) } else { transposed };
        let k = graph.external_tensor(uid::KEYS, BF16, transposed.0, transposed.1, keys)?;
        let values =
            graph.external_tensor(uid::VALUES, BF16, values_layout.0, values_layout.1, keys)?;
        let out_layout = ([b, h, s, c], self.out_strides());
        let out =
            graph.external_tensor(uid::OUT, BF16, out_layout.0, out_layout.1, Some(out_starts))?;
        let (dims, strides) = self.row_layout();
        let log_sums =
            graph.external_tensor(uid::LOG_SUMS, F32, dims, strides, Some(log_starts))?;
        Ok(Inputs {
            graph,
            queries,
            keys: k,
            values,
            out,
            log_sums,
            lengths,
            starts,
            out_starts,
            log_starts,
        })
    }

    /// Attention and the log-sum-exp, from queries, keys and values.
    pub(super) fn forward(&self, target: &PlanTarget) -> Result<Plan, Refusal> {
        let mut inputs = self.inputs(true)?;
        let [b, s, h, ..] = self.sizes();
        let [query_lengths, key_lengths] = inputs.lengths;
        let scores = inputs.scaled_scores(self, Some(0.0))?;
        let scores = inputs.mask_padding(scores)?;
        let scores = inputs.mask_band(scores, self.band)?;
        let Inputs {
            mut graph,
            values,
            out,
            log_sums,
            ..
        } = inputs;
        let rows = [b, h, s, 1];
        let maxima = graph.virtual_tensor(F32, rows, row_major(rows), None)?;
        graph.reduce(Reduce::CUDNN_REDUCE_TENSOR_MAX, scores, maxima)?;
        let below = graph.pointwise(Mode::CUDNN_POINTWISE_SUB, &[scores, maxima], F32)?;
        let exponentials = graph.pointwise(Mode::CUDNN_POINTWISE_EXP, &[below], F32)?;
        let sums = graph.virtual_tensor(F32, rows, row_major(rows), None)?;
        graph.reduce(Reduce::CUDNN_REDUCE_TENSOR_ADD, exponentials, sums)?;
        let logarithms = graph.pointwise(Mode::CUDNN_POINTWISE_LOG, &[sums], F32)?;
        let both = [maxima, logarithms];
        graph.pointwise_into(Mode::CUDNN_POINTWISE_ADD, &both, None, log_sums)?;
        let weights = graph.pointwise(Mode::CUDNN_POINTWISE_DIV, &[exponentials, sums], BF16)?;
        let lengths = ProductLengths {
            m: Some(query_lengths),
            k: Some(key_lengths),
            ..ProductLengths::default()
        };
        graph.product([weights, values, out], lengths)?;
        graph.plan(target)
    }

    /// Gradients of queries, keys and values, from queries, keys, values, the result, its gradient
    /// and the log-sum-exp.
    pub(super) fn backward(&self, target: &PlanTarget) -> Result<Plan, Refusal> {
        let mut inputs = self.inputs(false)?;
        let [b, s, h, _, c] = self.sizes();
        let [query_lengths, key_lengths] = inputs.lengths;
        let d_out = inputs.graph.external_tensor(
            uid::D_OUT,
            BF16,
            [b, h, s, c],
            self.out_strides(),
            Some(inputs.out_starts),
        )?;
        let dots = inputs.dots(self, d_out)?;
        let scores = inputs.scaled_scores(self, None)?;
        let less = [scores, inputs.log_sums];
        let scores = inputs
            .graph
            .pointwise(Mode::CUDNN_POINTWISE_SUB, &less, F32)?;
        let scores = inputs.mask_padding(scores)?;
        let scores = inputs.mask_band(scores, self.band)?;
        let Inputs {
            mut graph,
            queries,
            keys,
            values,
            starts,
            ..
        } = inputs;
        let weights = graph.pointwise(Mode::CUDNN_POINTWISE_EXP, &[scores], F32)?;

        let key_side = ProductLengths {
            m: Some(key_lengths),
            k: Some(query_lengths),
            ..ProductLengths::default()
        };
        let query_side = ProductLengths {
            m: Some(query_lengths),
            k: Some(key_lengths),
            ..ProductLengths::default()
        };
        let transposed = graph.transpose(weights, BF16, None)?;
        let gradient =
            self.key_gradient(&mut graph, [uid::D_VALUES, uid::D_VALUES_EACH], starts[1])?;
        gradient.compute(&mut graph, [transposed, d_out], key_side)?;

        let scored = [b, h, s, s];
        let d_weights = graph.virtual_tensor(F32, scored, row_major(scored), None)?;
        let lengths = ProductLengths {
            m: Some(query_lengths),
            n: Some(key_lengths),
            ..ProductLengths::default()
        };
        graph.product([d_out, values, d_weights], lengths)?;
        let less = graph.pointwise(Mode::CUDNN_POINTWISE_SUB, &[d_weights, dots], F32)?;
        let d_scores = graph.pointwise(Mode::CUDNN_POINTWISE_MUL, &[less, weights], F32)?;
        let scale = graph.scalar(f32::from_bits(self.scale))?;
        // Computed in the dtype of the later product with the keys.
        let d_scores = graph.pointwise(Mode::CUDNN_POINTWISE_MUL, &[d_scores, scale], BF16)?;
        let transposed = graph.transpose(d_scores, BF16, None)?;
        let gradient = self.key_gradient(&mut graph, [uid::D_KEYS, uid::D_KEYS_EACH], starts[1])?;
        gradient.compute(&mut graph, [transposed, queries], key_side)?;

        let plain = graph.transpose(keys, BF16, Some(starts[1]))?;
        let d_queries = ([b, h, s, c], self.qkv_strides());
        let sums = match self.ragged {
            true => graph.external_tensor(
                uid::D_QUERY_SUMS,
                F32,
                d_queries.0,
                d_queries.1,
                Some(starts[0]),
            )?,
            false => {
                let dims = d_queries.0;
                graph.external_tensor(uid::D_QUERY_SUMS, F32, dims, row_major(dims), None)?
            }
        };
        graph.product([d_scores, plain, sums], query_side)?;
        let d_queries = graph.external_tensor(
            uid::D_QUERIES,
            BF16,
            d_queries.0,
            d_queries.1,
            Some(starts[0]),
        )?;
        graph.pointwise_into(Mode::CUDNN_POINTWISE_IDENTITY, &[sums], None, d_queries)?;
        graph.plan(target)
    }

    /// Tensors for the gradient of keys or values: the per-head accumulator and the output.
    fn key_gradient(
        &self,
        graph: &mut Graph,
        [uid, each_uid]: [i64; 2],
        starts: Tensor,
    ) -> Result<KeyGradient, Refusal> {
        let [b, s, h, g, c] = self.sizes();
        let strides = self.qkv_strides();
        let sum = graph.external_tensor(uid, BF16, [b, g, s, c], strides, Some(starts))?;
        if h == g {
            return Ok(KeyGradient {
                each: sum,
                sum: None,
            });
        }
        let per_head = [b, h, s, c];
        let per_head = match self.ragged {
            // The engine multiplies the starts by the number of query heads per key head, so these
            // strides are multiplied by the same number.
            true => {
                let [batch, head, row, one] = strides;
                let strides = [batch * (h / g), head, row * (h / g), one];
                graph.external_tensor(each_uid, BF16, per_head, strides, Some(starts))?
            }
            false => graph.virtual_tensor(BF16, per_head, row_major(per_head), None)?,
        };
        Ok(KeyGradient {
            each: per_head,
            sum: Some(sum),
        })
    }
}

/// Key or value gradients per query head, and their sum per key head if several query heads share
/// one.
struct KeyGradient {
    each: Tensor,
    sum: Option<Tensor>,
}

impl KeyGradient {
    fn compute(
        &self,
        graph: &mut Graph,
        [a, b]: [Tensor; 2],
        lengths: ProductLengths,
    ) -> Result<(), Refusal> {
        graph.product([a, b, self.each], lengths)?;
        match self.sum {
            Some(sum) => graph.reduce(Reduce::CUDNN_REDUCE_TENSOR_ADD, self.each, sum),
            None => Ok(()),
        }
    }
}

impl Inputs {
    /// `q kᵀ` for each document and head, times the multiplier.
    fn scaled_scores(
        &mut self,
        plan_shape: &PlanShape,
        padding: Option<f64>,
    ) -> Result<Tensor, Refusal> {
        let [b, s, h, ..] = plan_shape.sizes();
        let graph = &mut self.graph;
        let [m, n] = self.lengths.map(Some);
        let lengths = ProductLengths {
            m,
            n,
            k: None,
            padding,
        };
        let dims = [b, h, s, s];
        let scores = graph.virtual_tensor(F32, dims, row_major(dims), None)?;
        graph.product([self.queries, self.keys, scores], lengths)?;
        let scale = graph.scalar(f32::from_bits(plan_shape.scale))?;
        graph.pointwise(Mode::CUDNN_POINTWISE_MUL, &[scores, scale], F32)
    }

    /// Masks scores past the end of a document with minus infinity.
    fn mask_padding(&mut self, scores: Tensor) -> Result<Tensor, Refusal> {
        let graph = &mut self.graph;
        let [query_lengths, key_lengths] = self.lengths;
        let (row, column) = (graph.index(scores, 2)?, graph.index(scores, 3)?);
        let has_row = graph.pointwise(Mode::CUDNN_POINTWISE_CMP_LT, &[row, query_lengths], BOOL)?;
        let has_column =
            graph.pointwise(Mode::CUDNN_POINTWISE_CMP_LT, &[column, key_lengths], BOOL)?;
        let both = [has_row, has_column];
        let has_both = graph.pointwise(Mode::CUDNN_POINTWISE_LOGICAL_AND, &both, BOOL)?;
        self.mask_scores(scores, has_both)
    }

    /// Masks scores of keys that a query does not attend to with minus infinity.
    fn mask_band(&mut self, scores: Tensor, band: Band) -> Result<Tensor, Refusal> {
        if band == Band::All {
            return Ok(scores);
        }
        let graph = &mut self.graph;
        let (row, column) = (graph.index(scores, 2)?, graph.index(scores, 3)?);
        let visible = graph.pointwise(Mode::CUDNN_POINTWISE_CMP_GE, &[row, column], BOOL)?;
        let scores = self.mask_scores(scores, visible)?;
        let Band::Window(tokens) = band else {
            return Ok(scores);
        };
        let graph = &mut self.graph;
        let (row, column) = (graph.index(scores, 2)?, graph.index(scores, 3)?);
        let window = graph.scalar(tokens as f32)?;
        let beyond = graph.virtual_tensor(F32, scores.dims, scores.strides, None)?;
        let sum = [column, window];
        graph.pointwise_into(Mode::CUDNN_POINTWISE_ADD, &sum, Some(3), beyond)?;
        let visible = graph.pointwise(Mode::CUDNN_POINTWISE_CMP_GT, &[beyond, row], BOOL)?;
        self.mask_scores(scores, visible)
    }

    fn mask_scores(&mut self, scores: Tensor, which: Tensor) -> Result<Tensor, Refusal> {
        let lowest = self.graph.scalar(f32::NEG_INFINITY)?;
        let choice = [scores, lowest, which];
        self.graph
            .pointwise(Mode::CUDNN_POINTWISE_BINARY_SELECT, &choice, F32)
    }

    /// Dot products of the rows of result and gradient, stored for the rest of the pass.
    fn dots(&mut self, plan_shape: &PlanShape, d_out: Tensor) -> Result<Tensor, Refusal> {
        let [b, s, h, _, c] = plan_shape.sizes();
        let graph = &mut self.graph;
        let products =
            graph.virtual_tensor(F32, [b, h, s, c], [h * s * c, s * c, h * c, 1], None)?;
        let both = [d_out, self.out];
        graph.pointwise_into(Mode::CUDNN_POINTWISE_MUL, &both, None, products)?;
        let rows = [b, h, s, 1];
        let sums = graph.virtual_tensor(F32, rows, row_major(rows), None)?;
        graph.reduce(Reduce::CUDNN_REDUCE_TENSOR_ADD, products, sums)?;
        let one = graph.scalar(1.0)?;
        let dots = match plan_shape.ragged {
            true => {
                let (dims, strides) = plan_shape.row_layout();
                graph.external_tensor(uid::DOTS, F32, dims, strides, Some(self.log_starts))?
            }
            false => graph.external_tensor(uid::DOTS, F32, rows, row_major(rows), None)?,
        };
        graph.pointwise_into(Mode::CUDNN_POINTWISE_MUL, &[sums, one], None, dots)?;
        Ok(dots)
    }
}
