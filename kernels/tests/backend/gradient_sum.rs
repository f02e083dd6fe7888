//! Exact sums of gradients: the same bits for every order and every distribution.

use burn::tensor::{Tensor, TensorData};
use tooltune_kernels::gradient_sum::{GradientSum, LIMIT, reference};

use super::{TestBackend, values};
use crate::numbers::Numbers;

fn bits(x: &Tensor<1>) -> Vec<u32> {
    values(x).iter().map(|value| value.to_bits()).collect()
}

/// The values of a part as matrices.
fn matrices(part: &Tensor<1>) -> Vec<Tensor<2>> {
    let [n] = part.dims();
    let sizes = if n < 3 {
        vec![n]
    } else {
        vec![1, n / 3, n - 1 - n / 3]
    };
    let mut start = 0;
    let matrix = |size: usize| {
        let values = part.clone().narrow(0, start, size);
        start += size;
        values.reshape([1, size])
    };
    sizes.into_iter().map(matrix).collect()
}

/// The sum of `parts`, computed by processes that have the parts of `shares`.
fn sum_of(backend: &TestBackend, parts: &[Tensor<1>], shares: &[Vec<usize>]) -> Tensor<1> {
    let like = backend.place(&parts[0]);
    let n_values = like.dims()[0];
    let sum_of_share = |share: &Vec<usize>| {
        let mut sum = GradientSum::new(n_values, parts.len());
        for &i in share {
            let part = backend.place(&parts[i]);
            match i % 2 {
                0 => sum.add(part),
                _ => sum.add_matrices(matrices(&part)),
            }
        }
        sum
    };
    if let [share] = shares {
        return sum_of_share(share)
            .finish::<()>(&like, None)
            .expect("no other process");
    }
    let mut totals: Vec<i64> = Vec::new();
    for share in shares {
        // The result of this process alone is discarded; its integers are added to the total.
        let mut add_all = |sums: &mut [i64]| {
            totals.resize(sums.len(), 0);
            totals
                .iter_mut()
                .zip(sums)
                .for_each(|(total, sum)| *total += *sum);
            Ok::<(), ()>(())
        };
        let partial = sum_of_share(share).finish(&like, Some(&mut add_all));
        partial.expect("the sum does not fail");
    }
    let mut take = |sums: &mut [i64]| {
        sums.copy_from_slice(&totals);
        Ok::<(), ()>(())
    };
    let empty = GradientSum::new(n_values, parts.len());
    empty
        .finish(&like, Some(&mut take))
        .expect("the sum does not fail")
}

/// Sums of parts of different magnitudes equal the reference, bit for bit.
pub(crate) fn sums(backend: &TestBackend, sizes: &[usize]) {
    let mut numbers = Numbers::new(91);
    for &n in sizes {
        for n_parts in [1, 2, 3, 8, 33] {
            let parts: Vec<Tensor<1>> = (0..n_parts)
                .map(|i| numbers.cpu_tensor([n]).mul_scalar(10.0_f64.powi(-(i % 9))))
                .collect();
            let expected = bits(&reference::sum(&parts));
            let all: Vec<usize> = (0..parts.len()).collect();
            let backwards: Vec<usize> = all.iter().rev().copied().collect();
            let (odd, even): (Vec<usize>, Vec<usize>) = all.iter().partition(|i| *i % 2 == 1);
            for shares in [
                vec![all.clone()],
                vec![backwards],
                vec![odd, even],
                vec![Vec::new(), all.clone()],
                all.iter().map(|&i| vec![i]).collect(),
            ] {
                let ours = bits(&sum_of(backend, &parts, &shares));
                assert!(ours == expected, "{n} values, {n_parts} parts, {shares:?}");
            }
        }
    }
}

/// A value at or above the limit, or NaN, makes every value NaN, whichever process has it.
pub(crate) fn values_out_of_range(backend: &TestBackend) {
    let near = LIMIT.next_down();
    for (value, is_nan) in [
        (near, false),
        (-near, false),
        (LIMIT, true),
        (-LIMIT, true),
        (f32::INFINITY, true),
        (f32::NAN, true),
    ] {
        let part = |values: [f32; 3]| {
            let device = burn::tensor::Device::flex();
            Tensor::<1>::from_data(TensorData::new(values.to_vec(), [3]), &device)
        };
        let parts = [part([0.5, 1.0, 2.0]), part([0.5, value, 0.0])];
        for shares in [
            vec![vec![0, 1]],
            vec![vec![0], vec![1]],
            vec![vec![1], vec![0]],
        ] {
            let ours = sum_of(backend, &parts, &shares);
            let expected = reference::sum(&parts);
            assert_eq!(bits(&ours), bits(&expected), "{value} {shares:?}");
            assert_eq!(values(&ours)[0].is_nan(), is_nan, "{value} {shares:?}");
        }
    }
}
