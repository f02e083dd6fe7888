//! AdamW in one pass, compared with plain tensor operations.

use burn::tensor::Tensor;
use tooltune_kernels::adamw::{self, reference};
use tooltune_kernels::{AdamW, AdamWState};

use crate::bounds::Quantity;
use crate::support::{Numbers, assert_near, values};

const ADAMW: AdamW = AdamW {
    beta1: 0.9,
    beta2: 0.999,
    eps: 1e-8,
    weight_decay: 0.1,
};

#[test]
fn updates_match_the_reference() {
    let mut numbers = Numbers::new(51);
    for (n, is_scaled) in [
        (1, false),
        (7, true),
        (1000, false),
        (100_003, false),
        (100_003, true),
    ] {
        let scales = is_scaled.then(|| numbers.tensor([n]).abs().mul_scalar(16.0));
        let start = numbers.tensor([n]);
        let (mut ours, mut expected) = (start.clone(), start.clone());
        let (mut our_state, mut state) = (AdamWState::new(&start), AdamWState::new(&start));
        for step in 1..=4 {
            let gradient = numbers.tensor([n]);
            let rate = 1e-2 / f64::from(step);
            let scales = scales.as_ref();
            ours = match scales {
                None => ADAMW.update(ours, gradient.clone(), &mut our_state, rate),
                Some(_) => {
                    ADAMW.update_scaled(ours, gradient.clone(), &mut our_state, rate, scales)
                }
            };
            expected = reference::update(&ADAMW, [expected, gradient], &mut state, rate, scales);
            assert_eq!(our_state.step, state.step);
            for (name, ours, expected) in [
                ("parameters", &ours, &expected),
                ("first moment", &our_state.first_moment, &state.first_moment),
                (
                    "second moment",
                    &our_state.second_moment,
                    &state.second_moment,
                ),
            ] {
                assert_near(
                    &format!("{n}, step {step}, {name}"),
                    &values(ours),
                    &values(expected),
                );
            }
        }
    }
}

#[test]
fn an_update_leaves_shared_tensors_unchanged() {
    let mut numbers = Numbers::new(52);
    let start = numbers.tensor([5000]);
    let mut state = AdamWState::new(&start);
    let first = ADAMW.update(start.clone(), numbers.tensor([5000]), &mut state, 1e-2);
    // A view of a larger tensor, as gradients of parts are.
    let gradient = numbers.tensor([7000]).narrow(0, 1000, 5000);
    let shared = (first.clone(), state.clone(), gradient.clone());
    let originals = [
        &shared.0,
        &shared.1.first_moment,
        &shared.1.second_moment,
        &shared.2,
    ]
    .map(values);
    let again = ADAMW.update(first.clone(), gradient.clone(), &mut state.clone(), 1e-2);
    let shared_now = [
        &shared.0,
        &shared.1.first_moment,
        &shared.1.second_moment,
        &shared.2,
    ]
    .map(values);
    assert_eq!(originals, shared_now);
    // In place: parameters and moments are not shared.
    drop(shared);
    let second = ADAMW.update(first, gradient, &mut state, 1e-2);
    assert_eq!(values(&second), values(&again));
    assert_ne!(values(&second), originals[0]);
}

#[test]
fn a_nonfinite_gradient_affects_only_its_parameter() {
    let mut numbers = Numbers::new(54);
    const N: usize = 70_001;
    let (start, good) = (numbers.tensor([N]), numbers.tensor([N]));
    let updates = [
        |adamw: &AdamW, p, g, state: &mut AdamWState| adamw.update(p, g, state, 1e-2),
        |adamw: &AdamW, p, g, state: &mut AdamWState| {
            reference::update(adamw, [p, g], state, 1e-2, None)
        },
    ];
    for update in updates {
        let moved = |gradient: Tensor<1>| {
            let mut state = AdamWState::new(&start);
            // Non-zero moments.
            let p = update(&ADAMW, start.clone(), good.clone(), &mut state);
            let p = update(&ADAMW, p, gradient, &mut state);
            assert_eq!(state.step, 2);
            [p, state.first_moment, state.second_moment].map(|x| values(&x))
        };
        let expected = moved(good.clone());
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let indices = [0, 40_000, N - 1];
            let mut floats = values(&good);
            indices.iter().for_each(|&i| floats[i] = bad);
            let gradient = Tensor::<1>::from_floats(floats.as_slice(), &start.device());
            assert!(!adamw::global_norm(&gradient).is_finite());
            for (which, (found, expected)) in moved(gradient).iter().zip(&expected).enumerate() {
                for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                    if indices.contains(&i) {
                        assert!(!found.is_finite(), "{bad}, result {which}, {i}")
                    } else {
                        assert_eq!(found, expected, "{bad}, result {which}, {i}")
                    }
                }
            }
        }
    }
}

#[test]
fn part_gradients_are_concatenated_in_order_with_one_norm() {
    let mut numbers = Numbers::new(53);
    for shapes in [
        vec![[1, 1]],
        vec![[3, 7], [1, 1], [0, 5], [2, 70_000], [129, 257]],
    ] {
        let parts: Vec<Tensor<2>> = shapes.iter().map(|&s| numbers.tensor(s)).collect();
        let expected: Vec<f32> = parts.iter().flat_map(values).collect();
        let gradient = adamw::concatenate(parts);
        assert_eq!(values(&gradient), expected);
        let squares = expected.iter().map(|&x| f64::from(x) * f64::from(x));
        let expected = squares.sum::<f64>().sqrt();
        let norm = adamw::global_norm(&gradient);
        assert!(
            (norm / expected - 1.0).abs() < Quantity::GradientNorm.bound(),
            "{norm} {expected}"
        );
    }
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let gradient = Tensor::<1>::from_floats([1.0, bad, 2.0], &numbers.tensor([1]).device());
        assert!(!adamw::global_norm(&gradient).is_finite(), "{bad}");
    }
}
