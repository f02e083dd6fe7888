//! Speed of linear maps and of the loss on the CPU, fused and reference in turns, by CPU time of the process.
//!
//! `RAYON_NUM_THREADS=1 cargo run --release -p tooltune-kernels --example cpu_ops` prints the best
//! of several runs of each, at the sizes of SmolLM2-135M with 1,024 tokens in one document.

use burn::tensor::{Device, Distribution, Tensor};
use tooltune_kernels::linear_cross_entropy::{linear_cross_entropy, reference as loss_reference};
use tooltune_kernels::lora_linear;
use tooltune_kernels::{LoraFactors, Supervision};

const N: usize = 1024;
const ROUNDS: usize = 7;

fn main() {
    println!(
        "{:44}{:>12}{:>12}{:>8}",
        "operation", "fused", "reference", "ratio"
    );
    linear_layers();
    head();
}

fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex())
}

/// Floating-point operations of a run.
enum Work {
    Flops(usize),
}

fn linear_layers() {
    for (rows, inputs, outputs) in [
        (N, 576, 576),
        (N, 576, 192),
        (N, 576, 1536),
        (N, 1536, 576),
        (1, 576, 1536),
        (8, 576, 1536),
    ] {
        let (x, weight) = (random([rows, inputs]), random([outputs, inputs]));
        let adapter = LoraFactors {
            a: random([8, inputs]),
            b: random([outputs, 8]),
            scaling: 2.0,
        };
        let flops = 2 * rows * (inputs * outputs + 8 * (inputs + outputs));
        compare(
            &format!("lora_linear {rows}x{inputs}x{outputs}"),
            Work::Flops(flops),
            &|| lora_linear::lora_linear(x.clone(), &weight, None, Some((&adapter, None))),
            &|| {
                lora_linear::reference::lora_linear(
                    x.clone(),
                    &weight,
                    None,
                    Some((&adapter, None)),
                )
            },
        );
        if rows == N {
            let run = |forward: &dyn Fn(Tensor<2>, &LoraFactors) -> Tensor<2>| {
                let tracked = Tensor::from_inner(x.clone()).require_grad();
                let leaf = |t: &Tensor<2>| Tensor::from_inner(t.clone()).require_grad();
                let factors = LoraFactors {
                    a: leaf(&adapter.a),
                    b: leaf(&adapter.b),
                    scaling: 2.0,
                };
                let y = forward(tracked.clone(), &factors);
                let found = y.sum().backward();
                tracked.grad(&found).expect("a leaf")
            };
            compare(
                &format!("lora_linear {rows}x{inputs}x{outputs}, both ways"),
                Work::Flops(2 * flops + 4 * rows * 8 * (inputs + outputs)),
                &|| run(&|x, f| lora_linear::lora_linear(x, &weight, None, Some((f, None)))),
                &|| {
                    run(&|x, f| {
                        lora_linear::reference::lora_linear(x, &weight, None, Some((f, None)))
                    })
                },
            );
        }
    }
}

fn head() {
    let (rows, vocab, d) = (256, 49152, 576);
    let (hidden, head) = (random([rows, d]), random([vocab, d]));
    let targets: Vec<u32> = (0..rows as u32).map(|i| i * 97 % vocab as u32).collect();
    let by = Supervision::new(&targets, &vec![1.0; rows]);
    compare(
        "linear_cross_entropy 256x576x49152",
        Work::Flops(4 * rows * vocab * d),
        &|| linear_cross_entropy(hidden.clone(), &head, &by, 1.0, 128).d_hidden,
        &|| {
            let hidden = Tensor::from_inner(hidden.clone()).require_grad();
            let loss = loss_reference::linear_cross_entropy(hidden.clone(), &head, &by);
            hidden.grad(&loss.backward()).expect("a leaf")
        },
    );
}

/// Runs both in turns and prints the best of each.
fn compare<const D: usize>(
    name: &str,
    work: Work,
    fused: &dyn Fn() -> Tensor<D>,
    reference: &dyn Fn() -> Tensor<D>,
) {
    let mut best = [f64::INFINITY; 2];
    for _ in 0..ROUNDS {
        for (best, run) in best.iter_mut().zip([fused, reference]) {
            let start = cpu_seconds();
            let result = run();
            *best = best.min(cpu_seconds() - start);
            drop(result);
        }
    }
    let rate = |seconds: f64| match work {
        Work::Flops(n) => format!("{:.0} GF/s", n as f64 / seconds * 1e-9),
    };
    println!(
        "{name:44}{:>12}{:>12}{:>8.1}",
        rate(best[0]),
        rate(best[1]),
        best[1] / best[0]
    );
}

/// CPU time of all threads so far.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one `timespec`, which lives on this stack.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
