//! Parts of a training step through the public functions: stacked layers, the loss, AdamW.

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};
use tooltune_kernels::attention::{Causality, Documents, attention};
use tooltune_kernels::backward_with_gradient::backward_with_gradient;
use tooltune_kernels::embedding::embedding;
use tooltune_kernels::linear_cross_entropy::{linear_cross_entropy, linear_cross_entropy_loss};
use tooltune_kernels::lora_linear::{
    AdapterLayout, AdapterPart, InputTransform, LinearExtras, StackedAdapter, StackedLinear,
    lora_linear,
};
#[cfg(feature = "cuda")]
use tooltune_kernels::lora_linear::{FlatGradient, SharedGradient};
use tooltune_kernels::rms_norm::rms_norm;
use tooltune_kernels::rope::{RopeTable, rope};
use tooltune_kernels::select_rows::select_rows;
use tooltune_kernels::{
    AdamW, AdamWState, ComputeDtype, Dropout, FrozenWeight, Supervision, adamw,
};

use crate::bounds::Quantity;
use crate::support::{Numbers, assert_near, assert_near_in, device, leaf, values};

fn devices() -> [Device; 2] {
    [device(), Device::flex()]
}

fn placed<const D: usize>(x: &Tensor<D>, device: &Device) -> Tensor<D> {
    x.clone().to_device(device)
}

fn frozen(weight: &Tensor<2>, device: &Device) -> FrozenWeight {
    frozen_in(ComputeDtype::F32, weight, device)
}

fn frozen_in(compute: ComputeDtype, weight: &Tensor<2>, device: &Device) -> FrozenWeight {
    FrozenWeight::new(values(weight.clone()), weight.dims(), compute, device)
}

/// Layers with a common input, and the optional arguments. Layers with a rank are adapted.
struct Stack<'a> {
    n: usize,
    inputs: usize,
    outputs: &'a [usize],
    ranks: &'a [usize],
    dropped: bool,
    added: bool,
    transform: &'a str,
}

impl Stack<'_> {
    /// Compares both devices' values and gradients of the input, the factors and the residual, if
    /// there is one.
    fn assert_near(&self, numbers: &mut Numbers, compute: ComputeDtype) {
        let &Self {
            n,
            inputs,
            outputs,
            dropped,
            added,
            transform,
            ..
        } = self;
        let total: usize = outputs.iter().sum();
        let width = if transform == "gated" {
            2 * inputs
        } else {
            inputs
        };
        let part = |&rank: &usize| (rank > 0).then_some(AdapterPart { rank, scaling: 1.5 });
        let parts: Vec<_> = self.ranks.iter().map(part).collect();
        let layout = Arc::new(AdapterLayout::new(inputs, outputs, &parts));
        let [x, weight] = [[n, width], [total, inputs]].map(|shape| numbers.tensor(shape));
        let [residual, dy] = [0; 2].map(|_| numbers.tensor([n, total]));
        let [bias, norm] = [total, inputs].map(|size| numbers.tensor([size]));
        let factors = numbers.tensor([layout.len()]);
        let dropout = |layer: u64| {
            Some(Dropout {
                state: 7 + (layer << 40),
                threshold: 20_000,
            })
        };
        let [ours, expected] = devices().map(|device| {
            // A norm reads the f32 residual stream.
            let input_dtype = match transform {
                "normed" => DType::F32,
                _ => compute.dtype(),
            };
            let x = leaf(&placed(&x, &device).cast(input_dtype));
            let residual = leaf(&placed(&residual, &device));
            let factors = leaf(&placed(&factors, &device));
            let linear = StackedLinear {
                weight: frozen_in(compute, &weight, &device),
                bias: Some(placed(&bias, &device)),
                out_features: outputs.into(),
                adapter: Some(StackedAdapter::new(factors.clone(), layout.clone())),
            };
            let extras = LinearExtras {
                transform: match transform {
                    "normed" => InputTransform::Normed {
                        weight: Box::new(placed(&norm, &device)),
                        eps: 1e-5,
                    },
                    "gated" => InputTransform::Gated,
                    _ => InputTransform::Plain,
                },
                residual: added.then(|| residual.clone()),
                dropout: if dropped {
                    (0..outputs.len() as u64).map(dropout).collect()
                } else {
                    Vec::new()
                },
                ..LinearExtras::default()
            };
            let y = lora_linear(x.clone(), &linear, extras);
            let dy = placed(&dy, &device).cast(y.dtype());
            let grads = backward_with_gradient(y.clone(), dy);
            let mut results = vec![
                ("y", values(y.inner())),
                ("dx", values(x.grad(&grads).unwrap())),
                ("factors", values(factors.grad(&grads).unwrap())),
            ];
            if added {
                results.push(("residual", values(residual.grad(&grads).unwrap())));
            }
            results
        });
        for ((name, ours), (_, expected)) in ours.iter().zip(&expected) {
            let name = format!("{n} rows, {transform}, dropped {dropped}, {name}");
            assert_near_in(&name, compute.dtype(), ours, expected);
        }
    }
}

#[test]
fn stacked_layers_and_their_gradients_match_the_cpu() {
    let mut numbers = Numbers::new(21);
    for (n, inputs, outputs, ranks, dropped, transform) in [
        (1, 1, [1].as_slice(), [1].as_slice(), false, "plain"),
        (5, 12, &[8, 3, 5], &[2, 0, 3], false, "plain"),
        (7, 33, &[10, 6], &[4, 1], true, "plain"),
        (6, 16, &[9, 9], &[2, 2], true, "normed"),
        (6, 16, &[9], &[2], false, "gated"),
    ] {
        let stack = Stack {
            n,
            inputs,
            outputs,
            ranks,
            dropped,
            added: true,
            transform,
        };
        stack.assert_near(&mut numbers, ComputeDtype::F32);
    }
}

/// On tensor cores the low-rank products are one launch for all adapters of a stack. Covers ranks
/// that are not multiples of a fragment, layers without an adapter, and sizes that are not multiples
/// of a tile.
#[cfg(feature = "cuda")]
#[test]
fn bf16_stacked_layers_and_their_gradients_match_the_cpu() {
    let mut numbers = Numbers::new(22);
    let (three, ranks) = ([72, 16, 40].as_slice(), [8, 0, 24].as_slice());
    for (n, inputs, outputs, ranks, dropped, added, transform) in [
        (150, 136, three, ranks, true, false, "normed"),
        (130, 64, &[144], &[40], true, true, "gated"),
        (135, 264, &[48, 48, 32], &[64, 64, 64], false, true, "plain"),
        (4100, 72, &[40], &[8], true, false, "plain"),
        // Computed as separate products: few rows, and ranks that are not multiples of a vector.
        (5, 136, three, ranks, true, false, "normed"),
        (150, 24, &[16, 12], &[4, 8], true, false, "plain"),
    ] {
        let stack = Stack {
            n,
            inputs,
            outputs,
            ranks,
            dropped,
            added,
            transform,
        };
        stack.assert_near(&mut numbers, ComputeDtype::Bf16);
    }
}

/// A stack that reads the norm of a residual stream, and a later one that adds to the stream.
#[cfg(feature = "cuda")]
#[test]
fn a_shared_gradient_equals_the_sum_by_autodiff() {
    let mut numbers = Numbers::new(24);
    // Enough rows that the adding kernels of the low-rank products are used.
    let (n, d, f) = (140, 64, 40);
    let [x, dy] = [0; 2].map(|_| numbers.tensor([n, d]));
    let norm = numbers.tensor([d]);
    let stacks = [(d, f), (f, d)].map(|(inputs, outputs)| {
        let part = Some(AdapterPart {
            rank: 8,
            scaling: 0.5,
        });
        let layout = Arc::new(AdapterLayout::new(inputs, &[outputs], &[part]));
        let factors = numbers.tensor([layout.len()]);
        (numbers.tensor([outputs, inputs]), layout, factors)
    });
    let [ours, expected] = devices().map(|device| {
        let [read, adds] = stacks
            .each_ref()
            .map(|(weight, layout, factors)| StackedLinear {
                weight: frozen_in(ComputeDtype::Bf16, weight, &device),
                bias: None,
                out_features: [weight.dims()[0]].into(),
                adapter: Some(StackedAdapter::new(
                    placed(factors, &device),
                    layout.clone(),
                )),
            });
        let both = [None, Some(SharedGradient::default())].map(|shared| {
            let x = leaf(&placed(&x, &device));
            let extras = LinearExtras {
                transform: InputTransform::Normed {
                    weight: Box::new(placed(&norm, &device)),
                    eps: 1e-5,
                },
                shared_gradient: shared.clone(),
                ..LinearExtras::default()
            };
            let y = lora_linear(x.clone(), &read, extras);
            let extras = LinearExtras {
                residual: Some(x.clone()),
                shared_gradient: shared,
                ..LinearExtras::default()
            };
            let y = lora_linear(y, &adds, extras);
            let grads = backward_with_gradient(y, placed(&dy, &device));
            values(x.grad(&grads).unwrap())
        });
        assert!(both[0] == both[1], "{device:?}");
        let [_, shared] = both;
        shared
    });
    assert_near_in("dx", DType::BF16, &ours, &expected);
}

/// Covers gradients written to their destination, a stack with separate products, factors that are
/// used twice, and an unaligned destination.
#[cfg(feature = "cuda")]
#[test]
fn gradients_written_to_the_flat_buffer_equal_copied_ones() {
    let mut numbers = Numbers::new(25);
    let (n, d) = (140, 64);
    let [x, weight] = [[n, d], [d, d]].map(|shape| numbers.tensor(shape));
    let dy = numbers.tensor([n, d]);
    let stacks = [(8, 1), (4, 1), (8, 2), (8, 1), (1, 1), (16, 1)].map(|(rank, times)| {
        let part = Some(AdapterPart { rank, scaling: 0.5 });
        let layout = Arc::new(AdapterLayout::new(d, &[d], &[part]));
        // Twelve elements, so that the next destination is not aligned.
        let gap = if rank == 1 { 12 } else { 0 };
        (layout.clone(), numbers.tensor([layout.len()]), times, gap)
    });
    let device = device();
    let all = stacks.iter().map(|(layout, _, _, gap)| layout.len() + gap);
    let all: usize = all.sum();
    let both = [false, true].map(|in_place| {
        let flat = FlatGradient::new(all);
        let mut start = 0;
        let mut parts = Vec::new();
        for (layout, factors, times, gap) in &stacks {
            let factors = leaf(&placed(factors, &device));
            let mut adapter = StackedAdapter::new(factors.clone(), layout.clone());
            if in_place {
                adapter = adapter.with_gradient_in(&flat, start);
            }
            let linear = StackedLinear {
                weight: frozen_in(ComputeDtype::Bf16, &weight, &device),
                bias: None,
                out_features: [d].into(),
                adapter: Some(adapter),
            };
            let mut y = leaf(&placed(&x, &device).cast(DType::BF16));
            for _ in 0..*times {
                y = lora_linear(y, &linear, LinearExtras::default());
            }
            let grads = backward_with_gradient(y, placed(&dy, &device).cast(DType::BF16));
            parts.push(factors.grad(&grads).unwrap());
            if *gap > 0 {
                parts.push(Tensor::ones([*gap], &device));
            }
            start += layout.len() + gap;
        }
        values(flat.concatenate(parts))
    });
    assert!(both[0] == both[1]);
    assert!(both[0].iter().any(|&value| value != 0.0));
}

/// On a GPU each thread has its own stream; reading another stream's buffers must wait for them.
#[test]
fn work_queued_by_another_thread_finishes_first() {
    let mut numbers = Numbers::new(31);
    let (n, inputs, outputs) = (4, 24, 16);
    let part = AdapterPart {
        rank: 3,
        scaling: 1.5,
    };
    let layout = Arc::new(AdapterLayout::new(inputs, &[outputs], &[Some(part)]));
    let (x, weight) = (
        numbers.tensor([n, inputs]),
        numbers.tensor([outputs, inputs]),
    );
    let factors = numbers.tensor([layout.len()]);
    let [ours, expected] = devices().map(|device| {
        let prepare = || {
            let linear = StackedLinear {
                weight: frozen(&weight, &device),
                bias: None,
                out_features: [outputs].into(),
                // Still in that thread's queue when it ends.
                adapter: Some(StackedAdapter::new(
                    placed(&factors, &device).mul_scalar(2.0),
                    layout.clone(),
                )),
            };
            (placed(&x, &device).mul_scalar(3.0), linear)
        };
        let prepare = std::thread::scope(|scope| scope.spawn(prepare).join());
        let (x, linear) = prepare.expect("the other thread does not panic");
        values(lora_linear(x, &linear, LinearExtras::default()))
    });
    assert_near("y", &ours, &expected);
}

#[test]
fn embedding_matches_the_cpu() {
    let mut numbers = Numbers::new(22);
    let table = numbers.tensor([11, 6]);
    let [ours, expected] =
        devices().map(|device| values(embedding(&frozen(&table, &device), &[3, 0, 10, 3])));
    assert_eq!(ours, expected);
}

#[test]
fn the_loss_and_its_gradient_match_the_cpu() {
    let mut numbers = Numbers::new(23);
    for [m, v, d] in [[1, 1, 1], [5, 30, 8], [9, 257, 12]] {
        let (hidden, head) = (numbers.tensor([m, d]), numbers.tensor([v, d]));
        let targets: Vec<u32> = (0..m).map(|_| numbers.below(v) as u32).collect();
        let weights: Vec<f32> = (0..m).map(|i| 0.5 + i as f32).collect();
        let supervision = Supervision::new(&targets, &weights);
        for chunk_rows in [2, 100] {
            let [ours, expected] = devices().map(|device| {
                let (hidden, head) = (placed(&hidden, &device), frozen(&head, &device));
                let alone =
                    linear_cross_entropy_loss(hidden.clone(), &head, &supervision, chunk_rows);
                let losses = linear_cross_entropy(hidden, &head, &supervision, 0.25, chunk_rows);
                let off = (alone - losses.loss_sum).abs() / alone.abs().max(1e-2);
                assert!(off <= Quantity::Operation.bound(), "{off}");
                (losses.loss_sum as f32, values(losses.d_hidden))
            });
            let name = format!("{m} rows of {v}, chunks of {chunk_rows}");
            assert_near(&name, &[ours.0], &[expected.0]);
            assert_near(&name, &ours.1, &expected.1);
        }
    }
}

#[test]
fn updates_match_the_cpu_and_leave_shared_tensors_unchanged() {
    let mut numbers = Numbers::new(24);
    let optimizer = AdamW {
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.1,
    };
    for n in [1, 7, 1001] {
        let (start, gradient) = (numbers.tensor([n]), numbers.tensor([n]));
        let [ours, expected] = devices().map(|device| {
            let (start, gradient) = (placed(&start, &device), placed(&gradient, &device));
            let shared = start.clone().narrow(0, 0, n);
            let mut state = AdamWState::new(&start);
            let first = state.clone();
            let mut parameters = start.clone();
            for _ in 0..3 {
                parameters = optimizer.update(parameters, gradient.clone(), &mut state, 1e-2);
            }
            assert_eq!(values(shared), values(start));
            assert!(values(first.first_moment).iter().all(|m| *m == 0.0));
            let norm = adamw::global_norm(&gradient) as f32;
            [
                values(parameters),
                values(state.first_moment),
                values(state.second_moment),
                vec![norm],
            ]
        });
        for (ours, expected) in ours.iter().zip(&expected) {
            assert_near(&format!("{n} parameters"), ours, expected);
        }
    }
}

/// A decoder block with adapters in its four stacks, in the order of a training step, with plain
/// Burn operations before, between and after ours: queued work must run in order.
#[derive(Debug)]
struct Block {
    layers: [(FrozenWeight, Arc<[usize]>, Arc<AdapterLayout>); 4],
    norm: Tensor<1>,
    table: RopeTable,
    head: FrozenWeight,
}

/// Query and key heads, head size, width of the feed-forward block, vocabulary.
const H: usize = 4;
const G: usize = 2;
const C: usize = 6;
const F: usize = 20;
const V: usize = 33;
const D: usize = H * C;

impl Block {
    fn new(numbers: &mut Numbers, device: &Device, n: usize) -> Self {
        let stacks = [
            (D, vec![H * C, G * C, G * C]),
            (D, vec![D]),
            (D, vec![F, F]),
            (F, vec![D]),
        ];
        let layers = stacks.map(|(inputs, outputs)| {
            let parts = vec![
                Some(AdapterPart {
                    rank: 3,
                    scaling: 0.5
                });
                outputs.len()
            ];
            let weight = numbers
                .tensor([outputs.iter().sum(), inputs])
                .mul_scalar(0.3);
            let layout = AdapterLayout::new(inputs, &outputs, &parts);
            (frozen(&weight, device), outputs.into(), Arc::new(layout))
        });
        let positions: Vec<u32> = (0..n as u32).collect();
        Self {
            layers,
            norm: placed(&numbers.tensor([D]).add_scalar(2.0), device),
            table: RopeTable::new(&positions, &[1.0, 0.1, 0.01], 1.0, device),
            head: frozen(&numbers.tensor([V, D]), device),
        }
    }

    fn parameters(&self) -> usize {
        self.layers.iter().map(|(_, _, layout)| layout.len()).sum()
    }

    fn layer(
        &self,
        index: usize,
        x: Tensor<2>,
        factors: &Tensor<1>,
        transform: InputTransform,
        residual: Option<Tensor<2>>,
    ) -> Tensor<2> {
        let (weight, out_features, layout) = &self.layers[index];
        let start = self.layers[..index]
            .iter()
            .map(|(_, _, layout)| layout.len())
            .sum();
        let own = factors.clone().narrow(0, start, layout.len());
        let linear = StackedLinear {
            weight: weight.clone(),
            bias: None,
            out_features: out_features.clone(),
            adapter: Some(StackedAdapter::new(own, layout.clone())),
        };
        let extras = LinearExtras {
            transform,
            residual,
            ..LinearExtras::default()
        };
        lora_linear(x, &linear, extras)
    }

    fn normed(&self) -> InputTransform {
        InputTransform::Normed {
            weight: Box::new(self.norm.clone()),
            eps: 1e-5,
        }
    }

    /// The residual stream after the block.
    fn forward(&self, ids: &[u32], documents: &Documents, factors: &Tensor<1>) -> Tensor<2> {
        let x = Tensor::from_inner(embedding(&self.head, ids)).mul_scalar(0.7);
        let qkv = self.layer(0, x.clone(), factors, self.normed(), None);
        let qkv = qkv.reshape([ids.len(), H + 2 * G, C]).add_scalar(0.1);
        let qkv = rope(qkv, &self.table, H + G);
        let mixed = attention(qkv, H, documents, Causality::Causal).reshape([ids.len(), D]);
        let x = self
            .layer(1, mixed, factors, InputTransform::Plain, Some(x))
            .mul_scalar(1.1);
        let gate_up = self.layer(2, x.clone(), factors, self.normed(), None);
        self.layer(3, gate_up, factors, InputTransform::Gated, Some(x))
            .add_scalar(-0.1)
    }

    /// The loss, the gradient norm and the factors after one update.
    fn step(
        &self,
        (ids, documents, supervision): (&[u32], &Documents, &Supervision),
        optimizer: &AdamW,
        (factors, state): (Tensor<1>, &mut AdamWState),
    ) -> (f64, f64, Tensor<1>) {
        let trained = leaf(&factors);
        let hidden = self.forward(ids, documents, &trained);
        let rows = select_rows(hidden, &supervision.row_numbers());
        let last = rms_norm(rows, &self.norm, 1e-5, DType::F32);
        let losses = linear_cross_entropy(last.clone().inner(), &self.head, supervision, 0.1, 3);
        let gradients = backward_with_gradient(last, losses.d_hidden);
        let gradient = trained.grad(&gradients).unwrap();
        let norm = adamw::global_norm(&gradient);
        let gradient = gradient.mul_scalar(adamw::clip_factor(norm, 0.5));
        (
            losses.loss_sum,
            norm,
            optimizer.update(factors, gradient, state, 1e-2),
        )
    }
}

#[test]
fn three_steps_of_a_block_match_the_cpu() {
    let ids: Vec<u32> = (0..23).map(|i| i * 7 % V as u32).collect();
    let documents = Documents::new(&[0, 5, 6, 21], ids.len());
    let weights: Vec<f32> = (0..ids.len()).map(|i| [0.0, 1.0, 0.5][i % 3]).collect();
    let supervision = Supervision::new(&ids, &weights);
    let optimizer = AdamW {
        beta1: 0.9,
        beta2: 0.999,
        // Large, so that rounding of a gradient does not determine the sign of the first update.
        eps: 1e-2,
        weight_decay: 0.1,
    };
    let [ours, expected] = devices().map(|device| {
        let mut numbers = Numbers::new(25);
        let block = Block::new(&mut numbers, &device, ids.len());
        let mut factors = placed(&numbers.tensor([block.parameters()]), &device);
        let mut state = AdamWState::new(&factors);
        let mut history = Vec::new();
        for _ in 0..3 {
            let rows = (&ids[..], &documents, &supervision);
            let (loss, norm, next) = block.step(rows, &optimizer, (factors, &mut state));
            history.push([loss as f32, norm as f32]);
            factors = next;
        }
        (history.concat(), values(factors))
    });
    assert_near("losses and norms", &ours.0, &expected.0);
    assert_near("factors", &ours.1, &expected.1);
    let losses: Vec<f32> = ours.0.into_iter().step_by(2).collect();
    assert!(losses[2] < losses[0], "{losses:?}");
}
