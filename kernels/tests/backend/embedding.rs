//! Rows of frozen weights, and weights that are filled in parts.

use burn::tensor::{DType, Tensor, TensorData, bf16};
use tooltune_kernels::embedding::{embedding, reference};
use tooltune_kernels::{ComputeDtype, FrozenWeight};

use super::{TestBackend, values};
use crate::numbers::Numbers;

/// The table in its device's format, and as a CPU tensor that was never packed.
pub(crate) fn tables(
    backend: &TestBackend,
    floats: &[f32],
    shape: [usize; 2],
    dtype: ComputeDtype,
) -> (FrozenWeight, Tensor<2>) {
    let data = TensorData::new(floats.to_vec(), shape);
    let dense = Tensor::<2>::from_data(data, &burn::tensor::Device::flex());
    (
        FrozenWeight::new(floats.to_vec(), shape, dtype, &backend.device),
        dense.cast(dtype.dtype()),
    )
}

fn compute_dtype(dtype: DType) -> ComputeDtype {
    match dtype {
        DType::BF16 => ComputeDtype::Bf16,
        _ => ComputeDtype::F32,
    }
}

/// Rows of tables of these shapes equal the rows of the tensors.
pub(crate) fn rows(backend: &TestBackend, shapes: &[[usize; 2]]) {
    let mut numbers = Numbers::new(81);
    for &[v, d] in shapes {
        let floats = numbers.floats(v * d);
        let last = v as u32 - 1;
        let forty: Vec<u32> = (0..40).map(|_| numbers.below(v) as u32).collect();
        for &dtype in backend.dtypes {
            let (table, dense) = tables(backend, &floats, [v, d], compute_dtype(dtype));
            for ids in [&[][..], &[0], &[last], &[last, 0, last, last], &forty] {
                let ours = embedding(&table, ids);
                assert_eq!(ours.dims(), [ids.len(), d]);
                assert_eq!(ours.dtype(), DType::F32);
                let expected = match ids {
                    [] => Vec::new(),
                    ids => values(&reference::embedding(&dense, ids)),
                };
                let name = format!("{v} rows of {d}, {dtype:?}, {ids:?}");
                assert_eq!(values(&ours), expected, "{name}");
            }
        }
    }
}

fn bits(weight: &FrozenWeight) -> Vec<u32> {
    let values = values(&weight.to_tensor());
    values.iter().map(|value| value.to_bits()).collect()
}

/// Weights of these shapes that are filled in parts equal weights from f32.
pub(crate) fn filled_in_parts(backend: &TestBackend, shapes: &[[usize; 2]]) {
    let mut numbers = Numbers::new(91);
    for &shape in shapes {
        let mut floats = numbers.floats(shape[0] * shape[1]);
        // Ties between two bf16, values out of range, and subnormals.
        let special = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::MAX, 1e-40, -0.0];
        let n = special.len().min(floats.len());
        floats[..n].copy_from_slice(&special[..n]);
        let expected =
            FrozenWeight::new(floats.clone(), shape, ComputeDtype::Bf16, &backend.device);
        let weight = FrozenWeight::from_fill(shape, &backend.device, |start, to| {
            for (to, from) in to.iter_mut().zip(&floats[start..]) {
                // Each part is requested once, and is still empty.
                assert_eq!(to.to_bits(), 0);
                *to = bf16::from_f32(*from);
            }
            Ok::<_, ()>(())
        });
        let weight = weight.expect("fill returns no error");
        assert_eq!(weight.dims(), shape);
        assert_eq!(weight.compute_dtype(), ComputeDtype::Bf16);
        assert_eq!(weight.bytes(), expected.bytes(), "{shape:?}");
        let rounded = floats.iter().map(|float| bf16::from_f32(*float).to_f32());
        let rounded: Vec<u32> = rounded.map(f32::to_bits).collect();
        assert!(bits(&weight) == rounded, "{shape:?}");
        assert!(bits(&expected) == rounded, "{shape:?}");
        let ids: Vec<u32> = (0..shape[0] as u32).rev().step_by(97).collect();
        assert_eq!(
            values(&embedding(&weight, &ids)),
            values(&embedding(&expected, &ids))
        );
    }
}
