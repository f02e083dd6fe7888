//! Weights filled in parts, compared with the same weights created from f32.

use burn::tensor::bf16;
use tooltune_kernels::embedding::embedding;
use tooltune_kernels::{ComputeDtype, FrozenWeight};

use crate::support::{Numbers, test_device, values};

fn bits(weight: &FrozenWeight) -> Vec<u32> {
    let values = values(&weight.to_tensor());
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_weight_filled_in_parts_equals_one_from_f32() {
    let mut numbers = Numbers::new(91);
    // Less than a part, several parts, and on a GPU several pieces with a last one of odd length.
    for shape in [[1, 1], [7, 33], [300, 2051], [4101, 1025]] {
        let mut floats = numbers.floats(shape[0] * shape[1]);
        // Ties between two bf16, values out of range, and subnormals.
        let special = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::MAX, 1e-40, -0.0];
        let n = special.len().min(floats.len());
        floats[..n].copy_from_slice(&special[..n]);
        let device = test_device();
        let expected = FrozenWeight::new(floats.clone(), shape, ComputeDtype::Bf16, &device);
        let weight = FrozenWeight::from_fill(shape, &device, |start, to| {
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
        assert!(bits(&weight) == bits(&expected), "{shape:?}");
        let ids = [shape[0] as u32 - 1, 0];
        assert_eq!(
            values(&embedding(&weight, &ids)),
            values(&embedding(&expected, &ids))
        );
    }
}

#[test]
fn the_first_failed_part_is_the_error() {
    let shape = [300, 2051];
    let refused = |start: usize, _: &mut [bf16]| if start == 0 { Ok(()) } else { Err(start) };
    let error = FrozenWeight::from_fill(shape, &test_device(), refused).expect_err("a part fails");
    // Independent of which thread runs first.
    assert!((1..300 * 2051).contains(&error));
    let again = FrozenWeight::from_fill(shape, &test_device(), refused);
    assert_eq!(again.expect_err("a part fails"), error);
}
