//! The gated delta rule against single tokens.

use burn::tensor::Tensor;
use tooltune_kernels::gated_delta::{gated_delta_states, reference};
use tooltune_kernels::{DeltaHeads, DeltaInputs, Documents};

use super::{TestBackend, assert_near, difference, gradient, gradients, leaf, on_cpu, values};
use crate::bounds::Quantity;
use crate::numbers::Numbers;

/// The numbers of key heads and value heads, and their sizes.
pub(crate) const fn heads([key_heads, value_heads]: [usize; 2], dims: [usize; 2]) -> DeltaHeads {
    DeltaHeads {
        key_heads,
        value_heads,
        key_dim: dims[0],
        value_dim: dims[1],
    }
}

fn map(inputs: &DeltaInputs, f: impl Fn(&Tensor<2>) -> Tensor<2>) -> DeltaInputs {
    DeltaInputs {
        qkv: f(&inputs.qkv),
        log_decay: f(&inputs.log_decay),
        beta: f(&inputs.beta),
    }
}

fn all_gradients(leaves: &DeltaInputs, read: Tensor<3>, d: &Tensor<3>) -> [Vec<f32>; 3] {
    let grads = gradients(read, d);
    [&leaves.qkv, &leaves.log_decay, &leaves.beta].map(|leaf| gradient(leaf, &grads))
}

/// Compares values and all gradients of an implementation with the reference; gradients within the
/// bound of `quantity`.
pub(crate) fn rule(
    backend: &TestBackend,
    quantity: Quantity,
    implementation: fn(DeltaInputs, DeltaHeads, &Documents) -> Tensor<3>,
    heads: &[DeltaHeads],
    borders: &[&[usize]],
) {
    let mut numbers = Numbers::new(31);
    for &heads in heads {
        for &borders in borders {
            let n = borders[borders.len() - 1] + 3;
            let documents = Documents::new(borders, n);
            let inputs = numbers.delta_inputs(n, heads);
            let d = numbers.cpu_tensor([n, heads.value_heads, heads.value_dim]);
            let ours = map(&inputs, |x| leaf(&backend.place(x)));
            let expected = map(&inputs, |x| leaf(&on_cpu(x)));
            let output = implementation(ours.clone(), heads, &documents);
            let (plain, _) = reference::gated_delta(expected.clone(), heads, &documents);
            let name = format!("{heads:?} {borders:?}");
            assert_near(&name, &values(&output), &values(&plain));
            let grads = all_gradients(&ours, output, &backend.place(&d));
            let expected_grads = all_gradients(&expected, plain, &d);
            for (i, (grads, expected_grads)) in grads.iter().zip(&expected_grads).enumerate() {
                let off = difference(grads, expected_grads);
                let bound = quantity.bound();
                assert!(off < bound, "{name}, gradient {i}: {off}");
            }
        }
    }
}

/// Compares the outputs and the states after each document with the reference.
pub(crate) fn states(backend: &TestBackend, heads: &[DeltaHeads], borders: &[&[usize]]) {
    let mut numbers = Numbers::new(32);
    for &heads in heads {
        for &borders in borders {
            let n = borders[borders.len() - 1];
            let documents = Documents::new(borders, n);
            let inputs = numbers.delta_inputs(n, heads);
            let ours = map(&inputs, |x| backend.place(x));
            let (read, states) = gated_delta_states(ours, heads, &documents);
            let (plain, expected) = reference::gated_delta(map(&inputs, on_cpu), heads, &documents);
            let name = format!("{heads:?} {borders:?}");
            assert_near(
                &format!("{name}, states"),
                &values(&states),
                &values(&expected),
            );
            assert_near(&format!("{name}, read"), &values(&read), &values(&plain));
        }
    }
}
