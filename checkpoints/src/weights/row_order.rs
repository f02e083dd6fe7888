//! The order that llama.cpp gives the rows of query and key projections of the llama architecture.
//!
//! GGUF stores the rows of a head as (i, half) because its rotary embedding turns neighbours;
//! Hugging Face stores (half, i). Biases are matrices of one column, and the B factor of an
//! adapter, whose rows are those of the projection, is ordered like the projection.
//! Source: ggml-org/llama.cpp `convert_hf_to_gguf.py`, `LlamaModel.permute`.

/// How the rows of a stored matrix are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// As Hugging Face stores them.
    AsIs,
    /// Rows of each head alternate between its two halves (GGUF's llama architecture).
    HalvesInterleaved { n_heads: usize },
}

impl RowOrder {
    /// Rows as stored to rows as Hugging Face has them.
    pub(crate) fn undo(self, values: Vec<f32>, shape: &[usize]) -> Vec<f32> {
        match self {
            RowOrder::AsIs => values,
            RowOrder::HalvesInterleaved { n_heads } => {
                let head_rows = shape[0] / n_heads;
                let half = head_rows / 2;
                gathered(&values, shape, |row| {
                    let (head, within) = (row / head_rows, row % head_rows);
                    head * head_rows + (within % half) * 2 + within / half
                })
            }
        }
    }

    /// Rows as Hugging Face has them to rows as stored.
    pub(crate) fn apply(self, values: Vec<f32>, shape: &[usize]) -> Vec<f32> {
        match self {
            RowOrder::AsIs => values,
            RowOrder::HalvesInterleaved { n_heads } => {
                let head_rows = shape[0] / n_heads;
                let half = head_rows / 2;
                gathered(&values, shape, |row| {
                    let (head, within) = (row / head_rows, row % head_rows);
                    head * head_rows + (within % 2) * half + within / 2
                })
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn halves_alternate_as_in_the_converter() {
        // Two heads of four rows: (half, i) = 0..4 becomes 0, 2, 1, 3.
        let order = RowOrder::HalvesInterleaved { n_heads: 2 };
        let rows: Vec<f32> = (0..8).map(|row| row as f32).collect();
        let stored = order.apply(rows, &[8]);
        assert_eq!(stored, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }

    proptest! {
        #[test]
        fn undoing_is_the_inverse_both_ways(
            n_heads in 1_usize..6, half in 1_usize..9, n_columns in 1_usize..5,
        ) {
            let shape = [n_heads * half * 2, n_columns];
            let values: Vec<f32> = (0..shape[0] * n_columns).map(|i| i as f32).collect();
            let order = RowOrder::HalvesInterleaved { n_heads };
            prop_assert_eq!(&order.undo(order.apply(values.clone(), &shape), &shape), &values);
            prop_assert_eq!(&order.apply(order.undo(values.clone(), &shape), &shape), &values);
        }
    }
}
