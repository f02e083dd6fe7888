//! The gated delta rule with its GPU kernel for the walk over chunks, against single tokens on the
//! CPU.

use burn::tensor::Tensor;
use tooltune_kernels::gated_delta::{self, gated_delta_states};
use tooltune_kernels::gated_delta_net::gated_delta_net;
use tooltune_kernels::{DeltaHeads, DeltaInputs, Documents, GatedDeltaNet, GatedNorm};

use crate::support::{Numbers, assert_both_near, assert_near, differentiate, on_device, values};

/// Heads that do and do not fill a cube, and value heads that share keys.
const HEADS: [DeltaHeads; 3] = [
    DeltaHeads {
        key_heads: 2,
        value_heads: 4,
        key_dim: 24,
        value_dim: 16,
    },
    DeltaHeads {
        key_heads: 1,
        value_heads: 1,
        key_dim: 6,
        value_dim: 40,
    },
    DeltaHeads {
        key_heads: 1,
        value_heads: 2,
        key_dim: 128,
        value_dim: 128,
    },
];

/// Lengths below, equal to and above one or two chunks; documents with different numbers of chunks,
/// and padding after the last one.
const BORDERS: [&[usize]; 3] = [&[0, 5], &[0, 64, 192, 200], &[0, 1, 130, 133, 263]];

/// The operation as a function of one of its inputs; the others are fixed.
type OfOne = fn(Tensor<2>, DeltaInputs) -> DeltaInputs;

#[test]
fn outputs_and_gradients_match_single_tokens() {
    let mut numbers = Numbers::new(41);
    for heads in HEADS {
        for borders in BORDERS {
            let n = borders[borders.len() - 1] + 3;
            let documents = Documents::new(borders, n);
            let all = numbers.delta_inputs(n, heads);
            let dy = numbers.tensor([n, heads.value_heads, heads.value_dim]);
            let cases: [(&str, &Tensor<2>, OfOne); 3] = [
                ("qkv", &all.qkv, |qkv, cases| DeltaInputs { qkv, ..cases }),
                ("decay", &all.log_decay, |log_decay, cases| DeltaInputs {
                    log_decay,
                    ..cases
                }),
                ("beta", &all.beta, |beta, cases| DeltaInputs {
                    beta,
                    ..cases
                }),
            ];
            for (name, x, with) in cases {
                let fixed = |place: fn(&Tensor<2>) -> Tensor<2>| DeltaInputs {
                    qkv: Tensor::from_inner(place(&all.qkv)),
                    log_decay: Tensor::from_inner(place(&all.log_decay)),
                    beta: Tensor::from_inner(place(&all.beta)),
                };
                let ours = differentiate(&on_device(x), &on_device(&dy), |x| {
                    gated_delta::gated_delta(with(x, fixed(on_device)), heads, &documents)
                });
                let expected = differentiate(x, &dy, |x| {
                    let inputs = with(x, fixed(Tensor::clone));
                    gated_delta::reference::gated_delta(inputs, heads, &documents).0
                });
                assert_both_near(&format!("{heads:?} {borders:?} {name}"), &ours, &expected);
            }
        }
    }
}

#[test]
fn states_match_single_tokens() {
    let mut numbers = Numbers::new(42);
    for heads in HEADS {
        for borders in BORDERS {
            let n = borders[borders.len() - 1];
            let documents = Documents::new(borders, n);
            let all = numbers.delta_inputs(n, heads);
            let ours = DeltaInputs {
                qkv: on_device(&all.qkv),
                log_decay: on_device(&all.log_decay),
                beta: on_device(&all.beta),
            };
            let (read, states) = gated_delta_states(ours, heads, &documents);
            let (plain, expected) = gated_delta::reference::gated_delta(all, heads, &documents);
            let name = format!("{heads:?} {borders:?}");
            assert_near(&name, &values(read), &values(plain));
            assert_near(&name, &values(states), &values(expected));
        }
    }
}

#[test]
fn a_layer_and_its_gradient_match_the_cpu() {
    let mut numbers = Numbers::new(43);
    let (heads, borders) = (HEADS[0], BORDERS[2]);
    let n = borders[borders.len() - 1] + 3;
    let documents = Documents::new(borders, n);
    let head_values = [1, heads.value_heads];
    let [conv, rate, step_bias] = [
        numbers.tensor([heads.width(), 4]),
        numbers.tensor(head_values).sub_scalar(1.1),
        numbers.tensor(head_values),
    ];
    let weight = numbers.tensor([heads.value_dim]);
    let net = |place: fn(&Tensor<2>) -> Tensor<2>, weight: Tensor<1>| GatedDeltaNet {
        heads,
        conv: Tensor::from_inner(place(&conv)),
        rate: Tensor::from_inner(place(&rate)),
        step_bias: Tensor::from_inner(place(&step_bias)),
        norm: GatedNorm {
            weight: Tensor::from_inner(weight),
            eps: 1e-6,
        },
    };
    let x = numbers.tensor([n, heads.columns().iter().sum()]);
    let dy = numbers.tensor([n, heads.value_heads, heads.value_dim]);
    let on_gpu = net(on_device, on_device(&weight));
    let ours = differentiate(&on_device(&x), &on_device(&dy), |x| {
        gated_delta_net(x, &on_gpu, &documents)
    });
    let on_cpu = net(Tensor::clone, weight);
    let expected = differentiate(&x, &dy, |x| gated_delta_net(x, &on_cpu, &documents));
    assert_both_near("layer", &ours, &expected);
}
