//! Converts between the head orders of llama.cpp and Hugging Face.
//!
//! If the architecture rotates adjacent pairs, GGUF stores the rows of a query or key head as (i,
//! half); Hugging Face stores (half, i). For linear attention, Hugging Face stores value heads as
//! (key head, i), so value heads that share a key head are adjacent. GGUF stores them as (i, key
//! head), so that llama.cpp can repeat the sequence of key heads as a whole. A bias is treated as a
//! matrix with one column. In an adapter, B has the rows of the projection and A its columns, in
//! the same order. Source: ggml-org/llama.cpp `convert_hf_to_gguf.py`, `LlamaModel.permute`, and
//! `conversion/qwen.py`, `_LinearAttentionVReorderBase`.

/// The order of rows or columns of a stored matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadOrder {
    /// Hugging Face's order.
    AsIs,
    /// Rows of each head alternate between its two halves (GGUF's llama architecture).
    HalvesInterleaved { n_heads: usize },
    /// Rows of value heads, grouped by the index within their key head.
    ValueRows(ValueHeads),
    /// Columns of value heads, grouped by the index within their key head.
    ValueColumns(ValueHeads),
}

/// Value heads that share key heads, in a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ValueHeads {
    /// Number of rows or columns before the value heads, which are not moved.
    pub(crate) first: usize,
    /// Number of key heads.
    pub(crate) n_key: usize,
    /// Number of value heads per key head.
    pub(crate) n_each: usize,
    /// Number of rows or columns per value head.
    pub(crate) width: usize,
}

impl ValueHeads {
    /// The Hugging Face index of the row or column at GGUF index `index`.
    fn hugging_face_index(self, index: usize) -> usize {
        self.transpose_index(index, self.n_key, self.n_each)
    }

    /// The GGUF index of the row or column at Hugging Face index `index`.
    fn gguf_index(self, index: usize) -> usize {
        self.transpose_index(index, self.n_each, self.n_key)
    }

    /// Converts an index from (outer, inner) with size `n_inner` to (inner, outer) with size
    /// `n_outer`.
    fn transpose_index(self, index: usize, n_inner: usize, n_outer: usize) -> usize {
        let Some(offset) = index.checked_sub(self.first) else {
            return index;
        };
        let (head, position) = (offset / self.width, offset % self.width);
        let (outer, inner) = (head / n_inner, head % n_inner);
        self.first + (inner * n_outer + outer) * self.width + position
    }
}

impl HeadOrder {
    /// Converts a stored matrix to Hugging Face's order.
    pub(crate) fn undo(self, values: Vec<f32>, shape: &[usize]) -> Vec<f32> {
        match self {
            HeadOrder::AsIs => values,
            HeadOrder::HalvesInterleaved { n_heads } => {
                gather_head_rows(&values, shape, n_heads, |index, half| {
                    (index % half) * 2 + index / half
                })
            }
            HeadOrder::ValueRows(heads) => gather_rows(&values, shape, |row| heads.gguf_index(row)),
            HeadOrder::ValueColumns(heads) => {
                columns(values, shape, |index| heads.gguf_index(index))
            }
        }
    }

    /// Converts a matrix from Hugging Face's order to the stored order.
    pub(crate) fn apply(self, values: Vec<f32>, shape: &[usize]) -> Vec<f32> {
        match self {
            HeadOrder::AsIs => values,
            HeadOrder::HalvesInterleaved { n_heads } => {
                gather_head_rows(&values, shape, n_heads, |index, half| {
                    (index % 2) * half + index / 2
                })
            }
            HeadOrder::ValueRows(heads) => {
                gather_rows(&values, shape, |row| heads.hugging_face_index(row))
            }
            HeadOrder::ValueColumns(heads) => {
                columns(values, shape, |index| heads.hugging_face_index(index))
            }
        }
    }

    /// The order of only the rows, for the B factor of an adapter.
    pub(crate) fn rows_only(self) -> HeadOrder {
        match self {
            HeadOrder::ValueColumns(_) => HeadOrder::AsIs,
            rows_only => rows_only,
        }
    }

    /// The order of only the columns, for the A factor of an adapter.
    pub(crate) fn columns_only(self) -> HeadOrder {
        match self {
            HeadOrder::ValueColumns(_) => self,
            _ => HeadOrder::AsIs,
        }
    }
}

/// Reorders the rows of each head: the new row `i` of a head is the row `source_row(i, half)` of
/// the same head in `values`, where `half` is half the number of rows of a head.
fn gather_head_rows(
    values: &[f32],
    shape: &[usize],
    n_heads: usize,
    source_row: impl Fn(usize, usize) -> usize,
) -> Vec<f32> {
    let head_rows = shape[0] / n_heads;
    gather_rows(values, shape, |row| {
        let (head, position) = (row / head_rows, row % head_rows);
        head * head_rows + source_row(position, head_rows / 2)
    })
}

/// Returns the matrix whose row `i` is row `source(i)` of `values`.
fn gather_rows(values: &[f32], shape: &[usize], source: impl Fn(usize) -> usize) -> Vec<f32> {
    let row_len = shape[1..].iter().product::<usize>();
    let mut out = Vec::with_capacity(values.len());
    for row in 0..shape[0] {
        let source = source(row);
        out.extend_from_slice(&values[source * row_len..(source + 1) * row_len]);
    }
    out
}

/// Returns the matrix whose column `i` is column `sources(i)` of `values`.
fn columns(mut values: Vec<f32>, shape: &[usize], sources: impl Fn(usize) -> usize) -> Vec<f32> {
    let n_columns = shape[1];
    let sources: Vec<usize> = (0..n_columns).map(sources).collect();
    let mut row = vec![0.0; n_columns];
    for values in values.chunks_exact_mut(n_columns.max(1)) {
        row.copy_from_slice(values);
        for (value, sources) in values.iter_mut().zip(&sources) {
            *value = row[*sources];
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ascending(n: usize) -> Vec<f32> {
        (0..n).map(|i| i as f32).collect()
    }

    #[test]
    fn halves_alternate_as_in_the_converter() {
        // Two heads of four rows: (half, i) = 0..4 becomes 0, 2, 1, 3.
        let order = HeadOrder::HalvesInterleaved { n_heads: 2 };
        let in_gguf_order = order.apply(ascending(8), &[8]);
        assert_eq!(in_gguf_order, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }

    #[test]
    fn value_heads_are_interleaved_as_in_the_converter() {
        // Two key heads with three value heads of one row each, after a row that is not moved: k0v0
        // k0v1 k0v2 k1v0 k1v1 k1v2 becomes k0v0 k1v0 k0v1 k1v1 k0v2 k1v2.
        let heads = ValueHeads {
            first: 1,
            n_key: 2,
            n_each: 3,
            width: 1,
        };
        let expected = [0.0, 1.0, 4.0, 2.0, 5.0, 3.0, 6.0];
        let rows = HeadOrder::ValueRows(heads);
        assert_eq!(rows.apply(ascending(7), &[7]), expected);
        let columns = HeadOrder::ValueColumns(heads);
        assert_eq!(columns.apply(ascending(7), &[1, 7]), expected);
        assert_eq!(rows.columns_only(), HeadOrder::AsIs);
        assert_eq!(columns.rows_only(), HeadOrder::AsIs);
        assert_eq!(columns.columns_only(), columns);
    }

    proptest! {
        #[test]
        fn apply_and_undo_are_inverse(
            n_heads in 1_usize..6, half in 1_usize..9, n_columns in 1_usize..5,
            first in 0_usize..4, n_each in 1_usize..5,
        ) {
            let heads = ValueHeads { first, n_key: n_heads, n_each, width: half };
            let n = first + n_heads * n_each * half;
            for (order, shape) in [
                (HeadOrder::HalvesInterleaved { n_heads }, [n_heads * half * 2, n_columns]),
                (HeadOrder::ValueRows(heads), [n, n_columns]),
                (HeadOrder::ValueColumns(heads), [n_columns, n]),
            ] {
                let values = ascending(shape[0] * shape[1]);
                prop_assert_eq!(&order.undo(order.apply(values.clone(), &shape), &shape), &values);
                prop_assert_eq!(&order.apply(order.undo(values.clone(), &shape), &shape), &values);
            }
        }
    }
}
