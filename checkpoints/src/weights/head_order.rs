//! The orders that llama.cpp gives what belongs to heads.
//!
//! GGUF stores the rows of a head of queries or keys as (i, half) where the architecture's rotary
//! embedding turns neighbours; Hugging Face stores (half, i). Value heads of linear attention stand
//! behind each other by the key head that they share in Hugging Face, as (key head, i), and as
//! (i, key head) in GGUF, so that keys are repeated as a whole.
//! Biases are matrices of one column. Of an adapter, B has the rows of the projection and A its columns,
//! and both are ordered like it.
//! Source: ggml-org/llama.cpp `convert_hf_to_gguf.py`, `LlamaModel.permute`, and `conversion/qwen.py`,
//! `_LinearAttentionVReorderBase`.

/// How rows or columns of a stored matrix are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadOrder {
    /// As Hugging Face stores them.
    AsIs,
    /// Rows of each head alternate between its two halves (GGUF's llama architecture).
    HalvesInterleaved { n_heads: usize },
    /// Rows of value heads, each with the others of its place among those of a key head.
    ValueRows(ValueHeads),
    /// The same of columns.
    ValueColumns(ValueHeads),
}

/// Value heads that share key heads, as a matrix has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ValueHeads {
    /// Rows, or columns, in front of them, which stay where they are.
    pub(crate) first: usize,
    /// Key heads.
    pub(crate) n_key: usize,
    /// Value heads of a key head.
    pub(crate) n_each: usize,
    /// Rows, or columns, of a value head.
    pub(crate) width: usize,
}

impl ValueHeads {
    /// Where in Hugging Face that stands which GGUF has at `at`.
    fn in_hugging_face(self, at: usize) -> usize {
        self.exchanged(at, self.n_key, self.n_each)
    }

    /// Where in GGUF that stands which Hugging Face has at `at`.
    fn in_gguf(self, at: usize) -> usize {
        self.exchanged(at, self.n_each, self.n_key)
    }

    /// From (outer, inner) with `n_inner` of these to (inner, outer) with `n_outer` of those.
    fn exchanged(self, at: usize, n_inner: usize, n_outer: usize) -> usize {
        let Some(behind) = at.checked_sub(self.first) else {
            return at;
        };
        let (head, within) = (behind / self.width, behind % self.width);
        let (outer, inner) = (head / n_inner, head % n_inner);
        self.first + (inner * n_outer + outer) * self.width + within
    }
}

impl HeadOrder {
    /// A matrix as stored to one as Hugging Face has it.
    pub(crate) fn undo(self, values: Vec<f32>, shape: &[usize]) -> Vec<f32> {
        match self {
            HeadOrder::AsIs => values,
            HeadOrder::HalvesInterleaved { n_heads } => {
                gathered_in_heads(&values, shape, n_heads, |at, half| {
                    (at % half) * 2 + at / half
                })
            }
            HeadOrder::ValueRows(heads) => gathered(&values, shape, |row| heads.in_gguf(row)),
            HeadOrder::ValueColumns(heads) => columns(values, shape, |at| heads.in_gguf(at)),
        }
    }

    /// A matrix as Hugging Face has it to one as stored.
    pub(crate) fn apply(self, values: Vec<f32>, shape: &[usize]) -> Vec<f32> {
        match self {
            HeadOrder::AsIs => values,
            HeadOrder::HalvesInterleaved { n_heads } => {
                gathered_in_heads(&values, shape, n_heads, |at, half| (at % 2) * half + at / 2)
            }
            HeadOrder::ValueRows(heads) => {
                gathered(&values, shape, |row| heads.in_hugging_face(row))
            }
            HeadOrder::ValueColumns(heads) => {
                columns(values, shape, |at| heads.in_hugging_face(at))
            }
        }
    }

    /// The order of the rows alone: that of the B factor of an adapter.
    pub(crate) fn of_rows(self) -> HeadOrder {
        match self {
            HeadOrder::ValueColumns(_) => HeadOrder::AsIs,
            of_rows => of_rows,
        }
    }

    /// The order of the columns alone: that of the A factor of an adapter.
    pub(crate) fn of_columns(self) -> HeadOrder {
        match self {
            HeadOrder::ValueColumns(_) => self,
            _ => HeadOrder::AsIs,
        }
    }
}

/// The matrix of heads in which row `i` of a head is its row `from(i, half)` in `values`, by half of the
/// rows of a head.
fn gathered_in_heads(
    values: &[f32],
    shape: &[usize],
    n_heads: usize,
    from: impl Fn(usize, usize) -> usize,
) -> Vec<f32> {
    let head_rows = shape[0] / n_heads;
    gathered(values, shape, |row| {
        let (head, within) = (row / head_rows, row % head_rows);
        head * head_rows + from(within, head_rows / 2)
    })
}

/// The matrix whose row `i` is row `from(i)` of `values`.
fn gathered(values: &[f32], shape: &[usize], from: impl Fn(usize) -> usize) -> Vec<f32> {
    let row_len = shape[1..].iter().product::<usize>();
    let mut out = Vec::with_capacity(values.len());
    for row in 0..shape[0] {
        let from = from(row);
        out.extend_from_slice(&values[from * row_len..(from + 1) * row_len]);
    }
    out
}

/// The matrix whose column `i` is column `from(i)` of `values`.
fn columns(mut values: Vec<f32>, shape: &[usize], from: impl Fn(usize) -> usize) -> Vec<f32> {
    let n_columns = shape[1];
    let from: Vec<usize> = (0..n_columns).map(from).collect();
    let mut row = vec![0.0; n_columns];
    for values in values.chunks_exact_mut(n_columns.max(1)) {
        row.copy_from_slice(values);
        for (value, from) in values.iter_mut().zip(&from) {
            *value = row[*from];
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counted(n: usize) -> Vec<f32> {
        (0..n).map(|i| i as f32).collect()
    }

    #[test]
    fn halves_alternate_as_in_the_converter() {
        // Two heads of four rows: (half, i) = 0..4 becomes 0, 2, 1, 3.
        let order = HeadOrder::HalvesInterleaved { n_heads: 2 };
        let stored = order.apply(counted(8), &[8]);
        assert_eq!(stored, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }

    #[test]
    fn value_heads_come_by_turns_as_in_the_converter() {
        // Two key heads with three value heads of one row each, behind a row that stays:
        // k0v0 k0v1 k0v2 k1v0 k1v1 k1v2 becomes k0v0 k1v0 k0v1 k1v1 k0v2 k1v2.
        let heads = ValueHeads {
            first: 1,
            n_key: 2,
            n_each: 3,
            width: 1,
        };
        let expected = [0.0, 1.0, 4.0, 2.0, 5.0, 3.0, 6.0];
        let rows = HeadOrder::ValueRows(heads);
        assert_eq!(rows.apply(counted(7), &[7]), expected);
        let columns = HeadOrder::ValueColumns(heads);
        assert_eq!(columns.apply(counted(7), &[1, 7]), expected);
        assert_eq!(rows.of_columns(), HeadOrder::AsIs);
        assert_eq!(columns.of_rows(), HeadOrder::AsIs);
        assert_eq!(columns.of_columns(), columns);
    }

    proptest! {
        #[test]
        fn undoing_is_the_inverse_both_ways(
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
                let values = counted(shape[0] * shape[1]);
                prop_assert_eq!(&order.undo(order.apply(values.clone(), &shape), &shape), &values);
                prop_assert_eq!(&order.apply(order.undo(values.clone(), &shape), &shape), &values);
            }
        }
    }
}
