//! Gradients of the references against finite differences, all in f64: shows that the references of
//! the fused operations are correct.

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};
use tooltune_kernels::attention::{self, Causality, Documents};
use tooltune_kernels::dense::{self, InputTransform};
use tooltune_kernels::lora_linear::{self, LinearExtras};
use tooltune_kernels::{
    AdapterLayout, AdapterPart, ComputeDtype, DeltaHeads, DeltaInputs, Dropout, FrozenWeight,
    GatedNorm, RopeTable, StackedAdapter, StackedLinear, Supervision, causal_conv, gated_delta,
    gated_norm, layer_norm, linear_cross_entropy, rms_norm, rope, swiglu,
};

use crate::bounds::Quantity;
use crate::support::Numbers;

fn doubles<const D: usize>(numbers: &mut Numbers, shape: [usize; D]) -> Tensor<D> {
    let values: Vec<f64> = (0..shape.iter().product())
        .map(|_| numbers.below(1 << 30) as f64 / (1 << 29) as f64 - 1.0)
        .collect();
    Tensor::from_data(
        TensorData::new(values, shape),
        (&Device::flex(), DType::F64),
    )
}

fn dot<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> f64 {
    let product = a.mul(b).into_data();
    product.iter::<f64>().sum()
}

/// Compares `⟨gradient, direction⟩` with the central difference along random directions.
fn check<const D: usize, const E: usize>(
    numbers: &mut Numbers,
    name: &str,
    x: Tensor<D>,
    f: &dyn Fn(Tensor<D>) -> Tensor<E>,
) {
    const STEP: f64 = 1e-5;
    let tracked = Tensor::from_inner(x.clone()).require_grad();
    let y = f(tracked.clone());
    assert_eq!(y.dtype(), DType::F64, "{name}");
    let dy = doubles(numbers, y.dims());
    let grads = y.mul(Tensor::from_inner(dy.clone())).sum().backward();
    let gradient = tracked.grad(&grads).expect("a leaf");
    for _ in 0..4 {
        let direction = doubles(numbers, x.dims());
        let value_at = |step: f64| {
            dot(
                f(x.clone().add(direction.clone().mul_scalar(step))),
                dy.clone(),
            )
        };
        let difference = (value_at(STEP) - value_at(-STEP)) / (2.0 * STEP);
        let expected = dot(gradient.clone(), direction.clone());
        let scale = dot(gradient.clone(), gradient.clone()).sqrt().max(1e-3);
        assert!(
            (difference - expected).abs() < Quantity::Slope.bound_in(DType::F64) * scale,
            "{name}: {difference} against {expected}"
        );
    }
}

#[test]
fn rms_norm_gradients_match_finite_differences() {
    let mut numbers = Numbers::new(61);
    for shape in [[1, 1], [1, 7], [5, 33]] {
        let (x, weight) = (
            doubles(&mut numbers, shape),
            doubles(&mut numbers, [shape[1]]),
        );
        check(&mut numbers, &format!("{shape:?}"), x, &|x| {
            rms_norm::reference::rms_norm(x, &weight, 1e-3, DType::F64)
        });
    }
}

#[test]
fn layer_norm_gradients_match_finite_differences() {
    let mut numbers = Numbers::new(70);
    for shape in [[1, 3], [1, 7], [5, 33]] {
        let x = doubles(&mut numbers, shape);
        let [weight, bias] = [0, 1].map(|_| doubles(&mut numbers, [shape[1]]));
        let norm = |x, weight: &Tensor<1>, bias: &Tensor<1>| {
            layer_norm::reference::layer_norm(x, weight, bias, 1e-3)
        };
        let name = format!("{shape:?}");
        let like_x = |x: Tensor<2>, tensor: &Tensor<1>| {
            if x.is_autodiff() {
                Tensor::from_inner(tensor.clone())
            } else {
                tensor.clone()
            }
        };
        check(&mut numbers, &name, x.clone(), &|x| {
            let (weight, bias) = (like_x(x.clone(), &weight), like_x(x.clone(), &bias));
            norm(x, &weight, &bias)
        });
        check(&mut numbers, &name, weight.clone(), &|weight| {
            let x = if weight.is_autodiff() {
                Tensor::from_inner(x.clone())
            } else {
                x.clone()
            };
            let bias = like_x(x.clone(), &bias);
            norm(x, &weight, &bias)
        });
        check(&mut numbers, &name, bias.clone(), &|bias| {
            let x = if bias.is_autodiff() {
                Tensor::from_inner(x.clone())
            } else {
                x.clone()
            };
            let weight = like_x(x.clone(), &weight);
            norm(x, &weight, &bias)
        });
    }
}

#[test]
fn trained_linear_gradients_match_finite_differences() {
    let mut numbers = Numbers::new(71);
    let (x, weight) = (doubles(&mut numbers, [5, 7]), doubles(&mut numbers, [3, 7]));
    let bias = doubles(&mut numbers, [3]);
    for transform in [InputTransform::Plain, InputTransform::Gelu] {
        let layer = |x: Tensor<2>, weight: Tensor<2>, bias: Tensor<1>| {
            dense::reference::dense(x, &weight, &bias, None, transform, DType::F64)
        };
        let name = format!("{transform:?}");
        let [tracked_x, tracked_w] = [&x, &weight].map(|t| Tensor::from_inner(t.clone()));
        let tracked_b = Tensor::from_inner(bias.clone());
        check(&mut numbers, &name, x.clone(), &|x| {
            if x.is_autodiff() {
                layer(x, tracked_w.clone(), tracked_b.clone())
            } else {
                layer(x, weight.clone(), bias.clone())
            }
        });
        check(&mut numbers, &name, weight.clone(), &|w| {
            if w.is_autodiff() {
                layer(tracked_x.clone(), w, tracked_b.clone())
            } else {
                layer(x.clone(), w, bias.clone())
            }
        });
        check(&mut numbers, &name, bias.clone(), &|b| {
            if b.is_autodiff() {
                layer(tracked_x.clone(), tracked_w.clone(), b)
            } else {
                layer(x.clone(), weight.clone(), b)
            }
        });
    }
}

#[test]
fn rope_gradients_match_finite_differences() {
    let mut numbers = Numbers::new(62);
    for ([n, heads, c], turned) in [([1, 1, 2], 1), ([5, 6, 10], 4)] {
        let positions: Vec<u32> = (0..n).map(|i| 7 * i as u32 + 3).collect();
        let frequencies: Vec<f64> = (0..c / 2).map(|i| 0.3f64.powi(i as i32)).collect();
        let table = RopeTable::new(&positions, &frequencies, 1.5, &Device::flex());
        let x = doubles(&mut numbers, [n, heads, c]);
        check(&mut numbers, &format!("{n} {heads} {c}"), x, &|x| {
            rope::reference::rope(x, &table, turned)
        });
    }
}

#[test]
fn swiglu_gradients_match_finite_differences() {
    let mut numbers = Numbers::new(63);
    for [n, f] in [[1, 1], [4, 17]] {
        let gate_up = doubles(&mut numbers, [n, 2 * f]).mul_scalar(4.0);
        check(
            &mut numbers,
            &format!("{n} {f}"),
            gate_up,
            &swiglu::reference::swiglu,
        );
    }
}

#[test]
fn causal_conv_gradients_match_finite_differences() {
    let mut numbers = Numbers::new(72);
    // Documents shorter than the convolution, an empty one, and padding.
    let documents = Documents::new(&[0, 1, 3, 3, 12], 14);
    for (channels, k) in [(1, 1), (5, 4), (3, 20)] {
        let weight = doubles(&mut numbers, [channels, k]);
        let x = doubles(&mut numbers, [14, channels]);
        check(&mut numbers, &format!("{channels} {k}"), x, &|x| {
            causal_conv::reference::causal_conv(x, &weight, &documents)
        });
    }
}

/// With respect to the heads and to the gate.
#[test]
fn gated_norm_gradients_match_finite_differences() {
    let mut numbers = Numbers::new(73);
    for [n, heads, c] in [[1, 1, 1], [4, 3, 7]] {
        let norm = GatedNorm {
            weight: doubles(&mut numbers, [c]),
            eps: 1e-3,
        };
        let x = doubles(&mut numbers, [n, heads, c]);
        let gate = doubles(&mut numbers, [n, heads * c]).mul_scalar(4.0);
        let name = format!("{n} {heads} {c}");
        check(&mut numbers, &name, x.clone(), &|x| {
            gated_norm::reference::gated_norm(x, gate.clone(), &norm)
        });
        check(&mut numbers, &name, gate.clone(), &|gate| {
            gated_norm::reference::gated_norm(x.clone(), gate, &norm)
        });
    }
}

/// With respect to queries, keys and values, decay and beta; by single tokens and by chunks.
#[test]
fn gated_delta_gradients_match_finite_differences() {
    let mut numbers = Numbers::new(74);
    let heads = DeltaHeads {
        key_heads: 1,
        value_heads: 2,
        key_dim: 3,
        value_dim: 5,
    };
    let documents = Documents::new(&[0, 2, 72, 80], 82);
    let inputs = DeltaInputs {
        qkv: doubles(&mut numbers, [82, heads.width()]),
        log_decay: doubles(&mut numbers, [82, 2]).sub_scalar(1.0),
        beta: doubles(&mut numbers, [82, 2])
            .mul_scalar(0.4)
            .add_scalar(0.5),
    };
    for path in [
        gated_delta::reference::gated_delta,
        gated_delta::chunked::gated_delta_states,
    ] {
        let outputs = |inputs: DeltaInputs| path(inputs, heads, &documents).0;
        check(&mut numbers, "qkv", inputs.qkv.clone(), &|qkv| {
            outputs(DeltaInputs {
                qkv,
                ..inputs.clone()
            })
        });
        check(&mut numbers, "decay", inputs.log_decay.clone(), &|d| {
            outputs(DeltaInputs {
                log_decay: d,
                ..inputs.clone()
            })
        });
        check(&mut numbers, "share", inputs.beta.clone(), &|beta| {
            outputs(DeltaInputs {
                beta,
                ..inputs.clone()
            })
        });
    }
}

/// The input transformation of [`lora_linear`].
#[derive(Debug, Clone, Copy, PartialEq)]
enum InputKind {
    Plain,
    Normed,
    Gated,
}

/// Stacked layers with adapters, dropout, bias and residual; with respect to the input, factors and
/// residual.
#[test]
fn lora_linear_gradients_match_finite_differences() {
    let mut numbers = Numbers::new(65);
    for (n, inputs, outputs, ranks) in [(1, 1, [1, 1], [1, 1]), (5, 9, [7, 4], [3, 0])] {
        for kind in [InputKind::Plain, InputKind::Normed, InputKind::Gated] {
            check_lora_linear(&mut numbers, [n, inputs], (outputs, ranks), kind);
        }
    }
}

fn check_lora_linear(
    numbers: &mut Numbers,
    [n, inputs]: [usize; 2],
    (outputs, ranks): ([usize; 2], [usize; 2]),
    read: InputKind,
) {
    let device = Device::flex();
    let total = outputs.iter().sum();
    let part = |rank| (rank > 0).then_some(AdapterPart { rank, scaling: 1.5 });
    let layout = Arc::new(AdapterLayout::new(inputs, &outputs, &ranks.map(part)));
    let width = if read == InputKind::Gated {
        2 * inputs
    } else {
        inputs
    };
    let x = doubles(numbers, [n, width]);
    let norm = doubles(numbers, [inputs]);
    let factors = doubles(numbers, [layout.len()]);
    let values = numbers.floats(total * inputs);
    let layer = StackedLinear {
        weight: FrozenWeight::new(values, [total, inputs], ComputeDtype::F32, &device),
        bias: Some(numbers.tensor([total]).to_device(&device)),
        out_features: outputs.into(),
        adapter: None,
    };
    let residual = doubles(numbers, [n, total]);
    let apply = |x: Tensor<2>, factors: Tensor<1>, residual: Tensor<2>| {
        let layer = StackedLinear {
            adapter: Some(StackedAdapter::new(factors, layout.clone())),
            ..layer.clone()
        };
        let threshold = 20_000;
        let extras = LinearExtras {
            unread: false,
            shared_gradient: None,
            residual: Some(residual),
            dropout: vec![
                Some(Dropout {
                    state: 3,
                    threshold,
                }),
                None,
            ],
            transform: match read {
                InputKind::Plain => lora_linear::InputTransform::Plain,
                InputKind::Gated => lora_linear::InputTransform::Gated,
                InputKind::Normed => lora_linear::InputTransform::Normed {
                    weight: Box::new(norm.clone()),
                    eps: 1e-3,
                },
            },
        };
        lora_linear::reference::lora_linear(x, &layer, extras)
    };
    let name = format!("{n} rows, {outputs:?} of {inputs}, {read:?}");
    check(numbers, &name, x.clone(), &|x| {
        apply(x, factors.clone(), residual.clone())
    });
    check(numbers, &name, factors.clone(), &|f| {
        apply(x.clone(), f, residual.clone())
    });
    check(numbers, &name, residual.clone(), &|residual| {
        apply(x.clone(), factors.clone(), residual)
    });
}

#[test]
fn linear_cross_entropy_gradients_match_finite_differences() {
    let mut numbers = Numbers::new(66);
    for [m, v, d] in [[1, 2, 1], [6, 19, 5]] {
        let targets: Vec<u32> = (0..m).map(|_| numbers.below(v) as u32).collect();
        let weights: Vec<f32> = (0..m).map(|i| 0.5 + i as f32).collect();
        let supervision = Supervision::new(&targets, &weights);
        let hidden = doubles(&mut numbers, [m, d]);
        let head = doubles(&mut numbers, [v, d]);
        check(&mut numbers, &format!("{m} {v} {d}"), hidden, &|hidden| {
            linear_cross_entropy::reference::linear_cross_entropy(hidden, &head, &supervision)
        });
    }
}

#[test]
fn attention_gradients_match_finite_differences() {
    let mut numbers = Numbers::new(64);
    for causality in [Causality::Causal, Causality::Bidirectional] {
        // The last two are the heads of Llama 3 and of Qwen2-0.5B.
        for [h, g, c] in [[1, 1, 1], [4, 2, 6], [9, 3, 4], [32, 8, 2], [14, 2, 2]] {
            let documents = Documents::new(&[0, 1, 8, 8, 21], 23);
            let qkv = doubles(&mut numbers, [23, h + 2 * g, c]);
            let name = format!("{h} {g} {c} {causality:?}");
            check(&mut numbers, &name, qkv, &|qkv| {
                attention::reference::attention(qkv, h, &documents, causality)
            });
        }
    }
}
