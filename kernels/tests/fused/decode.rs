//! Attention of new tokens to a cache, and appending to the cache.

use burn::tensor::{DType, Device, Tensor};
use tooltune_kernels::attention::{Columns, Queries, append, decode, empty_cache, reference};

use crate::backend::attention as backend;
use crate::support::{Numbers, assert_near_in, on_threads, under_test, values};

#[test]
fn rows_that_start_at_different_columns_match_the_reference() {
    backend::decoding(
        &under_test(),
        &[
            [1, 1, 1, 2],
            [1, 9, 3, 64],
            [16, 9, 3, 64],
            [3, 32, 8, 16],
            [2, 14, 2, 64],
            [2, 40, 1, 8],
            [2, 2, 1, 96],
            [1, 6, 2, 5],
        ],
        &[[1, 1], [50, 50], [400, 390], [70, 13]],
    );
}

/// Invariant: The number of threads does not change a bit of a result.
#[test]
fn results_are_bit_identical_for_any_number_of_threads() {
    let mut numbers = Numbers::new(52);
    // Work of one thread, heads shared by threads, and pieces of a few heads.
    for (rows, c, end) in [(5, 16, 89), (5, 64, 600), (1, 64, 900)] {
        let qkv = numbers.tensor([rows, 10, c]);
        let (keys, cached) = (
            numbers.tensor([rows, 2, 900, c]),
            numbers.tensor([rows, 2, 900, c]),
        );
        let columns = Columns {
            starts: &[0, 3, 9, 80, 88][..rows],
            end,
        };
        let run = |threads| {
            on_threads(threads, || {
                values(&decode(qkv.clone(), 6, &keys, &cached, columns))
            })
        };
        assert!(run(1) == run(2), "{rows} rows to {end} columns");
    }
}

#[test]
fn another_score_scale_matches_the_reference() {
    let mut numbers = Numbers::new(55);
    let qkv = numbers.tensor([3, 8, 16]);
    let [keys, cached] = [(); 2].map(|()| numbers.tensor([3, 2, 40, 16]));
    let columns = Columns {
        starts: &[0, 7, 30],
        end: 33,
    };
    let scaled = |scale| Queries {
        heads: 4,
        scale: Some(scale),
    };
    let ours = values(&decode(qkv.clone(), scaled(0.7), &keys, &cached, columns));
    let theirs = reference::decode(qkv.clone(), scaled(0.7), &keys, &cached, columns);
    assert_near_in(DType::F32, "a scale", &ours, &values(&theirs));
    let usual = values(&decode(qkv.clone(), 4, &keys, &cached, columns));
    assert_eq!(
        usual,
        values(&decode(qkv, scaled(0.25), &keys, &cached, columns))
    );
}

#[test]
fn nan_stays_in_its_row() {
    let mut numbers = Numbers::new(53);
    let qkv = numbers.tensor([3, 4, 8]);
    let cached = numbers.tensor([3, 1, 20, 8]);
    let columns = Columns {
        starts: &[0, 0, 5],
        end: 20,
    };
    for (row, column, seen) in [(1, 19, true), (2, 4, false)] {
        let token = [row..row + 1, 0..1, column..column + 1, 0..1];
        let poisoned = cached.clone().slice_fill(token, f32::NAN);
        for (keys, cached) in [(&poisoned, &cached), (&cached, &poisoned)] {
            for decode in [decode, reference::decode] {
                let y = values(&decode(qkv.clone(), 2, keys, cached, columns));
                for (i, row_values) in y.chunks(16).enumerate() {
                    let nan = row_values.iter().any(|v| v.is_nan());
                    assert_eq!(nan, seen && i == row);
                }
            }
        }
    }
}

#[test]
fn appending_writes_only_one_column() {
    backend::appending(&under_test(), &[[3, 4, 2, 6]]);
}

#[test]
fn appending_to_an_unshared_cache_copies_nothing() {
    // Only on the CPU: a tensor on another device does not expose its address.
    let cpu = Device::flex();
    let mut numbers = Numbers::new(55);
    let qkv = numbers.tensor([2, 4, 8]).to_device(&cpu);
    let cache: Tensor<4> = numbers.tensor([2, 1, 50, 8]).to_device(&cpu);
    let address = |cache: &Tensor<4>| {
        let primitive = cache.clone().try_into_primitive::<burn::backend::Flex>();
        primitive.expect("a tensor on the CPU").bytes().as_ptr()
    };
    let memory = address(&cache);
    assert_eq!(address(&append(cache, &qkv, 2, 3)), memory);
}

#[test]
fn an_empty_cache_is_zeros_and_accepts_columns() {
    let mut numbers = Numbers::new(56);
    let shape = [2, 1, 300, 64];
    let qkv = numbers.tensor([2, 3, 64]);
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        let empty = empty_cache(shape, dtype, &qkv.device());
        assert_eq!((empty.dims(), empty.dtype()), (shape, dtype));
        assert!(
            values(&empty.clone().cast(DType::F32))
                .iter()
                .all(|&v| v == 0.0)
        );
        let appended = append(empty, &qkv, 1, 299);
        let column = appended.narrow(2, 299, 1).cast(DType::F32).reshape([2, 64]);
        let expected = qkv.clone().narrow(1, 1, 1).cast(dtype).cast(DType::F32);
        assert_eq!(values(&column), values(&expected.reshape([2, 64])));
    }
}
