//! The gated delta rule and its layer: chunks against single tokens, packs against single
//! documents, the cache against whole sequences.

use burn::tensor::{DType, Tensor, TensorData};
use tooltune_kernels::gated_delta::{self, chunked, decode, gated_delta_states, reference};
use tooltune_kernels::gated_delta_net::{self, gated_delta_net};
use tooltune_kernels::{
    DeltaHeads, DeltaInputs, Documents, GatedDeltaNet, GatedHeads, GatedNorm, causal_conv,
    query_gate,
};

use crate::backend::gated_delta as backend;
use crate::bounds::Quantity;
use crate::support::{
    Numbers, assert_near, difference, gradient, gradients, leaf, on_threads, test_device,
    under_test, values,
};

/// Heads of different sizes, and value heads that share keys.
const HEADS: [DeltaHeads; 3] = [
    backend::heads([2, 4], [24, 16]),
    backend::heads([1, 1], [6, 10]),
    backend::heads([3, 3], [128, 128]),
];

/// Lengths below, equal to and above one or two chunks; and padding after the last document.
const BORDERS: [&[usize]; 4] = [
    &[0, 5],
    &[0, 64, 192],
    &[0, 1, 130, 133, 198, 263],
    &[0, 0, 65, 65, 66],
];

#[test]
fn chunks_match_single_tokens() {
    let (backend, path) = (under_test(), chunked::gated_delta);
    backend::rule(&backend, Quantity::Gradient, path, &HEADS, &BORDERS);
}

#[test]
fn equal_keys_lose_no_precision() {
    let heads = HEADS[0];
    let n = 200;
    let one = Tensor::<2>::ones([1, heads.width()], &test_device());
    let inputs = DeltaInputs {
        qkv: one.repeat_dim(0, n),
        log_decay: Tensor::zeros([n, heads.value_heads], &test_device()),
        beta: Tensor::ones([n, heads.value_heads], &test_device()),
    };
    let documents = Documents::single(n);
    let ours = gated_delta::gated_delta(inputs.clone(), heads, &documents);
    let (plain, _) = reference::gated_delta(inputs, heads, &documents);
    assert_near("alike", &values(&ours), &values(&plain));
}

#[test]
fn states_match_single_tokens_and_continue() {
    backend::states(&under_test(), &HEADS, &BORDERS);
    let mut numbers = Numbers::new(32);
    for heads in HEADS {
        for borders in BORDERS {
            let n = borders[borders.len() - 1];
            let documents = Documents::new(borders, n);
            let full = numbers.delta_inputs(n, heads);
            let (read, states) = gated_delta_states(full.clone(), heads, &documents);
            // The last token of each document again, from the state before it.
            let spans: Vec<(usize, usize)> = documents.spans().collect();
            if spans.iter().any(|&(_, length)| length < 2) {
                continue;
            }
            let rows = |rows_of: &dyn Fn(usize, usize) -> Vec<usize>| {
                let rows = spans
                    .iter()
                    .flat_map(|&(start, length)| rows_of(start, length));
                let rows: Vec<i32> = rows.map(|row| row as i32).collect();
                let n = rows.len();
                Tensor::<1, burn::tensor::Int>::from_data(
                    TensorData::new(rows, [n]),
                    &test_device(),
                )
            };
            let select_rows = |rows: Tensor<1, burn::tensor::Int>| DeltaInputs {
                qkv: full.qkv.clone().select(0, rows.clone()),
                log_decay: full.log_decay.clone().select(0, rows.clone()),
                beta: full.beta.clone().select(0, rows),
            };
            let begin = rows(&|start, length| (start..start + length - 1).collect());
            let mut shorter = vec![0];
            for &(_, length) in &spans {
                shorter.push(shorter[shorter.len() - 1] + length - 1);
            }
            let n_begin = begin.dims()[0];
            let (_, before) = gated_delta_states(
                select_rows(begin),
                heads,
                &Documents::new(&shorter, n_begin),
            );
            let last = rows(&|start, length| vec![start + length - 1]);
            let (one, after) = decode(select_rows(last.clone()), heads, before);
            assert_near("decoded", &values(&one), &values(&read.select(0, last)));
            assert_near("state", &values(&after), &values(&states));
        }
    }
}

#[test]
fn packed_documents_match_separate_documents() {
    let mut numbers = Numbers::new(33);
    let heads = HEADS[0];
    let borders = [0, 70, 73, 150];
    let full = numbers.delta_inputs(150, heads);
    let weight = numbers.tensor([heads.width(), 4]);
    let packed = |documents: &Documents, inputs: DeltaInputs| {
        let qkv = causal_conv::causal_conv(inputs.qkv, &weight, documents);
        values(&gated_delta::gated_delta(
            DeltaInputs { qkv, ..inputs },
            heads,
            documents,
        ))
    };
    let together = packed(&Documents::new(&borders, 150), full.clone());
    let mut alone = Vec::new();
    for border in borders.windows(2) {
        let n = border[1] - border[0];
        let part = |x: &Tensor<2>| x.clone().narrow(0, border[0], n);
        let inputs = DeltaInputs {
            qkv: part(&full.qkv),
            log_decay: part(&full.log_decay),
            beta: part(&full.beta),
        };
        alone.extend(packed(&Documents::single(n), inputs));
    }
    assert_near("pack", &together, &alone);
}

#[test]
fn decoding_the_last_token_matches_the_full_convolution() {
    let mut numbers = Numbers::new(34);
    let (n, channels, k) = (9, 40, 4);
    let x: Tensor<2> = numbers.tensor([n, channels]);
    let weight = numbers.tensor([channels, k]);
    let whole = causal_conv::causal_conv(x.clone(), &weight, &Documents::single(n));
    for t in [0usize, 2, 8] {
        let first = (t + 1).saturating_sub(k);
        let window = x.clone().narrow(0, first, t + 1 - first);
        let none = Tensor::zeros([k - window.dims()[0], channels], &test_device());
        let tokens = Tensor::cat(vec![none, window], 0).unsqueeze_dim(0);
        let last = causal_conv::decode(tokens, &weight);
        assert_near(
            "last",
            &values(&last),
            &values(&whole.clone().narrow(0, t, 1)),
        );
    }
}

#[test]
fn bf16_stays_near_f32() {
    let mut numbers = Numbers::new(35);
    let heads = HEADS[2];
    let documents = Documents::new(&[0, 90, 100], 100);
    let inputs = numbers.delta_inputs(100, heads);
    let narrow = DeltaInputs {
        qkv: inputs.qkv.clone().cast(DType::BF16),
        ..inputs.clone()
    };
    let widened = DeltaInputs {
        qkv: narrow.qkv.clone().cast(DType::F32),
        ..inputs
    };
    let ours = gated_delta::gated_delta(narrow, heads, &documents);
    assert_eq!(ours.dtype(), DType::BF16);
    let (plain, _) = reference::gated_delta(widened, heads, &documents);
    let off = difference(&values(&ours.cast(DType::F32)), &values(&plain));
    assert!(off < Quantity::Operation.bound_in(DType::BF16), "{off}");
}

/// A layer for these heads.
fn net(numbers: &mut Numbers, heads: DeltaHeads) -> GatedDeltaNet {
    let head_values = [1, heads.value_heads];
    GatedDeltaNet {
        heads,
        conv: numbers.tensor([heads.width(), 4]),
        rate: numbers.tensor(head_values).sub_scalar(1.1),
        step_bias: numbers.tensor(head_values),
        norm: GatedNorm {
            weight: numbers.tensor([heads.value_dim]),
            eps: 1e-6,
        },
    }
}

#[test]
fn the_fused_layer_matches_its_reference_steps() {
    let mut numbers = Numbers::new(36);
    for heads in HEADS {
        for borders in BORDERS {
            let n = borders[borders.len() - 1] + 3;
            let documents = Documents::new(borders, n);
            let net = net(&mut numbers, heads);
            let x: Tensor<2> = numbers.tensor([n, heads.columns().iter().sum()]);
            let d = numbers.tensor([n, heads.value_heads, heads.value_dim]);
            let [ours, plain] = [leaf(&x), leaf(&x)];
            let y = gated_delta_net(ours.clone(), &net, &documents);
            let expected =
                gated_delta_net::reference::gated_delta_net(plain.clone(), &net, &documents);
            let name = format!("{heads:?} {borders:?}");
            assert_near(&name, &values(&y), &values(&expected));
            let expected_gradient = gradient(&plain, &gradients(expected, &d));
            let off = difference(&gradient(&ours, &gradients(y, &d)), &expected_gradient);
            assert!(off < Quantity::Gradient.bound(), "{name}: {off}");
            // Without autodiff the same kernel runs.
            let whole = values(&gated_delta_net(x, &net, &documents));
            assert_near(
                &name,
                &whole,
                &values(&gated_delta_net(plain, &net, &documents)),
            );
        }
    }
}

/// Invariant: The number of threads does not change a bit of a result.
#[test]
fn results_are_bit_identical_for_any_number_of_threads() {
    let mut numbers = Numbers::new(39);
    let heads = HEADS[0];
    let documents = Documents::new(BORDERS[2], 270);
    let net = net(&mut numbers, heads);
    let x: Tensor<2> = numbers.tensor([270, heads.columns().iter().sum()]);
    let d = numbers.tensor([270, heads.value_heads, heads.value_dim]);
    let with_threads = |threads| {
        on_threads(threads, || {
            let x = leaf(&x);
            let y = gated_delta_net(x.clone(), &net, &documents);
            [values(&y), gradient(&x, &gradients(y, &d))]
        })
    };
    assert_eq!(with_threads(1), with_threads(4));
}

#[test]
fn nan_reaches_its_dependents_and_no_other_document() {
    let mut numbers = Numbers::new(40);
    let heads = HEADS[0];
    let documents = Documents::new(&[0, 40, 90], 90);
    let net = net(&mut numbers, heads);
    let width = heads.columns().iter().sum();
    let x: Tensor<2> = numbers.tensor([90, width]);
    let poisoned = x
        .clone()
        .slice_fill([50..51, 2 * heads.keys()..heads.width()], f32::NAN);
    let y = values(&gated_delta_net(poisoned, &net, &documents));
    let row = heads.values();
    for (t, row) in y.chunks_exact(row).enumerate() {
        let is_nan = row.iter().all(|value| value.is_nan());
        let is_finite = row.iter().all(|value| value.is_finite());
        // In chunks, earlier tokens of the same document multiply the bad value by zero.
        assert!(
            if t < 40 { is_finite } else { t < 50 || is_nan },
            "token {t}"
        );
    }
}

#[test]
fn a_layer_in_bf16_stays_near_f32() {
    let mut numbers = Numbers::new(37);
    let heads = HEADS[2];
    let documents = Documents::new(&[0, 90, 100], 100);
    let net = net(&mut numbers, heads);
    let x: Tensor<2> = numbers.tensor([100, heads.columns().iter().sum()]);
    let x = x.cast(DType::BF16);
    let d = numbers.tensor([100, heads.value_heads, heads.value_dim]);
    let (narrow, wide) = (leaf(&x), leaf(&x.cast(DType::F32)));
    let y = gated_delta_net(narrow.clone(), &net, &documents);
    assert_eq!(y.dtype(), DType::BF16);
    let expected = gated_delta_net::reference::gated_delta_net(wide.clone(), &net, &documents);
    let bound = Quantity::Gradient.bound_in(DType::BF16);
    let off = difference(&values(&y.clone().cast(DType::F32)), &values(&expected));
    assert!(off < bound, "{off}");
    let narrow_gradient = gradient(&narrow, &gradients(y.cast(DType::F32), &d));
    let off = difference(&narrow_gradient, &gradient(&wide, &gradients(expected, &d)));
    assert!(off < bound, "gradient: {off}");
}

#[test]
fn query_gates_match_the_reference() {
    let mut numbers = Numbers::new(38);
    for (queries, key_values, dim) in [(3, 2, 5), (1, 2, 16), (4, 4, 33)] {
        let heads = GatedHeads {
            queries,
            key_values,
            dim,
        };
        let x: Tensor<2> = numbers.tensor([7, heads.width()]);
        let attended: Tensor<3> = numbers.tensor([7, queries, dim]);
        let [d_heads, d_gated] =
            [queries + key_values, queries].map(|h| numbers.tensor([7, h, dim]));
        let results =
            |without: fn(Tensor<2>, GatedHeads) -> Tensor<3>,
             gated: fn(Tensor<3>, Tensor<2>, GatedHeads) -> Tensor<3>| {
                let (x, attended) = (leaf(&x), leaf(&attended));
                let apart = without(x.clone(), heads);
                let y = gated(attended.clone(), x.clone(), heads);
                let both = [values(&apart), values(&y)];
                let sum = apart.mul(d_heads.clone()).sum() + y.mul(d_gated.clone()).sum();
                let grads = sum.backward();
                let [dx, d_attended] = [gradient(&x, &grads), gradient(&attended, &grads)];
                let [apart, y] = both;
                [apart, y, dx, d_attended]
            };
        let ours = results(query_gate::without_gates, query_gate::gated);
        let expected = results(
            query_gate::reference::without_gates,
            query_gate::reference::gated,
        );
        for (i, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
            assert_near(&format!("{heads:?} {i}"), ours, expected);
        }
    }
}
