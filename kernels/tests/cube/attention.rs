//! Attention over packed documents: value, and the gradients of queries, keys and values.

use burn::tensor::Tensor;
use tooltune_kernels::attention::{
    Causality, Columns, Documents, PromptPositions, append, append_prompts, attention, decode,
    reference,
};

use crate::bounds::Quantity;
use crate::support::{Numbers, assert_both_near, assert_near, differentiate, on_device, values};

const BOTH: [Causality; 2] = [Causality::Causal, Causality::Bidirectional];

#[derive(Debug)]
struct Case {
    /// Query heads, key/value heads, head size.
    heads: [usize; 3],
    qkv: Tensor<3>,
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
        Self {
            heads,
            qkv: numbers.tensor([n, h + 2 * g, c]).mul_scalar(2.0),
            documents: Documents::new(borders, n),
            causality,
        }
    }

    fn attention(&self, qkv: Tensor<3>) -> Tensor<3> {
        attention(qkv, self.heads[0], &self.documents, self.causality)
    }

    fn expected(&self, qkv: Tensor<3>) -> Tensor<3> {
        reference::attention(qkv, self.heads[0], &self.documents, self.causality)
    }

    fn value(&self) -> Vec<f32> {
        values(self.attention(on_device(&self.qkv)))
    }

    fn check(&self, numbers: &mut Numbers, name: &str) {
        let [h, _, c] = self.heads;
        let dy = numbers.tensor([self.documents.n_tokens(), h, c]);
        let ours = differentiate(&on_device(&self.qkv), &on_device(&dy), |x| {
            self.attention(x)
        });
        let expected = differentiate(&self.qkv, &dy, |x| self.expected(x));
        assert_both_near(name, &ours, &expected);
    }
}

#[test]
fn grouped_heads_match_the_reference() {
    let mut numbers = Numbers::new(41);
    for heads in [[9, 3, 16], [14, 2, 8], [32, 8, 4], [2, 1, 7], [1, 1, 72]] {
        for causality in BOTH {
            let case = Case::new(&mut numbers, heads, (&[0, 50], 50), causality);
            case.check(&mut numbers, &format!("{heads:?} {causality:?}"));
        }
    }
}

#[test]
fn documents_of_any_length_match_the_reference() {
    let mut numbers = Numbers::new(42);
    let lengths: Vec<usize> = (0..20).map(|i| i * (i + 1) / 2).collect();
    for (borders, n) in [
        (vec![0, 1], 1),
        (vec![0, 64], 64),
        (vec![0, 65], 65),
        (vec![0, 31, 32, 33, 97], 97),
        (vec![0, 5, 5, 12], 20),
        (vec![0, 300], 300),
        (lengths.clone(), lengths[19]),
    ] {
        for causality in BOTH {
            let case = Case::new(&mut numbers, [6, 2, 4], (&borders, n), causality);
            let name = format!("{borders:?} of {n}, {causality:?}");
            case.check(&mut numbers, &name);
        }
    }
}

/// Layers share documents, and the lists of tiles that were uploaded for the first of them.
#[test]
fn shared_documents_give_the_same_results_as_new_ones() {
    let mut numbers = Numbers::new(47);
    let borders = [0, 50, 130];
    let [shared, other] = [(), ()].map(|()| Documents::new(&borders, 130));
    let mut check = |heads: [usize; 3], causality| {
        let case = Case {
            documents: shared.clone(),
            ..Case::new(&mut numbers, heads, (&borders, 130), causality)
        };
        case.check(&mut numbers, &format!("{heads:?} {causality:?}"));
    };
    for _ in 0..2 {
        // The head size determines the rows of a tile.
        for heads in [[6, 2, 4], [1, 1, 72]] {
            for causality in BOTH {
                check(heads, causality);
            }
        }
    }
    assert_eq!(
        shared, other,
        "cached lists do not affect the equality of documents"
    );
}

#[test]
fn padding_tokens_give_zeros() {
    let mut numbers = Numbers::new(46);
    let case = Case::new(&mut numbers, [6, 2, 4], (&[0], 3), Causality::Causal);
    let dy = numbers.tensor([3, 6, 4]);
    let both = differentiate(&on_device(&case.qkv), &on_device(&dy), |x| {
        case.attention(x)
    });
    assert!(both.iter().flatten().all(|v| *v == 0.0));
}

#[test]
fn scores_far_apart_neither_overflow_nor_vanish() {
    let mut numbers = Numbers::new(43);
    let mut case = Case::new(&mut numbers, [6, 2, 4], (&[0, 70], 70), Causality::Causal);
    case.qkv = case.qkv.mul_scalar(20.0);
    let expected = values(case.expected(case.qkv.clone()));
    let off = case
        .value()
        .iter()
        .zip(&expected)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    // Relative to the largest values.
    let off = f64::from(off) / 40.0;
    assert!(off < Quantity::SteepAttention.bound(), "{off}");
}

#[test]
fn nan_stays_in_its_document_and_out_of_earlier_tiles() {
    let mut numbers = Numbers::new(44);
    let mut case = Case::new(
        &mut numbers,
        [6, 2, 4],
        (&[0, 40, 150], 150),
        Causality::Causal,
    );
    // The first element of the first key of the last token.
    case.qkv = case.qkv.slice_fill([149..150, 6..7, 0..1], f32::NAN);
    let y = case.value();
    assert!(y[..(40 + 64) * 24].iter().all(|v| v.is_finite()));
    // Heads 0 to 2 read that key.
    assert!(y[149 * 24..149 * 24 + 12].iter().all(|v| v.is_nan()));
}

#[test]
fn decoding_matches_the_reference_at_any_cache_length() {
    let mut numbers = Numbers::new(47);
    for [b, h, g, c] in [
        [1, 1, 1, 4],
        [3, 9, 3, 64],
        [2, 8, 1, 72],
        [2, 4, 4, 128],
        [2, 6, 2, 7],
    ] {
        for end in [1, 5, 256, 257, 700] {
            let qkv = numbers.tensor([b, h + 2 * g, c]).mul_scalar(2.0);
            let [keys, cached] = [0; 2].map(|_| numbers.tensor([b, g, end + 9, c]));
            // The first row attends to all columns.
            let starts: Vec<usize> = (0..b).map(|row| row * (end - 1) / b.max(2)).collect();
            let columns = Columns {
                starts: &starts,
                end,
            };
            let [keys_there, cached_there] = [on_device(&keys), on_device(&cached)];
            let ours = decode(on_device(&qkv), h, &keys_there, &cached_there, columns);
            let expected = reference::decode(qkv, h, &keys, &cached, columns);
            let name = format!("{b} {h} {g} {c}, {end} columns");
            assert_near(&name, &values(ours), &values(expected));
        }
    }
}

#[test]
fn masked_cache_values_do_not_reach_a_row() {
    let mut numbers = Numbers::new(48);
    let (b, h, g, c, end) = (2, 4, 2, 16, 300);
    let qkv = numbers.tensor([b, h + 2 * g, c]);
    let keys: Tensor<4> = numbers.tensor([b, g, end + 20, c]);
    let cache: Tensor<4> = numbers.tensor([b, g, end + 20, c]);
    let starts = [0, 290];
    let columns = Columns {
        starts: &starts,
        end,
    };
    let expected = values(reference::decode(qkv.clone(), h, &keys, &cache, columns));
    let poisoned = |x: Tensor<4>| {
        let x = x.slice_fill([0..b, 0..g, end..end + 20, 0..c], f32::NAN);
        on_device(&x.slice_fill([1..2, 0..g, 0..290, 0..c], f32::NAN))
    };
    let (keys, cache) = (poisoned(keys), poisoned(cache));
    let ours = decode(on_device(&qkv), h, &keys, &cache, columns);
    assert_near("poisoned", &values(ours), &expected);
}

#[test]
fn prompts_are_written_at_their_cache_positions() {
    let mut numbers = Numbers::new(50);
    for [b, h, g, c] in [[3, 1, 1, 4], [4, 9, 3, 64], [3, 6, 2, 7]] {
        let qkv = numbers.tensor([10, h + 2 * g, c]);
        let cache = [0; 2].map(|_| numbers.tensor::<4>([b, g, 11, c]));
        let places = PromptPositions::new(&[0, 3, 10], 1, 9);
        // Uploaded tensors may have gaps between their rows.
        let mut there = cache.each_ref().map(on_device);
        append_prompts(&on_device(&qkv), &mut there, &places);
        let mut expected = cache.clone();
        append_prompts(&qkv, &mut expected, &places);
        for ((found, expected), before) in there.into_iter().zip(expected).zip(cache) {
            assert_eq!(values(found), values(expected.clone()), "{b} {h} {g} {c}");
            assert_ne!(values(expected), values(before));
        }
    }
}

#[test]
fn tokens_are_appended_at_their_columns() {
    let mut numbers = Numbers::new(49);
    for [b, h, g, c] in [[1, 1, 1, 4], [3, 9, 3, 64], [2, 6, 2, 7]] {
        let qkv = numbers.tensor([b, h + 2 * g, c]);
        let cache: Tensor<4> = numbers.tensor([b, g, 11, c]);
        let shared = on_device(&cache);
        for (first, column) in [(h, 0), (h + g, 10)] {
            // Another tensor shares the memory, which must not change.
            let ours = append(shared.clone(), &on_device(&qkv), first, column);
            let expected = reference::append(cache.clone(), &qkv, first, column);
            assert_eq!(values(ours), values(expected), "{b} {h} {g} {c} {column}");
            assert_eq!(values(shared.clone()), values(cache.clone()));
        }
    }
}
