//! Attention within documents as graphs that cuDNN's engines know: forward and backward.
//!
//! The engines are chosen by the shape of the graph, hence each operation stands where NVIDIA's own
//! front end has it (cudnn-frontend 1.32, `scaled_dot_product_flash_attention.h`). Nothing between the
//! tensors that are given is ever stored.

use cudarc::cudnn::sys::{
    cudnnDataType_t as Data, cudnnPointwiseMode_t as Mode, cudnnReduceTensorOp_t as Reduce,
};

use super::descriptor::Refusal;
use super::graph::{Cut, Four, Graph, Place, Plan, Tensor, packed};
use crate::attention::Causality;

const BF16: Data = Data::CUDNN_DATA_BFLOAT16;
const F32: Data = Data::CUDNN_DATA_FLOAT;
const I32: Data = Data::CUDNN_DATA_INT32;
const BOOL: Data = Data::CUDNN_DATA_BOOLEAN;

/// Tensors that the caller gives.
pub(super) mod uid {
    pub(in super::super) const QUERIES: i64 = 1;
    pub(in super::super) const KEYS: i64 = 2;
    pub(in super::super) const VALUES: i64 = 3;
    pub(in super::super) const OUT: i64 = 4;
    pub(in super::super) const LOG_SUMS: i64 = 5;
    /// Tokens of each document, named twice: as queries and as keys.
    pub(in super::super) const LENGTHS: [i64; 2] = [6, 7];
    /// Where each document begins in `qkv`, in elements: for queries, and for keys and values.
    pub(in super::super) const STARTS: [i64; 2] = [8, 9];
    /// The same in the result, and in the logarithms of sums.
    pub(in super::super) const OUT_STARTS: i64 = 10;
    pub(in super::super) const LOG_STARTS: i64 = 11;
    pub(in super::super) const D_OUT: i64 = 12;
    pub(in super::super) const D_QUERIES: i64 = 13;
    pub(in super::super) const D_KEYS: i64 = 14;
    pub(in super::super) const D_VALUES: i64 = 15;
    /// Scratch of the backward pass: products of result and gradient, and sums of query gradients.
    pub(in super::super) const DOTS: i64 = 16;
    pub(in super::super) const D_QUERY_SUMS: i64 = 17;
    /// Key and value gradients of each query head.
    pub(in super::super) const D_KEYS_EACH: i64 = 18;
    pub(in super::super) const D_VALUES_EACH: i64 = 19;
}

/// Which keys a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Band {
    /// All of its document.
    All,
    /// Itself and earlier ones.
    Causal,
    /// So many: itself and those before it.
    Window(usize),
}

impl Band {
    /// That of documents of at most `longest` tokens.
    pub(super) fn of(causality: Causality, longest: usize) -> Self {
        match causality {
            Causality::Bidirectional => Self::All,
            Causality::Sliding(tokens) if tokens < longest => Self::Window(tokens),
            Causality::Causal | Causality::Sliding(_) => Self::Causal,
        }
    }
}

/// What a plan follows from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Documents at most; those that are left over have no tokens.
    pub(super) documents: usize,
    /// Tokens of a document at most.
    pub(super) length: usize,
    /// Query heads, key heads, and elements of a head.
    pub(super) heads: usize,
    pub(super) groups: usize,
    pub(super) size: usize,
    /// Bits of the multiplier of scores.
    pub(super) scale: u32,
    pub(super) band: Band,
    /// Whether the scratch memory of the backward pass lies end to end too; else each document has
    /// room for `length` tokens there.
    pub(super) ragged: bool,
}

/// The tensors of both passes.
struct Inputs {
    graph: Graph,
    queries: Tensor,
    /// Their last dimensions exchanged.
    keys: Tensor,
    values: Tensor,
    /// Forward it is written, backward it is read.
    out: Tensor,
    log_sums: Tensor,
    lengths: [Tensor; 2],
    starts: [Tensor; 2],
    out_starts: Tensor,
    log_starts: Tensor,
}

impl Form {
    /// Elements of a row of `qkv`.
    pub(super) fn width(&self) -> usize {
        (self.heads + 2 * self.groups) * self.size
    }

    fn all(&self) -> [i64; 5] {
        [
            self.documents,
            self.length,
            self.heads,
            self.groups,
            self.size,
        ]
        .map(|n| n as i64)
    }

    /// Strides of queries, keys and values within `qkv`, or their gradients.
    fn within(&self) -> Four {
        let [_, s, _, _, c] = self.all();
        let row = self.width() as i64;
        [s * row, c, row, 1]
    }

    fn out_strides(&self) -> Four {
        let [_, s, h, _, c] = self.all();
        [s * h * c, c, h * c, 1]
    }

    /// Dimensions and strides of one number for each query and head, end to end.
    fn of_rows(&self) -> (Four, Four) {
        let [b, s, h, _, _] = self.all();
        ([b, h, s, 1], [s * h, 1, h, 1])
    }

    fn inputs(&self, forward: bool) -> Result<Inputs, Refusal> {
        let mut graph = Graph::default();
        let [b, s, h, g, c] = self.all();
        let mut numbers = |uid, n| graph.given(uid, I32, [n, 1, 1, 1], [1; 4], None);
        let [as_queries, as_keys] = uid::LENGTHS;
        let lengths = [numbers(as_queries, b)?, numbers(as_keys, b)?];
        let [of_queries, of_keys] = uid::STARTS;
        let starts = [numbers(of_queries, b + 1)?, numbers(of_keys, b + 1)?];
        let out_starts = numbers(uid::OUT_STARTS, b + 1)?;
        let log_starts = numbers(uid::LOG_STARTS, b + 1)?;
        let strides = self.within();
        let swapped = |[a, b, c, d]: Four| [a, b, d, c];
        let (each, keys) = ([b, g, s, c], Some(starts[1]));
        let queries = graph.given(uid::QUERIES, BF16, [b, h, s, c], strides, Some(starts[0]))?;
        // Backward takes values the way that it takes keys.
        let turned = (swapped(each), swapped(strides));
        let of_values = if forward { (each, strides) } else { turned };
        let k = graph.given(uid::KEYS, BF16, turned.0, turned.1, keys)?;
        let values = graph.given(uid::VALUES, BF16, of_values.0, of_values.1, keys)?;
        let of_out = ([b, h, s, c], self.out_strides());
        let out = graph.given(uid::OUT, BF16, of_out.0, of_out.1, Some(out_starts))?;
        let (dims, strides) = self.of_rows();
        let log_sums = graph.given(uid::LOG_SUMS, F32, dims, strides, Some(log_starts))?;
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

    /// Attention and the logarithms of its sums of exponentials, from queries, keys and values.
    pub(super) fn forward(&self, on: &Place) -> Result<Plan, Refusal> {
        let mut inputs = self.inputs(true)?;
        let [b, s, h, ..] = self.all();
        let [of_queries, of_keys] = inputs.lengths;
        let scores = inputs.scaled_scores(self, Some(0.0))?;
        let scores = inputs.padded(scores)?;
        let scores = inputs.banded(scores, self.band)?;
        let Inputs {
            mut graph,
            values,
            out,
            log_sums,
            ..
        } = inputs;
        let rows = [b, h, s, 1];
        let maxima = graph.within(F32, rows, packed(rows), None)?;
        graph.reduce(Reduce::CUDNN_REDUCE_TENSOR_MAX, scores, maxima)?;
        let below = graph.pointwise(Mode::CUDNN_POINTWISE_SUB, &[scores, maxima], F32)?;
        let exponentials = graph.pointwise(Mode::CUDNN_POINTWISE_EXP, &[below], F32)?;
        let sums = graph.within(F32, rows, packed(rows), None)?;
        graph.reduce(Reduce::CUDNN_REDUCE_TENSOR_ADD, exponentials, sums)?;
        let logarithms = graph.pointwise(Mode::CUDNN_POINTWISE_LOG, &[sums], F32)?;
        let both = [maxima, logarithms];
        graph.pointwise_into(Mode::CUDNN_POINTWISE_ADD, &both, None, log_sums)?;
        let weights = graph.pointwise(Mode::CUDNN_POINTWISE_DIV, &[exponentials, sums], BF16)?;
        let cut = Cut {
            m: Some(of_queries),
            k: Some(of_keys),
            ..Cut::default()
        };
        graph.product([weights, values, out], cut)?;
        graph.plan(on)
    }

    /// Gradients of queries, keys and values, from those, the result, its gradient and the logarithms.
    pub(super) fn backward(&self, on: &Place) -> Result<Plan, Refusal> {
        let mut inputs = self.inputs(false)?;
        let [b, s, h, _, c] = self.all();
        let [of_queries, of_keys] = inputs.lengths;
        let d_out = inputs.graph.given(
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
        let scores = inputs.padded(scores)?;
        let scores = inputs.banded(scores, self.band)?;
        let Inputs {
            mut graph,
            queries,
            keys,
            values,
            starts,
            ..
        } = inputs;
        let weights = graph.pointwise(Mode::CUDNN_POINTWISE_EXP, &[scores], F32)?;

        let by_keys = Cut {
            m: Some(of_keys),
            k: Some(of_queries),
            ..Cut::default()
        };
        let by_queries = Cut {
            m: Some(of_queries),
            k: Some(of_keys),
            ..Cut::default()
        };
        let turned = graph.transposed(weights, BF16, None)?;
        let gradient = self.of_keys(&mut graph, [uid::D_VALUES, uid::D_VALUES_EACH], starts[1])?;
        gradient.compute(&mut graph, [turned, d_out], by_keys)?;

        let scored = [b, h, s, s];
        let d_weights = graph.within(F32, scored, packed(scored), None)?;
        let cut = Cut {
            m: Some(of_queries),
            n: Some(of_keys),
            ..Cut::default()
        };
        graph.product([d_out, values, d_weights], cut)?;
        let less = graph.pointwise(Mode::CUDNN_POINTWISE_SUB, &[d_weights, dots], F32)?;
        let d_scores = graph.pointwise(Mode::CUDNN_POINTWISE_MUL, &[less, weights], F32)?;
        let scale = graph.scalar(f32::from_bits(self.scale))?;
        // As the product with the keys takes them.
        let d_scores = graph.pointwise(Mode::CUDNN_POINTWISE_MUL, &[d_scores, scale], BF16)?;
        let turned = graph.transposed(d_scores, BF16, None)?;
        let gradient = self.of_keys(&mut graph, [uid::D_KEYS, uid::D_KEYS_EACH], starts[1])?;
        gradient.compute(&mut graph, [turned, queries], by_keys)?;

        let plain = graph.transposed(keys, BF16, Some(starts[1]))?;
        let d_queries = ([b, h, s, c], self.within());
        let sums = match self.ragged {
            true => graph.given(
                uid::D_QUERY_SUMS,
                F32,
                d_queries.0,
                d_queries.1,
                Some(starts[0]),
            )?,
            false => {
                let dims = d_queries.0;
                graph.given(uid::D_QUERY_SUMS, F32, dims, packed(dims), None)?
            }
        };
        graph.product([d_scores, plain, sums], by_queries)?;
        let d_queries = graph.given(
            uid::D_QUERIES,
            BF16,
            d_queries.0,
            d_queries.1,
            Some(starts[0]),
        )?;
        graph.pointwise_into(Mode::CUDNN_POINTWISE_IDENTITY, &[sums], None, d_queries)?;
        graph.plan(on)
    }

    /// Where the gradient of keys or values is summed, and where it goes.
    fn of_keys(
        &self,
        graph: &mut Graph,
        [uid, each_uid]: [i64; 2],
        starts: Tensor,
    ) -> Result<KeyGradient, Refusal> {
        let [b, s, h, g, c] = self.all();
        let strides = self.within();
        let sum = graph.given(uid, BF16, [b, g, s, c], strides, Some(starts))?;
        if h == g {
            return Ok(KeyGradient {
                each: sum,
                sum: None,
            });
        }
        let each = [b, h, s, c];
        let each = match self.ragged {
            // The engine multiplies the starts by the query heads of a key head, as these strides are.
            true => {
                let [batch, head, row, one] = strides;
                let strides = [batch * (h / g), head, row * (h / g), one];
                graph.given(each_uid, BF16, each, strides, Some(starts))?
            }
            false => graph.within(BF16, each, packed(each), None)?,
        };
        Ok(KeyGradient {
            each,
            sum: Some(sum),
        })
    }
}

/// Key or value gradients of query heads, and their sum over those of one key head where it is one of
/// several.
struct KeyGradient {
    each: Tensor,
    sum: Option<Tensor>,
}

impl KeyGradient {
    fn compute(&self, graph: &mut Graph, [a, b]: [Tensor; 2], cut: Cut) -> Result<(), Refusal> {
        graph.product([a, b, self.each], cut)?;
        match self.sum {
            Some(sum) => graph.reduce(Reduce::CUDNN_REDUCE_TENSOR_ADD, self.each, sum),
            None => Ok(()),
        }
    }
}

impl Inputs {
    /// `q kᵀ` for each document and head, times the multiplier.
    fn scaled_scores(&mut self, form: &Form, padding: Option<f64>) -> Result<Tensor, Refusal> {
        let [b, s, h, ..] = form.all();
        let graph = &mut self.graph;
        let [m, n] = self.lengths.map(Some);
        let cut = Cut {
            m,
            n,
            k: None,
            padding,
        };
        let dims = [b, h, s, s];
        let scores = graph.within(F32, dims, packed(dims), None)?;
        graph.product([self.queries, self.keys, scores], cut)?;
        let scale = graph.scalar(f32::from_bits(form.scale))?;
        graph.pointwise(Mode::CUDNN_POINTWISE_MUL, &[scores, scale], F32)
    }

    /// Scores of places beyond a document's end become minus infinity.
    fn padded(&mut self, scores: Tensor) -> Result<Tensor, Refusal> {
        let graph = &mut self.graph;
        let [of_queries, of_keys] = self.lengths;
        let (row, column) = (graph.index(scores, 2)?, graph.index(scores, 3)?);
        let has_row = graph.pointwise(Mode::CUDNN_POINTWISE_CMP_LT, &[row, of_queries], BOOL)?;
        let has_column = graph.pointwise(Mode::CUDNN_POINTWISE_CMP_LT, &[column, of_keys], BOOL)?;
        let both = [has_row, has_column];
        let has_both = graph.pointwise(Mode::CUDNN_POINTWISE_LOGICAL_AND, &both, BOOL)?;
        self.kept(scores, has_both)
    }

    /// Scores of keys that a query does not see become minus infinity.
    fn banded(&mut self, scores: Tensor, band: Band) -> Result<Tensor, Refusal> {
        if band == Band::All {
            return Ok(scores);
        }
        let graph = &mut self.graph;
        let (row, column) = (graph.index(scores, 2)?, graph.index(scores, 3)?);
        let seen = graph.pointwise(Mode::CUDNN_POINTWISE_CMP_GE, &[row, column], BOOL)?;
        let scores = self.kept(scores, seen)?;
        let Band::Window(tokens) = band else {
            return Ok(scores);
        };
        let graph = &mut self.graph;
        let (row, column) = (graph.index(scores, 2)?, graph.index(scores, 3)?);
        let window = graph.scalar(tokens as f32)?;
        let beyond = graph.within(F32, scores.dims, scores.strides, None)?;
        let sum = [column, window];
        graph.pointwise_into(Mode::CUDNN_POINTWISE_ADD, &sum, Some(3), beyond)?;
        let seen = graph.pointwise(Mode::CUDNN_POINTWISE_CMP_GT, &[beyond, row], BOOL)?;
        self.kept(scores, seen)
    }

    fn kept(&mut self, scores: Tensor, which: Tensor) -> Result<Tensor, Refusal> {
        let lowest = self.graph.scalar(f32::NEG_INFINITY)?;
        let choice = [scores, lowest, which];
        self.graph
            .pointwise(Mode::CUDNN_POINTWISE_BINARY_SELECT, &choice, F32)
    }

    /// Products of the rows of result and gradient, written for the rest of the pass to read.
    fn dots(&mut self, form: &Form, d_out: Tensor) -> Result<Tensor, Refusal> {
        let [b, s, h, _, c] = form.all();
        let graph = &mut self.graph;
        let products = graph.within(F32, [b, h, s, c], [h * s * c, s * c, h * c, 1], None)?;
        let both = [d_out, self.out];
        graph.pointwise_into(Mode::CUDNN_POINTWISE_MUL, &both, None, products)?;
        let rows = [b, h, s, 1];
        let sums = graph.within(F32, rows, packed(rows), None)?;
        graph.reduce(Reduce::CUDNN_REDUCE_TENSOR_ADD, products, sums)?;
        let one = graph.scalar(1.0)?;
        let dots = match form.ragged {
            true => {
                let (dims, strides) = form.of_rows();
                graph.given(uid::DOTS, F32, dims, strides, Some(self.log_starts))?
            }
            false => graph.given(uid::DOTS, F32, rows, packed(rows), None)?,
        };
        graph.pointwise_into(Mode::CUDNN_POINTWISE_MUL, &[sums, one], None, dots)?;
        Ok(dots)
    }
}
