//! Attention over packed documents: value, and the gradients of queries, keys and values.

use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;
use tooltune_kernels::attention::{Causality, Documents, cuda, reference};

use crate::support::{Numbers, assert_near, device_values, gradients, leaf, pair, values};

const BOTH: [Causality; 2] = [Causality::Causal, Causality::Bidirectional];

#[derive(Debug)]
struct Case {
    /// Query heads, key/value heads, size of a head.
    heads: [usize; 3],
    qkv: (Tensor<3>, CubeTensor),
    documents: Documents,
    causality: Causality,
}

impl Case {
    fn new(
        numbers: &mut Numbers,
        heads: [usize; 3],
        (borders, n): (&[usize], usize),
        causality: Causality,
    ) -> Self {
        let [h, g, c] = heads;
        let (qkv, _) = numbers.pair([n, h + 2 * g, c]);
        Self {
            heads,
            qkv: pair(values(qkv.mul_scalar(2.0)), [n, h + 2 * g, c]),
            documents: Documents::new(borders, n),
            causality,
        }
    }

    fn expected(&self, qkv: Tensor<3>) -> Tensor<3> {
        let [h, g, _] = self.heads;
        let [q, k, v] =
            [(0, h), (h, g), (h + g, g)].map(|(first, heads)| qkv.clone().narrow(1, first, heads));
        reference::attention(q, k, v, &self.documents, self.causality)
    }

    fn attended(&self) -> cuda::Attended {
        cuda::attention(
            self.qkv.1.clone(),
            self.heads[0],
            &self.documents,
            self.causality,
        )
    }

    fn check(&self, numbers: &mut Numbers, name: &str) {
        let [h, _, c] = self.heads;
        let (dy, d_out) = numbers.pair([self.documents.n_tokens(), h, c]);
        let attended = self.attended();
        let d_qkv = cuda::attention_gradient(
            self.qkv.1.clone(),
            attended.clone(),
            d_out,
            &self.documents,
            self.causality,
        );

        let qkv = leaf(&self.qkv.0);
        let expected = self.expected(qkv.clone());
        let found = gradients(expected.clone(), &dy);
        assert_near(
            name,
            &device_values(attended.out),
            &values(expected.inner()),
        );
        let expected = qkv.grad(&found).unwrap();
        assert_near(
            &format!("{name}, gradient"),
            &device_values(d_qkv),
            &values(expected),
        );
    }
}

#[test]
fn grouped_heads_of_several_families_agree_with_the_reference() {
    let mut numbers = Numbers::new(41);
    for heads in [[9, 3, 16], [14, 2, 8], [32, 8, 4], [2, 1, 7], [1, 1, 72]] {
        for causality in BOTH {
            let case = Case::new(&mut numbers, heads, (&[0, 50], 50), causality);
            case.check(&mut numbers, &format!("{heads:?} {causality:?}"));
        }
    }
}

#[test]
fn documents_of_any_length_agree_with_the_reference() {
    let mut numbers = Numbers::new(42);
    let many: Vec<usize> = (0..20).map(|i| i * (i + 1) / 2).collect();
    for (borders, n) in [
        (vec![0, 1], 1),
        (vec![0, 64], 64),
        (vec![0, 65], 65),
        (vec![0, 31, 32, 33, 97], 97),
        (vec![0, 5, 5, 12], 20),
        (vec![0, 300], 300),
        (many.clone(), many[19]),
    ] {
        for causality in BOTH {
            let case = Case::new(&mut numbers, [6, 2, 4], (&borders, n), causality);
            let name = format!("{borders:?} of {n}, {causality:?}");
            case.check(&mut numbers, &name);
        }
    }
}

#[test]
fn tokens_of_no_document_give_zeros() {
    let mut numbers = Numbers::new(46);
    let case = Case::new(&mut numbers, [6, 2, 4], (&[0], 3), Causality::Causal);
    let (_, d_out) = numbers.pair([3, 6, 4]);
    let attended = case.attended();
    let d_qkv = cuda::attention_gradient(
        case.qkv.1,
        attended.clone(),
        d_out,
        &case.documents,
        case.causality,
    );
    for zeros in [attended.out, attended.log_sums, d_qkv] {
        assert!(device_values(zeros).iter().all(|v| *v == 0.0));
    }
}

#[test]
fn scores_far_apart_neither_overflow_nor_vanish() {
    let mut numbers = Numbers::new(43);
    let mut case = Case::new(&mut numbers, [6, 2, 4], (&[0, 70], 70), Causality::Causal);
    case.qkv = pair(values(case.qkv.0.mul_scalar(20.0)), [70, 10, 4]);
    let ours = device_values(case.attended().out);
    let expected = values(case.expected(case.qkv.0.clone()));
    // Scores of some thousands carry rounding of some 1e-4 into their exponentials.
    let off = ours.iter().zip(&expected).map(|(a, b)| (a - b).abs());
    assert!(off.fold(0.0, f32::max) < 0.05, "values reach 40");
}

#[test]
fn nan_reaches_no_other_document_and_no_earlier_tile() {
    let mut numbers = Numbers::new(44);
    let mut case = Case::new(
        &mut numbers,
        [6, 2, 4],
        (&[0, 40, 150], 150),
        Causality::Causal,
    );
    let mut poisoned = values(case.qkv.0.clone());
    // The first number of the first key of the last token.
    poisoned[149 * 10 * 4 + 6 * 4] = f32::NAN;
    case.qkv = pair(poisoned, [150, 10, 4]);
    let y = device_values(case.attended().out);
    assert!(y[..(40 + 64) * 24].iter().all(|v| v.is_finite()));
    // Heads 0 to 2 read that key.
    assert!(y[149 * 24..149 * 24 + 12].iter().all(|v| v.is_nan()));
}
