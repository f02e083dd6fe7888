//! Weights filled in parts, compared with the same weights created from f32.

use burn::tensor::bf16;
use tooltune_kernels::FrozenWeight;

use crate::backend::{embedding, nf4};
use crate::support::{test_device, under_test};

#[test]
fn a_weight_filled_in_parts_equals_one_from_f32() {
    // Less than a part, several parts, and on a GPU several pieces with a last one of odd length.
    let shapes = [[1, 1], [7, 33], [300, 2051], [4101, 1025]];
    embedding::filled_in_parts(&under_test(), &shapes);
}

#[test]
fn weights_in_nf4_have_the_bits_of_the_reference() {
    let under_test = under_test();
    nf4::dequantised_values(&under_test.device, under_test.dtypes, true);
}

#[test]
fn the_first_failed_part_is_the_error() {
    let shape = [300, 2051];
    let refused = |start: usize, _: &mut [bf16]| if start == 0 { Ok(()) } else { Err(start) };
    let error = FrozenWeight::from_fill(shape, &test_device(), refused).expect_err("a part fails");
    // The error does not depend on which thread runs first.
    assert!((1..300 * 2051).contains(&error));
    let again = FrozenWeight::from_fill(shape, &test_device(), refused);
    assert_eq!(again.expect_err("a part fails"), error);
}
