//! Weights in NF4 against values that are dequantised one at a time: the same bits.

use burn::tensor::{DType, Device};
use tooltune_kernels::frozen_weight::quantised::{BLOCK, NESTED_BLOCK, Nf4, reference};
use tooltune_kernels::{ComputeDtype, FrozenWeight};

use crate::numbers::Numbers;

/// A random matrix in NF4.
pub(crate) struct RandomNf4 {
    /// Rows and columns.
    pub(crate) shape: [usize; 2],
    /// Whether absmax values are indices into a map.
    pub(crate) is_nested: bool,
    /// Dtype before quantisation.
    pub(crate) dtype: DType,
}

impl RandomNf4 {
    pub(crate) fn matrix(&self, numbers: &mut Numbers) -> Nf4 {
        let n = self.shape[0] * self.shape[1];
        let n_blocks = n.div_ceil(BLOCK);
        let mut bytes = |len: usize| (0..len).map(|_| numbers.below(256) as u8).collect();
        let codes = bytes(n.div_ceil(2));
        let absmax8: Vec<u8> = match self.is_nested {
            true => bytes(n_blocks),
            false => Vec::new(),
        };
        let n_scales = match self.is_nested {
            true => n_blocks.div_ceil(NESTED_BLOCK),
            false => n_blocks,
        };
        let absmax32 = numbers.floats(n_scales);
        let map = numbers.floats(256);
        Nf4 {
            shape: self.shape,
            codes,
            absmax8,
            absmax32,
            offset: numbers.floats(1)[0],
            map: Box::new(map.try_into().expect("256 values")),
            dtype: self.dtype,
        }
    }
}

/// Random matrices, one below the other.
pub(crate) fn stacked(
    numbers: &mut Numbers,
    rows: &[usize],
    columns: usize,
    is_nested: bool,
    dtype: DType,
) -> Vec<Nf4> {
    let part = |&rows: &usize| {
        let shape = [rows, columns];
        let random = RandomNf4 {
            shape,
            is_nested,
            dtype,
        };
        random.matrix(numbers)
    };
    let mut parts: Vec<Nf4> = rows.iter().map(part).collect();
    // As in a checkpoint, all matrices have one map.
    let map = parts[0].map.clone();
    parts.iter_mut().for_each(|part| part.map = map.clone());
    parts
}

/// Compares stacks with whole and short nested blocks, blocks that cross rows, an odd number of
/// values, absmax values of both kinds, and matrices with maps or dtypes of their own. Kernels round
/// to f16 and bf16 if `rounds` is set.
pub(crate) fn dequantised_values(device: &Device, dtypes: &[DType], rounds: bool) {
    let mut numbers = Numbers::new(57);
    let of = |dtype| if rounds { dtype } else { DType::F32 };
    let (bf16, f16, f32) = (of(DType::BF16), of(DType::F16), DType::F32);
    let mut stacks: Vec<Vec<Nf4>> = [
        ([64, 16, 16].as_slice(), 256, true, bf16),
        (&[300, 7], 130, true, f32),
        (&[5], 64, true, f16),
        (&[3, 1, 2], 33, true, f32),
        (&[70], 1000, false, bf16),
        (&[1], 1, false, f16),
    ]
    .into_iter()
    .map(|(rows, columns, is_nested, dtype)| stacked(&mut numbers, rows, columns, is_nested, dtype))
    .collect();
    let mixed = [(true, f16), (true, f32), (false, bf16)].map(|(is_nested, dtype)| {
        let shape = [40, 72];
        let random = RandomNf4 {
            shape,
            is_nested,
            dtype,
        };
        random.matrix(&mut numbers)
    });
    stacks.push(mixed.to_vec());
    for parts in stacks {
        let rows = parts.iter().map(|part| part.shape[0]).sum();
        let shape = [rows, parts[0].shape[1]];
        for &dtype in dtypes {
            let compute = match dtype {
                DType::F32 => ComputeDtype::F32,
                _ => ComputeDtype::Bf16,
            };
            let weight = FrozenWeight::from_nf4(parts.clone(), shape, compute, device);
            let weight = weight.expect("the parts are valid");
            assert!(weight.is_quantised());
            assert_eq!((weight.dims(), weight.compute_dtype()), (shape, compute));
            let expected = reference::dequantised_stack(&parts, dtype);
            let dense = weight.dequantised();
            assert!(!dense.is_quantised());
            for (name, tensor) in [("weight", weight.to_tensor()), ("dense", dense.to_tensor())] {
                let ours: Vec<f32> = tensor.into_data().iter::<f32>().collect();
                let is_same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
                let n_same = ours
                    .iter()
                    .zip(&expected)
                    .filter(|pair| is_same(*pair))
                    .count();
                assert_eq!(
                    (ours.len(), n_same),
                    (expected.len(), expected.len()),
                    "{name} of {shape:?}, {dtype:?}"
                );
            }
        }
    }
}
