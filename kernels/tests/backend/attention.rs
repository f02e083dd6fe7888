//! Attention over packed documents and over a cache.

use burn::tensor::{DType, Tensor};
use tooltune_kernels::attention::{
    Causality, Columns, Documents, append, attention, decode, reference,
};

use super::{TestBackend, assert_near_in, differentiate, on_cpu, values};
use crate::bounds::Quantity;
use crate::numbers::Numbers;

type Attend = fn(Tensor<3>, usize, &Documents, Causality) -> Tensor<3>;

pub(crate) const BOTH: [Causality; 2] = [Causality::Causal, Causality::Bidirectional];

#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) qkv: Tensor<3>,
    pub(crate) dy: Tensor<3>,
    /// Query heads, key/value heads, head size.
    pub(crate) heads: [usize; 3],
    pub(crate) documents: Documents,
    pub(crate) causality: Causality,
}

impl Case {
    pub(crate) fn new(
        numbers: &mut Numbers,
        [h, g, c]: [usize; 3],
        (borders, n): (&[usize], usize),
        causality: Causality,
    ) -> Self {
        let scores = numbers.cpu_tensor([n, h + g, c]).mul_scalar(3.0);
        Self {
            qkv: Tensor::cat(vec![scores, numbers.cpu_tensor([n, g, c])], 1),
            dy: numbers.cpu_tensor([n, h, c]),
            heads: [h, g, c],
            documents: Documents::new(borders, n),
            causality,
        }
    }

    /// Value with and without autodiff, then gradients of queries, keys and values.
    fn run(
        &self,
        (qkv, dy): (Tensor<3>, Tensor<3>),
        attend: Attend,
        dtype: DType,
    ) -> [Vec<f32>; 5] {
        let [h, g, c] = self.heads;
        let inputs = (&qkv.cast(dtype), &dy.cast(dtype));
        let [value, plain, dx] = differentiate("attention", inputs, &|x| {
            attend(x, h, &self.documents, self.causality)
        });
        let width = (h + 2 * g) * c;
        let part = |first: usize, heads: usize| {
            let tokens = dx.chunks_exact(width);
            let columns = first * c..(first + heads) * c;
            tokens
                .flat_map(|token| token[columns.clone()].to_vec())
                .collect()
        };
        [value, plain, part(0, h), part(h, g), part(h + g, g)]
    }

    /// Results of the operation on the device under test.
    pub(crate) fn ours(&self, backend: &TestBackend, dtype: DType) -> [Vec<f32>; 5] {
        let inputs = (backend.place(&self.qkv), backend.place(&self.dy));
        self.run(inputs, attention, dtype)
    }

    /// Results of the reference.
    pub(crate) fn expected(&self, dtype: DType) -> [Vec<f32>; 5] {
        let inputs = (on_cpu(&self.qkv), on_cpu(&self.dy));
        self.run(inputs, reference::attention, dtype)
    }

    pub(crate) fn check(&self, backend: &TestBackend, name: &str) {
        for &dtype in backend.dtypes {
            let (ours, expected) = (self.ours(backend, dtype), self.expected(dtype));
            for (result, (ours, expected)) in ["y", "y without autodiff", "dq", "dk", "dv"]
                .iter()
                .zip(ours.iter().zip(&expected))
            {
                let name = format!("{name}, {dtype:?}, {result}");
                // A single token attends only to itself: gradients of its scores are 0 up to the
                // rounding of two products that cancel.
                let scale = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                let rounding = 2.0 * Quantity::Operation.bound_in(dtype) as f32;
                if scale < rounding {
                    assert!(ours.iter().all(|v| v.abs() < rounding), "{name}");
                } else {
                    assert_near_in(dtype, &name, ours, expected);
                }
            }
        }
    }
}

/// Grouped heads: numbers of query heads and key/value heads, and the head size.
pub(crate) fn grouped_heads(backend: &TestBackend, cases: &[[usize; 3]]) {
    let mut numbers = Numbers::new(41);
    for &heads in cases {
        for causality in BOTH {
            let case = Case::new(&mut numbers, heads, (&[0, 50], 50), causality);
            case.check(backend, &format!("{heads:?} {causality:?}"));
        }
    }
}

/// Documents with these borders, and the number of tokens with padding.
pub(crate) fn documents(backend: &TestBackend, heads: [usize; 3], cases: &[(Vec<usize>, usize)]) {
    let mut numbers = Numbers::new(42);
    for (borders, n) in cases {
        for causality in BOTH {
            let case = Case::new(&mut numbers, heads, (borders, *n), causality);
            case.check(backend, &format!("{borders:?} of {n}, {causality:?}"));
        }
    }
}

/// Attention of new tokens to a cache: rows, query heads, key/value heads and head size; capacity
/// and end of the cache.
pub(crate) fn decoding(backend: &TestBackend, shapes: &[[usize; 4]], caches: &[[usize; 2]]) {
    let mut numbers = Numbers::new(51);
    for &[b, h, g, c] in shapes {
        for &[capacity, end] in caches {
            let qkv = numbers.cpu_tensor([b, h + 2 * g, c]).mul_scalar(3.0);
            let keys = numbers.cpu_tensor([b, g, capacity, c]).mul_scalar(3.0);
            let cached = numbers.cpu_tensor([b, g, capacity, c]);
            let mut starts: Vec<usize> = (0..b).map(|_| numbers.below(end)).collect();
            // One of several rows attends to all columns.
            if b > 1 {
                starts[b - 1] = 0;
            }
            let columns = Columns {
                starts: &starts,
                end,
            };
            for &dtype in backend.dtypes {
                for &cache_dtype in backend.dtypes {
                    let qkv = qkv.clone().cast(dtype);
                    let caches = [&keys, &cached].map(|cache| cache.clone().cast(cache_dtype));
                    let [keys, cached] = caches.each_ref().map(|cache| backend.place(cache));
                    let ours = decode(backend.place(&qkv), h, &keys, &cached, columns);
                    assert_eq!(ours.dtype(), dtype);
                    let [keys, cached] = caches;
                    let expected = reference::decode(qkv, h, &keys, &cached, columns);
                    let name = format!("{b} {h} {g} {c}, {end} of {capacity}, {dtype:?}");
                    assert_near_in(dtype, &name, &values(&ours), &values(&expected));
                }
            }
        }
    }
}

/// Writes the key heads, then the value heads of new tokens to a column of a shared cache.
pub(crate) fn appending(backend: &TestBackend, shapes: &[[usize; 4]]) {
    let mut numbers = Numbers::new(54);
    for &[b, h, g, c] in shapes {
        let all = numbers.cpu_tensor([b, h + 2 * g, c]);
        let empty: Tensor<4> = numbers.cpu_tensor([b, g, 11, c]);
        for &cache_dtype in backend.dtypes {
            for &dtype in backend.dtypes {
                let (cache, qkv) = (empty.clone().cast(cache_dtype), all.clone().cast(dtype));
                let (shared, original) = (backend.place(&cache), values(&cache));
                for (first, column) in [(h, 0), (h + g, 10)] {
                    let name = format!("{b} {h} {g} {c} {column}");
                    let ours = append(shared.clone(), &backend.place(&qkv), first, column);
                    assert_eq!(ours.dtype(), cache_dtype);
                    let expected = reference::append(cache.clone(), &qkv, first, column);
                    assert_eq!(values(&ours), values(&expected), "{name}");
                    assert_ne!(values(&ours), original, "{name}");
                    assert_eq!(values(&shared), original, "{name}: it is copied first");
                }
            }
        }
    }
}
