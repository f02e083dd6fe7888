//! Weights that are filled in parts beside the same weights made of f32.

use burn::tensor::bf16;
use tooltune_kernels::embedding::embedding;
use tooltune_kernels::{ComputeDtype, FrozenWeight};

use crate::support::{Numbers, test_device, values};

fn bits(weight: &FrozenWeight) -> Vec<u32> {
    let values = values(&weight.to_tensor());
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_weight_filled_in_parts_is_the_one_made_of_f32() {
    let mut numbers = Numbers::new(91);
    // Less than a part, several parts, and on a GPU several pieces with a last one of odd length.
    for shape in [[1, 1], [7, 33], [300, 2051], [4101, 1025]] {
        let mut floats = numbers.floats(shape[0] * shape[1]);
        // Between two bf16, of which one is even; beyond the range; subnormal.
        let special = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::MAX, 1e-40, -0.0];
        let n = special.len().min(floats.len());
        floats[..n].copy_from_slice(&special[..n]);
        let device = test_device();
        let expected = FrozenWeight::new(floats.clone(), shape, ComputeDtype::Bf16, &device);
        let filled = FrozenWeight::filled(shape, &device, |start, to| {
            for (to, from) in to.iter_mut().zip(&floats[start..]) {
                // A part is not asked for twice, and holds nothing yet.
                assert_eq!(to.to_bits(), 0);
                *to = bf16::from_f32(*from);
            }
            Ok::<_, ()>(())
        });
        let filled = filled.expect("nothing refuses");
        assert_eq!(filled.dims(), shape);
        assert_eq!(filled.compute_dtype(), ComputeDtype::Bf16);
        assert_eq!(filled.bytes(), expected.bytes(), "{shape:?}");
        assert!(bits(&filled) == bits(&expected), "{shape:?}");
        let ids = [shape[0] as u32 - 1, 0];
        assert_eq!(
            values(&embedding(&filled, &ids)),
            values(&embedding(&expected, &ids))
        );
    }
}

#[test]
fn the_first_part_that_cannot_be_filled_is_the_error() {
    let shape = [300, 2051];
    let refused = |start: usize, _: &mut [bf16]| if start == 0 { Ok(()) } else { Err(start) };
    let error =
        FrozenWeight::filled(shape, &test_device(), refused).expect_err("a part is refused");
    // Whatever thread comes first.
    assert!((1..300 * 2051).contains(&error));
    let again = FrozenWeight::filled(shape, &test_device(), refused);
    assert_eq!(again.expect_err("a part is refused"), error);
}
