//! Rows of a packed embedding, compared with the same table as a tensor.

use tooltune_kernels::ComputeDtype;
use tooltune_kernels::embedding::{embedding, reference};

use crate::backend::embedding::{self as backend, tables};
use crate::support::{Numbers, refusal, under_test, values};

const BOTH_TYPES: [ComputeDtype; 2] = [ComputeDtype::F32, ComputeDtype::Bf16];

#[test]
fn packed_table_rows_equal_the_tensor_rows() {
    // Fewer, equal and more rows than the columns of a panel; odd and even widths.
    let shapes = [[1, 1], [11, 6], [16, 32], [33, 7], [300, 65]];
    backend::rows(&under_test(), &shapes);
}

#[test]
fn lookup_returns_the_row_of_the_id() {
    for dtype in BOTH_TYPES {
        // Exact in bf16: a hundred rows of three, each with its own value.
        let floats: Vec<f32> = (0..300).map(|i| (i / 3) as f32).collect();
        let (table, _) = tables(&under_test(), &floats, [100, 3], dtype);
        let rows = values(&embedding(&table, &[99, 4, 4, 17]));
        let expected = [99.0, 4.0, 4.0, 17.0].map(|number| [number; 3]);
        assert_eq!(rows, expected.concat());
    }
}

#[test]
fn nan_and_infinity_stay_in_their_rows() {
    let mut numbers = Numbers::new(82);
    let mut floats = numbers.floats(20 * 9);
    (floats[5 * 9 + 2], floats[6 * 9]) = (f32::NAN, f32::NEG_INFINITY);
    for dtype in BOTH_TYPES {
        let (table, dense) = tables(&under_test(), &floats, [20, 9], dtype);
        let ids = [5, 4, 6, 5];
        let ours = values(&embedding(&table, &ids));
        let expected = values(&reference::embedding(&dense, &ids));
        for (i, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
            let is_bad = [2, 3 * 9 + 2].contains(&i);
            assert_eq!(ours.is_nan(), is_bad, "{dtype:?}, number {i}");
            assert!(is_bad || ours == expected, "{dtype:?}, number {i}");
        }
        assert_eq!(ours[2 * 9], f32::NEG_INFINITY, "{dtype:?}");
    }
}

#[test]
fn an_id_outside_the_table_is_rejected() {
    let (table, _) = tables(&under_test(), &[0.5; 12], [4, 3], ComputeDtype::F32);
    let message = refusal(|| embedding(&table, &[4]));
    assert!(message.contains("below the vocabulary size"), "{message}");
}
