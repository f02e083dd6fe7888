//! Weights in NF4, compared with the same values in a dense weight.

use burn::tensor::{DType, Tensor, bf16};
use tooltune_kernels::frozen_weight::quantised::{BLOCK, NESTED_BLOCK, Nf4, Nf4Error, reference};
use tooltune_kernels::lora_linear::{LinearExtras, lora_linear};
use tooltune_kernels::{ComputeDtype, FrozenWeight, StackedLinear};

use crate::lora_linear::{Case, KINDS, Shape, case, run};
use crate::support::{Numbers, on_threads, test_device, values};

/// Random codes with absmax values of either kind.
pub(crate) fn random_nf4(
    numbers: &mut Numbers,
    shape: [usize; 2],
    is_nested: bool,
    dtype: DType,
) -> Nf4 {
    let n = shape[0] * shape[1];
    let n_blocks = n.div_ceil(BLOCK);
    let mut bytes = |n: usize| -> Vec<u8> {
        let floats = numbers.floats(n);
        floats.iter().map(|x| (x.to_bits() >> 3) as u8).collect()
    };
    let (codes, indices) = (bytes(n.div_ceil(2)), bytes(n_blocks));
    // Sorted and not symmetric, as bitsandbytes' map.
    let map = std::array::from_fn(|i| (i as f32 - 127.0) / 128.0);
    let n_scales = match is_nested {
        true => n_blocks.div_ceil(NESTED_BLOCK),
        false => n_blocks,
    };
    let scales = numbers.floats(n_scales);
    Nf4 {
        shape,
        codes,
        absmax8: if is_nested { indices } else { Vec::new() },
        absmax32: scales.iter().map(|x| 0.01 * x.abs()).collect(),
        offset: if is_nested { 0.023 } else { 0.0 },
        map: Box::new(map),
        dtype,
    }
}

fn bits(weight: &FrozenWeight) -> Vec<u32> {
    values(&weight.to_tensor())
        .into_iter()
        .map(f32::to_bits)
        .collect()
}

/// The shapes of stacked matrices, which have the same number of columns.
const STACKS: [(&[usize], usize); 8] = [
    // Whole panels, and matrices that share a panel.
    (&[576, 192, 192], 576),
    (&[32], 64),
    (&[40, 31, 9], 128),
    (&[1], 192),
    // Blocks that cross rows, and odd numbers of values.
    (&[33], 33),
    (&[7, 5], 100),
    (&[16, 8], 24),
    (&[300, 212], 320),
];

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn stack(
    numbers: &mut Numbers,
    (rows, columns): (&[usize], usize),
    is_nested: bool,
    dtype: DType,
) -> Vec<Nf4> {
    let part = |&n: &usize| random_nf4(numbers, [n, columns], is_nested, dtype);
    rows.iter().map(part).collect()
}

#[test]
fn values_are_those_of_the_reference_bit_for_bit() {
    let mut numbers = Numbers::new(41);
    for shape in STACKS {
        for dtype in DTYPES {
            for is_nested in [false, true] {
                let parts = stack(&mut numbers, shape, is_nested, dtype);
                let dims = [shape.0.iter().sum(), shape.1];
                for compute in [ComputeDtype::F32, ComputeDtype::Bf16] {
                    let weight =
                        FrozenWeight::from_nf4(parts.clone(), dims, compute, &test_device());
                    let weight = weight.unwrap();
                    let expected = reference::dequantised_stack(&parts, compute.dtype());
                    let expected: Vec<u32> = expected.iter().map(|x| x.to_bits()).collect();
                    let what = format!("{shape:?}, {dtype:?}, {is_nested}, {compute:?}");
                    assert!(bits(&weight) == expected, "{what}");
                    assert!(bits(&weight.dequantised()) == expected, "{what}");
                }
            }
        }
    }
}

/// The instruction that rounds to bf16 flushes subnormal values, and f32 products of such values
/// must also be exact.
#[test]
fn subnormal_values_are_not_flushed() {
    let mut numbers = Numbers::new(42);
    let mut matrix = random_nf4(&mut numbers, [64, 128], false, DType::BF16);
    for (block, absmax) in matrix.absmax32.iter_mut().enumerate() {
        *absmax = [1e-38, 0.0, 3e-40, 1.0][block % 4];
    }
    for compute in [ComputeDtype::F32, ComputeDtype::Bf16] {
        let parts = vec![matrix.clone()];
        let weight = FrozenWeight::from_nf4(parts, [64, 128], compute, &test_device()).unwrap();
        let expected = reference::dequantised(&matrix, DType::BF16);
        let subnormal = |x: &f32| *x != 0.0 && !x.is_normal();
        assert!(expected.iter().any(subnormal));
        let expected: Vec<u32> = expected.iter().map(|x| x.to_bits()).collect();
        assert!(bits(&weight) == expected, "{compute:?}");
    }
}

/// The case with its weight in NF4, and the same case with the dequantised weight.
fn quantised_case(numbers: &mut Numbers, mut case: Case, shape: Shape<'_>) -> [Case; 2] {
    let compute = case.linear.weight.compute_dtype();
    let parts = stack(numbers, (shape.outputs, shape.inputs), true, DType::BF16);
    let dims = case.linear.weight.dims();
    let weight = FrozenWeight::from_nf4(parts, dims, compute, &test_device()).unwrap();
    let mut dense = case.clone();
    dense.linear.weight = weight.dequantised();
    case.linear.weight = weight;
    [case, dense]
}

/// Invariant: A quantised weight has the results of its dequantised values, bit for bit.
#[test]
fn layers_compute_as_with_the_dequantised_weight() {
    let mut numbers = Numbers::new(43);
    let layers: [(&[usize], usize, &[usize]); 4] = [
        (&[576, 192, 192], 576, &[8, 0, 8]),
        (&[40, 31], 128, &[16, 5]),
        (&[65], 33, &[3]),
        (&[96], 1536, &[0]),
    ];
    for (outputs, inputs, ranks) in layers {
        // Decoding splits panels among threads up to 48 rows.
        for n in [1, 4, 5, 17, 48, 49, 130] {
            let shape = Shape::new(n, inputs, outputs, ranks);
            for kind in KINDS {
                for dtype in [ComputeDtype::F32, ComputeDtype::Bf16] {
                    let case = case(&mut numbers, shape, kind, dtype);
                    let [quantised, dense] = quantised_case(&mut numbers, case, shape);
                    let is_same = run(lora_linear, &quantised) == run(lora_linear, &dense);
                    assert!(is_same, "{shape:?}, {kind:?}, {dtype:?}");
                }
            }
        }
    }
}

/// The output of a layer without gradients.
fn output(case: &Case) -> Vec<f32> {
    let extras = LinearExtras {
        residual: case.residual.clone(),
        dropout: case.dropout.clone(),
        transform: case.transform.clone(),
        ..LinearExtras::default()
    };
    values(&lora_linear(case.x.clone(), &case.linear, extras))
}

fn rms(values: impl Iterator<Item = f64>) -> f64 {
    let squares: Vec<f64> = values.map(|x| x * x).collect();
    (squares.iter().sum::<f64>() / squares.len() as f64).sqrt()
}

/// A few rows of bf16 without gradients are multiplied with codes, whose values are rounded to bf16
/// before instead of after their multiplication with the absmax. Each weight then differs by at most
/// two roundings of 2⁻⁹ on average, which are random, and the output by one more.
#[test]
fn few_rows_without_gradients_are_near_those_of_the_dequantised_weight() {
    let mut numbers = Numbers::new(48);
    let layers: [(&[usize], usize, &[usize]); 3] = [
        (&[576, 192, 192], 576, &[8, 0, 8]),
        (&[40, 31], 128, &[16, 5]),
        (&[96], 1536, &[0]),
    ];
    for (outputs, inputs, ranks) in layers {
        for n in 1..=5 {
            let shape = Shape::new(n, inputs, outputs, ranks);
            for kind in KINDS {
                for dtype in [ComputeDtype::F32, ComputeDtype::Bf16] {
                    let case = case(&mut numbers, shape, kind, dtype);
                    let [quantised, dense] = quantised_case(&mut numbers, case, shape);
                    let [ours, expected] = [quantised, dense].map(|case| output(&case));
                    if dtype == ComputeDtype::F32 || n == 5 {
                        assert!(ours == expected, "{shape:?}, {kind:?}, {dtype:?}");
                        continue;
                    }
                    let pairs = ours.iter().zip(&expected);
                    let difference = rms(pairs.map(|(a, b)| f64::from(a - b)));
                    let size = rms(expected.iter().map(|x| f64::from(*x)));
                    let limit = 3.0 * 2.0_f64.powi(-9) * size;
                    assert!(
                        difference <= limit,
                        "{shape:?}, {kind:?}: {difference} {limit}"
                    );
                }
            }
        }
    }
}

/// The products with codes are as near to the values of NF4, without rounding to bf16, as the products
/// with the dequantised weight.
#[test]
fn few_rows_are_as_exact_as_with_the_dequantised_weight() {
    let mut numbers = Numbers::new(49);
    for (n, outputs, inputs) in [(1, 320, 576), (4, 96, 4096), (3, 33, 64)] {
        let matrix = random_nf4(&mut numbers, [outputs, inputs], true, DType::BF16);
        let shape = [outputs, inputs];
        let compute = ComputeDtype::Bf16;
        let weight = FrozenWeight::from_nf4(vec![matrix.clone()], shape, compute, &test_device());
        let weight = weight.unwrap();
        let unrounded = Nf4 {
            dtype: DType::F32,
            ..matrix
        };
        let exact = reference::dequantised(&unrounded, DType::F32);
        let x = numbers.tensor([n, inputs]).cast(DType::BF16);
        let x_values = values(&x);
        let products = x_values.chunks(inputs).flat_map(|x| {
            exact.chunks(inputs).map(move |row| -> f64 {
                let pairs = row.iter().zip(x);
                pairs.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
            })
        });
        let products: Vec<f64> = products.collect();
        let error = |weight: FrozenWeight| {
            // The residual makes the output f32.
            let residual = Some(Tensor::zeros([n, outputs], &test_device()));
            let linear = StackedLinear {
                weight,
                bias: None,
                out_features: [outputs].into(),
                adapter: None,
            };
            let extras = LinearExtras {
                residual,
                ..LinearExtras::default()
            };
            let y = values(&lora_linear(x.clone(), &linear, extras));
            rms(y
                .iter()
                .zip(&products)
                .map(|(y, exact)| f64::from(*y) - exact))
        };
        let dense = error(weight.dequantised());
        let ours = error(weight);
        assert!(
            ours > 0.0 && ours <= 1.3 * dense,
            "{n} {shape:?}: {ours} {dense}"
        );
    }
}

#[test]
fn threads_change_no_bit_of_quantised_layers() {
    let mut numbers = Numbers::new(44);
    for n in [1, 16, 60] {
        let shape = Shape::new(n, 576, &[576, 192], &[8, 8]);
        for kind in KINDS {
            let case = case(&mut numbers, shape, kind, ComputeDtype::Bf16);
            let [case, _] = quantised_case(&mut numbers, case, shape);
            let one = on_threads(1, || run(lora_linear, &case));
            for threads in [2, 3, 5] {
                let is_same = one == on_threads(threads, || run(lora_linear, &case));
                assert!(is_same, "{n}, {kind:?}, {threads} threads");
                let few = on_threads(1, || output(&case)) == on_threads(threads, || output(&case));
                assert!(few, "{n}, {kind:?}, {threads} threads, without gradients");
            }
        }
    }
}

#[test]
fn codes_take_less_than_a_third_of_bf16() {
    let mut numbers = Numbers::new(45);
    let matrix = random_nf4(&mut numbers, [512, 1024], true, DType::BF16);
    let weight = |compute| {
        let parts = vec![matrix.clone()];
        FrozenWeight::from_nf4(parts, [512, 1024], compute, &test_device()).unwrap()
    };
    let quantised = weight(ComputeDtype::Bf16);
    assert!(quantised.is_quantised());
    // 4.127 bits per value.
    let bits = 8.0 * quantised.bytes() as f64 / (512.0 * 1024.0);
    assert!((4.12..4.14).contains(&bits), "{bits}");
}

#[test]
fn wrong_parts_are_refused() {
    let mut numbers = Numbers::new(46);
    let matrix = random_nf4(&mut numbers, [6, 70], true, DType::F32);
    let refused = |change: &dyn Fn(&mut Nf4), shape: [usize; 2]| {
        let mut matrix = matrix.clone();
        change(&mut matrix);
        FrozenWeight::from_nf4(vec![matrix], shape, ComputeDtype::F32, &test_device()).err()
    };
    let shape = [6, 70];
    assert_eq!(refused(&|_| {}, shape), None);
    let length = |part, expected, found| {
        Some(Nf4Error::Length {
            shape,
            part,
            expected,
            found,
        })
    };
    let codes = refused(&|matrix| matrix.codes.truncate(209), shape);
    assert_eq!(codes, length("bytes of codes", 210, 209));
    let indices = refused(&|matrix| matrix.absmax8.push(1), shape);
    assert_eq!(indices, length("absmax indices", 7, 8));
    let scales = refused(&|matrix| matrix.absmax32.push(1.0), shape);
    assert_eq!(scales, length("scales", 1, 2));
    let dtype = refused(&|matrix| matrix.dtype = DType::F64, shape);
    assert_eq!(dtype, Some(Nf4Error::Dtype(DType::F64)));
    let infinite = refused(&|matrix| matrix.absmax32[0] = f32::INFINITY, shape);
    assert!(matches!(infinite, Some(Nf4Error::NotFinite { .. })));
    let stack = refused(&|_| {}, [7, 70]);
    assert!(matches!(stack, Some(Nf4Error::Stack { .. })));
}

#[test]
fn heads_and_tables_dequantise() {
    let mut numbers = Numbers::new(47);
    let matrix = random_nf4(&mut numbers, [96, 64], true, DType::BF16);
    let weight = FrozenWeight::from_nf4(vec![matrix], [96, 64], ComputeDtype::Bf16, &test_device());
    let weight = weight.unwrap();
    let dense = weight.dequantised();
    let rows = [95, 0, 7];
    let embedding =
        |table: &FrozenWeight| values(&tooltune_kernels::embedding::embedding(table, &rows));
    assert_eq!(embedding(&weight), embedding(&dense));
    let hidden = numbers.tensor([5, 64]).cast(DType::BF16);
    let logits = |head: &FrozenWeight| {
        values(&tooltune_kernels::linear_cross_entropy::logits(
            hidden.clone(),
            head,
        ))
    };
    assert_eq!(logits(&weight), logits(&dense));
    assert!(
        logits(&dense)
            .iter()
            .all(|x| bf16::from_f32(*x).is_finite())
    );
}
