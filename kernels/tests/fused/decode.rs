//! Attention of new tokens to a cache.

use tooltune_kernels::attention::{decode, reference};

use crate::support::{Numbers, assert_near, on_threads, values};

#[test]
fn rows_that_start_at_different_columns_agree_with_the_reference() {
    let mut numbers = Numbers::new(51);
    for [b, h, g, c] in [
        [1, 1, 1, 2],
        [1, 9, 3, 64],
        [8, 9, 3, 64],
        [3, 32, 8, 16],
        [2, 14, 2, 64],
        [2, 40, 1, 8],
    ] {
        for (capacity, n_columns) in [(1, 1), (50, 50), (400, 390), (70, 13)] {
            let q = numbers.tensor([b, h, c]).mul_scalar(3.0);
            let keys = numbers.tensor([b, g, capacity, c]).mul_scalar(3.0);
            let cached = numbers.tensor([b, g, capacity, c]);
            let starts: Vec<usize> = (0..b).map(|_| numbers.below(n_columns)).collect();
            let ours = decode(q.clone(), &keys, &cached, &starts, n_columns);
            let expected = reference::decode(q, &keys, &cached, &starts, n_columns);
            let name = format!("{b} {h} {g} {c}, {n_columns} of {capacity}");
            assert_near(&name, &values(&ours), &values(&expected));
        }
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let mut numbers = Numbers::new(52);
    let q = numbers.tensor([5, 6, 16]);
    let (keys, cached) = (
        numbers.tensor([5, 2, 90, 16]),
        numbers.tensor([5, 2, 90, 16]),
    );
    let run = |threads| {
        on_threads(threads, || {
            values(&decode(q.clone(), &keys, &cached, &[0, 3, 9, 80, 88], 89))
        })
    };
    assert!(run(1) == run(2));
}
