//! Attention over packed documents: value and the gradients of queries, keys and values.

use burn::tensor::Tensor;
use tooltune_kernels::attention::{Causality, Documents, attention, reference};

use crate::bounds::Quantity;
use crate::support::{
    Numbers, assert_near, difference, gradient, gradients, leaf, on_threads, values,
};

type Attend = fn(Tensor<3>, Tensor<3>, Tensor<3>, &Documents, Causality) -> Tensor<3>;

#[derive(Debug)]
struct Case {
    q: Tensor<3>,
    k: Tensor<3>,
    v: Tensor<3>,
    dy: Tensor<3>,
    documents: Documents,
    causality: Causality,
}

impl Case {
    fn new(
        numbers: &mut Numbers,
        [h, g, c]: [usize; 3],
        (borders, n): (&[usize], usize),
        causality: Causality,
    ) -> Self {
        Self {
            q: numbers.tensor([n, h, c]).mul_scalar(3.0),
            k: numbers.tensor([n, g, c]).mul_scalar(3.0),
            v: numbers.tensor([n, g, c]),
            dy: numbers.tensor([n, h, c]),
            documents: Documents::new(borders, n),
            causality,
        }
    }

    /// Value with and without autodiff, then gradients of queries, keys and values.
    fn run(&self, attend: Attend) -> [Vec<f32>; 5] {
        let (q, k, v) = (leaf(&self.q), leaf(&self.k), leaf(&self.v));
        let y = attend(
            q.clone(),
            k.clone(),
            v.clone(),
            &self.documents,
            self.causality,
        );
        let value = values(&y.clone().inner());
        let [pq, pk, pv] = [&q, &k, &v].map(|x| x.clone().inner());
        let plain = values(&attend(pq, pk, pv, &self.documents, self.causality));
        let found = gradients(y, &self.dy);
        [
            value,
            plain,
            gradient(&q, &found),
            gradient(&k, &found),
            gradient(&v, &found),
        ]
    }

    fn check(&self, name: &str) {
        let (ours, expected) = (self.run(attention), self.run(reference::attention));
        for (result, (ours, expected)) in ["y", "y without autodiff", "dq", "dk", "dv"]
            .iter()
            .zip(ours.iter().zip(&expected))
        {
            // A single token attends to itself alone: gradients of its scores are 0 up to
            // rounding, on both sides.
            let scale = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let zero = Quantity::Operation.bound() as f32;
            if scale < zero {
                assert!(ours.iter().all(|v| v.abs() < zero), "{name}, {result}");
            } else {
                assert_near(&format!("{name}, {result}"), ours, expected);
            }
        }
    }
}

const BOTH: [Causality; 2] = [Causality::Causal, Causality::Bidirectional];

#[test]
fn grouped_heads_of_several_families_agree_with_the_reference() {
    let mut numbers = Numbers::new(41);
    for heads in [
        [1, 1, 2],
        [9, 3, 64],
        [32, 8, 16],
        [14, 2, 64],
        [12, 12, 32],
        [4, 1, 20],
    ] {
        for causality in BOTH {
            let case = Case::new(&mut numbers, heads, (&[0, 50], 50), causality);
            case.check(&format!("{heads:?} {causality:?}"));
        }
    }
}

#[test]
fn documents_of_any_length_agree_with_the_reference() {
    let mut numbers = Numbers::new(42);
    let many: Vec<usize> = (0..40).map(|i| i * (i + 1) / 2).collect();
    for (borders, n) in [
        (vec![0, 1], 1),
        (vec![0, 32], 32),
        (vec![0, 33], 33),
        (vec![0, 31, 32, 33, 97], 97),
        (vec![0, 5, 5, 12], 20),
        (vec![0, 300], 300),
        (many.clone(), many[39]),
    ] {
        for causality in BOTH {
            let case = Case::new(&mut numbers, [6, 2, 16], (&borders, n), causality);
            case.check(&format!("{borders:?} of {n}, {causality:?}"));
        }
    }
}

#[test]
fn scores_far_apart_neither_overflow_nor_vanish() {
    let mut numbers = Numbers::new(43);
    let mut case = Case::new(&mut numbers, [2, 1, 8], (&[0, 70], 70), Causality::Causal);
    case.q = case.q.mul_scalar(100.0);
    let (ours, expected) = (case.run(attention), case.run(reference::attention));
    for (ours, expected) in ours.iter().zip(&expected) {
        assert!(difference(ours, expected) < Quantity::SteepAttention.bound());
    }
}

#[test]
fn tokens_of_no_document_give_zeros() {
    let mut numbers = Numbers::new(46);
    let case = Case::new(&mut numbers, [4, 2, 8], (&[0], 3), Causality::Causal);
    let y = attention(case.q, case.k, case.v, &case.documents, case.causality);
    assert!(values(&y).iter().all(|v| *v == 0.0));
}

#[test]
fn nan_reaches_no_other_document_and_no_earlier_block() {
    let mut numbers = Numbers::new(44);
    let case = Case::new(
        &mut numbers,
        [2, 1, 8],
        (&[0, 40, 80], 80),
        Causality::Causal,
    );
    let mask = Tensor::<3>::zeros([80, 1, 8], &case.k.device());
    let poison = mask.slice_fill([79..80, 0..1, 0..1], f32::NAN);
    let k = case.k.clone().add(poison);
    let y = values(&attention(
        case.q.clone(),
        k,
        case.v.clone(),
        &case.documents,
        case.causality,
    ));
    assert!(y[..79 * 16].iter().all(|v| v.is_finite()));
    assert!(y[79 * 16..].iter().all(|v| v.is_nan()));
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let mut numbers = Numbers::new(45);
    let case = Case::new(
        &mut numbers,
        [6, 2, 32],
        (&[0, 90, 100, 333], 340),
        Causality::Causal,
    );
    let run = |threads| on_threads(threads, || case.run(attention));
    assert!(run(1) == run(2));
}
