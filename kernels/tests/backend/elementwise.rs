//! Operations that work row by row or element by element.

use burn::tensor::{DType, Tensor};
use tooltune_kernels::head_norm::{self, head_norm};
use tooltune_kernels::rms_norm::{self, rms_norm};
use tooltune_kernels::rope::{self, rope};
use tooltune_kernels::select_rows::{self, select_rows};
use tooltune_kernels::{RopeTable, RowIndices, SpanNorm};

use super::{TestBackend, compare, differentiate, on_cpu};
use crate::numbers::Numbers;

pub(crate) type Norm = fn(Tensor<2>, &Tensor<1>, f64, DType) -> Tensor<2>;
pub(crate) type Gate = fn(Tensor<2>) -> Tensor<2>;

/// RMSNorm of `[n, d]`, with a result in `output`.
pub(crate) fn compare_rms_norm(
    backend: &TestBackend,
    numbers: &mut Numbers,
    [n, d]: [usize; 2],
    output: DType,
) {
    let x = numbers.cpu_tensor([n, d]).mul_scalar(2.0);
    let weight = numbers.cpu_tensor([d]);
    let dy = numbers.cpu_tensor([n, d]).cast(output);
    // The derivative of a norm of one element is eps / (x² + eps)^1.5. With a small epsilon it is
    // only rounding error.
    let eps = if d == 1 { 1.0 } else { 1e-5 };
    let run = |norm: Norm, x: Tensor<2>, weight: &Tensor<1>| norm(x, weight, eps, output);
    let placed = backend.place(&weight);
    compare(
        backend,
        &format!("{n} {d} {output:?}"),
        (&x, &dy),
        &|x| run(rms_norm, x, &placed),
        &|x| run(rms_norm::reference::rms_norm, x, &weight),
    );
}

pub(crate) fn rms_norms(backend: &TestBackend, shapes: &[[usize; 2]]) {
    let mut numbers = Numbers::new(31);
    for &output in backend.dtypes {
        for &shape in shapes {
            compare_rms_norm(backend, &mut numbers, shape, output);
        }
    }
}

/// Gates of `[n, 2 f]`, with values up to `factor`.
pub(crate) fn gates(
    backend: &TestBackend,
    [ours, reference]: [Gate; 2],
    shapes: &[[usize; 2]],
    factor: f64,
) {
    let mut numbers = Numbers::new(32);
    for &dtype in backend.dtypes {
        for &[n, f] in shapes {
            let gate_up = numbers
                .cpu_tensor([n, 2 * f])
                .mul_scalar(factor)
                .cast(dtype);
            let dy = numbers.cpu_tensor([n, f]).cast(dtype);
            let name = format!("{n} {f} {dtype:?}");
            compare(backend, &name, (&gate_up, &dy), &ours, &reference);
        }
    }
}

/// Norms of `[n, heads, c]` by spans of these lengths; `more` are cases for one backend.
pub(crate) fn head_norms(backend: &TestBackend, more: &[([usize; 3], Vec<usize>)]) {
    let mut numbers = Numbers::new(39);
    let common = [
        ([1, 1, 2], vec![2]),
        ([7, 8, 24], vec![24; 6]),
        ([50, 8, 16], vec![64, 32]),
        ([3, 5, 70], vec![70, 140]),
    ];
    for &dtype in backend.dtypes {
        for ([n, heads, c], spans) in common.iter().chain(more) {
            let (shape, eps) = ([*n, *heads, *c], 1e-6);
            let weight = numbers.cpu_tensor([spans.iter().sum()]).add_scalar(1.0);
            let norm = |weight| SpanNorm {
                weight,
                spans: spans.clone().into(),
                eps,
            };
            let (placed, norm) = (norm(backend.place(&weight)), norm(weight));
            let x = numbers.cpu_tensor(shape).mul_scalar(3.0).cast(dtype);
            let dy = numbers.cpu_tensor(shape).cast(dtype);
            let name = format!("{shape:?} {spans:?} {dtype:?}");
            compare(
                backend,
                &name,
                (&x, &dy),
                &|x| head_norm(x, &placed),
                &|x| head_norm::reference::head_norm(x, &norm),
            );
        }
    }
}

/// Angles of `n` random positions for `c` columns, on the device under test and on the CPU.
pub(crate) fn tables(
    backend: &TestBackend,
    numbers: &mut Numbers,
    n: usize,
    c: usize,
) -> [RopeTable; 2] {
    let positions: Vec<u32> = (0..n).map(|_| numbers.below(5000) as u32).collect();
    let frequencies: Vec<f64> = (0..c / 2)
        .map(|i| 10_000f64.powf(-2.0 * i as f64 / c as f64))
        .collect();
    let table = RopeTable::new(&positions, &frequencies, 1.0, &burn::tensor::Device::flex());
    let placed = RopeTable {
        cos: backend.place(&table.cos),
        sin: backend.place(&table.sin),
    };
    [placed, table]
}

/// RoPE of the first `rotated_heads` of `[n, heads, c]`, in the first `columns` of each.
pub(crate) fn compare_rope(
    backend: &TestBackend,
    numbers: &mut Numbers,
    [n, heads, c]: [usize; 3],
    [columns, rotated_heads]: [usize; 2],
    dtype: DType,
) {
    let [placed, table] = tables(backend, numbers, n, columns);
    let [x, dy] = [0; 2].map(|_| numbers.cpu_tensor([n, heads, c]).cast(dtype));
    compare(
        backend,
        &format!("{columns} of {c}, {rotated_heads} of {heads}, {n} {dtype:?}"),
        (&x, &dy),
        &|x| rope(x, &placed, rotated_heads),
        &|x| rope::reference::rope(x, &table, rotated_heads),
    );
}

/// RoPE of `[n, heads, c]`, with the columns and heads that are rotated.
pub(crate) fn ropes(backend: &TestBackend, cases: &[([usize; 3], [usize; 2])]) {
    let mut numbers = Numbers::new(33);
    for &dtype in backend.dtypes {
        for &(shape, rotated) in cases {
            compare_rope(backend, &mut numbers, shape, rotated, dtype);
        }
    }
}

/// Selects rows of `[n, d]`; the results must equal the reference bit for bit.
pub(crate) fn selected_rows(backend: &TestBackend, cases: &[([usize; 2], Vec<u32>)]) {
    let mut numbers = Numbers::new(91);
    for &dtype in backend.dtypes {
        for (shape, rows) in cases {
            let x = numbers.cpu_tensor(*shape).cast(dtype);
            let dy = numbers.cpu_tensor([rows.len(), shape[1]]).cast(dtype);
            let rows = RowIndices::new(rows);
            let name = format!("{shape:?} {dtype:?}");
            let placed = (&backend.place(&x), &backend.place(&dy));
            let ours = differentiate(&name, placed, &|x| select_rows(x, &rows));
            let inputs = (&on_cpu(&x), &on_cpu(&dy));
            let on_cpu = differentiate(&name, inputs, &|x| select_rows(x, &rows));
            let expected = differentiate(&name, inputs, &|x| {
                select_rows::reference::select_rows(x, &rows)
            });
            assert_eq!(ours, expected, "{name}");
            assert_eq!(on_cpu, expected, "{name}");
        }
    }
}
