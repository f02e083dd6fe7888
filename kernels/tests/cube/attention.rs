//! Attention over packed documents: value, and the gradients of queries, keys and values.

use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;
use tooltune_kernels::attention::{Causality, Documents, cuda, reference};

use crate::support::{Numbers, assert_near, device_values, pair, values};

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

    fn check(&self, name: &str) {
        let ours = device_values(self.attended().out);
        assert_near(name, &ours, &values(self.expected(self.qkv.0.clone())));
    }
}

#[test]
fn grouped_heads_of_several_families_agree_with_the_reference() {
    let mut numbers = Numbers::new(41);
    for heads in [
        [1, 1, 2],
        [9, 3, 16],
        [14, 2, 8],
        [32, 8, 4],
        [12, 12, 32],
        [4, 1, 20],
        [2, 1, 7],
        [3, 1, 72],
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
    let many: Vec<usize> = (0..20).map(|i| i * (i + 1) / 2).collect();
    for (borders, n) in [
        (vec![0, 1], 1),
        (vec![0, 64], 64),
        (vec![0, 65], 65),
        (vec![0, 31, 32, 33, 97], 97),
        (vec![0, 5, 5, 12], 20),
        (vec![0], 3),
        (vec![0, 300], 300),
        (many.clone(), many[19]),
    ] {
        for causality in BOTH {
            for c in [4, 16] {
                let case = Case::new(&mut numbers, [6, 2, c], (&borders, n), causality);
                case.check(&format!("{borders:?} of {n}, {c}, {causality:?}"));
            }
        }
    }
}
